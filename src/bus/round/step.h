// Steps of the protocol that have names: a test can ask what an agent did last, and hit it there.
#pragma once

#include <cstdint>
#include <string_view>

namespace tensorbus::bus {

enum class Step : std::uint8_t {
  started,           // the agent runs
  pairing,           // init_pair waits
  registering,       // register_tensors waits
  generation_begun,  // as a sender
  generation_ended,
  subscribing,  // as a reader
  joining,
  joined,       // its START is on the way
  subscribed,   // a source has taken a reader's subscription
  holding,      // a source has taken its JOIN
  releasing,    // a source has taken its START
  offered,      // a round is open
  revoked,      // a round was taken back
  conflicting,  // both are sending
  sent,         // a round is over, at its source
  reading,
  draining,
  committing,
  received,  // a recv is over
  skipping,
  slot_taken,     // a slot of a shelf is being filled
  published,      // a version is complete on a shelf
  pinning,        // a pull asks its sources to keep what they have
  patch_offered,  // a source has made a patch
  fetching,       // a reader reads patches
  applying,       // and writes their values
  voted,          // a rank has read what its side pulls together
  decided,        // the lowest rank has ended a pull of its side
  closing,
};
inline constexpr std::size_t step_count = static_cast<std::size_t>(Step::closing) + 1;

std::string_view to_string(Step step) noexcept;

}  // namespace tensorbus::bus
