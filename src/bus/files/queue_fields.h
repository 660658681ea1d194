// The fields of what a command queue's file holds.
#pragma once

#include "bus/channel/command_fields.h"
#include "bus/files/queue_journal.h"

namespace tensorbus::bus {

// Under the name of a semaphore.
inline constexpr wire::Title guarding_session{"session of a semaphore"};

constexpr wire::Title title_of(const QueueJournal::Session*) { return {"session"}; }
template <typename Archive>
void fields(Archive& a, QueueJournal::Session& session) {
  a("last_accepted", session.last_accepted);
  a("pid", session.pid);
  a("start_time", session.start_time);
}

}  // namespace tensorbus::bus
