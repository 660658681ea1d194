#include "bus/match/fitting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "base/refuse.h"
#include "bus/match/pair_plans.h"
#include "bus/match/problems.h"

namespace tensorbus::bus {
namespace {

using tensorbus::to_string;
using SideTensorList = std::vector<SideTensor>;

std::string hint_of_shapes(const SideTensor& a, const std::string& a_side, const SideTensor& b,
                           const std::string& b_side) {
  if (!a.plain && !b.plain) return "";
  const std::string& where = a.plain && b.plain ? "" : (a.plain ? a_side : b_side);
  return fmt::format(
      ": a plain tensor is taken as the whole; if {} a shard, pass tensorbus.Part "
      "or a DTensor",
      where.empty() ? "one of them is" : fmt::format("that of \"{}\" is", where));
}

// What two tensors of one name say of each other.
void compare(const SideTensor& a, const std::string& a_side, const SideTensor& b,
             const std::string& b_side, Problems& problems) {
  if (a.shape != b.shape) {
    problems.add(Cause::shape, fmt::format("{} has the shape {} at \"{}\" and {} at \"{}\"{}",
                                           a.label, to_string(a.shape), a_side, to_string(b.shape),
                                           b_side, hint_of_shapes(a, a_side, b, b_side)));
  } else if (!castable(a.dtype, b.dtype)) {
    problems.add(Cause::type,
                 fmt::format("{}: {} at \"{}\" and {} at \"{}\" do not convert into each other",
                             a.label, to_string(a.dtype), a_side, to_string(b.dtype), b_side));
  } else if (a.has_partial() && b.has_partial()) {
    problems.add(Cause::partial, fmt::format("{} has Partial placements on both sides", a.label));
  }
}

// Calls both(a, b) for names that both have, else one of the others; all are in the order of names.
template <typename Both, typename Only>
void merge(const SideTensorList& one, const SideTensorList& other, Both both, Only only_one,
           Only only_other) {
  auto a = one.begin();
  auto b = other.begin();
  while (a != one.end() || b != other.end()) {
    if (b == other.end() || (a != one.end() && a->name < b->name)) {
      only_one(*a++);
    } else if (a == one.end() || b->name < a->name) {
      only_other(*b++);
    } else {
      both(*a++, *b++);
    }
  }
}

using OnlyHere = std::function<void(const SideTensor&)>;

OnlyHere tells_missing(Problems& problems, Cause cause, const std::string& where,
                       std::vector<std::string>* names = nullptr) {
  return [&problems, cause, &where, names](const SideTensor& tensor) {
    problems.add(cause, fmt::format("\"{}\" is missing at \"{}\"", tensor.name, where));
    if (names != nullptr) names->push_back(tensor.name);
  };
}

// "layers.0.attn.q_proj.weight" is "q_proj" of ("layers.0.attn.", ".weight").
struct Named {
  std::pair<std::string, std::string> rest;
  std::string itself;
};

Named parts_of(const std::string& name) {
  const std::size_t last = name.rfind('.');
  if (last == std::string::npos || last == 0) return {{"", ""}, name};
  const std::size_t before = name.rfind('.', last - 1);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  return {{name.substr(0, begin), name.substr(last)}, name.substr(begin, last - begin)};
}

// One name of a side stands where the other side has several: a fused parameter.
void add_hint_of_fusion(const std::vector<std::string>& sent, const std::vector<std::string>& taken,
                        Problems& problems) {
  using Siblings = std::pair<std::vector<std::string>, std::vector<std::string>>;
  std::map<std::pair<std::string, std::string>, Siblings> by_place;
  for (const std::string& name : sent) {
    const Named named = parts_of(name);
    by_place[named.rest].first.push_back(named.itself);
  }
  for (const std::string& name : taken) {
    const Named named = parts_of(name);
    by_place[named.rest].second.push_back(named.itself);
  }
  for (const auto& [place, siblings] : by_place) {
    if (place.second.empty()) continue;  // names without parts
    const auto& [there, here] = siblings;
    const bool fused =
        std::min(there.size(), here.size()) == 1 && std::max(there.size(), here.size()) > 1;
    if (!fused) continue;
    return problems.hint(
        fmt::format("{} missing and {} too much (of \"{}*{}\"): see "
                    "tensorbus.fused",
                    fmt::join(there, ", "), fmt::join(here, ", "), place.first, place.second));
  }
}

// "rows 500..511 of (512, 4096)", "[0..3, 8..15]" where it is no block of rows.
std::string describe(const plan::Box& box, const Shape& shape) {
  std::vector<std::string> dims;
  bool rows = true;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    dims.push_back(fmt::format("{}..{}", box.start[dim], box.start[dim] + box.shape[dim] - 1));
    if (dim > 0) rows = rows && box.shape[dim] == shape[dim];
  }
  if (dims.empty()) return "it";
  return rows ? "rows " + dims.front() : fmt::format("[{}]", fmt::join(dims, ", "));
}

class Gaps {
 public:
  Gaps(const Side& sender, const Side& taker, Problems& problems)
      : plans_(sender, &taker), ranks_(taker.ranks), problems_(problems) {}

