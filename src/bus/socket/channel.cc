#include "bus/socket/channel.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/overloaded.h"
#include "bus/socket/command_queue.h"
#include "bus/socket/frame_socket.h"
#include "bus/socket/protocol.h"
#include "os/process/process.h"

namespace tensorbus::bus {
namespace {

// A client tries again every half a second.
constexpr Duration time_to_return = std::chrono::seconds(10);
// How often descriptors are looked at while the loop does not sleep.
constexpr Duration look_every = std::chrono::microseconds(100);
// One client's messages per poll, so that a busy client does not keep the loop.
constexpr int most_frames_at_once = 64;
constexpr int most_accepted_at_once = 64;

enum class Source : std::uint32_t { listener, socket, process };

// A connected process, or one that the last agent knew and that may come back.
struct Client {
  std::uint32_t number = 0;
  std::unique_ptr<FrameSocket> socket;  // none: not back yet
  os::Fd process;                       // none: of another pid namespace
  std::uint64_t session = 0;            // 0: no hello yet
  std::int64_t pid = 0;
  bool writing = false;  // epoll tells when more can be sent
  bool gone = false;
  Status reason;
  TimePoint lost_at = TimePoint::max();  // a missing one
};

class SocketChannelEnd final : public SocketChannel {
 public:
  explicit SocketChannelEnd(const SocketChannelOptions& options)
      : options_(options),
        path_(socket_path(options.queue_path)),
        queue_(options, events_, [this](auto session, const auto& said) { tell(session, said); }),
        listener_(os::listen_unix_path(path_)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (!epoll_) os::throw_errno("epoll_create");
    watch_listener(EPOLL_CTL_ADD, EPOLLIN);
    restore_sessions();
  }

  ~SocketChannelEnd() override {
    queue_.write_ends_now();
    ::unlink(path_.c_str());
  }

  std::span<const ChannelEvent> poll() override {
    queue_.write_ends();
    if (shortage_.pause_is_over(now())) watch_listener(EPOLL_CTL_MOD, EPOLLIN);
    if (std::exchange(armed_, false) || now() >= next_look_) look_at_descriptors();
    drop_missing();
    drop_gone();
    polled_.clear();
    polled_.swap(events_);
    return polled_;
  }

  void complete(CommandId id, const Outcome& outcome) override { queue_.complete(id, outcome); }
  void fail(const Status& why) noexcept override { queue_.fail(why); }

  void progress(CommandId id, std::int64_t done, std::int64_t total) noexcept override {
    Client* client = client_of(id.session);
    if (client == nullptr || client->socket->wants_write()) return;
    tell(id.session, protocol::Progress{id.sequence, done, total});
  }

  bool arm() override {
    queue_.write_ends();
    armed_ = events_.empty() && ended_.empty();
    return armed_;
  }
  int fd() const noexcept override { return epoll_.get(); }
  TimePoint wake_at() const noexcept override {
    return std::min(shortage_.until(), queue_.write_at());
  }
  void remove_at_close() noexcept override { queue_.journal().remove_at_close(); }

 private:
  void look_at_descriptors() {
    next_look_ = now() + look_every;
    std::array<epoll_event, 64> ready{};
    const int count = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t data = ready[static_cast<std::size_t>(i)].data.u64;
      const auto number = static_cast<std::uint32_t>(data);
      switch (static_cast<Source>(data >> 32)) {
        case Source::listener:
          accept_clients();
          break;
        case Source::socket:
          serve(number);
          break;
        case Source::process:
          process_ended(number);
          break;
      }
    }
  }

  void watch(int action, int fd, std::uint32_t what, Source source, std::uint32_t number) {
    epoll_event event{};
    event.events = what;
    event.data.u64 = (static_cast<std::uint64_t>(source) << 32) | number;
    if (::epoll_ctl(epoll_.get(), action, fd, &event) != 0) os::throw_errno("epoll_ctl");
  }

  void watch_listener(int action, std::uint32_t what) {
    watch(action, listener_.get(), what, Source::listener, 0);
  }

  void watch_process(Client& client) {
    if (client.pid <= 0) return;
    try {
      client.process = os::open_pidfd(static_cast<pid_t>(client.pid));
      watch(EPOLL_CTL_ADD, client.process.get(), EPOLLIN, Source::process, client.number);
    } catch (const Error& error) {
      client.process.reset();
      log::debug("{}; the end of its connection will tell", error.what());
    }
  }

  Client& new_client() {
    auto client = std::make_unique<Client>();
    client->number = ++last_number_;
    Client& added = *client;
    clients_.emplace(added.number, std::move(client));
    return added;
  }

