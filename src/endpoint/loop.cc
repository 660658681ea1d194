#include "endpoint/loop.h"

#include <poll.h>
#include <pthread.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "os/process/process.h"

namespace tensorbus::endpoint {
namespace {

// A woken thread costs more than this much looking around.
constexpr Duration spin_time = std::chrono::microseconds(50);
// Peers take a station that is not polled for stopped.
constexpr Duration longest_pause = std::chrono::milliseconds(500);

void sleep_until(std::vector<pollfd>& descriptors, TimePoint at) {
  const Duration time = std::clamp(at - now(), Duration::zero(), longest_pause);
  const timespec timeout{time.count() / 1'000'000'000, time.count() % 1'000'000'000};
  ::ppoll(descriptors.data(), descriptors.size(), &timeout, nullptr);
}

}  // namespace

bool Mailbox::post(Work work) {
  const Lock lock(mutex_);
  if (closed_) return false;
  work_.push_back(std::move(work));
  if (std::exchange(sleeping_, false)) bell_.signal();
  return true;
}

std::vector<Mailbox::Work> Mailbox::take() {
  const Lock lock(mutex_);
  return std::exchange(work_, {});
}

std::vector<Mailbox::Work> Mailbox::close() {
  const Lock lock(mutex_);
  closed_ = true;
  return std::exchange(work_, {});
}

bool Mailbox::sleep() {
  const Lock lock(mutex_);
  if (!work_.empty()) return false;
  sleeping_ = true;
  return true;
}

void Mailbox::awake() {
  const Lock lock(mutex_);
  sleeping_ = false;
  bell_.drain();
}

Loop::Loop(std::unique_ptr<Core> core)
    : thread_([this, owned = std::move(core)]() mutable {
        os::block_signals_in_this_thread();
        ::pthread_setname_np(::pthread_self(), "tensorbus");
        run(std::move(owned));
      }) {}

Loop::~Loop() {
  mailbox_->post([this](Core&) { stop_ = true; });
  thread_.join();
}

void Loop::run(std::unique_ptr<Core> core) {
  TimePoint last_event = now();
  while (!stop_) {
    std::vector<Mailbox::Work> work = mailbox_->take();
    for (const Mailbox::Work& item : work) item(*core);
    bool busy = !work.empty();
    work.clear();
    try {
      busy = core->poll() || busy;
      if (busy) {
        last_event = now();
      } else if (now() - last_event > spin_time) {
        if (core->arm() && mailbox_->sleep()) {
          std::vector<pollfd> descriptors{{mailbox_->fd(), POLLIN, 0}};
          for (const int fd : core->descriptors()) descriptors.push_back({fd, POLLIN, 0});
          sleep_until(descriptors, core->wake_at());
          mailbox_->awake();
        }
      }
    } catch (...) {
      // A station that cannot be polled serves nobody any more.
      log::error("an endpoint ends: {}", current_exception_status().message);
      break;
    }
  }
  // A caller that was told that its work is taken gets an answer.
  for (const Mailbox::Work& item : mailbox_->close()) item(*core);
}

}  // namespace tensorbus::endpoint
