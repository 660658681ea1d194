// The network fabric between two network namespaces: streams and faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>

#include <array>
#include <fstream>
#include <numeric>
#include <optional>
#include <string>

#include "base/clock.h"
#include "fabric/conformance/party.h"
#include "fabric/conformance/two_hosts.h"
#include "fabric/ucx/ucx.h"
#include "os/io/poll.h"
#include "os/testing/quiet_fork.h"

namespace tensorbus::fabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Bytes = std::vector<std::byte>;

constexpr OpId the_read{77};

std::unique_ptr<Fabric> make(int host, const std::string& name) {
  UcxOptions options;
  options.identity = {"host " + std::to_string(host), ::getpid(), 1, random_id(), name};
  options.secret = "secret";
  options.bind = TwoHosts::address(host);
  return make_ucx_fabric(options);
}

// One poll of the fabric, after sleeping until there is something to do.
template <typename Handler>
void step(Fabric& fabric, int also, Deadline latest, Handler handle) {
  if (fabric.arm()) {
    std::array<pollfd, 2> fds{pollfd{fabric.fd(), POLLIN, 0}, pollfd{also, POLLIN, 0}};
    os::sleep_ready(fds, sooner(latest, Deadline(fabric.wake_at())));
  }
  for (const Event& event : fabric.poll()) handle(event);
}

std::byte pattern(std::size_t at) { return static_cast<std::byte>(at * 131 + (at >> 13)); }

// A process that keeps all that it inherits: a fork, or a program that was started.
pid_t have_a_child(bool runs_a_program) {
  pid_t child = -1;
  if (runs_a_program) {
    std::array<char*, 3> arguments{const_cast<char*>("sleep"), const_cast<char*>("60"), nullptr};
    char* no_variables = nullptr;
    ::posix_spawnp(&child, "sleep", nullptr, nullptr, arguments.data(), &no_variables);
  } else if (child = os::quiet_fork(); child == 0) {
    ::alarm(60);
    for (;;) ::pause();
  }
  return child;
}

class Orphan {
 public:
  explicit Orphan(pid_t pid) : pid_(pid) {}
  Orphan(const Orphan&) = delete;
  Orphan& operator=(const Orphan&) = delete;
  ~Orphan() { ::kill(pid_, SIGKILL); }
  bool lives() const { return ::kill(pid_, 0) == 0; }

 private:
  pid_t pid_;
};

