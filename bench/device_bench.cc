// Tensors on CUDA devices against pinned copies of the same run. The owner is a process of its own.
// On the stand-in of tests everything is moved and checked, and no speed is printed: it would say
// nothing of a GPU. Not yet run on one.
#include <fmt/core.h>

#include <cstring>

#include "device/cuda/device.h"
#include "device/cuda/library.h"
#include "fabric/conformance/two_hosts.h"
#include "fabric/shm/fabric.h"
#include "fabric_loop.h"
#include "json_option.h"
#include "rows.h"

namespace tensorbus::bench {
namespace {

using device::cuda::Functions;
using device::cuda::Pointer;

constexpr std::int64_t rows = 4096;
constexpr std::int64_t columns = 8192;  // of float32; the left half is read
constexpr std::size_t whole_bytes = rows * columns * sizeof(float);
constexpr std::size_t half_bytes = whole_bytes / 2;
constexpr int rounds = 15;
constexpr unsigned char filling = 0x3F;

enum Regions : std::uint64_t { dense = 1, half = 2, host = 3 };

// Of the driver's own making, as a framework's memory is.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes) {
    const Functions& calls = device::cuda::library().functions;
    device::cuda::Context context = nullptr;
    check(calls.cuDevicePrimaryCtxRetain(&context, 0));
    check(calls.cuCtxSetCurrent(context));
    check(calls.cuMemAlloc(&first_, bytes));
    fill(filling);
  }
  std::byte* data() const { return reinterpret_cast<std::byte*>(first_); }
  void fill(unsigned char value) const {
    const Functions& calls = device::cuda::library().functions;
    const auto legacy = reinterpret_cast<device::cuda::Stream>(device::cuda::legacy_stream);
    check(calls.cuMemsetD8Async(first_, value, bytes_, legacy));
    check(calls.cuStreamSynchronize(legacy));
  }

 private:
  static void check(device::cuda::Result result) {
    if (result == device::cuda::success) return;
    throw Error(Code::failed, device::cuda::describe(device::cuda::library().functions, result));
  }

  Pointer first_ = 0;
  std::size_t bytes_;
};

struct Tensor {
  Tensor(std::byte* first, std::int64_t width, std::int64_t pitch, std::int32_t device)
      : shape{rows, width}, strides{pitch, 1}, view{first, Dtype::float32, shape, strides,
                                                    false, false,          device} {}
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  Shape shape;
  Shape strides;
  TensorView view;
};

void be_the_owner(const fabric::Pipe& up) {
  const Memory memory(whole_bytes);
  const auto fabric = fabric::make_shm_fabric({"owner", "secret", nullptr});
  std::vector<std::byte> own(half_bytes, std::byte{filling});
  const Tensor all(memory.data(), columns / 2, columns / 2, 0);
  const Tensor left(memory.data(), columns / 2, columns, 0);
  const Tensor hosts(own.data(), columns / 2, columns / 2, host_memory);
  std::vector<std::unique_ptr<fabric::Region>> regions;
  for (const Tensor* tensor : {&all, &left, &hosts}) {
    regions.push_back(fabric->expose(std::span(&tensor->view, 1)));
  }
  up.put(encode(fabric->address()));
  for (;;) {
    step(*fabric, -1, [](const fabric::Event&) {});
  }
}

class Bench {
 public:
  explicit Bench(const fabric::Pipe& up)
      : client_(fabric::make_shm_fabric({"reader", "", nullptr}), fabric::decode_address(up.get())),
        device_(device::cuda::open({0})),
        queue_(device_.open_queue()),
        pin_(device_.pin({.bytes = pinned_, .in_budget = false})) {}

  std::vector<Row> run() {
    std::vector<Row> found;
    const Tensor to_host(pinned_.data(), columns / 2, columns / 2, host_memory);
    const Tensor to_device(target_.data(), columns / 2, columns / 2, 0);
    const Tensor pitched(target_.data(), columns / 2, columns, 0);
    found.push_back(read("device to host, dense", dense, to_host.view, &Bench::down));
    found.push_back(read("device to host, half of a matrix", half, to_host.view, &Bench::down));
    found.push_back(read("host to device", host, to_device.view, &Bench::up));
    found.push_back(read("device to device, dense", dense, to_device.view, &Bench::within));
    found.push_back(read("device to device, half to half", half, pitched.view, &Bench::within));
    return found;
  }
  const device::Info& info() const { return device_.info(); }

 private:
  using Floor = device::Block (Bench::*)() const;
  device::Block down() const { return {target_.data(), pinned(), half_bytes}; }
  device::Block up() const { return {pinned(), target_.data(), half_bytes}; }
  device::Block within() const { return {target_.data() + half_bytes, target_.data(), half_bytes}; }
  std::byte* pinned() const { return const_cast<std::byte*>(pinned_.data()); }

  double copy(const device::Block& block) {
    const TimePoint start = now();
    queue_->copy({block}).wait(Deadline::never());
    return seconds_since(start);
  }
  Row read(const std::string& name, std::uint64_t region, const TensorView& target, Floor floor) {
    const fabric::Source source = client_.attach(region);
    const Dtype types[] = {Dtype::float32};
    const auto stream =
        std::make_shared<plan::Stream>(fabric::whole_stream(source.region->forms(), types));
    const auto gigabytes = [](double seconds) { return half_bytes / seconds / 1e9; };
    Row row = measure(
        {name, "pinned copy", "GB/s"}, rounds, [&] { return gigabytes(copy((this->*floor)())); },
        [&] {
          return gigabytes(client_.read(stream, source, {&target, 1}));
        });
    row.name += fmt::format(" ({})", fabric::path_to({&target, 1}, *source.region));
    check(target);
    return row;
  }
  // The left half of every row.
  void check(const TensorView& target) {
    device::Block block{target.data, pinned(), static_cast<std::size_t>(columns / 2) * 4, rows};
    block.from_pitch.row = target.strides[0] * 4;
    block.to_pitch.row = columns / 2 * 4;
    if (target.on_device()) copy(block);
    const bool right =
        std::ranges::all_of(std::span(pinned_).first(half_bytes),
                            [](std::byte each) { return each == std::byte{filling}; });
    if (!right) throw Error(Code::failed, "what was read is not what was exposed");
    std::ranges::fill(pinned_, std::byte{0});
    target_.fill(0);
  }

  Client client_;
  device::Device& device_;
  const std::unique_ptr<device::Queue> queue_;
  std::vector<std::byte> pinned_ = std::vector<std::byte>(half_bytes);
  const Memory target_{whole_bytes};
  const std::shared_ptr<const device::Pin> pin_;
};

int run(int argc, char** argv) {
  json_option(argc, argv);
  const fabric::Pipe up;
  // Forked before CUDA begins in either.
  const fabric::Child owner([&] {
    device::cuda::initialise(device::cuda::library().functions);
    be_the_owner(up);
  });
  try {
    device::cuda::initialise(device::cuda::library().functions);
  } catch (const Error& error) {
    fmt::print("skipped: {}\n", error.what());
    return report({}, argc, argv);
  }
  Bench bench(up);
  std::vector<Row> found = bench.run();
  if (bench.info().is_real) return report(found, argc, argv);
  for (const Row& row : found) fmt::print("{}: moved and right\n", row.name);
  fmt::print("this is the stand-in of tests: its speeds say nothing of a GPU\n");
  return report({}, argc, argv);
}

}  // namespace
}  // namespace tensorbus::bench

int main(int argc, char** argv) { return tensorbus::bench::run(argc, argv); }
