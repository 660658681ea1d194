// Everything that a node of push-pull reads from its scheduler's store, and the requests that a
// server takes from a worker.
#include "decoded.h"
#include "push_pull/job/records.h"
#include "push_pull/job/wire.h"

namespace tensorbus::push_pull {
namespace {

template <typename Record>
void check_record(std::string_view bytes) {
  const auto decoded = [](std::string_view from) { return tensorbus::wire::read<Record>(from); };
  const auto encoded = [](const Record& record) { return tensorbus::wire::write(record); };
  check_decoder(decoded, bytes, encoded);
}

// A request's numbers, as far as they make sense.
void take_request(std::string_view bytes) {
  wire::Numbers numbers(bytes);
  const wire::RequestHead head = wire::take_head(numbers);
  for (std::uint64_t left = head.pushes; left > 0; --left) {
    const wire::Push push = wire::take_push(numbers);
    std::array<std::int64_t, 8> extents{};
    const auto shape = std::span(extents).first(std::min<std::size_t>(push.dims, extents.size()));
    wire::take_extents(numbers, shape);
    wire::checked_bytes(wire::checked_dtype(push.dtype), shape);
  }
  for (std::uint64_t left = head.pulls; left > 0; --left) wire::take_pull(numbers);
  numbers.end();
}

}  // namespace
}  // namespace tensorbus::push_pull

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace tensorbus;
  using namespace tensorbus::push_pull;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check_record<JobRecord>(bytes);
  check_record<NodeRecord>(bytes);
  try {
    push_pull::wire::Body body(bytes);
    if (push_pull::wire::take_kind(body) == push_pull::wire::Kind::request) {
      take_request(body.raw(body.left()));
    }
  } catch (const Error& error) {
    if (error.code() != Code::failed) std::abort();
  }
  return 0;
}
