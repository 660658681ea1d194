#include "fabric/ucx/context.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "fabric/ucx/address.h"
#include "os/io/fd.h"
#include "os/process/fork.h"

namespace tensorbus::fabric::ucx {
namespace {

void check(ucs_status_t status, std::string_view what) {
  if (status != UCS_OK) throw Error(status_of(Code::failed, what, status));
}

// Settings have other names in other versions: one of `names` must be taken.
void modify(ucp_config_t* config, std::initializer_list<const char*> names,
            const std::string& value) {
  ucs_status_t status = UCS_ERR_NO_ELEM;
  bool taken = false;
  for (const char* name : names) {
    const ucs_status_t answer = library().ucp_config_modify(config, name, value.c_str());
    if (answer == UCS_OK) {
      taken = true;
    } else {
      status = answer;
    }
  }
  if (!taken) {
    throw Error(status_of(Code::failed,
                          fmt::format("UCX setting {} = \"{}\"", *names.begin(), value), status));
  }
}

bool has_address(const ifaddrs& entry, const std::string& address) {
  if (entry.ifa_addr == nullptr) return false;
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = nullptr;
  const int family = entry.ifa_addr->sa_family;
  if (family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in*>(entry.ifa_addr)->sin_addr;
  } else if (family == AF_INET6) {
    bytes = &reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr;
  } else {
    return false;
  }
  return inet_ntop(family, bytes, text.data(), text.size()) != nullptr && address == text.data();
}

ucs_status_t on_message(void* argument, const void* header, std::size_t header_bytes, void* data,
                        std::size_t bytes, const ucp_am_recv_param_t* parameters) {
  // We never send by rendezvous, so whoever does is none of ours; `data` is no data then.
  if ((parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;
  static_cast<Receiver*>(argument)->received({static_cast<const std::byte*>(header), header_bytes},
                                             {static_cast<const std::byte*>(data), bytes});
  return UCS_OK;
}

}  // namespace

Status status_of(Code code, std::string_view what, ucs_status_t status) {
  return {code, fmt::format("{}: {} (UCX status {})", what, library().ucs_status_string(status),
                            static_cast<int>(status))};
}

std::vector<std::string> transports() {
  uct_component_h* components = nullptr;
  unsigned count = 0;
  check(library().uct_query_components(&components, &count), "listing the transports of UCX");
  std::vector<std::string> names;
  for (unsigned i = 0; i < count; ++i) {
    uct_component_attr_t attributes{};
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME;
    if (library().uct_component_query(components[i], &attributes) == UCS_OK) {
      names.emplace_back(attributes.name);
    }
  }
  library().uct_release_component_list(components);
  return names;
}

std::string device_with_address(const std::string& address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) os::throw_errno("getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (has_address(*entry, address)) return entry->ifa_name;
  }
  throw Error(Code::invalid_argument,
              fmt::format("no network device of this machine has the address \"{}\"; give one that "
                          "\"ip address\" shows",
                          address));
}

Worker::Worker(const Settings& settings, Receiver& receiver)
    : receiver_(receiver), settings_(settings), device_(device_with_address(settings.bind)) {
  create_context();
  try {
    create_worker();
  } catch (...) {
    destroy();
    throw;
  }
}

Worker::~Worker() { destroy(); }

void Worker::destroy() noexcept {
  if (event_fd_ >= 0) os::forget_in_children(event_fd_);
  if (worker_ != nullptr) ucx_.ucp_worker_destroy(worker_);
  ucx_.ucp_cleanup(context_);
}

void Worker::create_context() {
  ucp_config_t* raw = nullptr;
  check(ucx_.ucp_config_read(nullptr, nullptr, &raw), "reading the settings of UCX");
  const std::unique_ptr<ucp_config_t, decltype(ucx_.ucp_config_release)> config(
      raw, ucx_.ucp_config_release);
  // Not UCX's shared memory: a peer on this host has our own fabric, and its death is noticed.
  modify(config.get(), {"TLS"}, "tcp");
  modify(config.get(), {"NET_DEVICES"}, device_);
  if (!settings_.ports.any()) {
    // 1.22 knows the first name, 1.13 the second and takes anything.
    modify(config.get(), {"TCP_PORT_RANGE", "PORT_RANGE"}, to_string(settings_.ports));
  }
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
  parameters.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  check(ucx_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config.get(), &context_),
        fmt::format("starting UCX {} on device {} of address {}", ucx_.ucp_get_version_string(),
                    device_, settings_.bind));
}

void Worker::create_worker() {
  const std::string where =
      settings_.ports.any() ? "" : ", at one of the ports " + to_string(settings_.ports);
  const std::string what = "a UCX worker on device " + device_ + where;
  ucp_worker_params_t parameters{};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  parameters.thread_mode = UCS_THREAD_MODE_SINGLE;
  const std::vector<os::ListeningSocket> before = os::listening_sockets();
  check(ucx_.ucp_worker_create(context_, &parameters, &worker_), what);

  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = message_id;
  handler.cb = on_message;
  handler.arg = &receiver_;
  check(ucx_.ucp_worker_set_am_recv_handler(worker_, &handler), what);
  check(ucx_.ucp_worker_get_efd(worker_, &event_fd_), what);
  // Or a killed process would seem to live on in its children.
  os::close_watched_in_children(event_fd_);

  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  check(ucx_.ucp_worker_get_address(worker_, &address, &bytes), what);
  const std::string worker(reinterpret_cast<const char*>(address), bytes);
  ucx_.ucp_worker_release_address(worker_, address);
  look_for_listener(before, worker);
  address_ = pack({os::own_ip_addresses(settings_.bind), worker});
}

// Among the listening sockets that are new, the one whose port the address tells: other threads may
// listen too.
void Worker::look_for_listener(const std::vector<os::ListeningSocket>& before,
                               std::string_view address) {
  for (const os::ListeningSocket& each : os::listening_sockets()) {
    const bool old = std::ranges::any_of(
        before, [&](const auto& known) { return known.fd == each.fd && known.port == each.port; });
    const std::string port{static_cast<char>(each.port >> 8), static_cast<char>(each.port & 0xFF)};
    if (!old && address.find(port) != address.npos) listener_ = each.fd;
  }
}

void Worker::keep_from_programs() noexcept { os::close_watched_on_exec(event_fd_); }

bool Worker::arm() {
  const ucs_status_t status = ucx_.ucp_worker_arm(worker_);
  if (status == UCS_ERR_BUSY) return false;
  check(status, "sleeping on UCX");
  return true;
}

}  // namespace tensorbus::fabric::ucx