// Shows its memory until told to stop. With `multiplies` it has two children by then.
void be_an_owner(const TwoHosts& hosts, const Pipe& up, const Pipe& down, std::int64_t size,
                 bool multiplies) {
  hosts.enter(1);
  const auto fabric = make(1, "owner");
  Bytes memory(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = pattern(i);
  const Shape shape{size};
  const Shape strides{1};
  const TensorView view{memory.data(), Dtype::uint8, shape, strides};
  const auto region = fabric->expose(std::span(&view, 1));
  up.put(encode(fabric->address()));
  std::array<pollfd, 1> told{pollfd{down.readable(), POLLIN, 0}};
  while (!os::sleep_ready(told, Deadline::after(Duration(0)))) {
    step(*fabric, down.readable(), Deadline::never(), [&](const Event& event) {
      if (!multiplies || !std::holds_alternative<PeerUp>(event)) return;
      up.put(std::to_string(have_a_child(false)));
      up.put(std::to_string(have_a_child(true)));
    });
  }
}

class UcxHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = TwoHosts::unavailable(); !why.empty()) GTEST_SKIP() << why;
    guard_.emplace();
    hosts_.emplace();
  }

  void start(std::int64_t size, bool multiplies = false) {
    size_ = size;
    owner_.emplace([&] { be_an_owner(*hosts_, up_, down_, size, multiplies); });
    hosts_->enter(0);
    reader_.emplace(make(0, "reader"));
    owner_address_ = decode_address(up_.get());
    connect();
  }
  void connect() {
    peer_ = (*reader_)->connect(owner_address_, "secret", Deadline::never());
    run_until([&] { return peer_->up() || !reader_->losses.empty(); });
    ASSERT_TRUE(peer_->up()) << reader_->losses.back().reason.message;
    (*reader_)->attach(*peer_, 1, OpId{1}, Deadline::never());
    run_until([&] { return reader_->completion(OpId{1}) != nullptr; });
    region_ = reader_->completion(OpId{1})->region;
    ASSERT_NE(region_, nullptr);
    reader_->completions.clear();
  }
  template <typename Condition>
  void run_until(Condition holds, Duration patience = seconds(20)) {
    const Deadline deadline = Deadline::after(patience);
    while (!holds()) {
      ASSERT_FALSE(deadline.expired()) << "nothing happens";
      if ((*reader_)->arm()) {
        std::array<pollfd, 1> fds{pollfd{(*reader_)->fd(), POLLIN, 0}};
        os::sleep_ready(fds, sooner(deadline, Deadline((*reader_)->wake_at())));
      }
      reader_->poll();
    }
  }
  void start_read(Deadline deadline = Deadline::never()) {
    target_.assign(static_cast<std::size_t>(size_), std::byte{0});
    shape_ = {size_};
    const std::array types{Dtype::uint8};
    const TensorView view{target_.data(), Dtype::uint8, shape_, strides_};
    (*reader_)->read({std::make_shared<plan::Stream>(whole_stream(region_->forms(), types)),
                      0,
                      {{peer_, region_, 0}},
                      {view}},
                     the_read, deadline);
  }
  // Until some bytes have come.
  void read_a_little() {
    start_read();
    run_until([&] { return target_[1] != std::byte{0}; });
    ASSERT_EQ(reader_->completion(the_read), nullptr);
  }
  void kill_owner() {
    owner_->signal(SIGKILL);
    const TimePoint killed = now();
    run_until([&] { return !reader_->losses.empty(); });
    EXPECT_LT(now() - killed, seconds(2));
    ASSERT_EQ(reader_->losses.size(), 1u);
    EXPECT_EQ(reader_->losses[0].reason.code, Code::peer_lost);
    EXPECT_THAT(reader_->losses[0].reason.message, testing::HasSubstr("owner"));
  }
  Status finish_read() {
    run_until([&] { return reader_->completion(the_read) != nullptr; });
    const Completion* done = reader_->completion(the_read);
    return done != nullptr ? done->status : Status{Code::failed, "it never ended"};
  }
  void expect_target_is_whole() {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < target_.size(); ++i) wrong += target_[i] != pattern(i) ? 1 : 0;
    EXPECT_EQ(wrong, 0u);
  }

  std::optional<NamespaceGuard> guard_;
  std::optional<TwoHosts> hosts_;
  Pipe up_;
  Pipe down_;
  std::int64_t size_ = 0;
  std::optional<Child> owner_;
  Bytes target_;
  Shape shape_;
  Shape strides_{1};
  std::optional<Party> reader_;
  Address owner_address_;
  std::shared_ptr<Peer> peer_;
  std::shared_ptr<const RemoteRegion> region_;
};

// Six seconds, and what a busy machine adds.
constexpr Duration slow_loss = seconds(9);
constexpr std::int64_t small = 1 << 20;
// Many windows: a read that nobody polls does not come to its end.
constexpr std::int64_t large = 64 << 20;

// Whose devices /sys shows: every interface has a hardware address of its own.
std::string hardware_address() {
  std::ifstream file("/sys/class/net/tb0/address");
  std::string address;
  std::getline(file, address);
  return address;
}

TEST_F(UcxHosts, AProcessEntersTheHostThatItsParentIsOnOrTheOther) {
  hosts_->enter(0);
  const std::string parents = hardware_address();
  ASSERT_NE(parents, "");
  EXPECT_TRUE(os::holds_in_child([&] {
    hosts_->enter(0);
    return hardware_address() == parents;
  }));
  EXPECT_TRUE(os::holds_in_child([&] {
    hosts_->enter(1);
    return !hardware_address().empty() && hardware_address() != parents;
  }));
}

