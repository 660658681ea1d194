// Devices with a memory of their own: what a device copies, in which order, and when this process
// knows it.
//
// Users' streams belong to the users: nothing is ever added to such a stream but an event. The work
// of copying lies in queues of ours, which no call of this interface waits for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/core/mark.h"
#include "tensorbus/status.h"

namespace tensorbus::device {

// A device as this process numbers it. Processes that see other devices number devices otherwise:
// across processes the uuid names a device.
struct Id {
  int ordinal = 0;

  friend auto operator<=>(const Id&, const Id&) = default;
};

std::string to_string(Id id);  // "cuda:0"

struct Info {
  Id id;
  std::string name;
  std::string uuid;
  bool is_real = true;  // false: a stand-in of tests
};

// A stream of a user's, as DLPack and CUDA name streams: 0 and 1 are the legacy stream, 2 the
// calling thread's, all others are addresses.
struct Stream {
  std::uintptr_t handle = 0;
};

// Distances in bytes from one row, and from one plane, to the next. Negative ones are allowed.
struct Pitch {
  std::int64_t row = 0;
  std::int64_t plane = 0;
};

// A copy within a device's memory, or between it and the host's: `bytes` side by side, `rows`
// times, and that `planes` times.
struct Block {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
  std::int64_t rows = 1;
  std::int64_t planes = 1;
  Pitch from_pitch = {};
  Pitch to_pitch = {};
};

// What a user's stream had been given when the moment was taken.
class Moment {
 public:
  virtual ~Moment() = default;
};

// Copies of one user of a device, in order. Any thread may call; no call blocks. Work that was
// given to a queue goes on when the queue is gone, and its marks pass.
class Queue {
 public:
  virtual ~Queue() = default;

  // What is copied from now on is copied after the moment.
  virtual void wait(std::shared_ptr<const Moment> moment) = 0;
  // Passes when the moment has, whatever else is in the queue.
  virtual Mark watch(std::shared_ptr<const Moment> moment) = 0;
  // The memory of the blocks is borrowed until the mark has passed.
  virtual Mark copy(std::vector<Block> blocks) = 0;

  // Readable when a mark has passed since the last drain().
  virtual int fd() const noexcept = 0;
  virtual void drain() noexcept = 0;
};

// Host memory that a device copies fast from and to, while somebody holds the pin.
class Pin {
 public:
  enum class State { asked_for, pinned, pageable };

  virtual ~Pin() = default;
  // Pageable memory is copied, too, only slower.
  virtual State state() const = 0;
};

struct HostRange {
  std::span<std::byte> bytes;
  std::shared_ptr<const void> keeper = {};  // of the memory: let go when the device has let go
  bool read_only = false;                   // mapped so
  bool in_budget = true;                    // false: pinned whatever else is
};

// Memory of a device that two processes see: one makes it, the other opens it by its name. Whoever
// made it keeps it for as long as the process lives, also after it was dropped: memory that another
// process has open may not be freed. So it is given to who asks next.
class Window {
 public:
  enum class State { asked_for, ready, refused };

  virtual ~Window() = default;
  virtual State state() const = 0;
  // The rest is known when it is ready.
  virtual std::byte* data() const = 0;
  virtual const std::string& name() const = 0;
};

// Any thread may call. After Error(failed) from a device that has died nothing asks the device
// again: only a new process can use it.
class Device {
 public:
  virtual ~Device() = default;

  virtual const Info& info() const noexcept = 0;
  virtual std::unique_ptr<Queue> open_queue() = 0;
  // Called on the thread that uses the stream. Error(invalid_argument) for a stream that captures a
  // graph, or that belongs to another device.
  virtual std::shared_ptr<const Moment> moment(Stream stream) = 0;
  // Pinned before what is copied from now on. What cannot be pinned is pageable, with a warning.
  virtual std::shared_ptr<const Pin> pin(HostRange range) = 0;
  // Null: this kind of device has none.
  virtual std::shared_ptr<const Window> make_window(std::size_t) { return nullptr; }
  // Of another process of this host. Dropped after the last copy from it has ended.
  virtual std::shared_ptr<const Window> open_window(const std::string&) { return nullptr; }
  // Not ok: the device has died, and why.
  virtual Status health() const = 0;
};

}  // namespace tensorbus::device
