// The shared-memory fabric against what the machine can do: memcpy, process_vm_readv, the copy
// kernels, a bare ping-pong. The owner is a process of its own; all pages are touched beforehand.
#include <fmt/core.h>

#include <cstring>
#include <vector>

#include "copy/execute.h"
#include "fabric/conformance/two_hosts.h"
#include "fabric/core/pool.h"
#include "fabric/shm/fabric.h"
#include "fabric_loop.h"
#include "os/io/memory.h"
#include "os/process/process.h"
#include "ping_pong.h"
#include "rows.h"

namespace tensorbus::bench {
namespace {

using fabric::Source;

constexpr std::size_t mebibyte = std::size_t{1} << 20;
constexpr std::size_t largest = 2048 * mebibyte;
constexpr std::int64_t columns = 8192;  // of the float32 matrix whose left half is read
constexpr std::int64_t rows = 4096;
constexpr int small_tensors = 1000;
constexpr std::int64_t small_bytes = 64 * 1024;

struct Size {
  std::size_t bytes;
  const char* name;
  int rounds;
};
constexpr Size sizes[] = {
    {64 * mebibyte, "64 MiB", 31}, {512 * mebibyte, "512 MiB", 15}, {largest, "2 GiB", 7}};

std::shared_ptr<std::byte> touched(std::size_t bytes) {
  std::shared_ptr<std::byte> memory(new std::byte[bytes], std::default_delete<std::byte[]>());
  // 1.0 and its neighbours: no subnormal in any type that the benchmark reads.
  std::memset(memory.get(), 0x3F, bytes);
  return memory;
}

// Memory and a one-dimensional view of it.
struct Vector {
  Vector(std::byte* first, std::size_t bytes)
      : shape{static_cast<std::int64_t>(bytes)}, view{first, Dtype::uint8, shape, strides} {}
  Vector(const Vector&) = delete;
  Vector& operator=(const Vector&) = delete;

  Shape shape;
  Shape strides{1};
  TensorView view;
};

// The left half of a matrix of float32.
struct Matrix {
  explicit Matrix(std::byte* first) : view{first, Dtype::float32, shape, strides} {}
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  Shape shape{rows, columns / 2};
  Shape strides{columns, 1};
  TensorView view;
};

// By what is in it; numbers count from 1 in the order in which they are exposed.
enum Regions : std::uint64_t { pooled = 1, private_ = 4, matrix = 7, many = 8 };

void be_the_owner(const fabric::Pipe& up) {
  const auto pool = std::make_shared<fabric::Pool>();
  const auto fabric = fabric::make_shm_fabric({"owner", "secret", pool});
  const auto shared = pool->allocate(largest);
  std::memset(shared.get(), 0x3F, largest);
  const auto own = touched(largest);
  std::vector<std::unique_ptr<fabric::Region>> regions;
  for (std::byte* memory : {shared.get(), own.get()}) {
    for (const Size& size : sizes) {
      const Vector vector(memory, size.bytes);
      regions.push_back(fabric->expose(std::span(&vector.view, 1)));
    }
  }
  const Matrix half(shared.get());
  regions.push_back(fabric->expose(std::span(&half.view, 1)));
  const Vector small(shared.get(), small_bytes);
  std::vector<TensorView> tensors(small_tensors, small.view);
  for (int i = 0; i < small_tensors; ++i)
    tensors[static_cast<std::size_t>(i)].data += i * small_bytes;
  regions.push_back(fabric->expose(tensors));
  up.put(encode(fabric->address()));
  up.put(std::to_string(reinterpret_cast<std::uintptr_t>(own.get())));
  for (;;) {
    step(*fabric, -1, [&](const fabric::Event& event) { echo(*fabric, event); });
  }
}

double gigabytes(std::size_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds / 1e9;
}

std::shared_ptr<const plan::Stream> whole(const Source& source, Dtype dtype) {
  const std::vector<Dtype> types(source.region->forms().size(), dtype);
  return std::make_shared<plan::Stream>(fabric::whole_stream(source.region->forms(), types));
}

class Bench {
 public:
  Bench(const fabric::Child& owner, const fabric::Pipe& up)
      : owner_(owner),
        shared_(os::map(os::sealed_memfd("bench", largest), largest, true, true)),
        target_(touched(largest)),
        client_(fabric::make_shm_fabric({"reader", "", nullptr}), fabric::decode_address(up.get())),
        private_address_(std::stoull(up.get())) {}

  std::vector<Row> run() {
    std::vector<Row> found;
    for (std::size_t i = 0; i < std::size(sizes); ++i) found.push_back(pooled_read(i));
    for (std::size_t i = 0; i < std::size(sizes); ++i) found.push_back(private_read(i));
    found.push_back(strided_read());
    found.push_back(many_tensors());
    found.push_back(round_trip());
    found.push_back(idle(client_, owner_.pid()));
    return found;
  }

