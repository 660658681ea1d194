#include "bus/directory/records.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "bus/directory/catalog.h"
#include "bus/round/messages.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

fabric::Address address() {
  return {{"host", 12, 34, random_id(), "rank 3"}, "shm", std::string("\0where", 6)};
}

PairMember pair_member() {
  return {
      1,
      2,
      "why",
      address(),
      4,
      "infer",
      SideLayout{
          {2, 2}, {StridedShard{-1, 3}, Partial{ReduceOp::avg}}, std::vector<std::int64_t>{1, 0}}};
}

std::vector<TensorRecord> tensors() {
  return {{0, "w", Dtype::bfloat16, {3, 0}, Shape{6, 0}, 0},
          {1, "", Dtype::bool_, {}, {}},
          {1, "box", Dtype::int8, {3, 2}, Shape{4, 4}, {}, Shape{2, 2}}};
}

BatchMember batch_member() {
  BatchMember member;
  member.incarnation = 5;
  member.registration = ~std::uint64_t{0};
  member.ends = {{"p", "train"}, {"q", "train"}};
  member.remotes = {"infer", "other"};
  member.tensors = tensors();
  member.chunk_bytes = 4096;
  member.verify = Verify::sample;
  member.layouts = {{{2, 2}, {Shard{0}, Replicate{}}, Shape{1, 0}, 4}};
  member.versioned = Versioned{Direction::recv, 11, true};
  member.unfit = {{7, 0}, {~std::uint64_t{0}, 3}};
  return member;
}

Generation generation() {
  return {7, {{0, {1, 2}}, {5, {3, 4}}}, true, 5, "rank 5 is gone", 2, 3, true};
}

std::vector<AgentMessage> messages() {
  return {{1, 2, 3, Subscribe{"b", {"p", "train"}, 4, "infer", 5, 6, {0, 7}, 8}},
          {2, 2, 3, Join{}},
          {3, 2, 3, Start{9}},
          {4, 2, 3, Leave{}},
          {5, 2, 3, Look{8}},
          {6, 2, 3, Subscribed{{Code::withdrawn, "late"}, 11, 12}},
          {7, 2, 3, Joined{13}},
          {8, 2, 3, Offer{14, 15, 16}},
          {9, 2, 3, Over{16, Mark::conflict, "both"}},
          {10, 2, 3, Sums{17, 18, {0, ~std::uint64_t{0}}}},
          {11, 2, 3, Moved{19, 20}},
          {12, 2, 3, Follow{"b", {"p", "train"}, 2, 9}},
          {13, 2, 3, Begun{21}},
          {14, 2, 3, Ended{22, {{0, ReaderOutcome::read}, {9, ReaderOutcome::lost}}}},
          {15, 2, 3, Sent{23}},
          {16, 2, 3, AskVersions{}},
          {17, 2, 3, KnownVersions{{{"train", {{0, 23}}}, {"infer", {{4, 22}, {9, 0}}}}}}};
}

// Whatever is cut off or changed is refused or read as something else; nothing worse happens.
void mistreat(const std::string& bytes, const std::function<void(const std::string&)>& decode) {
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode(bytes.substr(0, size)), Error) << size;
  }
  EXPECT_THROW(decode(bytes + '\x01'), Error);
  std::mt19937_64 random(1);
  for (int round = 0; round < 2'000; ++round) {
    std::string changed = bytes;
    changed[random() % changed.size()] = static_cast<char>(random());
    try {
      decode(changed);
    } catch (const Error&) {
    }
  }
}

TEST(Records, AreReadAsTheyWereWritten) {
  EXPECT_EQ(decode_pair_member(encode(pair_member())).layout, pair_member().layout);
  const PairMember plain{1, 2, "", address(), 1, "x", std::nullopt};
  EXPECT_EQ(decode_pair_member(encode(plain)), plain);
  EXPECT_EQ(decode_batch_member(encode(batch_member())), batch_member());
  EXPECT_EQ(decode_generation(encode(generation())), generation());
  const AgentRecord agent{9, address()};
  EXPECT_EQ(decode_agent_record(encode(agent)), agent);
}

