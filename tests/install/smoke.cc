// A project that knows nothing but the installed package.
#include <tensorbus/store.h>

#include <iostream>

int main() {
  tensorbus::StoreServer server({.port = 0});
  const auto store = tensorbus::connect(tensorbus::StoreUrl::parse(server.url()));
  const auto deadline = tensorbus::Deadline::after_seconds(10);
  const tensorbus::Entry entry{"greeting", "hello from the store"};
  store->set({&entry, 1}, deadline);
  std::cout << store->wait({.key = "greeting"}, deadline).value << '\n';
}
