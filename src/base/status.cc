#include "tensorbus/status.h"

#include <exception>
#include <new>

namespace tensorbus {

std::string_view to_string(Code code) noexcept {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::invalid_argument:
      return "invalid argument";
    case Code::timeout:
      return "timeout";
    case Code::unreachable:
      return "unreachable";
    case Code::denied:
      return "denied";
    case Code::unsupported:
      return "unsupported";
    case Code::peer_lost:
      return "peer lost";
    case Code::queue_full:
      return "queue full";
    case Code::cancelled:
      return "cancelled";
    case Code::interrupted:
      return "interrupted";
    case Code::failed:
      return "failed";
    case Code::withdrawn:
      return "withdrawn";
  }
  return "unknown code";
}

Status current_exception_status() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return error.status();
  } catch (const std::bad_alloc&) {
    return {Code::failed, "out of memory"};
  } catch (const std::exception& error) {
    return {Code::failed, error.what()};
  } catch (...) {
    return {Code::failed, "an exception of unknown type"};
  }
}

}  // namespace tensorbus
