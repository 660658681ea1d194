#include "served.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace tensorbus::store;
  Service service(tensorbus::StoreServerOptions{});
  Hello hello;
  hello.id.fill('s');
  feed(service, encode(hello), {reinterpret_cast<const char*>(data), size});
  return 0;
}
