// The fake as a bench.
#pragma once

#include "device/conformance/bench.h"
#include "device/fake/device.h"

namespace tensorbus::device {

class FakeBench final : public Bench {
 public:
  explicit FakeBench(unsigned seed) : device_({0}, seed) {}

  Device& device() override { return device_; }
  std::byte* allocate(std::size_t bytes) override { return device_.allocate(bytes); }
  Stream make_stream() override { return device_.make_stream(); }
  void write(Stream stream, std::byte* to, const Bytes& bytes) override {
    device_.write(stream, to, bytes);
  }
  Bytes read(const std::byte* from, std::size_t bytes) override { return {from, from + bytes}; }
  void hold(Stream stream) override { device_.hold(stream); }
  void release(Stream stream) override { device_.release(stream); }
  void set_capturing(Stream stream, bool on) override { device_.set_capturing(stream, on); }
  void kill() override {
    device_.die({Code::failed, "cuda:0 of this process has failed; restart the process"});
  }
  bool finish(const Mark& mark) override {
    while (!mark.passed()) {
      if (!device_.step()) return false;
    }
    return true;
  }
  void let_go_on() override {
    while (device_.step()) {
    }
  }

 private:
  FakeDevice device_;
};

}  // namespace tensorbus::device
