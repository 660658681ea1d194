// A device without threads and without time: everything that the device does, it does in step().
// For simulations, which choose when step() comes.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <random>

#include "device/core/device.h"

namespace tensorbus::device {

// Used by one thread. Marks and moments may outlive the device.
class FakeDevice final : public Device {
 public:
  FakeDevice(Id id, unsigned seed);
  ~FakeDevice() override;

  const Info& info() const noexcept override { return info_; }
  std::unique_ptr<Queue> open_queue() override;
  std::shared_ptr<const Moment> moment(Stream stream) override;
  std::shared_ptr<const Pin> pin(HostRange range) override;
  Status health() const override { return death_; }

  // A piece of something that can go on, chosen by the dice. False: nothing can.
  bool step();

  // What a user does with the device. Memory of the device is never spoilt by a copy that has only
  // been issued, other memory is.
  std::byte* allocate(std::size_t bytes);
  Stream make_stream();
  void write(Stream stream, std::byte* to, std::vector<std::byte> bytes);
  // What the stream is given comes no further until it is released.
  void hold(Stream stream);
  void release(Stream stream);
  void set_capturing(Stream stream, bool capturing);
  void die(const Status& why);

 private:
  friend class FakeQueue;
  class Line;
  struct Task;

  std::shared_ptr<Line> make_line();
  Line& line_of(Stream stream);
  bool is_on_device(const std::byte* data) const;
  void spoil(const Block& block) const;

  const Info info_;
  std::minstd_rand dice_;
  Status death_;
  std::list<std::shared_ptr<Line>> lines_;
  std::map<std::uintptr_t, std::shared_ptr<Line>> streams_;
  std::map<const std::byte*, std::vector<std::byte>> memory_;
};

}  // namespace tensorbus::device
