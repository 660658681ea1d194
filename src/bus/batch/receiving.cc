#include "bus/batch/receiving.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace tensorbus::bus {

void Receiving::replace_memory() {
  if (reader_ == nullptr) return;
  reader_->replace(self_.loan, course_.targets());
}

std::optional<Outcome> Receiving::step(Queued& recv) {
  if (reader_ == nullptr) return std::nullopt;
  const bool closing = self_.membership.closing();
  const auto there =
      self_.versioned() && !closing && running() == nullptr ? offered() : std::nullopt;
  if (there) {
    const std::int64_t version = there->highest.second;
    if (there->lowest.second != version) {
      reader_->pass_over(Mark::skipped);
      return refuse(*there, fmt::format("sender rank {} sends version {} while rank {} sends "
                                        "version {}; all send the same versions in the same order",
                                        there->lowest.first, there->lowest.second,
                                        there->highest.first, version));
    }
    if (recv.version && version < *recv.version) {
      // As good as read: the senders need not keep it for this reader.
      reader_->pass_over(Mark::read);
      return std::nullopt;
    }
    if (recv.version && version > *recv.version) {
      return refuse(*there, fmt::format("version {} was asked for, and the senders are at version "
                                        "{}; nothing was read",
                                        *recv.version, version));
    }
  }
  reader_->step(!closing);
  if (running() == nullptr) return std::nullopt;
  running()->step();
  if (recv.telling.has_come(self_.context.now)) {
    self_.context.channel.progress(recv.id, running()->bytes_done(), running()->bytes_total());
    running()->tell_sources();
  }
  if (!running()->done() || running()->unexplained()) return std::nullopt;
  self_.context.at(Step::received);
  const Outcome& outcome = running()->outcome();
  if (self_.versioned() && outcome.status.ok()) self_.moved_version = outcome.version;
  return outcome;
}

std::optional<Receiving::Offered> Receiving::offered() const {
  const auto versions = reader_->offered_versions();
  if (!versions || versions->empty()) return std::nullopt;
  const auto by_version = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto [low, high] = std::minmax_element(versions->begin(), versions->end(), by_version);
  return Offered{*low, *high};
}

Outcome Receiving::refuse(const Offered& offered, std::string why) const {
  Outcome outcome;
  outcome.status = {Code::failed, fmt::format("batch \"{}\": {}", self_.key.batch, why)};
  outcome.version = offered.highest.second;
  return outcome;
}

void Receiving::finish() {
  if (running() != nullptr) reader_->finish_recv();
}

void Receiving::rest(bool taken) {
  if (reader_ == nullptr) return;
  reader_->step(false);
  if (!taken && running() != nullptr && running()->done()) reader_->finish_recv();
  // The senders are gone, perhaps with all that know their last version.
  if (std::exchange(was_started_, started()) && !started() && !self_.membership.closing() &&
      self_.moved_version != self_.shown_version) {
    self_.show_version();
  }
}

bool Receiving::ask_versions() const {
  return started() && group() != nullptr && reader_->ask_versions(first_source(*group()));
}

std::string Receiving::waits_for() const {
  if (!started()) {
    return "the senders, whom this rank has not joined" +
           (reader_ == nullptr || reader_->trouble().empty() ? "" : ": " + reader_->trouble());
  }
  if (running() != nullptr) return "bytes that are still being read";
  return fmt::format("sender rank {}, which has not offered the round",
                     fmt::join(reader_->awaited(), ", "));
}

std::vector<Rank> Receiving::awaited() const {
  return started() && running() == nullptr ? reader_->awaited() : std::vector<Rank>{};
}

std::optional<BeingRead> Receiving::being_read() const {
  return running() == nullptr ? std::nullopt : running()->being_read();
}

TimePoint Receiving::wake_at() const {
  TimePoint at = TimePoint::max();
  if (running() != nullptr && running()->unexplained()) {
    at = std::min(at, running()->explained_by());
  }
  if (reader_ != nullptr && reader_->idle() && !self_.membership.closing()) {
    at = std::min(at, reader_->retry_at());
  }
  return at;
}

}  // namespace tensorbus::bus
