// The lists of fields of everything that the bus sends or keeps.
#include <gtest/gtest.h>

#include "bus/channel/command_fields.h"
#include "bus/directory/record_fields.h"
#include "bus/files/heartbeat.h"
#include "bus/files/queue_fields.h"
#include "bus/round/messages.h"
#include "bus/socket/protocol_fields.h"
#include "wire/testing/random.h"

namespace tensorbus::bus {
namespace {

using wire::expect_codec;

template <typename Kind>
struct Only {
  Kind kind{};
  friend bool operator==(const Only&, const Only&) = default;
};
template <typename Kind>
constexpr wire::Title title_of(const Only<Kind>*) {
  return {"one kind"};
}
template <typename Archive, typename Kind>
void fields(Archive& a, Only<Kind>& only) {
  a("kind", only.kind);
}

template <typename... Kinds>
void expect_codec_of_each(const std::variant<Kinds...>*) {
  (expect_codec<Only<Kinds>>(), ...);
}
template <typename Variant>
void expect_codec_of_kinds() {
  expect_codec_of_each(static_cast<const Variant*>(nullptr));
}

// proves: B5.16
TEST(Fields, OfCommandsAndOutcomes) {
  expect_codec<Command>();
  expect_codec_of_kinds<Command>();
  expect_codec<Only<Outcome>>();
}

// proves: B5.16
TEST(Fields, OfRecords) {
  expect_codec<AgentRecord>();
  expect_codec<PairMember>();
  expect_codec<VersionRecord>();
  expect_codec<Only<TensorRecord>>();
  expect_codec<BatchMember>();
  expect_codec<Generation>();
  expect_codec<ShelfRecord>();
}

TEST(Fields, OfMessagesBetweenAgents) {
  expect_codec<AgentMessage>();
  expect_codec_of_kinds<MessageBody>();
}

TEST(Fields, OfMessagesBetweenClientAndAgent) {
  expect_codec<protocol::FromAgent>();
  expect_codec_of_kinds<protocol::FromAgent>();
  expect_codec<Only<protocol::Withdraw>>();
  expect_codec<Only<protocol::Cancel>>();
  expect_codec<Only<protocol::Look>>();
  expect_codec<Only<protocol::GuardSemaphore>>();
  expect_codec<Only<protocol::ReleaseSemaphore>>();
  expect_codec<Only<protocol::Bye>>();
}

TEST(Fields, OfASubmittedCommandAreReadWithoutIt) {
  const Command command = CloseBatch{"b", 3};
  for (const auto& loan : {std::optional<std::string>(), std::optional(std::string(70'000, 'x'))}) {
    const protocol::Submit submit{7, wire::Sealed<Command>(command), 5, loan, true};
    const auto came = protocol::decode_from_client(protocol::encode(submit));
    const auto& read = std::get<protocol::Submit>(came);
    EXPECT_EQ(read, (protocol::Submit{7, encode(command), 5, loan, true}));
    EXPECT_EQ(read.command.open(), command);
  }
  const protocol::Submit nonsense{1, std::string("nonsense"), {}, {}, false};
  const auto bad = protocol::decode_from_client(protocol::encode(nonsense));
  EXPECT_THROW(std::get<protocol::Submit>(bad).command.open(), Error);
}

TEST(Fields, OfAHelloOfAnotherVersionNeedNotBeKnown) {
  const protocol::Hello hello{protocol::version, "job", 3, 4, 5};
  EXPECT_EQ(std::get<protocol::Hello>(protocol::decode_from_client(protocol::encode(hello))),
            hello);
  const std::string other = protocol::encode(protocol::Hello{99, "", 0, 0, 0}) + "whatever follows";
  EXPECT_EQ(std::get<protocol::Hello>(protocol::decode_from_client(other)).version, 99U);
}

TEST(Fields, OfWhatFilesHold) {
  expect_codec<Heartbeat>();
  expect_codec<QueueJournal::Session>();
}

}  // namespace
}  // namespace tensorbus::bus
