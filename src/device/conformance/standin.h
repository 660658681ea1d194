// The stand-in driver of tests/device, loaded, and a device of it as a bench.
#pragma once

#include <atomic>
#include <map>

#include "device/conformance/bench.h"
#include "device/cuda/device.h"
#include "device/cuda/library.h"
#include "standin/hooks.h"

namespace tensorbus::device {

// The driver as if this process had just started, with STANDIN_ variables as given and no others.
class Standin {
 public:
  using Variables = std::map<std::string, std::string>;

  explicit Standin(const Variables& variables);

  const cuda::Functions& functions() const { return library_.functions; }
  StandinCounts counts() const { return counts_(); }
  int calls(const char* name) const { return calls_(name); }
  void kill_context(int device, int error) const { kill_(device, error); }
  // Where the host sees what is at a device's address.
  std::byte* shadow(const std::byte* on_device) const;

 private:
  const cuda::Library library_;
  decltype(&standin_counts) counts_;
  decltype(&standin_calls) calls_;
  decltype(&standin_kill_context) kill_;
  decltype(&standin_shadow) shadow_;
};

class StandinBench final : public Bench {
 public:
  // `functions`: the stand-in's own, or with one that does not do what it should.
  explicit StandinBench(const Standin& standin, const cuda::Functions& functions,
                        const cuda::Options& options = {});
  ~StandinBench() override;

  Device& device() override { return *device_; }
  // The device alone goes; the user goes on.
  void close_device() { device_.reset(); }
  std::byte* allocate(std::size_t bytes) override;
  Stream make_stream() override;
  void write(Stream stream, std::byte* to, const Bytes& bytes) override;
  Bytes read(const std::byte* from, std::size_t bytes) override;
  void hold(Stream stream) override;
  void release(Stream stream) override;
  void set_capturing(Stream stream, bool on) override;
  void kill() override;
  bool finish(const Mark& mark) override;
  void let_go_on() override;

 private:
  void check(cuda::Result result) const;

  const Standin& standin_;
  const cuda::Functions& user_;  // the user's calls, which do what they should
  cuda::Context context_ = nullptr;
  cuda::Stream reads_ = nullptr;
  std::vector<cuda::Stream> streams_;
  std::vector<cuda::Pointer> memory_;
  std::map<std::uintptr_t, std::atomic<bool>*> held_;
  std::unique_ptr<Device> device_;
};

}  // namespace tensorbus::device
