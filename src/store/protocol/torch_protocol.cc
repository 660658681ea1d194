#include "store/protocol/torch_protocol.h"

#include <fmt/format.h>

#include <cstring>

namespace tensorbus::store {
namespace {

constexpr std::size_t max_count = 128 * 1024;

// Thrown when the bytes end before the request does.
struct Incomplete {
  std::size_t needed;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T integer() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view key() { return string(max_key_size, "key"); }
  std::string_view value() { return string(max_value_size, "value"); }
  std::vector<std::string_view> keys() {
    std::vector<std::string_view> found;
    for (std::uint64_t left = count(); left > 0; --left) found.push_back(key());
    return found;
  }
  std::uint64_t count() {
    const auto count = integer<std::uint64_t>();
    if (count > max_count) {
      throw Error(Code::invalid_argument, fmt::format("a list of {} keys is too long", count));
    }
    return count;
  }
  std::size_t position() const noexcept { return at_; }

 private:
  std::string_view take(std::size_t size) {
    if (bytes_.size() - at_ < size) throw Incomplete{at_ + size};
    const std::string_view taken = bytes_.substr(at_, size);
    at_ += size;
    return taken;
  }
  std::string_view string(std::size_t largest, std::string_view what) {
    const auto size = integer<std::uint64_t>();
    if (size > largest) {
      throw Error(
          Code::invalid_argument,
          fmt::format("a {} of {} bytes is too long; at most {} are allowed", what, size, largest));
    }
    return take(size);
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
};

TorchRequest parse(Reader& reader) {
  TorchRequest request;
  const auto code = reader.integer<std::uint8_t>();
  request.op = static_cast<TorchOp>(code);
  switch (request.op) {
    case TorchOp::validate:
    case TorchOp::ping:
      request.number = reader.integer<std::uint32_t>();
      break;
    case TorchOp::set:
    case TorchOp::append:
    case TorchOp::queue_push:
      request.key = reader.key();
      request.value = reader.value();
      break;
    case TorchOp::compare_set:
      request.key = reader.key();
      request.expected = reader.value();
      request.value = reader.value();
      break;
    case TorchOp::get:
    case TorchOp::delete_key:
    case TorchOp::queue_pop:
    case TorchOp::queue_len:
      request.key = reader.key();
      break;
    case TorchOp::add:
    case TorchOp::barrier:
      request.key = reader.key();
      request.number = reader.integer<std::int64_t>();
      break;
    case TorchOp::check:
    case TorchOp::wait:
    case TorchOp::multi_get:
      request.keys = reader.keys();
      break;
    case TorchOp::multi_set:
      for (std::uint64_t left = reader.count(); left > 0; --left) {
        const std::string_view key = reader.key();
        request.entries.push_back({key, reader.value()});
      }
      break;
    case TorchOp::num_keys:
    case TorchOp::cancel_wait:
    case TorchOp::list_keys:
      break;
    default:
      throw Error(Code::invalid_argument, fmt::format("unknown operation {}", code));
  }
  request.size = reader.position();
  return request;
}

}  // namespace

TorchRequest parse_torch_request(std::string_view bytes, std::size_t& needed) {
  Reader reader(bytes);
  try {
    return parse(reader);
  } catch (const Incomplete& incomplete) {
    needed = incomplete.needed;
    return {};
  }
}

std::string torch_string(std::string_view value) {
  return torch_integer(static_cast<std::uint64_t>(value.size())).append(value);
}

}  // namespace tensorbus::store