  void look(const SideTensor& sent, const SideTensor& taken) {
    if (std::holds_alternative<Layout>(sent.spread)) return;
    const plan::Holdings* holdings = plans_.holdings(sent, taken.spread);
    for (const auto& [rank, box] : of(*holdings)) {
      problems_.add(
          Cause::not_held,
          fmt::format("{} of {} {}, which rank {} takes: nobody holds them",
                      describe(box, sent.shape), sent.label, to_string(sent.shape), rank));
    }
  }

 private:
  // Of every rank the first one.
  const std::map<Rank, plan::Box>& of(const plan::Holdings& holdings) {
    const auto [known, fresh] = known_.try_emplace(&holdings.data());
    if (!fresh) return known->second;
    for (const Rank rank : ranks_) {
      const std::vector<plan::Box> missing = holdings.missing(rank);
      if (!missing.empty()) known->second.emplace(rank, missing.front());
    }
    return known->second;
  }

  PairPlans plans_;
  const std::vector<Rank>& ranks_;
  Problems& problems_;
  std::map<const plan::Holdings::Data*, std::map<Rank, plan::Box>> known_;
};

}  // namespace

void check_alike(const End& one_end, const SideTensorList& one, const End& other_end,
                 const SideTensorList& other) {
  const std::string what = fmt::format("pair \"{}\"", one_end.pair);
  const bool named = (!one.empty() && !one.front().name.empty()) ||
                     (!other.empty() && !other.front().name.empty());
  if (!named && one.size() != other.size()) {
    refuse(fmt::format("{}: \"{}\" has registered {} tensors, \"{}\" {}", what, one_end.side,
                       one.size(), other_end.side, other.size()));
  }
  Problems problems;
  const auto both = [&](const SideTensor& a, const SideTensor& b) {
    compare(a, one_end.side, b, other_end.side, problems);
  };
  merge(one, other, both, tells_missing(problems, Cause::not_taken, other_end.side),
        tells_missing(problems, Cause::not_taken, one_end.side));
  problems.refuse_if_any(what);
}

void check_taken(const Side& sender, const SideTensors& sent, const Side& taker,
                 const SideTensors& taken) {
  Problems problems;
  Gaps gaps(sender, taker, problems);
  std::vector<std::string> only_sent;
  std::vector<std::string> only_taken;
  const auto both = [&](const SideTensor& a, const SideTensor& b) {
    compare(a, sender.end.side, b, taker.end.side, problems);
    if (a.shape == b.shape) gaps.look(a, b);
  };
  OnlyHere too_much = [](const SideTensor&) {};
  if (!taken.subset) {
    too_much = tells_missing(problems, Cause::not_taken, taker.end.side, &only_sent);
  }
  merge(sent.shared, taken.shared, both, too_much,
        tells_missing(problems, Cause::not_sent, sender.end.side, &only_taken));
  add_hint_of_fusion(only_sent, only_taken, problems);
  problems.refuse_if_any(fmt::format("pair \"{}\"", sender.end.pair));
}

}  // namespace tensorbus::bus
