// Preloaded into the Python processes of the store's benchmark: addresses are shown as numbers.
// torch's client asks the name service for its peer's name at every connect, only to log it. Where
// that service is slow or loses queries, this and not the store would be measured.
#include <dlfcn.h>
#include <netdb.h>

extern "C" int getnameinfo(const sockaddr* address, socklen_t size, char* host, socklen_t host_size,
                           char* service, socklen_t service_size, int flags) {
  static const auto next =
      reinterpret_cast<decltype(&::getnameinfo)>(::dlsym(RTLD_NEXT, "getnameinfo"));
  return next(address, size, host, host_size, service, service_size,
              flags | NI_NUMERICHOST | NI_NUMERICSERV);
}