// proves: B5.16
TEST(Records, MalformedOnesAreRefused) {
  mistreat(encode(pair_member()), [](const std::string& bytes) { decode_pair_member(bytes); });
  mistreat(encode(batch_member()), [](const std::string& bytes) { decode_batch_member(bytes); });
  mistreat(encode(generation()), [](const std::string& bytes) { decode_generation(bytes); });
  mistreat(encode(AgentRecord{9, address()}),
           [](const std::string& bytes) { decode_agent_record(bytes); });
}

TEST(Records, OfAnotherReleaseSaySo) {
  std::string bytes = encode(generation());
  ++bytes[std::string_view("tensorbus generation record").size()];
  try {
    decode_generation(bytes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "malformed generation record: its version is 6, ours is 5; use the same release of "
        "tensorbus everywhere");
  }
}

TEST(Records, ArePrintedForPeople) {
  EXPECT_EQ(print_record(GenerationKey{"b", {"p", "a"}}, encode(generation())),
            "number: 7\n"
            "senders:\n"
            "  0:\n    incarnation: 1\n    registration: 2\n"
            "  5:\n    incarnation: 3\n    registration: 4\n"
            "ended: yes\n"
            "left: 5\n"
            "why: \"rank 5 is gone\"\n"
            "after: 2\n"
            "version: 3\n"
            "back_soon: yes\n");
  const auto holds = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(holds(print_record(PairKey{}, encode(pair_member())), "  where: 6 bytes 0077686572"));
  EXPECT_TRUE(holds(print_record(BatchKey{}, encode(batch_member())),
                    "hash: " + to_hex(view(batch_member().tensors.id.hash))));
  EXPECT_TRUE(holds(print_record(ListKey{}, write_list(tensors()).parts[0]), "dtype: bfloat16\n"));
  EXPECT_TRUE(holds(print_record(AgentKey{}, encode(AgentRecord{9, address()})), "pid: 12\n"));
  EXPECT_EQ(print_record(VersionKey{}, encode(VersionRecord{1, 2})),
            "registration: 1\nversion: 2\n");
  EXPECT_THROW(print_record(AgentKey{}, encode(generation())), Error);
}

TEST(Messages, AreReadAsTheyWereWrittenAndMalformedOnesAreRefused) {
  for (const AgentMessage& message : messages()) {
    const std::string bytes = encode(message);
    EXPECT_EQ(decode_agent_message(bytes), message) << name_of(message.body);
    mistreat(bytes, [](const std::string& each) { decode_agent_message(each); });
  }
}

TEST(Keys, NamesMayHoldAnyCharacter) {
  const std::string odd =
      "a/b %2F\n\"ü\0*"
      "c";
  for (const RecordKey& key : std::vector<RecordKey>{
           AgentKey{7}, PairKey{{odd, "x/" + odd}, 3}, BatchKey{odd, odd, 0},
           GenerationKey{odd, {odd, "side"}}, VersionKey{{odd, odd, 5}}, CallerKey{8},
           ShelfKey{{odd, odd, 6}}, ListKey{write_list(tensors()).id.hash, 12}}) {
    EXPECT_EQ(parse_key(to_text(key)), key) << to_text(key);
  }
  for (const char* other :
       {"", "agent/", "agent/-1", "agent/x", "pair/a/b", "pair/a/b/c/d", "pair/%zz/b/1",
        "pair/%2/b/1", "batch/a/b/", "something/a/b/1", "caller/", "caller/x", "tensors/00/0",
        "tensors/000102030405060708090a0b0c0d0e0f/", "tensors/000102030405060708090a0b0c0d0e0x/0",
        "tensors/000102030405060708090a0b0c0d0e0f/4096"}) {
    EXPECT_EQ(parse_key(other), std::nullopt) << other;
  }
}

