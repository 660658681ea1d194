#include "delta/policy/decision.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

namespace tensorbus::delta {
namespace {

constexpr double largest_share_of_dense = 0.9;
// A reader that gets all has to gain this much by a patch; a reader that gets patches goes on with
// patches only while these are sooner.
constexpr double gain_to_switch = 0.1;
constexpr double weight_of_new = 0.25;
constexpr int patience = 3;
constexpr std::int64_t first_pause = 16;
constexpr std::int64_t longest_pause = 1024;

struct Point {
  double share;
  double cost;
};

// Measured on one thread, float32 to bfloat16, positions anywhere. Only the shape of the curves
// counts: how this machine differs is learnt.
constexpr std::array<Point, 7> pack_costs = {
    {{0, 0.07}, {0.0001, 0.18}, {0.001, 0.37}, {0.01, 1.83}, {0.03, 1.83}, {0.1, 2.9}, {1, 2.9}}};
constexpr std::array<Point, 8> apply_costs = {{{0, 0.003},
                                               {0.0001, 0.023},
                                               {0.001, 0.074},
                                               {0.01, 0.51},
                                               {0.03, 0.92},
                                               {0.1, 1.07},
                                               {0.5, 1.37},
                                               {1, 1.37}}};

// Along straight lines between the points.
double on_curve(std::span<const Point> curve, double share) {
  share = std::clamp(share, 0.0, 1.0);
  std::size_t i = 1;
  while (curve[i].share < share) ++i;
  const Point& low = curve[i - 1];
  const Point& high = curve[i];
  const double part = (share - low.share) / (high.share - low.share);
  return std::lerp(low.cost, high.cost, part);
}

double wire_seconds(std::int64_t bytes, const Speeds& speeds) {
  return static_cast<double>(bytes) / speeds.link_rate;
}

double copies(const Offered& offered, const Speeds& speeds) {
  return static_cast<double>(offered.dense_bytes) * speeds.copy_seconds_per_byte;
}

}  // namespace

std::string_view to_string(Mode mode) noexcept {
  constexpr std::array<std::string_view, 3> names{"off", "auto", "always"};
  return names[static_cast<std::size_t>(mode)];
}

std::string_view to_string(Why why) noexcept {
  constexpr std::array<std::string_view, 11> names{
      "patch",      "switched off", "too large",   "dense is sooner", "no base", "no room",
      "no patches", "damaged",      "overwritten", "no answer",       "differs"};
  return names[static_cast<std::size_t>(why)];
}

double pack_cost(double changed_share) noexcept { return on_curve(pack_costs, changed_share); }

double apply_cost(double changed_share) noexcept { return on_curve(apply_costs, changed_share); }

// The reader copies while more arrives.
double dense_seconds(const Offered& offered, const Speeds& speeds) noexcept {
  return std::max(wire_seconds(offered.dense_bytes, speeds),
                  speeds.dense * copies(offered, speeds));
}

// The patch is made, read whole and checked, and applied then.
double patch_seconds(const Offered& offered, const Speeds& speeds) noexcept {
  const double work = speeds.pack * pack_cost(offered.changed_share) +
                      speeds.apply * apply_cost(offered.changed_share);
  return wire_seconds(offered.patch_bytes, speeds) + work * copies(offered, speeds);
}

Why decide(Mode mode, const Offered& offered, const Speeds& speeds, std::optional<Why> last) {
  if (mode == Mode::off) return Why::switched_off;
  if (mode == Mode::always) return Why::patch;
  const auto limit = largest_share_of_dense * static_cast<double>(offered.dense_bytes);
  if (static_cast<double>(offered.patch_bytes) > limit) return Why::too_large;
  const double enough = last && *last != Why::patch ? 1 - gain_to_switch : 1;
  const bool sooner = patch_seconds(offered, speeds) < enough * dense_seconds(offered, speeds);
  return sooner ? Why::patch : Why::dense_is_sooner;
}

double learnt(std::optional<double> before, double measured) noexcept {
  return before ? std::lerp(*before, measured, weight_of_new) : measured;
}

void Attention::learn(bool paid) noexcept {
  if (paid) {
    *this = {};
    return;
  }
  // One look after each pause; a pause is twice as long as the one before.
  if (++in_vain_ < patience) return;
  to_skip_ = std::clamp(2 * to_skip_, first_pause, longest_pause);
  skipped_ = 0;
}

}  // namespace tensorbus::delta
