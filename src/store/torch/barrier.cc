#include "store/torch/barrier.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "base/log.h"
#include "base/secret.h"
#include "store/engine/barriers.h"

namespace tensorbus::store {
namespace {

// All members may give up at the same moment and then take turns.
constexpr Duration withdrawal_time = std::chrono::seconds(2);

}  // namespace

TorchBarrier::TorchBarrier(TorchPool& pool, std::string name, std::size_t count, std::string member)
    : pool_(pool),
      name_(std::move(name)),
      // Without the "/" before users' keys: no key of a user can be equal, and list() skips this
      // key.
      state_key_("tensorbus/barrier/" + name_),
      count_(count),
      me_{random_number(), std::move(member)} {
  const std::size_t longest = release_key(~std::uint64_t{0}, ~std::uint64_t{0}).size();
  if (longest > max_key_size) {
    throw Error(Code::invalid_argument,
                fmt::format("barrier name is too long for torch's server by {} bytes",
                            longest - max_key_size));
  }
}

std::string TorchBarrier::encode(const State& state) {
  Encoder bytes;
  bytes.integer(state.epoch).integer(state.round).integer(state.released_by).integer(state.count);
  for (const Arrival& arrival : state.inside) bytes.integer(arrival.token).string(arrival.member);
  return std::move(bytes).bytes();
}

TorchBarrier::State TorchBarrier::decode(const std::string& bytes) const {
  try {
    Decoder rest(bytes);
    State state;
    state.epoch = rest.integer<std::uint64_t>();
    state.round = rest.integer<std::uint64_t>();
    state.released_by = rest.integer<std::uint64_t>();
    state.count = rest.integer<std::uint64_t>();
    while (rest.left() > 0) {
      const auto token = rest.integer<std::uint64_t>();
      state.inside.push_back({token, std::string(rest.string())});
    }
    return state;
  } catch (const Error& error) {
    throw Error(Code::failed, fmt::format("key \"{}\" does not hold the state of a barrier: {}",
                                          state_key_, error.what()));
  }
}

std::string TorchBarrier::release_key(std::uint64_t epoch, std::uint64_t round) const {
  return fmt::format("{}/{:x}/{}", state_key_, epoch, round);
}

bool TorchBarrier::holds_me(const State& state) const {
  return std::any_of(state.inside.begin(), state.inside.end(),
                     [&](const Arrival& arrival) { return arrival.token == me_.token; });
}

TorchBarrier::Standing TorchBarrier::standing(const std::string& found,
                                              const TriedRound& tried) const {
  if (found.empty()) return Standing::outside;
  const State state = decode(found);
  if (holds_me(state)) return Standing::inside;
  if (state.released_by == me_.token) return Standing::last;
  const bool later = state.epoch == tried.epoch && state.round > tried.round;
  return later ? Standing::round_over : Standing::outside;
}

std::string TorchBarrier::look(const Until& until) {
  return pool_.repeat(until, [&](TorchConnection& connection) {
    return connection.values({&state_key_, 1}, until).front().value_or("");
  });
}

std::string TorchBarrier::compare_and_set(const std::string& expected, const std::string& desired,
                                          const Until& until) {
  std::string now = pool_.once(until, [&](TorchConnection& connection) {
    connection.send(TorchWriter().compare_set(state_key_, expected, desired), until);
    return connection.text(until);
  });
  // Torch's answer for an absent key.
  return now == expected ? "" : now;
}

void TorchBarrier::arrive(const Until& until) {
  std::string seen;
  for (;;) {
    State state = seen.empty() ? State{random_number(), 1, 0, 0, {}} : decode(seen);
    if (!state.inside.empty() && state.count != count_) {
      std::vector<std::string> members;
      for (Arrival& arrival : state.inside) members.push_back(std::move(arrival.member));
      throw Error(Code::invalid_argument,
                  fmt::format("{}; a newcomer says that it is for {}",
                              describe_arrivals(name_, state.count, members), count_));
    }
    const TriedRound tried{state.epoch, state.round, state.inside.size() + 1 >= count_};
    if (tried.last) {
      state = {state.epoch, state.round + 1, me_.token, 0, {}};
    } else {
      state.count = count_;
      state.inside.push_back(me_);
    }
    const std::string desired = encode(state);
    tried_ = tried;
    try {
      std::string now = compare_and_set(seen, desired, until);
      if (now == desired) return;
      seen = std::move(now);
    } catch (const ConnectionLost& lost) {
      seen = look(until);
      switch (standing(seen, tried)) {
        case Standing::outside:
          break;
        case Standing::inside:
        case Standing::last:
          return;
        case Standing::round_over:
          throw Error(Code::unreachable,
                      fmt::format("{}; barrier \"{}\" was passed meanwhile, and this member may or "
                                  "may not have been counted",
                                  lost.what(), name_));
      }
    }
  }
}

bool TorchBarrier::await_release(const Until& until) {
  for (;;) {
    const std::string key = release_key(tried_->epoch, tried_->round);
    try {
      return pool_.once(until, [&](TorchConnection& connection) {
        return connection.wait_for_all({&key, 1}, until);
      });
    } catch (const ConnectionLost& lost) {
      log::debug("barrier \"{}\": {}; looking for our place again", name_, lost.what());
    }
    const Standing now = standing(look(until), *tried_);
    if (now == Standing::round_over) return true;
    if (now != Standing::outside) continue;
    // A server that has lost its state has lost the arrival of this member too.
    arrive(until);
    if (tried_->last) {
      release(until);
      return true;
    }
  }
}

void TorchBarrier::release(const Until& until) {
  TorchWriter request;
  request.set(release_key(tried_->epoch, tried_->round), "1");
  request.delete_key(release_key(tried_->epoch, tried_->round - 2));
  pool_.repeat(until, [&](TorchConnection& connection) {
    connection.send(request, until);
    return connection.integer<std::int64_t>(until);
  });
}

bool TorchBarrier::withdraw(const Until& until, std::vector<std::string>& members) {
  std::string seen = look(until);
  for (;;) {
    const Standing now = standing(seen, *tried_);
    if (now != Standing::inside) return now != Standing::outside;
    State state = decode(seen);
    members.clear();
    for (const Arrival& arrival : state.inside) members.push_back(arrival.member);
    std::erase_if(state.inside, [&](const Arrival& one) { return one.token == me_.token; });
    const std::string desired = encode(state);
    try {
      seen = compare_and_set(seen, desired, until);
      if (seen == desired) return false;
    } catch (const ConnectionLost&) {
      seen = look(until);
    }
  }
}

void TorchBarrier::enter(const Until& until, const os::EventFd& closed) {
  const auto leave = [&](std::vector<std::string>& members) {
    return withdraw({Deadline::after(withdrawal_time), &closed}, members);
  };
  std::vector<std::string> members;
  try {
    arrive(until);
    if (tried_->last) return release(until);
    if (await_release(until)) return;
  } catch (const Error& error) {
    const Code code = error.code();
    const bool given_up =
        code == Code::timeout || code == Code::cancelled || code == Code::interrupted;
    if (!given_up || !tried_) throw;
    try {
      leave(members);
    } catch (const Error& failure) {
      log::warn("barrier \"{}\": an arrival could not be taken back: {}", name_, failure.what());
    }
    throw;
  }
  bool complete = false;
  try {
    complete = leave(members);
  } catch (const Error& failure) {
    throw Error(
        Code::timeout,
        fmt::format("timed out at barrier \"{}\", and the arrival could not be taken back: {}",
                    name_, failure.what()));
  }
  if (!complete) {
    throw Error(Code::timeout, "timed out: " + describe_arrivals(name_, count_, members));
  }
}

}  // namespace tensorbus::store
