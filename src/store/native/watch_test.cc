// Watches of the memory store and of our server, read in bulk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tensorbus/store.h"

namespace tensorbus::store {
namespace {

Deadline soon() { return Deadline::after(std::chrono::seconds(30)); }

StoreServerOptions any_port() {
  StoreServerOptions options;
  options.port = 0;
  return options;
}

class NativeWatchTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Store> connect() {
    const std::string url = GetParam() == "memory" ? "memory://watch_test" : server_.url();
    return tensorbus::connect(StoreUrl::parse(url));
  }
  // Whatever changed before this has come to the client when it returns.
  void catch_up() { reader_->exists("w/0", soon()); }

  StoreServer server_{any_port()};
  const std::unique_ptr<Store> reader_ = connect();
  const std::unique_ptr<Store> writer_ = connect();
};
INSTANTIATE_TEST_SUITE_P(Stores, NativeWatchTest, testing::Values("memory", "server"));

TEST_P(NativeWatchTest, AllThatHasComeIsTakenAtOnceAndInOrder) {
  const auto watch = reader_->watch("w/", false, soon());
  std::vector<std::string> keys;
  for (int at = 0; at < 100; ++at) {
    keys.push_back("w/" + std::to_string(at));
    const Entry entry{keys.back(), "value"};
    writer_->set(std::span(&entry, 1), soon());
  }
  catch_up();
  std::vector<std::string> seen;
  for (const StoreEvent& event : watch->next_all(soon())) seen.push_back(event.key);
  EXPECT_EQ(seen, keys);
}

TEST_P(NativeWatchTest, WhatOneCallLeftIsTakenByTheNext) {
  const std::vector<Entry> entries{{"w/0", "a"}, {"w/1", "b"}, {"w/2", "c"}};
  writer_->set(entries, soon());
  const auto watch = reader_->watch("w/", true, soon());
  EXPECT_EQ(watch->next(soon()).key, "w/0");
  EXPECT_THAT(watch->next_all(soon()), testing::SizeIs(2));
}

TEST_P(NativeWatchTest, NothingIsNotAChange) {
  const auto watch = reader_->watch("w/", false, soon());
  try {
    watch->next_all(Deadline::after(std::chrono::milliseconds(1)));
    FAIL() << "there was no change";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::timeout);
  }
}

}  // namespace
}  // namespace tensorbus::store
