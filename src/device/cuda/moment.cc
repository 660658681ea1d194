#include "device/cuda/moment.h"

#include <fmt/format.h>

namespace tensorbus::device::cuda {
namespace {

Stream handle_of(device::Stream stream) { return reinterpret_cast<Stream>(stream.handle); }

[[noreturn]] void refuse(Id id, const char* why) {
  throw Error(Code::invalid_argument,
              fmt::format("the stream given for {} {}", to_string(id), why));
}

void check_not_capturing(Calls& calls, Stream stream) {
  CaptureStatus status = capture_none;
  const Result result = calls.ask(&Functions::cuStreamIsCapturing, stream, &status);
  if (result == capture_implicit || (result == success && status != capture_none)) {
    refuse(calls.id(),
           "captures a graph: what it is given runs later, and tensors that are handed "
           "over now would be those of before; do it outside the capture");
  }
  if (result == invalid_handle || result == invalid_context) {
    refuse(calls.id(), "is none of this device's");
  }
  if (result != success) throw Error(Code::failed, calls.text_of(result));
}

}  // namespace

Recording::Recording(Engine& engine, device::Stream stream) : engine_(engine) {
  engine_.check_not_forked();
  const Visit visit(engine_);
  check_not_capturing(engine_.calls(), handle_of(stream));
  event_ = engine_.events().take();
  try {
    record(stream);
  } catch (...) {
    engine_.events().give_back(event_);
    throw;
  }
}

Recording::~Recording() {
  if (!engine_.is_forked()) engine_.events().give_back(event_);
}

void Recording::record(device::Stream stream) {
  const Result result = engine_.calls().ask(&Functions::cuEventRecord, event_, handle_of(stream));
  if (result == invalid_handle || result == invalid_context) {
    refuse(engine_.calls().id(), "is none of this device's");
  }
  if (result != success) throw Error(Code::failed, engine_.calls().text_of(result));
}

}  // namespace tensorbus::device::cuda
