// What the store's benchmark asks of a client: of ours, or of the echo that stands for the floor.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "echo.h"
#include "tensorbus/store.h"

namespace tensorbus::bench {

class Client {
 public:
  virtual ~Client() = default;
  // Before get() is measured.
  virtual void prepare(const std::string& key) = 0;
  virtual void get(const std::string& key) = 0;
  virtual void set(const std::string& key) = 0;
  virtual void add(const std::string& key) = 0;
  virtual void wait(const std::string& key) = 0;
  // Wakes who waits for the key.
  virtual void wake(const std::string& key) = 0;
  // Many keys in one call.
  virtual void set_all(const std::vector<std::string>& keys) = 0;
  virtual void wait_for_all(const std::string& pattern, std::size_t count) = 0;
  virtual void barrier(const std::string& name, std::size_t count, std::size_t member) = 0;
};

class StoreClient final : public Client {
 public:
  explicit StoreClient(std::uint16_t port)
      : store_(connect(StoreUrl::parse("tensorbus://127.0.0.1:" + std::to_string(port)))) {}

  void prepare(const std::string& key) override { set(key); }
  void get(const std::string& key) override { store_->get({&key, 1}, deadline()); }
  void set(const std::string& key) override {
    const Entry entry{key, "12345678"};
    store_->set({&entry, 1}, deadline());
  }
  void add(const std::string& key) override { store_->add(key, 1, deadline()); }
  void wait(const std::string& key) override { store_->wait(condition(key, false, 1), deadline()); }
  void wake(const std::string& key) override { set(key); }
  void set_all(const std::vector<std::string>& keys) override {
    std::vector<Entry> entries;
    for (const std::string& key : keys) entries.push_back({key, "12345678"});
    store_->set(entries, deadline());
  }
  void wait_for_all(const std::string& pattern, std::size_t count) override {
    store_->wait(condition(pattern, true, count), deadline());
  }
  void barrier(const std::string& name, std::size_t count, std::size_t member) override {
    store_->barrier(name, count, std::to_string(member), deadline());
  }

 private:
  static Condition condition(const std::string& key, bool is_pattern, std::size_t count) {
    return {key, is_pattern, count, std::nullopt, {}};
  }
  static Deadline deadline() { return Deadline::after(std::chrono::seconds(60)); }
  std::unique_ptr<Store> store_;
};

class FloorClient final : public Client {
 public:
  explicit FloorClient(std::uint16_t port) : echo_(port) {}

  void prepare(const std::string&) override {}
  void get(const std::string&) override { echo_.echo(); }
  void set(const std::string&) override { echo_.echo(); }
  void add(const std::string&) override { echo_.echo(); }
  void wait(const std::string& key) override {
    echo_.send(EchoOp::wait, std::hash<std::string>()(key));
    echo_.receive();
  }
  void wake(const std::string& key) override {
    echo_.send(EchoOp::release, std::hash<std::string>()(key));
  }
  void set_all(const std::vector<std::string>&) override { echo_.echo(); }
  void wait_for_all(const std::string&, std::size_t) override { echo_.echo(); }
  void barrier(const std::string&, std::size_t, std::size_t) override { echo_.echo(); }

 private:
  EchoClient echo_;
};

}  // namespace tensorbus::bench
