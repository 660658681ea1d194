// Whether a reader gets a patch or all of a version: whatever has it there sooner. Pure; whoever
// measures passes in what was measured.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace tensorbus::delta {

enum class Mode : std::uint8_t { off, automatic, always };
constexpr Mode last_of(Mode) { return Mode::always; }
std::string_view to_string(Mode mode) noexcept;

enum class Why : std::uint8_t {
  patch,            // a patch is sooner, or was asked for
  switched_off,     // deltas are off
  too_large,        // a patch saves too few bytes to matter
  dense_is_sooner,  // as far as was measured
  no_base,          // nobody knows what has changed since what the reader holds
  no_room,          // for another patch
  no_patches,       // for such tensors: they are reduced, or only the fabric can write to them
  damaged,          // the patch was lost or changed on its way
  overwritten,      // somebody else has written to the reader's tensors
  no_answer,        // the sender stands still
  differs,          // what was patched was not what the sender has
};
constexpr Why last_of(Why) { return Why::differs; }
std::string_view to_string(Why why) noexcept;

// What a sender offers to one reader in one version.
struct Offered {
  std::int64_t dense_bytes = 0;  // of the reader's streams
  std::int64_t patch_bytes = 0;
  double changed_share = 0;  // values of the patch over elements of the streams
};

// What the machine was seen to do.
struct Speeds {
  double copy_seconds_per_byte = 1.0 / 10e9;  // of a plain copy
  // How a dense read and the two halves of a patch compare with what is expected: above 1 is slower
  // than that. Learnt.
  double dense = 1;
  double pack = 1;
  double apply = 1;
  // Bytes per second that reach this reader; infinite where the reader reads memory of its own
  // host.
  double link_rate = std::numeric_limits<double>::infinity();
};

// Times that one copy of all the bytes takes: making the patch, and applying it, for this share.
double pack_cost(double changed_share) noexcept;
double apply_cost(double changed_share) noexcept;

double dense_seconds(const Offered& offered, const Speeds& speeds) noexcept;
double patch_seconds(const Offered& offered, const Speeds& speeds) noexcept;

// `last` is what this reader got before: from dense reads to patches it goes only for a tenth.
Why decide(Mode mode, const Offered& offered, const Speeds& speeds, std::optional<Why> last);

// The new value of something measured again and again; the first takes the place of the guess.
double learnt(std::optional<double> before, double measured) noexcept;

// Whether versions are worth comparing. What changes everywhere, as float32 weights do, is left
// alone after three versions and tried again after 16, 32, 64, ... up to 1024.
class Attention {
 public:
  // Whether the version that comes next is compared.
  bool compares() const noexcept { return skipped_ >= to_skip_; }
  // The version came without being compared.
  void pass() noexcept { ++skipped_; }
  // The version was compared. `paid`: some reader was better off with a patch.
  void learn(bool paid) noexcept;

 private:
  int in_vain_ = 0;
  std::int64_t to_skip_ = 0;
  std::int64_t skipped_ = 0;
};

}  // namespace tensorbus::delta
