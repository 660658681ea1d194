#include "served.h"
#include "store/protocol/torch_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace tensorbus::store;
  Service service(tensorbus::StoreServerOptions{});
  feed(service, TorchWriter().validate().bytes(), {reinterpret_cast<const char*>(data), size});
  return 0;
}