  void restore_sessions() {
    std::vector<std::uint64_t> dead;
    for (const auto& [session, known] : queue_.journal().sessions()) {
      if (!lives(known)) {
        dead.push_back(session);
        continue;
      }
      Client& client = new_client();
      client.session = session;
      client.pid = known.pid;
      client.lost_at = now() + time_to_return;
      watch_process(client);
      sessions_.emplace(session, client.number);
      log::info("waiting for the client of process {} to come back", known.pid);
    }
    for (const std::uint64_t session : dead) {
      queue_.end_session(session);
      events_.push_back(
          SessionLost{session, {Code::peer_lost, "its process ended while no agent ran"}});
    }
  }

  static bool lives(const QueueJournal::Session& session) {
    try {
      return os::process_start_time(static_cast<pid_t>(session.pid)) == session.start_time;
    } catch (const Error&) {
      return false;
    }
  }

  void accept_clients() {
    try {
      for (int count = 0; count < most_accepted_at_once; ++count) {
        os::Fd accepted = os::accept_unix(listener_, shortage_, now());
        if (!accepted) break;
        admit_client(std::move(accepted));
      }
    } catch (const std::exception& error) {
      log::warn("a client is not accepted: {}", error.what());
    }
    if (shortage_.until() != TimePoint::max()) watch_listener(EPOLL_CTL_MOD, 0);
  }

  void admit_client(os::Fd accepted) {
    const os::Credentials peer = os::peer_credentials(accepted);
    if (peer.uid != ::geteuid()) {
      log::warn("a process of user {} was sent away", peer.uid);
      return;
    }
    auto socket = std::make_unique<FrameSocket>(std::move(accepted));
    const int fd = socket->socket().get();
    watch(EPOLL_CTL_ADD, fd, EPOLLIN, Source::socket, last_number_ + 1);
    Client& client = new_client();
    client.pid = peer.pid;
    client.socket = std::move(socket);
  }

  Client* find(std::uint32_t number) {
    const auto found = clients_.find(number);
    return found == clients_.end() || found->second->gone ? nullptr : found->second.get();
  }
  // The client of a session, if the client can be told something.
  Client* client_of(std::uint64_t session) {
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) return nullptr;
    Client* client = find(found->second);
    return client == nullptr || client->socket == nullptr ? nullptr : client;
  }

  void serve(std::uint32_t number) {
    Client* client = find(number);
    if (client == nullptr || client->socket == nullptr) return;
    try {
      client->socket->flush();
      watch_writing(*client);
      for (int i = 0; i < most_frames_at_once && !client->gone; ++i) {
        std::optional<Frame> frame = client->socket->receive();
        if (!frame) break;
        handle(*client, protocol::decode_from_client(frame->bytes), std::move(frame->fds));
      }
      if (client->socket->closed()) {
        end(*client, {Code::peer_lost, fmt::format("process {} has ended", client->pid)});
      }
    } catch (const std::exception& error) {
      log::warn("the client of process {} is sent away: {}", client->pid, error.what());
      end(*client, {Code::failed, error.what()});
    }
  }

  void handle(Client& client, protocol::FromClient message, std::vector<os::Fd> fds) {
    if (!std::holds_alternative<protocol::Hello>(message) && client.session == 0) {
      throw Error(Code::invalid_argument, "it did not say hello first");
    }
    std::visit(Overloaded{
                   [&](const protocol::Hello& hello) { greet(client, hello); },
                   [&](protocol::Submit& submit) {
                     queue_.submit(client.session, std::move(submit), std::move(fds));
                   },
                   [&](const protocol::Withdraw& withdraw) {
                     queue_.withdraw(client.session, withdraw.sequence);
                   },
                   [&](const protocol::Cancel& wish) { queue_.cancel(client.session, wish); },
                   [&](const protocol::Look& look) {
                     tell(client.session, protocol::Looked{look.request, queue_.journal().state()});
                   },
                   [&](const protocol::GuardSemaphore& wish) {
                     queue_.guard_semaphore(client.session, wish);
                   },
                   [&](const protocol::ReleaseSemaphore& release) {
                     queue_.journal().release_semaphore(client.session, release.name);
                   },
                   [&](const protocol::Bye&) { end(client, {}); },
               },
               message);
  }

