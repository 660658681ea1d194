#include "os/net/source_filter.h"

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <span>
#include <utility>

namespace tensorbus::os {
namespace {

// Offsets from the network header on; the socket itself sees packets from the TCP header on.
constexpr std::uint32_t network = static_cast<std::uint32_t>(SKF_NET_OFF);
constexpr std::uint32_t v4_source = network + 12;
constexpr std::uint32_t v6_source = network + 8;

constexpr std::uint32_t take_all = 0xFFFF'FFFF;
// So few addresses are compared one by one; more are searched by halves: every packet of a
// connection comes by here.
constexpr std::size_t few = 4;
// From exact to coarse, until the kernel has room for the filter.
constexpr std::array<PrefixBits, 4> prefixes{{{32, 128}, {24, 64}, {16, 32}, {8, 32}}};

class Program {
 public:
  std::vector<sock_filter> take() && { return std::move(instructions_); }
  std::size_t size() const noexcept { return instructions_.size(); }

  void load_byte(std::uint32_t at) { add(BPF_LD | BPF_B | BPF_ABS, at); }
  void load_word(std::uint32_t at) { add(BPF_LD | BPF_W | BPF_ABS, at); }
  void shift_right(std::uint32_t bits) { add(BPF_ALU | BPF_RSH | BPF_K, bits); }
  void mask(std::uint32_t bits) { add(BPF_ALU | BPF_AND | BPF_K, bits); }
  void give(std::uint32_t bytes) { add(BPF_RET | BPF_K, bytes); }
  // Past so many instructions. Conditions jump over 255 at most.
  void jump(std::size_t over) { add(BPF_JMP | BPF_JA, static_cast<std::uint32_t>(over)); }
  void skip_unless_equal(std::uint32_t value, std::uint8_t over) {
    instructions_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, over, value});
  }
  void skip_if_below(std::uint32_t value, std::uint8_t over) {
    instructions_.push_back({BPF_JMP | BPF_JGE | BPF_K, 0, over, value});
  }
  void append(Program other) {
    instructions_.insert(instructions_.end(), other.instructions_.begin(),
                         other.instructions_.end());
  }

 private:
  void add(int code, std::uint32_t value) {
    instructions_.push_back({static_cast<std::uint16_t>(code), 0, 0, value});
  }
  std::vector<sock_filter> instructions_;
};

std::uint32_t mask_of(unsigned bits) { return bits == 0 ? 0 : take_all << (32 - bits); }

// Whether the loaded word is one of these, which are in order.
Program one_of(std::span<const std::uint32_t> values) {
  Program program;
  if (values.size() <= few) {
    for (const std::uint32_t value : values) {
      program.skip_unless_equal(value, 1);
      program.give(take_all);
    }
    program.give(0);
    return program;
  }
  const std::size_t half = values.size() / 2;
  Program below = one_of(values.first(half));
  program.skip_if_below(values[half], 1);
  program.jump(below.size());
  program.append(std::move(below));
  program.append(one_of(values.subspan(half)));
  return program;
}

Program v4_program(const std::set<IpAddress>& sources, unsigned bits) {
  std::set<std::uint32_t> networks;
  for (const IpAddress& source : sources) {
    if (source.is_v4()) networks.insert(source.word(3) & mask_of(bits));
  }
  Program program;
  program.load_word(v4_source);
  program.mask(mask_of(bits));
  program.append(one_of(std::vector<std::uint32_t>(networks.begin(), networks.end())));
  return program;
}

Program v6_program(const std::set<IpAddress>& sources, unsigned bits) {
  const std::size_t words = bits / 32;
  std::set<std::vector<std::uint32_t>> networks;
  for (const IpAddress& source : sources) {
    if (source.is_v4()) continue;
    std::vector<std::uint32_t> start;
    for (std::size_t i = 0; i < words; ++i) start.push_back(source.word(i));
    networks.insert(std::move(start));
  }
  Program program;
  for (const auto& start : networks) {
    for (std::size_t i = 0; i < words; ++i) {
      program.load_word(v6_source + static_cast<std::uint32_t>(4 * i));
      // To the next network.
      program.skip_unless_equal(start[i], static_cast<std::uint8_t>(2 * (words - 1 - i) + 1));
    }
    program.give(take_all);
  }
  program.give(0);
  return program;
}

bool attach(int socket, std::vector<sock_filter> program) {
  if (program.size() > BPF_MAXINSNS) return false;
  const sock_fprog described{static_cast<unsigned short>(program.size()), program.data()};
  return ::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &described, sizeof described) == 0;
}

}  // namespace

std::vector<sock_filter> filter_program(const std::set<IpAddress>& sources, PrefixBits prefix) {
  Program v4 = v4_program(sources, prefix.v4);
  Program program;
  program.load_byte(network);
  program.shift_right(4);  // the version
  program.skip_unless_equal(6, 1);
  program.jump(v4.size());
  program.append(std::move(v4));
  program.append(v6_program(sources, prefix.v6));
  return std::move(program).take();
}

Admitted admit_only(int listening_socket, const std::set<IpAddress>& sources) {
  for (const PrefixBits& prefix : prefixes) {
    if (!attach(listening_socket, filter_program(sources, prefix))) continue;
    return prefix.v4 == 32 ? Admitted::exactly : Admitted::networks;
  }
  const int unused = 0;
  ::setsockopt(listening_socket, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
  return Admitted::everybody;
}

}  // namespace tensorbus::os
