// The half of the service that remembers: what goes into the journal and comes out of it.
#include "store/server/service.h"

namespace tensorbus::store {

void Service::open_journal(const std::string& path) {
  journal_.emplace(path, [this](const JournalRecord& record) { replay(record); });
  std::size_t live = 0;
  snapshot([&](const JournalRecord& record) { live += Journal::size_of(record); });
  journal_->set_live_size(live);
  if (journal_->wants_compaction()) compact();
  // The time of the replay does not count for leases, however long it took.
  look_at_clock(Duration::zero());
}

void Service::replay(const JournalRecord& record) {
  // Leases restart with their full time, however long the journal is: the clock of the former
  // process means nothing here.
  const TimePoint start = lease_clock_.last();
  const bool barrier = record.op == Op::barrier;
  std::string reply = barrier || record.op == Op::finished
                          ? std::string(record.body)
                          : engine_.execute(record.op, record.body, start);
  if (record.session.empty()) return;
  const auto kind = barrier ? Sessions::Kind::barrier : Sessions::Kind::change;
  sessions_.settle(record.session, kind, record.settled);
  sessions_.remember(record.session, kind, record.id, std::move(reply), start);
}

void Service::commit() {
  counters_.keys.set(engine_.table().records().size());
  counters_.waits.set(engine_.blocked());
  counters_.revision.set(engine_.table().revision());
  if (!journal_) return;
  journal_->flush();
  if (journal_->wants_compaction()) compact();
}

void Service::snapshot(const std::function<void(const JournalRecord&)>& write) const {
  engine_.snapshot([&](Op op, std::string_view body) { write({op, {}, 0, 0, body}); });
  sessions_.for_each([&](std::string_view session, Sessions::Kind kind, std::uint64_t id,
                         const std::string& reply) {
    const bool barrier = kind == Sessions::Kind::barrier;
    write({barrier ? Op::barrier : Op::finished, session, id, 0, reply});
  });
}

void Service::compact() {
  journal_->compact(
      [this] { snapshot([this](const JournalRecord& record) { journal_->append(record); }); });
}

}  // namespace tensorbus::store
