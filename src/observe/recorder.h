// What one part of a process counts: an agent, an endpoint, a node of push-pull. The thread of the
// part writes, without locks; any thread reads.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "observe/counter.h"
#include "observe/histogram.h"
#include "observe/metrics.h"
#include "observe/span_ring.h"
#include "tensorbus/status.h"

namespace tensorbus::observe {

inline constexpr std::size_t codes = static_cast<std::size_t>(Code::withdrawn) + 1;

class Recorder {
 public:
  // Registered with the process, and so on its pages, until its end. `labels` tell it from others.
  explicit Recorder(Labels labels);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Work is under way: from now on all outcomes that it may have are shown, if only as 0. What
  // watches their growth would miss the first of a series that began with it.
  void begin(Work work) noexcept { begun_[static_cast<std::size_t>(work)].set(1); }
  // The work of the span is over: the span is counted and kept.
  void finish(const Span& span) noexcept {
    count(span);
    keep(span);
  }
  // For those who are waited for: the first before, the second after they have said that the
  // work is over.
  void count(const Span& span) noexcept;
  void keep(const Span& span) noexcept { spans_.push(span); }
  // "mapped", "packed", "network", ...; a path that is not known counts as "other".
  void add_bytes(std::string_view path, std::int64_t bytes) noexcept;
  void lose_peer(Code why) noexcept { peers_lost_[static_cast<std::size_t>(why)].add(); }
  // After a registration, or when others have changed theirs: no span of its own.
  void add_planning(Duration took) noexcept;

  Counter commands;         // under way now
  Counter pull_retries;     // a version was recycled while it was read
  Counter slots_withdrawn;  // from readers that held them for too long
  Counter store_losses;     // the store could not be reached for a while
  Counter newest_version;   // that was published or read
  Counter shelf_bytes;      // of the pool, for versions that are published

  const Labels& labels() const noexcept { return labels_; }
  const SpanRing& spans() const noexcept { return spans_; }
  void collect(Families& families) const;

 private:
  static constexpr std::array<std::string_view, 6> paths{
      "mapped", "process_vm_readv", "packed", "network", "alias", "other"};

  Labels with(std::string_view name, std::string_view value) const;
  void collect_work(Families& families, Work work) const;

  const Labels labels_;
  SpanRing spans_;
  std::array<Counter, paths.size()> bytes_;
  std::array<Counter, codes> peers_lost_;
  std::array<Counter, work_kinds> begun_;  // 0 or 1
  std::array<std::array<Counter, codes>, work_kinds> ended_;
  std::array<std::array<Counter, phases>, work_kinds> phase_ns_;
  std::array<Counter, work_kinds> work_bytes_;
  std::array<Histogram, work_kinds> durations_;
};

}  // namespace tensorbus::observe