 private:
  double copy_seconds(std::size_t bytes) {
    const TimePoint start = now();
    std::memcpy(target_.get(), shared_.data(), bytes);
    return seconds_since(start);
  }

  Row pooled_read(std::size_t index) {
    const Size& size = sizes[index];
    const Source source = client_.attach(pooled + index);
    const auto stream = whole(source, Dtype::uint8);
    const Vector target(target_.get(), size.bytes);
    Row row{fmt::format("read of pooled memory, {}", size.name), "memcpy", "GB/s"};
    row.at_least = 0.9;
    return measure(
        std::move(row), size.rounds,
        [&] { return gigabytes(size.bytes, copy_seconds(size.bytes)); },
        [&] {
          return gigabytes(size.bytes, client_.read(stream, source, {&target.view, 1}));
        });
  }

  Row private_read(std::size_t index) {
    const Size& size = sizes[index];
    const Source source = client_.attach(private_ + index);
    const auto stream = whole(source, Dtype::uint8);
    const Vector target(target_.get(), size.bytes);
    Row row{fmt::format("read of private memory, {}", size.name), "process_vm_readv", "GB/s"};
    row.at_least = 0.95;
    const auto bare = [&] {
      const iovec local{target_.get(), size.bytes};
      const iovec remote{reinterpret_cast<void*>(private_address_), size.bytes};
      const TimePoint start = now();
      if (os::read_process_memory(owner_.pid(), {&local, 1}, {&remote, 1}) != 0) {
        throw Error(Code::failed, "process_vm_readv fails");
      }
      return gigabytes(size.bytes, seconds_since(start));
    };
    return measure(std::move(row), size.rounds, bare, [&] {
      return gigabytes(size.bytes, client_.read(stream, source, {&target.view, 1}));
    });
  }

  Row strided_read() {
    const Source source = client_.attach(matrix);
    const auto stream = whole(source, Dtype::bfloat16);
    const Matrix local(shared_.data());
    const Shape dense = plan::contiguous_strides(local.shape);
    const TensorView target{target_.get(), Dtype::bfloat16, local.shape, dense};
    const plan::Strides from{local.strides};
    const plan::Strides to{dense};
    const plan::Program program = plan::compile(*stream, &from, &to);
    const std::byte* first = shared_.data();
    std::byte* into = target_.get();
    const copy::Sources members[] = {{&first, 1}};
    constexpr std::size_t bytes = std::size_t{rows} * columns / 2 * 6;  // read and written
    Row row{"strided read, float32 -> bfloat16, 64 MiB", "the kernel alone", "GB/s"};
    row.at_least = 0.9;
    const auto kernel = [&] {
      const TimePoint start = now();
      copy::execute(program, members, {&into, 1});
      return gigabytes(bytes, seconds_since(start));
    };
    return measure(std::move(row), 31, kernel, [&] {
      return gigabytes(bytes, client_.read(stream, source, {&target, 1}));
    });
  }

  Row many_tensors() {
    const Source source = client_.attach(many);
    const auto stream = whole(source, Dtype::uint8);
    const Vector target(target_.get(), small_bytes);
    std::vector<TensorView> targets(small_tensors, target.view);
    for (int i = 0; i < small_tensors; ++i) {
      targets[static_cast<std::size_t>(i)].data += i * small_bytes;
    }
    constexpr std::size_t bytes = std::size_t{small_tensors} * small_bytes;
    const Row row{"read of 1,000 pooled tensors of 64 KiB", "memcpy", "GB/s"};
    return measure(
        row, 31, [&] { return gigabytes(bytes, copy_seconds(bytes)); },
        [&] { return gigabytes(bytes, client_.read(stream, source, targets)); });
  }

  Row round_trip() {
    PingPong floor;
    Row row{"64 B message, round trip", "spin then futex", "us"};
    row.at_most = 2;
    constexpr int trips = 5000;
    return measure(
        std::move(row), 31, [&] { return floor.round_trips(trips) * 1e6; },
        [&] { return client_.round_trips(trips) * 1e6; });
  }

  const fabric::Child& owner_;
  const os::Mapping shared_;
  const std::shared_ptr<std::byte> target_;
  Client client_;
  const std::uintptr_t private_address_;
};

int run(int argc, char** argv) {
  constexpr std::size_t needed = 4 * largest + 1024 * mebibyte;
  if (os::available_memory() < needed) {
    fmt::print("skipped: this needs {} GiB of memory\n", needed >> 30);
    return report({}, argc, argv);
  }
  const fabric::Pipe up;
  const fabric::Child owner([&] { be_the_owner(up); });
  return report(Bench(owner, up).run(), argc, argv);
}

}  // namespace
}  // namespace tensorbus::bench

int main(int argc, char** argv) { return tensorbus::bench::run(argc, argv); }
