#include "push_pull/job/wire.h"

#include <gtest/gtest.h>

namespace tensorbus::push_pull::wire {
namespace {

const std::vector<std::uint64_t> numbers{0,          1,
                                         127,        128,
                                         16'383,     16'384,
                                         UINT32_MAX, std::uint64_t{1} << 62,
                                         INT64_MAX,  INT64_MAX + std::uint64_t{1},
                                         UINT64_MAX};

struct Request {
  RequestHead head;
  Push push;
  std::vector<std::int64_t> shape;
  Pull pull;
};

std::string encoded(const Request& request) {
  Message message(Kind::request);
  message.put(request.head);
  message.put(request.push, request.shape);
  message.put(request.pull);
  return std::string(message.bytes());
}

Request decoded(std::string_view bytes) {
  Body decoder(bytes);
  EXPECT_EQ(take_kind(decoder), Kind::request);
  Numbers numbers_left(decoder.raw(decoder.left()));
  Request request;
  request.head = take_head(numbers_left);
  request.push = take_push(numbers_left);
  request.shape.resize(request.push.dims);
  take_extents(numbers_left, request.shape);
  request.pull = take_pull(numbers_left);
  numbers_left.end();
  return request;
}

TEST(WireTest, NumbersOfAnySizeComeBack) {
  for (const std::uint64_t number : numbers) {
    const auto extent = static_cast<std::int64_t>(number);
    const Request sent{{number, number, number, number, number},
                       {extent, {number, number}, 2, number, number},
                       {extent, 3},
                       {{number, number}, number}};
    const Request got = decoded(encoded(sent));
    EXPECT_EQ(got.head.number, number);
    EXPECT_EQ(got.head.word, number);
    EXPECT_EQ(got.head.pushes, number);
    EXPECT_EQ(got.head.pulls, number);
    EXPECT_EQ(got.head.standing, number);
    EXPECT_EQ(got.push.key, extent);
    EXPECT_EQ(got.push.place, sent.push.place);
    EXPECT_EQ(got.push.dtype, number);
    EXPECT_EQ(got.push.landed, number);
    EXPECT_EQ(got.shape, sent.shape);
    EXPECT_EQ(got.pull.place, sent.pull.place);
    EXPECT_EQ(got.pull.bytes, number);
  }
}

TEST(WireTest, ASmallRequestFitsIntoACacheLineWithTheFirstWordOfTheRing) {
  const std::uint64_t far = std::uint64_t{64} << 20;
  const Request usual{{1'000'000, 1024, 1, 1, 128},
                      {1000, {20, far}, 2, 5, 0},
                      {1024, 7168},
                      {{20, far}, 14'680'064}};
  EXPECT_LE(encoded(usual).size(), 64 - sizeof(std::uint64_t));
}

TEST(WireTest, WhatIsCutShortIsAnError) {
  const std::string whole =
      encoded({{300, 1, 1, 1, 0}, {5, {1, 4096}, 1, 0, 0}, {500}, {{1, 0}, 500}});
  for (std::size_t size = 1; size < whole.size(); ++size) {
    EXPECT_THROW(decoded(whole.substr(0, size)), Error) << size;
  }
  EXPECT_THROW(decoded(whole + '\0'), Error);
}

TEST(WireTest, ANumberEndsSomewhere) {
  const std::string bytes(20, '\x80');
  Numbers endless(bytes);
  EXPECT_THROW(endless.next(), Error);
}

TEST(WireTest, LongMessagesHaveRoom) {
  const std::string text(100'000, 'x');
  Message message(Kind::answer);
  message.put(Answer{7, {1, 2, 3, 4}, 10});
  message.put_text(text);
  Body decoder(message.bytes());
  EXPECT_EQ(take_kind(decoder), Kind::answer);
  EXPECT_EQ(take<Answer>(decoder).number, 7U);
  EXPECT_EQ(decoder.raw(decoder.left()), text);
  message.start(Kind::slot);
  EXPECT_EQ(message.bytes().size(), 1U) << "the one before is gone";
}

}  // namespace
}  // namespace tensorbus::push_pull::wire
