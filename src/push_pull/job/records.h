// What a job keeps in its scheduler's store: what the job is, and where each of its nodes is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabric/core/identity_fields.h"
#include "os/net/ip_address.h"
#include "push_pull/job/seat.h"
#include "tensorbus/push_pull.h"

namespace tensorbus::os {

template <typename Archive>
void fields(Archive& a, IpAddress& address) {
  for (std::uint8_t& byte : address.bytes) a("byte", byte);
}

}  // namespace tensorbus::os

namespace tensorbus::push_pull {

inline constexpr int largest_job = 100'000;

struct JobRecord {
  std::string id;
  std::string secret;
  int workers = 0;
  int servers = 0;
  int group_size = 0;
};

struct NodeRecord {
  Transport transport{};
  fabric::Address address;
  std::vector<os::IpAddress> hosts;  // that the node may call from
  Seat seat;
};

constexpr Transport last_of(Transport) { return Transport::network; }

constexpr tensorbus::wire::Title title_of(const JobRecord*) { return {"push-pull job", 1}; }
constexpr tensorbus::wire::Title title_of(const NodeRecord*) { return {"push-pull node", 1}; }

template <typename Archive>
void fields(Archive& a, JobRecord& record) {
  a("id", record.id);
  a("secret", record.secret);
  a.number("workers", record.workers, 1, largest_job);
  a.number("servers", record.servers, 1, largest_job);
  a.number("group_size", record.group_size, 1, largest_job);
}

template <typename Archive>
void fields(Archive& a, Seat& seat) {
  constexpr std::size_t most_words = 1024;  // 65,536 processors
  a("machine", seat.machine);
  a.list("cores", seat.cores.words, most_words);
}

template <typename Archive>
void fields(Archive& a, NodeRecord& record) {
  a("transport", record.transport);
  a("address", record.address);
  a("hosts", record.hosts);
  a("seat", record.seat);
}

}  // namespace tensorbus::push_pull
