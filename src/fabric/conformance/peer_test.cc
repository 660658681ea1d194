// Who is let in, and how connections end.
#include <gtest/gtest.h>

#include "fabric/conformance/conformance.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

TEST_P(FabricTest, AWrongSecretIsDenied) {
  const auto peer = reader_->connect(owner_->address(), "guess", never);
  until([&] { return !reader_.losses.empty(); });
  EXPECT_EQ(reader_.losses.front().reason.code, Code::denied)
      << reader_.losses.front().reason.message;
  EXPECT_FALSE(peer->up());
  EXPECT_TRUE(owner_.ups.empty());
}

TEST_P(FabricTest, AnotherProcessThanTheAddressNamesIsRefused) {
  for (int field = 0; field < 3; ++field) {
    Address stale = owner_->address();
    if (field == 0) stale.identity.start_time += 1;
    if (field == 1) stale.identity.pid += 1;
    if (field == 2) stale.identity.id[3] = static_cast<char>(stale.identity.id[3] + 1);
    reader_->connect(stale, "o", never);
    until([&] { return !reader_.losses.empty(); });
    const Code code = reader_.losses.front().reason.code;
    EXPECT_TRUE(code == Code::invalid_argument || code == Code::unreachable)
        << reader_.losses.front().reason.message;
    reader_.losses.clear();
  }
  EXPECT_TRUE(owner_.ups.empty());
}

TEST_P(FabricTest, DisconnectEndsWhatRunsAndTellsBoth) {
  const TestTensor tensor = new_tensor(Dtype::int8, {4'000'000});
  const TestTensor target = new_tensor(Dtype::int8, {4'000'000});
  const auto region = owner_->expose(views({tensor}));
  const auto peer = connect();
  const Source source = attach(reader_, peer, *region);
  const OpId id = next_id();
  reader_->read(whole(source, {target}), id, never);
  reader_->disconnect(*peer);
  reader_->disconnect(*peer);
  EXPECT_EQ(finish(reader_, id).status.code, Code::cancelled);
  until([&] { return !reader_.losses.empty() && !owner_.losses.empty(); });
  EXPECT_EQ(reader_.losses.front().peer, peer);
  EXPECT_EQ(owner_.losses.front().peer, accepted_);
  EXPECT_NE(owner_.losses.front().reason.message.find("reader"), std::string::npos);
  reader_->disconnect(*peer);
  poll();
  reader_->disconnect(*peer);
  EXPECT_THROW(reader_->send(*peer, {}), Error);
  EXPECT_THROW(reader_->read(whole(source, {target}), next_id(), never), Error);
  // And a new connection works.
  EXPECT_TRUE(connect()->up());
}

TEST_P(FabricTest, AFabricThatClosesWhileBusyIsLostToItsPeers) {
  const TestTensor tensor = new_tensor(Dtype::int8, {20'000'000});
  const TestTensor target = new_tensor(Dtype::int8, {20'000'000});
  auto region = owner_->expose(views({tensor}));
  const Source source = attach(reader_, connect(), *region);
  const OpId id = next_id();
  reader_->read(whole(source, {target}), id, never);
  poll();
  region.reset();
  owner_.kill();
  const Completion done = finish(reader_, id);
  EXPECT_FALSE(done.status.ok());
  until([&] { return !reader_.losses.empty(); });
  EXPECT_EQ(reader_.losses.front().reason.code, Code::peer_lost);
  EXPECT_NE(reader_.losses.front().reason.message.find("owner"), std::string::npos);
}

}  // namespace
}  // namespace tensorbus::fabric
