// A project that knows nothing but the installed package.
#include <tensorbus/endpoint.h>
#include <tensorbus/log.h>
#include <tensorbus/pool.h>
#include <tensorbus/status.h>
#include <tensorbus/store.h>

#include <exception>
#include <iostream>
#include <string>

namespace {

// Frozen tensors have to lie in the pool that the endpoint was given.
bool pool_is_used() {
  tensorbus::EndpointOptions options;
  options.pool = tensorbus::make_pool();
  const tensorbus::Shape shape{1000};
  const tensorbus::Shape strides{1};
  const auto memory = tensorbus::allocate(*options.pool, 1000);
  tensorbus::Endpoint endpoint(options);
  const tensorbus::TensorView tensor{memory.get(), tensorbus::Dtype::uint8, shape, strides};
  return endpoint.release(endpoint.expose_frozen({&tensor, 1})) &&
         tensorbus::use_of(*options.pool).lent_bytes >= 1000;
}

// A server says what it found in its journal.
bool log_arrives(const std::string& journal) {
  std::string logged;
  tensorbus::log::set_level(tensorbus::log::Level::info);
  tensorbus::log::set_sink(
      [&](tensorbus::log::Level, std::string_view message) { logged += message; });
  { const tensorbus::StoreServer server({.port = 0, .journal = journal}); }
  { const tensorbus::StoreServer server({.port = 0, .journal = journal}); }
  tensorbus::log::set_sink(nullptr);
  return logged.find(journal) != logged.npos;
}

// The library throws what the program catches, by one C++ runtime: a second one would have counted
// the throw, and the program's the catch alone.
std::string message_of_a_bad_url() {
  try {
    tensorbus::connect(tensorbus::StoreUrl::parse("nowhere://host"));
  } catch (const tensorbus::Error& error) {
    if (std::uncaught_exceptions() != 0) return "by a second runtime";
    return error.code() == tensorbus::Code::invalid_argument ? error.what() : "another code";
  }
  return "nothing was thrown";
}

}  // namespace

int main(int, char** arguments) {
  tensorbus::StoreServer server({.port = 0});
  const auto store = tensorbus::connect(tensorbus::StoreUrl::parse(server.url()));
  const auto deadline = tensorbus::Deadline::after_seconds(10);
  const tensorbus::Entry entry{"greeting", "hello from the store"};
  store->set({&entry, 1}, deadline);
  if (!log_arrives(arguments[0] + std::string(".journal"))) std::cout << "nothing was logged\n";
  if (!pool_is_used()) std::cout << "the pool is not used\n";
  std::cout << "caught: " << message_of_a_bad_url() << '\n';
  std::cout << store->wait({.key = "greeting"}, deadline).value << '\n';
}
