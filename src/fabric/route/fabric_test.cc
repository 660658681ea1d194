#include "fabric/route/fabric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "fabric/conformance/party.h"
#include "fabric/shm/fabric.h"
#include "fabric/ucx/ucx.h"

namespace tensorbus::fabric {
namespace {

std::unique_ptr<Fabric> make(const std::string& name, const std::string& secret) {
  std::vector<std::unique_ptr<Fabric>> parts;
  ShmOptions shm;
  shm.name = name;
  shm.secret = secret;
  parts.push_back(make_shm_fabric(std::move(shm)));
  UcxOptions ucx;
  ucx.identity = parts.front()->address().identity;
  ucx.secret = secret;
  parts.push_back(make_ucx_fabric(ucx));
  return make_routed_fabric(std::move(parts), own_reach("127.0.0.1"));
}

class RoutedFabricTest : public testing::Test {
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

TEST_F(RoutedFabricTest, APeerOnThisHostIsReadFromItsMemory) {
  const Source source = attach((*owner_)->address());
  EXPECT_NE(source.region->path(), "network");
  read_all(source);
}

TEST_F(RoutedFabricTest, TheNetworkCanBeAskedFor) {
  const Source source = attach(network_only((*owner_)->address()));
  EXPECT_EQ(source.region->path(), "network");
  read_all(source);
}

TEST_F(RoutedFabricTest, WhoCannotBeReachedIsToldWhy) {
  Address elsewhere = (*owner_)->address();
  elsewhere.where.resize(elsewhere.where.size() / 2);
  EXPECT_THROW((*reader_)->connect(elsewhere, "o", Deadline::never()), Error);
  const Address nothing = network_only({elsewhere.identity, "shm", "no such name"});
  EXPECT_EQ(nothing.kind, "shm");
}

}  // namespace
}  // namespace tensorbus::fabric
