#include "store/torch/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>

#include "base/log.h"
#include "store/common/limits.h"
#include "store/torch/barrier.h"
#include "store/torch/wait.h"

namespace tensorbus::store {
namespace {

// Ready when the store is closed or the call is cancelled, whichever is first.
class StopSignal {
 public:
  StopSignal(Cancellation& closing, Cancellation* cancellation)
      : on_close_(&closing, [this] { event_.signal(); }),
        on_cancel_(cancellation, [this] { event_.signal(); }) {}
  const os::EventFd* get() const noexcept { return &event_; }

 private:
  os::EventFd event_;
  Cancellation::Hook on_close_;
  Cancellation::Hook on_cancel_;
};

class TorchStore final : public Store {
 public:
  TorchStore(const StoreUrl::Host& host, const ConnectOptions& options)
      : url_("tcpstore://" + os::host_port(host.name, host.port)),
        pool_(host, {options.deadline, &closed_}) {}
  ~TorchStore() override { TorchStore::close(false); }

  Capabilities capabilities() const override { return {}; }
  std::string url() const override { return url_; }

  void set(std::span<const Entry> entries, Deadline deadline, Lease* lease) override;
  std::vector<std::optional<std::string>> get(std::span<const std::string> keys,
                                              Deadline deadline) override;
  bool exists(const std::string& key, Deadline deadline) override;
  bool erase(const std::string& key, Deadline deadline) override;
  std::int64_t add(const std::string& key, std::int64_t amount, Deadline deadline) override;
  Swap compare_and_set(const std::string& key, const std::optional<std::string>& expected,
                       const std::string& desired, Deadline deadline) override;
  std::vector<std::string> list(const std::string& prefix, Deadline deadline) override;
  WaitResult wait(const Condition& condition, Deadline deadline,
                  Cancellation* cancellation) override;
  void barrier(const std::string& name, std::size_t count, const std::string& member,
               Deadline deadline, Cancellation* cancellation) override;
  std::unique_ptr<Watch> watch(const std::string&, bool, Deadline) override {
    refuse("watch keys");
  }
  std::shared_ptr<Lease> lease(Duration, LeaseOptions, Deadline) override { refuse("lease keys"); }
  void join(Deadline deadline) override;
  void close(bool cleanup) noexcept override;

 private:
  Until until(Deadline deadline) const { return {deadline, &closed_}; }
  [[noreturn]] void refuse(std::string_view what) const;
  // An exchange that must not be repeated: the error says so when the answer is lost.
  template <typename Exchange>
  auto change(std::string_view what, const Until& until, Exchange exchange);
  void throw_if_not_a_number(const std::string& key);
  std::int64_t add_on_wire(std::string_view wire_key, std::int64_t amount, Deadline deadline);

