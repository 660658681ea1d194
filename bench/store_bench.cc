// The C++ side of the store's benchmark. bench/store.py runs it as servers and as clients and tells
// the clients, line by line, what to measure; they answer with nanoseconds. bench/store_client.py
// understands the same lines.
#include <fmt/core.h>

#include <iostream>
#include <map>
#include <sstream>
#include <thread>

#include "crowd.h"
#include "echo.h"
#include "store_client.h"

namespace tensorbus::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Nanoseconds = std::vector<std::int64_t>;

std::int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

// All processes start at one moment: the clock is the machine's.
void sleep_until(std::int64_t time) {
  std::this_thread::sleep_until(Clock::time_point(std::chrono::nanoseconds(time)));
}

class Measurements {
 public:
  Measurements(std::uint16_t store_port, std::uint16_t echo_port)
      : ports_{{"ours", store_port}, {"echo", echo_port}} {}

  Nanoseconds run(std::istream& line) {
    std::string what;
    std::string system;
    line >> what >> system;
    if (what == "get" || what == "set" || what == "add") return calls(what, system, line);
    if (what == "wait") return wait(system, line);
    if (what == "wake") return wake(system, line);
    if (what == "storm" || what == "acknowledged" || what == "batches") {
      return storm(what, system, line);
    }
    if (what == "barrier") return barrier(system, line);
    throw Error(Code::invalid_argument, "unknown measurement: " + what);
  }

 private:
  std::unique_ptr<Client> connect(const std::string& system) const {
    const std::uint16_t port = ports_.at(system);
    if (system == "echo") return std::make_unique<FloorClient>(port);
    return std::make_unique<StoreClient>(port);
  }

  Client& client(const std::string& system) {
    std::unique_ptr<Client>& known = clients_[system];
    if (!known) known = connect(system);
    return *known;
  }

  // get|set|add SYSTEM KEY COUNT START: how long each call took.
  Nanoseconds calls(const std::string& what, const std::string& system, std::istream& line) {
    std::string key;
    std::size_t count = 0;
    std::int64_t start = 0;
    line >> key >> count >> start;
    Client& caller = client(system);
    const auto call = what == "get" ? &Client::get : what == "set" ? &Client::set : &Client::add;
    if (what == "get") caller.prepare(key);
    Nanoseconds times(count);
    sleep_until(start);
    for (std::int64_t& time : times) {
      const auto before = Clock::now();
      (caller.*call)(key);
      time = std::chrono::nanoseconds(Clock::now() - before).count();
    }
    return times;
  }

  // wait SYSTEM KEY COUNT: waits for KEY/0, KEY/1, ...; when each wait returned.
  Nanoseconds wait(const std::string& system, std::istream& line) {
    std::string key;
    std::size_t count = 0;
    line >> key >> count;
    Client& waiter = client(system);
    Nanoseconds times;
    for (std::size_t i = 0; i < count; ++i) {
      waiter.wait(key + "/" + std::to_string(i));
      times.push_back(nanoseconds(Clock::now()));
    }
    return times;
  }

  // wake SYSTEM KEY COUNT START PAUSE: sets KEY/0, KEY/1, ... with a pause between; when each call
  // began.
  Nanoseconds wake(const std::string& system, std::istream& line) {
    std::string key;
    std::size_t count = 0;
    std::int64_t start = 0;
    std::int64_t pause = 0;
    line >> key >> count >> start >> pause;
    Client& waker = client(system);
    Nanoseconds times;
    for (std::size_t i = 0; i < count; ++i) {
      const std::string name = key + "/" + std::to_string(i);
      sleep_until(start + static_cast<std::int64_t>(i) * pause);
      times.push_back(nanoseconds(Clock::now()));
      waker.wake(name);
    }
    return times;
  }

  // storm|acknowledged|batches SYSTEM NAME CLIENTS KEYS: all connect, set KEYS keys each and wait
  // for everybody's last. One call per key, whose answer is or is not waited for (here it always
  // is), or one call for all.
  Nanoseconds storm(const std::string& what, const std::string& system, std::istream& line) {
    std::string name;
    std::size_t size = 0;
    std::size_t count = 0;
    line >> name >> size >> count;
    std::vector<std::vector<std::string>> keys(size);
    for (std::size_t member = 0; member < size; ++member) {
      for (std::size_t key = 1; key < count; ++key) {
        keys[member].push_back(fmt::format("{}/{}/{}", name, member, key));
      }
      keys[member].push_back(fmt::format("{}/{}/last", name, member));
    }
    std::vector<std::unique_ptr<Client>> connected(size);
    const auto time = crowd(size).run([&](std::size_t member) {
      connected[member] = connect(system);
      if (what == "batches") {
        connected[member]->set_all(keys[member]);
      } else {
        for (const std::string& key : keys[member]) connected[member]->set(key);
      }
      connected[member]->wait_for_all(name + "/*/last", size);
    });
    return {time.count()};
  }

  // barrier SYSTEM NAME CLIENTS
  Nanoseconds barrier(const std::string& system, std::istream& line) {
    std::string name;
    std::size_t size = 0;
    line >> name >> size;
    std::vector<std::unique_ptr<Client>>& members = barrier_clients_[system];
    while (members.size() < size) members.push_back(connect(system));
    const auto time =
        crowd(size).run([&](std::size_t member) { members[member]->barrier(name, size, member); });
    return {time.count()};
  }

  Crowd& crowd(std::size_t size) { return crowds_.try_emplace(size, size).first->second; }

  const std::map<std::string, std::uint16_t> ports_;
  std::map<std::string, std::unique_ptr<Client>> clients_;
  std::map<std::string, std::vector<std::unique_ptr<Client>>> barrier_clients_;
  std::map<std::size_t, Crowd> crowds_;
};

void measure(std::uint16_t store_port, std::uint16_t echo_port) {
  Measurements measurements(store_port, echo_port);
  for (std::string text; std::getline(std::cin, text);) {
    std::istringstream line(text);
    for (const std::int64_t time : measurements.run(line)) std::cout << time << ' ';
    std::cout << std::endl;
  }
}

void serve_store() {
  StoreServerOptions options;
  options.port = 0;
  StoreServer server(options);
  std::cout << server.port() << std::endl;
  std::cin.get();  // until whoever started us is gone
}

[[noreturn]] void serve_echo() {
  EchoServer server;
  std::cout << server.port() << std::endl;
  std::jthread([] {
    std::cin.get();
    std::_Exit(0);
  }).detach();
  server.run();
}

int main_(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments == std::vector<std::string>{"serve-store"}) {
      serve_store();
    } else if (arguments == std::vector<std::string>{"serve-echo"}) {
      serve_echo();
    } else if (arguments.size() == 3 && arguments[0] == "client") {
      measure(static_cast<std::uint16_t>(std::stoi(arguments[1])),
              static_cast<std::uint16_t>(std::stoi(arguments[2])));
    } else {
      fmt::print(stderr, "usage: store_bench serve-store|serve-echo|client STORE_PORT ECHO_PORT\n");
      return 2;
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "store_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tensorbus::bench

int main(int argc, char** argv) { return tensorbus::bench::main_(argc, argv); }
