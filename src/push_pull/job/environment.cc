// The variables of the system that we stand in for.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <string>

#include "base/config.h"
#include "base/log.h"
#include "os/net/tcp.h"
#include "tensorbus/push_pull.h"

namespace tensorbus::push_pull {
namespace {

[[noreturn]] void bad(std::string_view name, std::string_view value, std::string_view wanted) {
  throw Error(Code::invalid_argument,
              fmt::format("{} is \"{}\"; it must be {}", name, value, wanted));
}

std::string required(const char* name, std::string_view meaning) {
  if (auto value = config::variable(name)) return *value;
  throw Error(Code::invalid_argument,
              fmt::format("the environment variable {} is not set: {}", name, meaning));
}

int number(const char* name, const std::string& text, int smallest, int largest) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < smallest ||
      value > largest) {
    bad(name, text, fmt::format("a number from {} to {}", smallest, largest));
  }
  return value;
}

constexpr int largest = 100'000;

int number_or(const char* name, int fallback) {
  const auto text = config::variable(name);
  return text ? number(name, *text, 0, largest) : fallback;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// One of these words, in any case; nothing if the variable is not set.
std::optional<std::string> word(const char* name, std::span<const std::string_view> known) {
  const auto text = config::variable(name);
  if (!text) return std::nullopt;
  std::string value = lower(*text);
  if (std::ranges::find(known, value) == known.end()) {
    bad(name, *text, fmt::format("one of {}", fmt::join(known, ", ")));
  }
  return value;
}

Role role() {
  const std::string text = required("DMLC_ROLE", "scheduler, server or worker");
  for (const Role each : {Role::scheduler, Role::server, Role::worker}) {
    if (text == to_string(each)) return each;
  }
  bad("DMLC_ROLE", text, "scheduler, server or worker");
}

int rank_of(const Job& job) {
  const int gpu = number_or("STEPMESH_GPU", 0);
  const int offset = number_or("DMLC_RANK_OFFSET", 0);
  const int rank = job.group_size * number_or("DMLC_NODE_RANK", 0) + gpu + offset;
  const int instance = number_or("DMLC_INSTANCE_ID", gpu + offset);
  if (instance % job.group_size != rank % job.group_size) {
    throw Error(Code::invalid_argument,
                fmt::format("DMLC_INSTANCE_ID is {}, but DMLC_NODE_RANK, STEPMESH_GPU and "
                            "DMLC_RANK_OFFSET make this instance {} of its group",
                            instance, rank % job.group_size));
  }
  return rank;
}

Transport transport() {
  // What these variables choose is hardware that this process finds by itself.
  constexpr std::array<std::string_view, 4> fabrics{"ibverbs", "zmq", "0", "1"};
  word("DMLC_ENABLE_RDMA", fabrics);
  constexpr std::array<std::string_view, 6> backends{"cpu", "gpu", "cuda", "shm", "ucx", "auto"};
  std::optional<std::string> chosen;
  for (const char* name : {"STEPMESH_BACKEND", "STEPMESH_BAKCEND"}) {  // spelled so
    const auto value = word(name, backends);
    if (chosen && value && chosen != value) {
      throw Error(Code::invalid_argument,
                  fmt::format("STEPMESH_BACKEND is \"{}\" and STEPMESH_BAKCEND is \"{}\"", *chosen,
                              *value));
    }
    if (value) chosen = value;
  }
  if (chosen == "shm") return Transport::shared_memory;
  if (chosen == "ucx") return Transport::network;
  return Transport::automatic;
}

std::string bind_address() {
  const auto host = config::variable("DMLC_NODE_HOST");
  const auto device = config::variable("DMLC_INTERFACE");
  if (!device || *device == "auto") return host.value_or("");
  const std::string address = os::address_of_device(*device);
  if (host && *host != address) {
    throw Error(Code::invalid_argument,
                fmt::format("DMLC_NODE_HOST is {}, but the device {} of DMLC_INTERFACE has {}",
                            *host, *device, address));
  }
  return address;
}

Duration timeout() {
  const auto text = config::variable("TENSORBUS_INIT_TIMEOUT");
  if (!text) return std::chrono::seconds(300);
  double seconds = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), seconds);
  if (error != std::errc() || end != text->data() + text->size() || !(seconds >= 0) ||
      seconds > 1e9) {
    bad("TENSORBUS_INIT_TIMEOUT", *text, "a number of seconds");
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Environment from_environment() {
  config::start();
  Environment result;
  NodeOptions& options = result.options;
  result.role = role();
  result.timeout = timeout();
  const auto count = [](const char* name, std::string_view meaning) {
    return number(name, required(name, meaning), 1, largest);
  };
  options.job.workers = count("DMLC_NUM_WORKER", "the number of worker groups");
  options.job.servers = count("DMLC_NUM_SERVER", "the number of server groups");
  options.job.group_size = std::max(number_or("DMLC_GROUP_SIZE", 1), 1);
  options.job.host = required("DMLC_PS_ROOT_URI", "the scheduler's address");
  options.job.port = static_cast<std::uint16_t>(
      number("DMLC_PS_ROOT_PORT", required("DMLC_PS_ROOT_PORT", "the scheduler's port"), 1, 65535));
  options.rank = result.role == Role::scheduler ? 0 : rank_of(options.job);
  options.bind = bind_address();
  options.transport = transport();
  options.deadline = Deadline::after(result.timeout);
  return result;
}

}  // namespace tensorbus::push_pull