  const std::string url_;
  os::EventFd closed_;
  Cancellation closing_;
  TorchPool pool_;
};

void TorchStore::refuse(std::string_view what) const {
  throw Error(Code::unsupported,
              fmt::format("{} cannot {}: torch's server has nothing for it; use tensorbus://, "
                          "etcd:// or memory://",
                          url_, what));
}

template <typename Exchange>
auto TorchStore::change(std::string_view what, const Until& until, Exchange exchange) {
  try {
    return pool_.once(until, exchange);
  } catch (const Error& error) {
    const bool unanswered =
        dynamic_cast<const ConnectionLost*>(&error) != nullptr || error.code() == Code::timeout;
    if (!unanswered) throw;
    throw Error(error.code(),
                fmt::format("{}; {} may or may not have been applied", error.what(), what));
  }
}

void TorchStore::set(std::span<const Entry> entries, Deadline deadline, Lease* lease) {
  if (lease != nullptr) refuse("lease keys");
  check_entries(entries, max_value_size);
  if (entries.empty()) return;
  std::vector<Entry> wire_entries(entries.begin(), entries.end());
  for (Entry& entry : wire_entries) entry.key = torch_key(entry.key);
  TorchWriter request;
  if (entries.size() == 1) {
    request.set(wire_entries.front().key, wire_entries.front().value);
  } else {
    request.multi_set(wire_entries);
  }
  // Torch acknowledges no set, but answers in order.
  const auto nonce = static_cast<std::uint32_t>(std::random_device{}());
  request.ping(nonce);
  pool_.repeat(until(deadline), [&](TorchConnection& connection) {
    connection.send(request, until(deadline));
    connection.pong(nonce, until(deadline));
    return true;
  });
}

std::vector<std::optional<std::string>> TorchStore::get(std::span<const std::string> keys,
                                                        Deadline deadline) {
  check_keys(keys);
  std::vector<std::string> wire_keys;
  for (const std::string& key : keys) wire_keys.push_back(torch_key(key));
  return pool_.repeat(until(deadline), [&](TorchConnection& connection) {
    return connection.values(wire_keys, until(deadline));
  });
}

bool TorchStore::exists(const std::string& key, Deadline deadline) {
  check_key(key);
  return pool_.repeat(until(deadline), [&](TorchConnection& connection) {
    connection.send(TorchWriter().check(torch_key(key)), until(deadline));
    return connection.check(until(deadline));
  });
}

bool TorchStore::erase(const std::string& key, Deadline deadline) {
  check_key(key);
  return change("erase", until(deadline), [&](TorchConnection& connection) {
    connection.send(TorchWriter().delete_key(torch_key(key)), until(deadline));
    return connection.integer<std::int64_t>(until(deadline)) != 0;
  });
}

std::int64_t TorchStore::add_on_wire(std::string_view wire_key, std::int64_t amount,
                                     Deadline deadline) {
  return change("add", until(deadline), [&](TorchConnection& connection) {
    connection.send(TorchWriter().add(wire_key, amount), until(deadline));
    return connection.integer<std::int64_t>(until(deadline));
  });
}

std::int64_t TorchStore::add(const std::string& key, std::int64_t amount, Deadline deadline) {
  check_key(key);
  try {
    return add_on_wire(torch_key(key), amount, deadline);
  } catch (const Error& error) {
    if (error.code() == Code::unreachable) throw_if_not_a_number(key);
    throw;
  }
}

// Torch's servers hang up when they are to add to a value that is no number.
void TorchStore::throw_if_not_a_number(const std::string& key) {
  std::optional<std::string> value;
  try {
    value = get({&key, 1}, Deadline::after(last_word_time)).front();
  } catch (const Error&) {
    return;  // then the server is the trouble
  }
  std::int64_t number = 0;
  if (!value ||
      std::from_chars(value->data(), value->data() + value->size(), number).ec == std::errc()) {
    return;
  }
  throw Error(Code::invalid_argument,
              fmt::format("key \"{}\" holds \"{}\", which is not a whole number, so nothing can be "
                          "added to it",
                          key, value->substr(0, 40)));
}

void TorchStore::join(Deadline deadline) { add_on_wire(torch_join_key, 1, deadline); }

Swap TorchStore::compare_and_set(const std::string& key, const std::optional<std::string>& expected,
                                 const std::string& desired, Deadline deadline) {
  const Entry entry{key, desired};
  check_entries({&entry, 1}, max_value_size);
  // The look first: torch's COMPARE_SET of an absent key wakes those who wait for it to exist, and
  // its reply does not tell a swap from a key that held `desired` already.
  std::optional<std::string> before = get({&key, 1}, deadline).front();
  if (before != expected) return {false, std::move(before)};
  std::string after = change("compare_and_set", until(deadline), [&](TorchConnection& connection) {
    connection.send(TorchWriter().compare_set(torch_key(key), expected.value_or(""), desired),
                    until(deadline));
    return connection.text(until(deadline));
  });
  if (after == desired) return {true, std::move(after)};
  // Torch's answer for an absent key.
  if (expected && after == *expected) return {false, std::nullopt};
  return {false, std::move(after)};
}

std::vector<std::string> TorchStore::list(const std::string& prefix, Deadline deadline) {
  check_key(prefix);
  const std::string wire_prefix = torch_key(prefix);
  const auto exchange = [&](TorchConnection& connection) {
    connection.send(TorchWriter().list_keys(), until(deadline));
    const auto count = connection.integer<std::int64_t>(until(deadline));
    if (count < 0) connection.reject("a negative number of keys");
    std::vector<std::string> keys;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::string key = connection.text(until(deadline));
      if (key.starts_with(wire_prefix)) keys.push_back(key.substr(1));
    }
    std::sort(keys.begin(), keys.end());
    return keys;
  };
  // Older servers hang up on the opcode; a server that restarts hardly does so three times in a
  // row.
  for (int attempts_left = 3; attempts_left > 0; --attempts_left) {
    try {
      return pool_.once(until(deadline), exchange);
    } catch (const ConnectionLost& lost) {
      log::debug("{}: listing keys: {}", url_, lost.what());
    }
  }
  throw Error(Code::unsupported,
              url_ + " hangs up when it is asked for its keys; torch 2.13's server can list them");
}

WaitResult TorchStore::wait(const Condition& condition, Deadline deadline,
                            Cancellation* cancellation) {
  check_condition(condition);
  const StopSignal stop(closing_, cancellation);
  return torch_wait(pool_, condition, {deadline, stop.get()});
}

void TorchStore::barrier(const std::string& name, std::size_t count, const std::string& member,
                         Deadline deadline, Cancellation* cancellation) {
  check_barrier(name, count);
  const StopSignal stop(closing_, cancellation);
  TorchBarrier(pool_, name, count, member).enter({deadline, stop.get()}, closed_);
}

void TorchStore::close(bool) noexcept {
  // A forked child shares the event with its parent, whose store is not to be closed.
  if (pool_.forked()) return;
  pool_.close();
  closed_.signal();
  closing_.cancel();
}

}  // namespace

std::unique_ptr<Store> connect_torch(const StoreUrl::Host& host, const ConnectOptions& options) {
  return std::make_unique<TorchStore>(host, options);
}

}  // namespace tensorbus::store