TEST_F(UcxHosts, AStreamArrivesWhole) {
  start(small + 12'345);
  start_read();
  EXPECT_EQ(finish_read().message, "");
  expect_target_is_whole();
}

TEST_F(UcxHosts, AnOwnerKilledInAReadIsNamedAtOnce) {
  start(large);
  read_a_little();
  kill_owner();
  EXPECT_EQ(finish_read().code, Code::peer_lost);
  EXPECT_THAT(finish_read().message, testing::HasSubstr("owner"));
}

TEST_F(UcxHosts, AnOwnerKilledWhileIdleIsNamedAtOnce) {
  start(small);
  kill_owner();
}

TEST_F(UcxHosts, AnOwnerKilledUnderMessagesIsNamedAtOnce) {
  start(small);
  const Bytes bytes(5000);
  const auto flood = [&] {
    try {
      while (true) (*reader_)->send(*peer_, bytes);
    } catch (const Error& error) {
      return error.code();
    }
  };
  EXPECT_EQ(flood(), Code::queue_full);
  kill_owner();
  EXPECT_EQ(flood(), Code::peer_lost);
}

TEST_F(UcxHosts, AnOwnerKilledWhileItsChildrenLiveIsNamedAtOnce) {
  start(small, true);
  const std::array children{Orphan(std::stoi(up_.get())), Orphan(std::stoi(up_.get()))};
  kill_owner();
  for (const Orphan& child : children) EXPECT_TRUE(child.lives());
}

TEST_F(UcxHosts, AStoppedOwnerIsLostAfterFiveHeartbeatsAndUsableAgainLater) {
  start(large);
  read_a_little();
  owner_->signal(SIGSTOP);
  const TimePoint stopped = now();
  run_until([&] { return !reader_->losses.empty(); });
  EXPECT_GE(now() - stopped, seconds(4));
  EXPECT_LT(now() - stopped, slow_loss);
  EXPECT_EQ(finish_read().code, Code::peer_lost);
  const Bytes at_loss(target_.begin(), target_.end());
  owner_->signal(SIGCONT);
  reader_->losses.clear();
  reader_->completions.clear();
  connect();
  EXPECT_TRUE(std::equal(at_loss.begin(), at_loss.end(), target_.begin()))
      << "late fragments were written after the error";
  start_read();
  EXPECT_EQ(finish_read().message, "");
  expect_target_is_whole();
}

TEST_F(UcxHosts, ADeadlineEndsAReadFromAStoppedOwnerWhichThenGoesOn) {
  start(small);
  owner_->signal(SIGSTOP);
  const TimePoint stopped = now();
  start_read(Deadline::after(milliseconds(300)));
  EXPECT_EQ(finish_read().code, Code::timeout);
  EXPECT_LT(now() - stopped, seconds(2));
  owner_->signal(SIGCONT);
  reader_->completions.clear();
  start_read();
  EXPECT_EQ(finish_read().message, "");
  EXPECT_TRUE(reader_->losses.empty());
  expect_target_is_whole();
}

TEST_F(UcxHosts, ALinkThatIsDownShortlyOnlyDelays) {
  start(large);
  read_a_little();
  hosts_->set_link(false);
  run_until([until = Deadline::after(milliseconds(1500))] { return until.expired(); });
  hosts_->set_link(true);
  EXPECT_EQ(finish_read().message, "");
  expect_target_is_whole();
}

TEST_F(UcxHosts, ALinkThatStaysDownEndsTheRead) {
  start(large);
  read_a_little();
  hosts_->set_link(false);
  const TimePoint cut = now();
  EXPECT_EQ(finish_read().code, Code::peer_lost);
  EXPECT_GE(now() - cut, seconds(4));
  EXPECT_LT(now() - cut, slow_loss);
}

}  // namespace
}  // namespace tensorbus::fabric
