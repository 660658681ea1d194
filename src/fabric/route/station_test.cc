#include "fabric/route/station.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "fabric/conformance/party.h"
#include "fabric/conformance/two_hosts.h"
#include "fabric/route/address.h"
#include "fabric/ucx/ucx.h"

namespace tensorbus::fabric {
namespace {

std::unique_ptr<Station> make(const std::string& name, const std::string& secret) {
  auto station = std::make_unique<Station>(StationOptions{name, secret, nullptr});
  station->open_network({"127.0.0.1"});
  return station;
}

class StationTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_ucx()) GTEST_SKIP() << describe_ucx();
    owner_ = std::make_unique<Party>(make("owner", "o"));
    reader_ = std::make_unique<Party>(make("reader", "r"));
    std::iota(data_.begin(), data_.end(), 0);
    const TensorView view{reinterpret_cast<std::byte*>(data_.data()), Dtype::int32, shape_,
                          strides_};
    region_ = (*owner_)->expose(std::span(&view, 1));
  }
  void TearDown() override { region_.reset(); }

  template <typename Condition>
  void until(Condition holds) {
    const Deadline patience = Deadline::after(std::chrono::seconds(30));
    while (!holds()) {
      ASSERT_FALSE(patience.expired()) << "nothing happens";
      owner_->poll();
      reader_->poll();
    }
  }
  Source attach(const Address& address) {
    const auto peer = (*reader_)->connect(address, "o", Deadline::never());
    until([&] { return peer->up(); });
    const auto id = static_cast<OpId>(++last_);
    (*reader_)->attach(*peer, region_->number(), id, Deadline::never());
    until([&] { return reader_->completion(id) != nullptr; });
    const Completion done = *reader_->completion(id);
    EXPECT_TRUE(done.status.ok()) << done.status.message;
    return {peer, done.region, 0};
  }
  void read_all(const Source& source) {
    std::vector<std::int32_t> target(data_.size(), -1);
    const Dtype dtype = Dtype::int32;
    const auto stream = std::make_shared<const plan::Stream>(
        whole_stream(source.region->forms(), std::span(&dtype, 1)));
    const auto id = static_cast<OpId>(++last_);
    (*reader_)->read(
        {stream,
         0,
         {source},
         {{reinterpret_cast<std::byte*>(target.data()), Dtype::int32, shape_, strides_}}},
        id, Deadline::never());
    until([&] { return reader_->completion(id) != nullptr; });
    EXPECT_TRUE(reader_->completion(id)->status.ok());
    EXPECT_EQ(target, data_);
  }

  std::unique_ptr<Party> owner_;
  std::unique_ptr<Party> reader_;
  std::vector<std::int32_t> data_ = std::vector<std::int32_t>(1000);
  const Shape shape_{1000};
  const Shape strides_{1};
  std::unique_ptr<Region> region_;
  std::uint64_t last_ = 0;
};

TEST_F(StationTest, APeerOnThisHostIsReadFromItsMemory) {
  const Source source = attach((*owner_)->address());
  EXPECT_NE(source.region->path(), "network");
  read_all(source);
}

TEST_F(StationTest, TheNetworkCanBeAskedFor) {
  const Source source = attach(network_only((*owner_)->address()));
  EXPECT_EQ(source.region->path(), "network");
  read_all(source);
}

TEST_F(StationTest, WhoCannotBeReachedIsToldWhy) {
  Address elsewhere = (*owner_)->address();
  elsewhere.where.resize(elsewhere.where.size() / 2);
  EXPECT_THROW((*reader_)->connect(elsewhere, "o", Deadline::never()), Error);
  const Address nothing = network_only({elsewhere.identity, "shm", "no such name"});
  EXPECT_EQ(nothing.kind, "shm");
}

TEST_F(StationTest, BothTransportsAreToldOfAndPolled) {
  const auto near = (*reader_)->connect((*owner_)->address(), "o", Deadline::never());
  const auto far = (*reader_)->connect(network_only((*owner_)->address()), "o", Deadline::never());
  until([&] { return near->up() && far->up() && owner_->ups.size() == 2; });
  const std::string text = "hello";
  for (const auto& peer : {near, far}) (*reader_)->send(*peer, std::as_bytes(std::span(text)));
  until([&] { return owner_->messages.size() == 2; });
  EXPECT_EQ(owner_->messages.front().bytes, text);
  EXPECT_EQ(owner_->messages.back().bytes, text);
}

// What is wrong with one that comes out of a fork, or nothing.
std::string use_in_child(std::unique_ptr<Station> station) {
  try {
    station->poll();
    return "it can be polled";
  } catch (const Error& error) {
    if (error.code() != Code::failed) return error.what();
  }
  if (station->fd() != -1 || station->wake_at() != TimePoint::max()) return "it can be waited for";
  station.reset();
  return {};
}

TEST(StationAlone, AForkedChildIsRefusedAndHarmsNobody) {
  auto station = std::make_unique<Station>(StationOptions{"owner", "o", nullptr});
  const Address address = station->address();
  EXPECT_EQ(address.kind, "shm") << "one transport has no need of a common address";
  const Pipe report;
  {
    const Child child([&] { report.put(use_in_child(std::move(station))); });
    EXPECT_EQ(report.get(), "");
  }
  Party owner(std::move(station));
  Party reader(std::make_unique<Station>(StationOptions{"reader", "r", nullptr}));
  const auto peer = reader->connect(address, "o", Deadline::never());
  const Deadline patience = Deadline::after(std::chrono::seconds(30));
  while (!peer->up() && !patience.expired()) {
    owner.poll();
    reader.poll();
  }
  EXPECT_TRUE(peer->up());
}

TEST(StationAlone, WhatOnlyTheNetworkReachesIsRefusedWithTheReasons) {
  Station station({"reader", "r", nullptr});
  Address elsewhere = station.address();
  elsewhere.identity.host = "elsewhere";
  try {
    station.connect(elsewhere, "o", Deadline::never());
    FAIL() << "nobody reaches it";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::unreachable);
    EXPECT_THAT(error.what(), testing::HasSubstr("shm: it is on another host"));
    EXPECT_THAT(error.what(), testing::HasSubstr("ucx: the peer does not offer it"));
  }
}

}  // namespace
}  // namespace tensorbus::fabric
