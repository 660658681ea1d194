// A device with a user, as the conformance tests need it: memory on the device, streams of the
// user's that write it, and a way to let time go on.
#pragma once

#include <vector>

#include "device/core/device.h"

namespace tensorbus::device {

using Bytes = std::vector<std::byte>;

class Bench {
 public:
  virtual ~Bench() = default;

  virtual Device& device() = 0;

  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual Stream make_stream() = 0;
  // A kernel of the user's: runs when the stream comes to it.
  virtual void write(Stream stream, std::byte* to, const Bytes& bytes) = 0;
  // What lies there now, whatever is still to come.
  virtual Bytes read(const std::byte* from, std::size_t bytes) = 0;
  // What the stream is given from now on waits for release().
  virtual void hold(Stream stream) = 0;
  virtual void release(Stream stream) = 0;
  virtual void set_capturing(Stream stream, bool capturing) = 0;
  virtual void kill() = 0;

  // Lets time go on until the mark has passed; false: the mark never will.
  virtual bool finish(const Mark& mark) = 0;
  // Lets time go on for a while that would be enough for whatever can go on.
  virtual void let_go_on() = 0;
};

}  // namespace tensorbus::device
