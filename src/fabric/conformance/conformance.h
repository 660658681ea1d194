// The suite that every fabric runs: two processes' worth of it, or more, in one thread.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "fabric/conformance/party.h"
#include "fabric/core/fabric.h"

namespace tensorbus::fabric {

// One way to make fabrics that can reach each other.
struct Kind {
  using Make = std::function<Party(std::string name, std::string secret)>;
  using Allocate = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

  std::string name;
  // Called once per test; the result makes one fabric per call and keeps what the fabrics share.
  std::function<Make()> network;
  // Memory for tensors, exposed ones and targets: the fabric's own, or anybody's.
  Allocate allocate;
};

inline void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// Every kind there is on this machine.
std::vector<Kind> available_kinds();

// A tensor with its memory; copies of the struct share both, so that views outlive the copies.
struct TestTensor {
  std::shared_ptr<std::byte> memory;
  std::shared_ptr<const TensorForm> form;
  std::ptrdiff_t first = 0;  // where the first element lies

  std::size_t bytes() const {
    const Extent extent = extent_of(*form);
    return static_cast<std::size_t>(extent.end - extent.begin);
  }
  TensorView view() const {
    return {memory.get() + first, form->dtype, form->shape, form->strides};
  }
};

std::vector<TensorView> views(const std::vector<TestTensor>& tensors);
void expect_equal(const TestTensor& a, const TestTensor& b);

inline const Deadline never = Deadline::never();

class FabricTest : public testing::TestWithParam<Kind> {
 protected:
  FabricTest();

  // Polls all fabrics until the condition holds; the test fails if the condition never does.
  template <typename Condition>
  void until(Condition holds) {
    const Deadline patience = Deadline::after(std::chrono::seconds(60));
    while (!holds()) {
      ASSERT_FALSE(patience.expired()) << "nothing happens";
      poll();
    }
  }
  void poll();

  std::shared_ptr<Peer> connect() { return connect(reader_, owner_, "o"); }
  std::shared_ptr<Peer> connect(Party& from, Party& to, const std::string& secret);

  OpId next_id() { return static_cast<OpId>(++last_id_); }
  Completion finish(Party& party, OpId id);
  Source attach(Party& party, const std::shared_ptr<Peer>& peer, const Region& region);
  Completion read(Party& party, Read read);
  // All tensors of a region into tensors of the same shapes.
  static Read whole(const Source& source, const std::vector<TestTensor>& targets);

  // With nothing but zeros in it.
  TestTensor new_tensor(Dtype dtype, const Shape& shape, const Shape& strides);
  TestTensor new_tensor(Dtype dtype, const Shape& shape);
  // Small numbers that every type holds.
  void fill(const TestTensor& tensor);

  Kind::Make make_;
  Party reader_;
  Party owner_;
  std::vector<Party*> others_;
  std::shared_ptr<Peer> accepted_;  // the owner's side of the last connection
  std::mt19937 random_{1};
  std::uint64_t last_id_ = 0;
};

}  // namespace tensorbus::fabric
