// What agents say to each other about a subscription. Words are the truth; these carry what words
// cannot, and wake whoever should look.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/overloaded.h"
#include "bus/directory/records.h"
#include "bus/round/word.h"
#include "delta/policy/decision.h"
#include "tensorbus/status.h"
#include "wire/field.h"

namespace tensorbus::bus {

// The streams of one joining are numbered serial + 1, serial + 2, ...
inline constexpr std::size_t most_streams = 0xFFFE;
constexpr std::uint64_t stream_number(std::uint64_t serial, std::int64_t position) {
  return serial + static_cast<std::uint64_t>(position) + 1;
}

// Messages are small, so that none waits for another.
inline constexpr std::size_t longest_reason_told = 16 * 1024;
// A word keeps 61 bits for it.
inline constexpr std::int64_t highest_round = (std::int64_t{1} << 60) - 1;

// From reader to source.
struct Subscribe {
  std::string batch;
  End group;
  Rank reader = 0;
  std::string side;  // the reader's registration
  std::uint64_t registration = 0;
  // The fingerprint of the plan that the reader made from the records; the source's must be equal.
  std::uint64_t fingerprint = 0;
  // Which of the reader's streams those from this source are, in their order.
  std::vector<std::int64_t> streams;
  std::int64_t version = 0;  // that the reader last read; 0: none
  bool promises = false;     // nobody else writes to the reader's tensors: it may get patches
  friend bool operator==(const Subscribe&, const Subscribe&) = default;
};
template <typename Archive>
void fields(Archive& a, Subscribe& m) {
  a("batch", m.batch);
  a("group", m.group);
  a.natural("reader", m.reader);
  a("side", m.side);
  a("registration", m.registration);
  a("fingerprint", m.fingerprint);
  a.list("streams", m.streams, most_streams);
  for (const std::int64_t stream : m.streams) {
    a.require(stream >= 0 && stream < static_cast<std::int64_t>(most_streams),
              "there is no such stream");
  }
  a("version", m.version);
  a("promises", m.promises);
}
struct Join {
  friend bool operator==(const Join&, const Join&) = default;
};
template <typename Archive>
void fields(Archive&, Join&) {}
struct Start {
  std::int64_t round = 0;
  friend bool operator==(const Start&, const Start&) = default;
};
template <typename Archive>
void fields(Archive& a, Start& m) {
  a.number("round", m.round, 0, highest_round);
}
struct Leave {
  friend bool operator==(const Leave&, const Leave&) = default;
};
template <typename Archive>
void fields(Archive&, Leave&) {}
// The reader has changed the word.
struct Look {
  std::int64_t round = 0;
  friend bool operator==(const Look&, const Look&) = default;
};
template <typename Archive>
void fields(Archive& a, Look& m) {
  a.number("round", m.round, 0, highest_round);
}
// How far the reader is; for whoever watches the sender, and now and then only.
struct Moved {
  std::int64_t round = 0;
  std::int64_t bytes = 0;  // read from this source
  friend bool operator==(const Moved&, const Moved&) = default;
};
template <typename Archive>
void fields(Archive& a, Moved& m) {
  a.number("round", m.round, 0, highest_round);
  a.natural("bytes", m.bytes);
}

constexpr Mark last_of(Mark) { return Mark::closed; }

// From source to reader.
struct Subscribed {
  Status status;
  std::uint64_t region = 0;
  std::uint32_t word = 0;
  friend bool operator==(const Subscribed&, const Subscribed&) = default;
};
template <typename Archive>
void fields(Archive& a, Subscribed& m) {
  a("code", m.status.code);
  a.message("message", m.status.message, longest_reason_told);
  a("region", m.region);
  a("word", m.word);
}
struct Joined {
  std::int64_t next = 0;  // the first round that counts for this reader
  friend bool operator==(const Joined&, const Joined&) = default;
};
template <typename Archive>
void fields(Archive& a, Joined& m) {
  a.number("next", m.next, 0, highest_round);
}
struct Offer {
  std::int64_t round = 0;
  std::uint64_t ticket = 0;  // the memory is lent while the sender's gate has not passed it
  std::int64_t version = 0;  // of the tensors, if the batch has versions
  friend bool operator==(const Offer&, const Offer&) = default;
};
template <typename Archive>
void fields(Archive& a, Offer& m) {
  a.number("round", m.round, 0, highest_round);
  a("ticket", m.ticket);
  a("version", m.version);
}
// Between two rounds: what the source offers from now on lies in this region.
struct Restaged {
  std::uint64_t region = 0;
  friend bool operator==(const Restaged&, const Restaged&) = default;
};
template <typename Archive>
void fields(Archive& a, Restaged& m) {
  a("region", m.region);
}
inline constexpr std::size_t most_sums = 4096;  // in one message
// Before the offer: checksums of what the reader gets from this source, from the `first` tensor on.
struct Sums {
  std::int64_t round = 0;
  std::size_t first = 0;
  std::vector<std::uint64_t> values;
  friend bool operator==(const Sums&, const Sums&) = default;
};
template <typename Archive>
void fields(Archive& a, Sums& m) {
  a.number("round", m.round, 0, highest_round);
  a.number("first", m.first, 0, UINT32_MAX);
  a.list("values", m.values, most_sums);
}
// The source has ended the round, or with `closed` the subscription.
struct Over {
  std::int64_t round = 0;
  Mark mark = Mark::revoked;
  std::string why;
  friend bool operator==(const Over&, const Over&) = default;
};
template <typename Archive>
void fields(Archive& a, Over& m) {
  a.number("round", m.round, 0, highest_round);
  a("mark", m.mark);
  a.message("why", m.why, longest_reason_told);
}

// From a sender to the first sender of its side, and what the first sender answers: that it sees
// all the readers that the round wants and the round may begin, and how a round ended for every
// reader.
struct Follow {
  std::string batch;
  End group;
  Rank rank = 0;             // who follows
  std::int64_t version = 0;  // that this sender last sent; 0: none
  friend bool operator==(const Follow&, const Follow&) = default;
};
template <typename Archive>
void fields(Archive& a, Follow& m) {
  a("batch", m.batch);
  a("group", m.group);
  a.natural("rank", m.rank);
  a("version", m.version);
}
// From a sender to the first one of its side: the version of the round that it has begun.
struct Sent {
  std::int64_t version = 0;
  friend bool operator==(const Sent&, const Sent&) = default;
};
template <typename Archive>
void fields(Archive& a, Sent& m) {
  a("version", m.version);
}
struct Begun {
  std::int64_t round = 0;
  friend bool operator==(const Begun&, const Begun&) = default;
};
template <typename Archive>
void fields(Archive& a, Begun& m) {
  a.number("round", m.round, 0, highest_round);
}
struct Ended {
  std::int64_t round = 0;
  std::map<Rank, ReaderOutcome> readers;
  friend bool operator==(const Ended&, const Ended&) = default;
};
template <typename Archive>
void fields(Archive& a, Ended& m) {
  a.number("round", m.round, 0, highest_round);
  a("readers", m.readers);
  for (const auto& [rank, how] : m.readers) a.require(rank >= 0, "there is no such rank");
}

// Of a shelf. From source to reader: the answer to a subscription, with what every slot holds, and
// later what a slot holds now. `common`: the newest version that all senders are known to have had.
inline constexpr std::size_t most_slots = 64;
struct ShelfSlot {
  std::uint64_t region = 0;
  std::int64_t version = 0;  // 0: none
  std::uint64_t ticket = 0;
  friend bool operator==(const ShelfSlot&, const ShelfSlot&) = default;
};
template <typename Archive>
void fields(Archive& a, ShelfSlot& m) {
  a("region", m.region);
  a.natural("version", m.version);
  a("ticket", m.ticket);
}
struct Shelved {
  Status status;
  std::vector<ShelfSlot> slots;
  std::int64_t common = 0;
  friend bool operator==(const Shelved&, const Shelved&) = default;
};
template <typename Archive>
void fields(Archive& a, Shelved& m) {
  a("code", m.status.code);
  a.message("message", m.status.message, longest_reason_told);
  a.list("slots", m.slots, most_slots);
  a.natural("common", m.common);
}
struct Published {
  std::size_t slot = 0;
  std::int64_t version = 0;
  std::uint64_t ticket = 0;
  std::int64_t common = 0;
  friend bool operator==(const Published&, const Published&) = default;
};
template <typename Archive>
void fields(Archive& a, Published& m) {
  a.number("slot", m.slot, 0, most_slots - 1);
  a.natural("version", m.version);
  a("ticket", m.ticket);
  a.natural("common", m.common);
}
// The worker at the source has closed: nothing follows this version there.
struct Finished {
  std::int64_t version = 0;
  friend bool operator==(const Finished&, const Finished&) = default;
};
template <typename Archive>
void fields(Archive& a, Finished& m) {
  a.natural("version", m.version);
}
// From reader to source: what the reader would like to find there for a while, in place of what it
// said before. With `newest` also the newest version that there is and all that come; the source
// answers which version is the newest.
struct Hold {
  std::vector<std::int64_t> versions;
  bool newest = false;
  friend bool operator==(const Hold&, const Hold&) = default;
};
template <typename Archive>
void fields(Archive& a, Hold& m) {
  a.list("versions", m.versions, 2);
  a("newest", m.newest);
}
struct Held {
  std::int64_t version = 0;  // 0: there is none yet
  std::int64_t common = 0;
  friend bool operator==(const Held&, const Held&) = default;
};
template <typename Archive>
void fields(Archive& a, Held& m) {
  a.natural("version", m.version);
  a.natural("common", m.common);
}
// From a reader that promised: it begins to read this version. What it holds of this generation,
// unless `held` is 0, may be patched: the source answers with patches, one for each stream that the
// reader gets from there, or why there are none.
struct AskPatch {
  std::int64_t version = 0;
  std::int64_t held = 0;
  // Bytes a second that reach the reader from elsewhere; 0: it reads memory of this host.
  std::int64_t rate = 0;
  // How long all bytes took to copy, and patches to apply, in thousandths of what is expected.
  std::int64_t dense = 1000;
  std::int64_t apply = 1000;
  friend bool operator==(const AskPatch&, const AskPatch&) = default;
};
template <typename Archive>
void fields(Archive& a, AskPatch& m) {
  a.natural("version", m.version);
  a.natural("held", m.held);
  a.natural("rate", m.rate);
  a.natural("dense", m.dense);
  a.natural("apply", m.apply);
}
struct OfferedPatch {
  std::uint64_t region = 0;  // where its bytes are
  std::int64_t bytes = 0;
  std::int64_t base = 0;
  std::uint64_t checksum = 0;
  friend bool operator==(const OfferedPatch&, const OfferedPatch&) = default;
};
template <typename Archive>
void fields(Archive& a, OfferedPatch& m) {
  a("region", m.region);
  a.natural("bytes", m.bytes);
  a.natural("base", m.base);
  a("checksum", m.checksum);
}
struct Patched {
  std::int64_t version = 0;
  delta::Why why = delta::Why::patch;
  std::vector<OfferedPatch> patches;  // in the order of the reader's streams from this source
  friend bool operator==(const Patched&, const Patched&) = default;
};
template <typename Archive>
void fields(Archive& a, Patched& m) {
  a.natural("version", m.version);
  a("why", m.why);
  a.list("patches", m.patches, most_streams);
}
// From a reader that has patched itself to this version: what is it? The source answers with a
// checksum for each part of the reader's streams from there, in several messages if they are many.
struct AskSums {
  std::int64_t version = 0;
  Verify verify = Verify::full;
  friend bool operator==(const AskSums&, const AskSums&) = default;
};
template <typename Archive>
void fields(Archive& a, AskSums& m) {
  a.natural("version", m.version);
  a("verify", m.verify);
}
struct VersionSums {
  std::int64_t version = 0;
  std::size_t all = 0;    // how many there are; 0: the version is not there any more
  std::size_t first = 0;  // of these
  std::vector<std::uint64_t> values{};
  friend bool operator==(const VersionSums&, const VersionSums&) = default;
};
template <typename Archive>
void fields(Archive& a, VersionSums& m) {
  a.natural("version", m.version);
  a.number("all", m.all, 0, UINT32_MAX);
  a.number("first", m.first, 0, UINT32_MAX);
  a.list("values", m.values, most_sums);
}
// From a sender to the first sender of its side: the versions that it has; and what the first
// sender answers: the newest version that all senders have had, the senders that lack the newest
// version of this sender, and the later versions that will never be everywhere.
struct Completed {
  std::vector<std::int64_t> versions;
  friend bool operator==(const Completed&, const Completed&) = default;
};
template <typename Archive>
void fields(Archive& a, Completed& m) {
  a.list("versions", m.versions, most_slots);
}
inline constexpr std::size_t most_named = 16;
struct Common {
  std::int64_t version = 0;
  std::vector<Rank> lacking;
  std::vector<std::int64_t> doomed;
  friend bool operator==(const Common&, const Common&) = default;
};
template <typename Archive>
void fields(Archive& a, Common& m) {
  a.natural("version", m.version);
  a.list("lacking", m.lacking, most_named);
  a.list("doomed", m.doomed, most_slots);
}

// From a rank that pulls together with its side to the side's lowest rank: what the rank could have
// now, of the shelves of the message's generation (0: the rank follows none). The serial is that of
// the pull.
struct Propose {
  std::uint64_t to = 0;  // the registration of the lowest rank
  Rank rank = 0;         // who proposes, and its registration
  std::uint64_t registration = 0;
  std::int64_t count = 0;                 // of its registration: a later proposal counts
  std::int64_t at = 0;                    // the last choice that it followed
  std::optional<std::int64_t> version{};  // what its caller asks for: this one,
  std::int64_t above = 0;                 // or one above
  std::vector<std::int64_t> versions{};   // that all its sources have and its caller asks for
  bool more = false;                      // some source has a later one to be kept
  std::int64_t pinned = 0;                // that its sources keep; 0: none
  friend bool operator==(const Propose&, const Propose&) = default;
};
template <typename Archive>
void fields(Archive& a, Propose& m) {
  a("to", m.to);
  a.natural("rank", m.rank);
  a("registration", m.registration);
  a.natural("count", m.count);
  a.natural("at", m.at);
  a("version", m.version);
  a("above", m.above);
  a.list("versions", m.versions, most_slots);
  a("more", m.more);
  a.natural("pinned", m.pinned);
}
// What the lowest rank answers: read this version, or none; keep this one at the sources; or, to
// pin, the newest that each source has and all later ones. A choice replaces all earlier choices.
struct Choose {
  std::int64_t number = 0;
  std::int64_t version = 0;
  std::int64_t keep = 0;
  bool pin = false;
  friend bool operator==(const Choose&, const Choose&) = default;
};
template <typename Archive>
void fields(Archive& a, Choose& m) {
  a.natural("number", m.number);
  a.natural("version", m.version);
  a.natural("keep", m.keep);
  a("pin", m.pin);
}
// From a rank to the lowest rank: the former has read what was chosen, or cannot.
struct Vote {
  std::int64_t number = 0;
  bool read = false;
  friend bool operator==(const Vote&, const Vote&) = default;
};
template <typename Archive>
void fields(Archive& a, Vote& m) {
  a.natural("number", m.number);
  a("read", m.read);
}
// All ranks have read what was chosen.
struct Decide {
  std::int64_t number = 0;
  std::int64_t version = 0;
  friend bool operator==(const Decide&, const Decide&) = default;
};
template <typename Archive>
void fields(Archive& a, Decide& m) {
  a.natural("number", m.number);
  a.natural("version", m.version);
}
// The pull is over without a version: at one rank or, if the lowest rank says so, at all.
struct GiveUp {
  Status status;
  Absence absence = Absence::none;
  std::int64_t version = 0;  // the last one, if the senders have closed
  friend bool operator==(const GiveUp&, const GiveUp&) = default;
};
template <typename Archive>
void fields(Archive& a, GiveUp& m) {
  a("code", m.status.code);
  a.message("message", m.status.message, longest_reason_told);
  a("absence", m.absence);
  a.natural("version", m.version);
}
// For messages: who has not pulled, and who has not read what was chosen.
struct Waits {
  std::vector<Rank> pulls;
  std::vector<Rank> reads;
  friend bool operator==(const Waits&, const Waits&) = default;
};
template <typename Archive>
void fields(Archive& a, Waits& m) {
  a.list("pulls", m.pulls, most_named);
  a.list("reads", m.reads, most_named);
}
// From a reader, or another sender, to the first sender, which has every reader as a subscriber;
// and what the first sender answers: which version each rank has sent or read. Agents ask when a
// worker asks.
struct AskVersions {
  friend bool operator==(const AskVersions&, const AskVersions&) = default;
};
template <typename Archive>
void fields(Archive&, AskVersions&) {}
struct KnownVersions {
  Versions versions;
  friend bool operator==(const KnownVersions&, const KnownVersions&) = default;
};
template <typename Archive>
void fields(Archive& a, KnownVersions& m) {
  a("versions", m.versions);
}

using MessageBody =
    std::variant<Subscribe, Join, Start, Leave, Look, Subscribed, Joined, Offer, Over, Sums, Moved,
                 Follow, Begun, Ended, Shelved, Published, Finished, Hold, Held, Completed, Common,
                 Sent, AskVersions, KnownVersions, Propose, Choose, Vote, Decide, GiveUp, Waits,
                 Restaged, AskPatch, Patched, AskSums, VersionSums>;

constexpr std::array<std::string_view, 35> kinds_of(const MessageBody*) {
  return {"subscribe", "join",      "start",   "leave",     "look",         "subscribed",
          "joined",    "offer",     "over",    "sums",      "moved",        "follow",
          "begun",     "ended",     "shelved", "published", "finished",     "hold",
          "held",      "completed", "common",  "sent",      "ask_versions", "known_versions",
          "propose",   "choose",    "vote",    "decide",    "give up",      "waits",
          "restaged",  "ask_patch", "patched", "ask_sums",  "version_sums"};
}

// Who says what to whom, for those who take some kinds of messages only.
template <typename T>
concept ToSource = OneOf<T, Join, Start, Look, Moved, AskVersions>;
template <typename T>
concept ToReader = OneOf<T, Subscribed, Joined, Restaged, Offer, Sums, Over>;
template <typename T>
concept ToPuller = OneOf<T, Shelved, Published, Finished, Held, Patched, VersionSums>;
template <typename T>
concept AmongSenders = OneOf<T, Follow, Begun, Ended, Completed, Common, Sent, KnownVersions>;
template <typename T>
concept AmongPullers = OneOf<T, Propose, Choose, Vote, Decide, GiveUp, Waits>;
// For the batch or shelf that the message names; every other message is for whoever knows its
// serial.
template <typename T>
concept OpensSubscription = OneOf<T, Subscribe, Follow>;
template <typename T>
concept OfSubscription =
    !OpensSubscription<T> && (ToSource<T> || ToReader<T> || ToPuller<T> || AmongSenders<T> ||
                              AmongPullers<T> || OneOf<T, Leave, Hold, AskPatch, AskSums>);

struct AgentMessage {
  std::uint64_t sequence = 0;  // on this connection, from 1
  std::int64_t generation = 0;
  std::uint64_t serial = 0;  // the subscription's
  MessageBody body;
  friend bool operator==(const AgentMessage&, const AgentMessage&) = default;
};
template <typename Archive>
void fields(Archive& a, AgentMessage& m) {
  a("sequence", m.sequence);
  a.natural("generation", m.generation);
  a("serial", m.serial);
  a("body", m.body);
}

constexpr wire::Title title_of(const AgentMessage*) { return {"message of an agent"}; }

// Decoding checks everything and throws Error(invalid_argument).
std::string encode(const AgentMessage& message);
AgentMessage decode_agent_message(std::string_view bytes);
std::string_view name_of(const MessageBody& body) noexcept;

}  // namespace tensorbus::bus