// As the store tells of a list of tensors.
void tell_of_list(Catalog& catalog, const SharedTensors& tensors) {
  const WrittenList written = write_list(tensors.all());
  for (std::uint32_t part = 0; part < written.id.parts; ++part) {
    catalog.apply({to_text(ListKey{written.id.hash, part}), written.parts[part]});
  }
}

TEST(Catalog, KnowsTheVersionsOfRanksThatAreThere) {
  Catalog catalog;
  const BatchKey key{"b", "infer", 3};
  EXPECT_EQ(catalog.versions("b"), Versions{});
  catalog.apply({to_text(key), encode(batch_member())});
  EXPECT_EQ(catalog.versions("b"), (Versions{{"infer", {{3, 11}}}}));
  const std::uint64_t registration = batch_member().registration;
  catalog.apply({to_text(VersionKey{key}), encode(VersionRecord{registration, 12})});
  catalog.apply({to_text(VersionKey{{"c", "infer", 3}}), encode(VersionRecord{registration, 1})});
  catalog.apply({to_text(VersionKey{{"b", "infer", 4}}), "nonsense"});
  EXPECT_EQ(catalog.versions("b"), (Versions{{"infer", {{3, 12}}}}));
  // Of the registration before, whose process was killed.
  catalog.apply({to_text(VersionKey{key}), encode(VersionRecord{registration + 1, 40})});
  EXPECT_EQ(catalog.versions("b"), (Versions{{"infer", {{3, 11}}}}));
  catalog.apply({to_text(VersionKey{key}), std::nullopt});
  catalog.apply({to_text(key), std::nullopt});
  EXPECT_EQ(catalog.versions("b"), Versions{});
}

TEST(Catalog, ContentsAreThoseOfTheLastGenerationWhoseShelvesAreAllThere) {
  Catalog catalog;
  const auto show = [&](Rank rank, std::int64_t generation, std::vector<TensorRecord> tensors) {
    ShelfRecord record{generation, pair_member(), batch_member()};
    record.place.world_size = 2;
    record.member.tensors = std::move(tensors);
    tell_of_list(catalog, record.member.tensors);
    catalog.apply({to_text(ShelfKey{{"b", "train", rank}}), encode(record)});
  };
  const TensorRecord part{0, "part", Dtype::bfloat16, {2, 3}, Shape{4, 3}, {}, Shape{2, 0}};
  const TensorRecord whole{0, "whole", Dtype::float32, {5}, {}};
  show(0, 1, {part});
  EXPECT_TRUE(catalog.contents("b").empty()) << "rank 1 may have more";
  show(1, 1, {part, whole});
  const std::vector<Content> first{{"part", Dtype::bfloat16, {4, 3}},
                                   {"whole", Dtype::float32, {5}}};
  EXPECT_EQ(catalog.contents("b"), first);
  show(0, 2, {whole});
  EXPECT_TRUE(catalog.contents("b").empty()) << "half of each";
  show(1, 2, {whole});
  EXPECT_EQ(catalog.contents("b"), std::vector<Content>({first[1]}));
  EXPECT_TRUE(catalog.contents("other").empty());
}

TEST(Catalog, ARecordThatCannotBeReadIsAsGoodAsAbsent) {
  Catalog catalog;
  const PairKey key{{"p", "train"}, 3};
  catalog.apply({to_text(key), encode(pair_member())});
  EXPECT_NE(catalog.member(key), nullptr);
  catalog.apply({to_text(key), "nonsense"});
  EXPECT_EQ(catalog.member(key), nullptr);
  const GenerationKey generation_key{"b", {"p", "train"}};
  catalog.apply({to_text(generation_key), "nonsense"});
  EXPECT_EQ(catalog.generation(generation_key), nullptr);
  // A rank can still replace the record.
  EXPECT_EQ(catalog.raw_generation(generation_key), "nonsense");
}

}  // namespace
}  // namespace tensorbus::bus
