// A real etcd for tests: on free loopback ports, with a data directory that goes away with it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/testing/calls.h"
#include "os/net/tcp.h"
#include "os/testing/signals.h"
#include "store/etcd/gateway.h"
#include "store/etcd/store.h"

namespace tensorbus::store {

inline Deadline within(std::chrono::milliseconds time) { return Deadline::after(time); }

inline std::uint16_t free_port() { return os::local_port(os::listen_tcp("127.0.0.1", 0)); }

class EtcdProcess {
 public:
  explicit EtcdProcess(std::vector<std::string> options = {}) : options_(std::move(options)) {
    std::string name = (std::filesystem::temp_directory_path() / "tensorbus-etcd-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) os::throw_errno("mkdtemp");
    folder_ = name;
    start();
  }
  ~EtcdProcess() {
    kill();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  EtcdProcess(const EtcdProcess&) = delete;
  EtcdProcess& operator=(const EtcdProcess&) = delete;

  std::uint16_t port() const { return port_; }
  StoreUrl url() const { return StoreUrl::parse("etcd://127.0.0.1:" + std::to_string(port_)); }
  std::unique_ptr<Store> connect() const { return connect_etcd(url(), {soon(), {}}); }

  void start() {
    const std::string client = "http://127.0.0.1:" + std::to_string(port_);
    const std::string peer = "http://127.0.0.1:" + std::to_string(peer_port_);
    std::vector<std::string> arguments = {"etcd",
                                          "--data-dir=" + data(),
                                          "--listen-client-urls=" + client,
                                          "--advertise-client-urls=" + client,
                                          "--listen-peer-urls=" + peer,
                                          "--initial-advertise-peer-urls=" + peer,
                                          "--initial-cluster=default=" + peer,
                                          "--heartbeat-interval=20",
                                          "--election-timeout=200",
                                          "--logger=zap",
                                          "--log-level=error"};
    arguments.insert(arguments.end(), options_.begin(), options_.end());
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ < 0) os::throw_errno("fork");
    if (pid_ == 0) {
      // Also when the test itself is killed.
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int silent = ::open("/dev/null", O_RDWR);
      ::dup2(silent, 1);
      ::dup2(silent, 2);
      ::execvp("etcd", pointers.data());
      ::_exit(127);
    }
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  void restart() {
    kill();
    start();
  }
  void restart_empty() {
    kill();
    std::filesystem::remove_all(data());
    start();
  }
  void freeze() const { os::send_signal(pid_, SIGSTOP); }
  void thaw() const { ::kill(pid_, SIGCONT); }

  // A call of the gateway that the store has no method for.
  etcd::Json post(const std::string& path, const etcd::Json& body, StoreUrl as = {}) const {
    as.hosts = url().hosts;
    etcd::Gateway gateway(as);
    return gateway.call(path, body, {soon()}).json;
  }
  // Forgets history, as etcd does from time to time.
  void compact() const {
    const auto revision =
        etcd::revision_of(post("/v3/kv/range", etcd::range_fields(etcd::KeyRange::one("x"))));
    post("/v3/kv/compaction", {{"revision", std::to_string(revision)}, {"physical", true}});
  }

 private:
  std::string data() const { return folder_ + "/data"; }

  std::vector<std::string> options_;
  std::uint16_t port_ = free_port();
  std::uint16_t peer_port_ = free_port();
  std::string folder_;
  pid_t pid_ = -1;
};

inline void set(Store& store, const std::string& key, const std::string& value,
                Lease* lease = nullptr) {
  const Entry entry{key, value};
  store.set({&entry, 1}, soon(), lease);
}

inline std::optional<std::string> get(Store& store, const std::string& key) {
  return store.get({&key, 1}, soon()).at(0);
}

inline Condition pattern(const std::string& text, std::size_t count) {
  Condition condition;
  condition.key = text;
  condition.is_pattern = true;
  condition.count = count;
  return condition;
}

inline Condition key(const std::string& name) {
  Condition condition;
  condition.key = name;
  return condition;
}

// The error of a call that must fail.
template <typename Function>
Status status_of(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

}  // namespace tensorbus::store
