// The text form of layouts, which the command line and messages use.
#include <algorithm>
#include <charconv>

#include "tensor/checked.h"
#include "tensorbus/layout.h"

namespace tensorbus {
namespace {

constexpr std::string_view grammar =
    "SHAPE:P,...[@ranks] with P = R, S<dim>, SS<dim>/<split factor> or P[.op]";

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw Error(Code::invalid_argument, "layout \"" + std::string(text) + "\": " + why +
                                          "; expected " + std::string(grammar));
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::optional<Placement> parse_placement(std::string_view text) {
  if (text == "R") return Replicate{};
  if (text.starts_with("P")) {
    if (text == "P") return Partial{};
    if (!text.starts_with("P.")) return std::nullopt;
    return Partial{parse_reduce_op(text.substr(2))};
  }
  if (text.starts_with("SS")) {
    const std::size_t slash = text.find('/');
    if (slash == std::string_view::npos) return std::nullopt;
    const auto dim = parse_integer(text.substr(2, slash - 2));
    const auto split_factor = parse_integer(text.substr(slash + 1));
    if (!dim || !split_factor) return std::nullopt;
    return StridedShard{*dim, *split_factor};
  }
  if (text.starts_with("S")) {
    const auto dim = parse_integer(text.substr(1));
    if (dim) return Shard{*dim};
  }
  return std::nullopt;
}

std::vector<Rank> parse_ranks(std::string_view text, std::string_view whole) {
  constexpr Rank most_ranks = Rank{1} << 24;
  std::vector<Rank> ranks;
  for (const std::string_view part : split(text, ',')) {
    const std::size_t dash = part.find('-');
    const auto first = parse_integer(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_integer(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last - *first >= most_ranks) {
      refuse(whole, "ranks \"" + std::string(part) + "\" are not a number or a range like 4-7");
    }
    for (Rank rank = *first; rank <= *last; ++rank) ranks.push_back(rank);
  }
  return ranks;
}

struct PlacementText {
  std::string operator()(const Replicate&) const { return "R"; }
  std::string operator()(const Shard& shard) const { return "S" + std::to_string(shard.dim); }
  std::string operator()(const StridedShard& strided) const {
    return "SS" + std::to_string(strided.dim) + "/" + std::to_string(strided.split_factor);
  }
  std::string operator()(const Partial& partial) const {
    return partial.op == ReduceOp::sum ? "P" : "P." + std::string(to_string(partial.op));
  }
};

// "8-11,3": ranges where ranks follow each other.
std::string ranks_text(const std::vector<Rank>& ranks) {
  std::string text;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ",";
    text += std::to_string(ranks[first]);
    if (last > first) text += "-" + std::to_string(ranks[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace

std::string to_string(const Placement& placement) { return std::visit(PlacementText{}, placement); }

Shape parse_shape(std::string_view text) {
  Shape shape;
  if (text.empty() || text == "scalar") return shape;
  for (const std::string_view part : split(text, 'x')) {
    const auto size = parse_integer(part);
    if (!size || *size < 0) {
      throw Error(Code::invalid_argument, "shape \"" + std::string(text) +
                                              "\" is not sizes with x between them, like 8192x512");
    }
    shape.push_back(*size);
  }
  return shape;
}

Layout parse_layout(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) refuse(text, "there is no \":\"");
  const std::size_t at = text.find('@');
  if (at != std::string_view::npos && at < colon) refuse(text, "\"@\" stands before \":\"");

  Shape shape = parse_shape(text.substr(0, colon));
  const std::string_view placement_text =
      text.substr(colon + 1, at == std::string_view::npos ? at : at - colon - 1);
  std::vector<Placement> placements;
  for (const std::string_view part : split(placement_text, ',')) {
    if (part.empty() && shape.empty()) continue;
    const auto placement = parse_placement(part);
    if (!placement) refuse(text, "\"" + std::string(part) + "\" is no placement");
    placements.push_back(*placement);
  }
  std::optional<std::vector<Rank>> ranks;
  if (at != std::string_view::npos) ranks = parse_ranks(text.substr(at + 1), text);
  return Layout(Mesh(std::move(shape), std::move(ranks)), std::move(placements));
}

std::string to_string(const Layout& layout) {
  std::string text;
  for (const std::int64_t size : layout.mesh().shape()) {
    if (!text.empty()) text += "x";
    text += std::to_string(size);
  }
  text += ":";
  for (std::size_t i = 0; i < layout.placements().size(); ++i) {
    if (i > 0) text += ",";
    text += to_string(layout.placements()[i]);
  }
  const Mesh counted(layout.mesh().shape());
  if (!(counted == layout.mesh())) text += "@" + ranks_text(layout.mesh().ranks());
  return text;
}

}  // namespace tensorbus
