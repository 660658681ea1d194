// Numbers as a page shows them: families of series, read off counters at one moment.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tensorbus::observe {

// Few and bounded: rank, path, outcome; never a tensor's name.
using Labels = std::vector<std::pair<std::string, std::string>>;

// Of a histogram: how many durations are at most as long as each bound.
struct Distribution {
  std::vector<std::pair<double, std::uint64_t>> buckets;  // seconds, ascending, and how many
  std::uint64_t count = 0;
  double sum = 0;
};

struct Sample {
  Labels labels;
  double value = 0;
  Distribution distribution{};  // of a histogram, instead of the value
};

enum class MetricKind : std::uint8_t { counter, gauge, histogram };

struct Family {
  MetricKind kind = MetricKind::counter;
  std::string help;
  std::vector<Sample> samples;
};

// By name, without the "_total" of counters.
class Families {
 public:
  void add(MetricKind kind, std::string_view name, std::string_view help, Labels labels,
           double value) {
    at(kind, name, help).samples.push_back({std::move(labels), value});
  }
  void add(std::string_view name, std::string_view help, Labels labels, Distribution distribution) {
    at(MetricKind::histogram, name, help)
        .samples.push_back({std::move(labels), 0, std::move(distribution)});
  }
  const std::map<std::string, Family>& all() const noexcept { return families_; }

 private:
  Family& at(MetricKind kind, std::string_view name, std::string_view help) {
    const auto [found, fresh] = families_.try_emplace(std::string(name));
    if (fresh) found->second = {kind, std::string(help), {}};
    return found->second;
  }

  std::map<std::string, Family> families_;
};

}  // namespace tensorbus::observe
