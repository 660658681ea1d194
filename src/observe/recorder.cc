#include "observe/recorder.h"

#include <algorithm>

#include "observe/registry.h"

namespace tensorbus::observe {
namespace {

constexpr std::array second_bounds{0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.01,
                                   0.05,    0.1,     0.5,    1.0,    5.0,   10.0,  60.0};

std::uint64_t count_of(std::int64_t number) noexcept {
  return number < 0 ? 0 : static_cast<std::uint64_t>(number);
}

double value_of(const Counter& counter) { return static_cast<double>(counter.value()); }

}  // namespace

Recorder::Recorder(Labels labels) : labels_(std::move(labels)) { registry().enter(*this); }

Recorder::~Recorder() { registry().leave(*this); }

void Recorder::count(const Span& span) noexcept {
  const auto work = static_cast<std::size_t>(span.work);
  ended_[work][static_cast<std::size_t>(span.code)].add();
  durations_[work].record(Duration(span.end - span.begin));
  for (std::size_t phase = 0; phase < phases; ++phase) {
    if (span.phase_ns[phase] > 0) phase_ns_[work][phase].add(count_of(span.phase_ns[phase]));
  }
  if (span.code == Code::ok) {
    work_bytes_[work].add(count_of(span.bytes));
    if (span.version > 0) newest_version.set(count_of(span.version));
  }
}

void Recorder::add_bytes(std::string_view path, std::int64_t bytes) noexcept {
  const auto found = std::ranges::find(paths, path);
  const auto at =
      std::min<std::size_t>(static_cast<std::size_t>(found - paths.begin()), paths.size() - 1);
  bytes_[at].add(count_of(bytes));
}

void Recorder::add_planning(Duration took) noexcept {
  constexpr auto work = static_cast<std::size_t>(Work::registration);
  phase_ns_[work][static_cast<std::size_t>(Phase::plan)].add(count_of(took.count()));
}

Labels Recorder::with(std::string_view name, std::string_view value) const {
  Labels labels = labels_;
  labels.emplace_back(name, value);
  return labels;
}

void Recorder::collect(Families& families) const {
  const auto total = [&](std::string_view name, std::string_view help, const Counter& counter) {
    families.add(MetricKind::counter, name, help, labels_, value_of(counter));
  };
  const auto gauge = [&](std::string_view name, std::string_view help, const Counter& counter) {
    families.add(MetricKind::gauge, name, help, labels_, value_of(counter));
  };
  gauge("tensorbus_commands", "Commands that are under way.", commands);
  gauge("tensorbus_version", "Version that was published, sent or read last.", newest_version);
  total("tensorbus_pull_retries", "Pulls that began again: their version was recycled.",
        pull_retries);
  total("tensorbus_slots_withdrawn", "Slots of shelves that were taken from slow readers.",
        slots_withdrawn);
  total("tensorbus_store_losses", "How often the store could not be reached.", store_losses);
  if (shelf_bytes.value() > 0) {
    families.add(MetricKind::gauge, "tensorbus_pool_bytes", "Memory of the pool that peers map.",
                 with("state", "shelf"), value_of(shelf_bytes));
  }
  for (std::size_t at = 0; at < paths.size(); ++at) {
    if (bytes_[at].value() == 0) continue;
    families.add(MetricKind::counter, "tensorbus_read_bytes", "Bytes read, by their way.",
                 with("path", paths[at]), value_of(bytes_[at]));
  }
  for (std::size_t code = 0; code < codes; ++code) {
    const bool usual = static_cast<Code>(code) == Code::peer_lost;
    if (peers_lost_[code].value() == 0 && !usual) continue;
    families.add(MetricKind::counter, "tensorbus_peers_lost", "Connections to peers that ended.",
                 with("cause", to_string(static_cast<Code>(code))), value_of(peers_lost_[code]));
  }
  for (std::size_t work = 0; work < work_kinds; ++work) {
    collect_work(families, static_cast<Work>(work));
  }
}

void Recorder::collect_work(Families& families, Work work) const {
  const auto at = static_cast<std::size_t>(work);
  if (begun_[at].value() == 0 && durations_[at].count() == 0) return;
  const Labels labels = with("operation", to_string(work));
  const auto labelled = [&](std::string_view name, std::string_view value) {
    Labels more = labels;
    more.emplace_back(name, value);
    return more;
  };
  families.add("tensorbus_operation_seconds", "How long operations took.", labels,
               durations_[at].distribution(second_bounds));
  families.add(MetricKind::counter, "tensorbus_operation_bytes",
               "Bytes of operations that succeeded.", labels, value_of(work_bytes_[at]));
  for (std::size_t code = 0; code < codes; ++code) {
    families.add(MetricKind::counter, "tensorbus_operations", "Operations that have ended.",
                 labelled("outcome", to_string(static_cast<Code>(code))),
                 value_of(ended_[at][code]));
  }
  for (std::size_t phase = 0; phase < phases; ++phase) {
    if (phase_ns_[at][phase].value() == 0) continue;
    families.add(MetricKind::counter, "tensorbus_phase_seconds", "Time spent in each phase.",
                 labelled("phase", to_string(static_cast<Phase>(phase))),
                 value_of(phase_ns_[at][phase]) / 1e9);
  }
}

}  // namespace tensorbus::observe