  void greet(Client& client, const protocol::Hello& hello) {
    const auto reject = [&](const std::string& why) {
      client.socket->send({protocol::encode(protocol::Rejected{{Code::unreachable, why}}), {}});
      log::warn("the client of process {} is sent away: {}", client.pid, why);
      end(client, {});
    };
    if (hello.version != protocol::version) {
      return reject(
          fmt::format("this agent speaks version {} and the client version {}; use one "
                      "release of tensorbus for both",
                      protocol::version, hello.version));
    }
    if (hello.space != options_.space) {
      return reject(
          fmt::format("this agent belongs to namespace \"{}\" and the client to \"{}\"; "
                      "another job's agent has these files (see TENSORBUS_NAMESPACE)",
                      options_.space, hello.space));
    }
    if (hello.rank != options_.rank) {
      return reject(fmt::format("this is the agent of rank {}, not of rank {}; check the paths",
                                options_.rank, hello.rank));
    }
    if (client.session != 0 || hello.session == 0 || client_of(hello.session) != nullptr) {
      return reject("a session says hello once");
    }
    QueueJournal& journal = queue_.journal();
    const auto known = journal.sessions().find(hello.session);
    QueueJournal::Session session;
    if (known != journal.sessions().end()) {
      session = known->second;
      take_place_of(sessions_.at(hello.session));
    } else {
      session.pid = client.pid > 0 ? client.pid : hello.pid;
      if (client.pid > 0)
        session.start_time = os::process_start_time(static_cast<pid_t>(client.pid));
      try {
        journal.add_session(hello.session, session);
      } catch (const Error& error) {
        return reject(error.what());
      }
    }
    client.session = hello.session;
    sessions_[hello.session] = client.number;
    watch_process(client);
    log::info("process {} {}", session.pid,
              known == journal.sessions().end() ? "has connected" : "is served");
    tell(client.session, protocol::Welcome{::getpid(), session.last_accepted});
    events_.push_back(SessionUp{hello.session, session.pid});
  }

  // The client that the agent waited for is here, as another connection.
  void take_place_of(std::uint32_t number) { clients_.erase(number); }

  void tell(std::uint64_t session, const protocol::FromAgent& message) noexcept {
    Client* client = client_of(session);
    if (client == nullptr) return;
    try {
      client->socket->send({protocol::encode(message), {}});
      watch_writing(*client);
    } catch (const std::exception& error) {
      end(*client, {Code::failed, error.what()});
    }
  }

  void watch_writing(Client& client) {
    if (client.writing == client.socket->wants_write()) return;
    client.writing = !client.writing;
    watch(EPOLL_CTL_MOD, client.socket->socket().get(),
          client.writing ? EPOLLIN | EPOLLOUT : EPOLLIN, Source::socket, client.number);
  }

  void process_ended(std::uint32_t number) {
    if (Client* client = find(number)) {
      end(*client, {Code::peer_lost, fmt::format("process {} has ended", client->pid)});
    }
  }

  void end(Client& client, const Status& reason) {
    if (std::exchange(client.gone, true)) return;
    client.reason = reason;
    ended_.push_back(client.number);
  }

  void drop_missing() {
    if (sessions_.empty()) return;
    const TimePoint time = now();
    for (const auto& [number, client] : clients_) {
      if (client->lost_at <= time) {
        end(*client, {Code::peer_lost,
                      fmt::format("process {} did not come back to its agent", client->pid)});
      }
    }
  }

  void drop_gone() {
    for (const std::uint32_t number : ended_) {
      const auto found = clients_.find(number);
      if (found == clients_.end()) continue;
      const Client& client = *found->second;
      if (client.session != 0) {
        queue_.end_session(client.session);
        sessions_.erase(client.session);
        log::info("process {} has {}", client.pid,
                  client.reason.ok() ? "closed its client" : "gone: " + client.reason.message);
        events_.push_back(SessionLost{client.session, client.reason});
      }
      clients_.erase(found);
    }
    if (!ended_.empty()) {
      ended_.clear();
      queue_.admit_held();
    }
  }

  const SocketChannelOptions options_;
  const std::string path_;
  std::vector<ChannelEvent> events_;  // for the next poll(): complete() makes some, too
  CommandQueue queue_;
  os::Fd listener_;
  os::Shortage shortage_{"the agent"};
  os::Fd epoll_;
  std::map<std::uint32_t, std::unique_ptr<Client>> clients_;
  std::uint32_t last_number_ = 0;
  std::map<std::uint64_t, std::uint32_t> sessions_;  // session -> client
  std::vector<std::uint32_t> ended_;
  std::vector<ChannelEvent> polled_;
  bool armed_ = false;
  TimePoint next_look_{};
};

}  // namespace

std::string socket_path(const std::string& queue_path) { return queue_path + ".sock"; }

std::unique_ptr<SocketChannel> make_socket_channel(const SocketChannelOptions& options) {
  return std::make_unique<SocketChannelEnd>(options);
}

}  // namespace tensorbus::bus
