#include "push_pull/job/loop.h"

#include <sched.h>

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "base/hot/ticker.h"
#include "base/log.h"
#include "base/overloaded.h"

namespace tensorbus::push_pull {
namespace {

// Clocks are read, and signals looked for, every so many polls.
constexpr unsigned polls_per_look = 16;
constexpr Duration signals_every = std::chrono::milliseconds(20);
// While callers come and go our own thread only looks whether they still do.
constexpr Duration between_looks = std::chrono::milliseconds(5);

}  // namespace

Loop::Loop(Events& events, fabric::Progress& station, os::SpinBudget spin)
    : events_(events), station_(station), spin_(spin) {
  for (const int fd : {wake_.get(), keeper_wake_.get()}) os::close_in_children(fd);
  keeper_ = std::thread([this] { keep(); });
}

Loop::~Loop() {
  if (os::fork_generation() != generation_) {
    keeper_.detach();  // it runs in the parent
    return;
  }
  close();
  for (const int fd : {wake_.get(), keeper_wake_.get()}) os::forget_in_children(fd);
}

void Loop::refuse() const {
  os::check_not_forked(generation_, "node of a push-pull job");
  if (closed_) throw Error(Code::cancelled, "this node was stopped");
  throw Error(*failure_);
}

void Loop::close() noexcept {
  {
    const tensorbus::Lock lock(mutex_);
    if (std::exchange(closed_, true)) return;
    wake_.signal();
    changed_.notify_all();
  }
  keeper_.join();
  // Threads that are in a call leave it.
  tensorbus::Lock lock(mutex_);
  changed_.wait(lock,
                [this]() REQUIRES(mutex_) { return followers_ == 0 && poller_ != Poller::caller; });
}

void Loop::poll() {
  stirred_ = false;
  const std::span<const fabric::Event> events = station_.poll();
  for (const fabric::Event& event : events) {
    std::visit(
        Overloaded{
            [this](const fabric::Message& message) {
              events_.on_message(*message.from, message.bytes);
            },
            [this](const fabric::PeerUp& up) { events_.on_up(up.peer); },
            [this](const fabric::PeerLost& lost) { events_.on_lost(*lost.peer, lost.reason); },
            [](const fabric::Completion&) {},
        },
        event);
  }
  events_.on_turn();
  if (followers_ > 0 && (stirred_ || !events.empty())) changed_.notify_all();
}

void Loop::sleep(Lock& lock, Deadline deadline, bool keeper) {
  if (!station_.arm()) return;
  deadline = sooner(deadline, Deadline(station_.wake_at()));
  const std::array<int, 3> awaited{station_.fd(), wake_.get(), keeper_wake_.get()};
  std::array<pollfd, 3> fds{};
  for (std::size_t i = 0; i < fds.size(); ++i) fds[i] = {awaited[i], POLLIN, 0};
  const Unlocked unlocked(lock);
  os::sleep_ready(std::span(fds).first(keeper ? 3 : 2), deadline);
}

// A thread that spins with the lock would keep the lock for ever.
void Loop::let_others_in(Lock& lock) {
  if (wanting_.load(std::memory_order_relaxed) == 0) return;
  lock.unlock();
  for (int i = 0; i < 1000 && wanting_.load() > 0; ++i) relax();
  lock.lock();
}

Loop::Turn::Turn(Loop& loop, Lock& lock, Deadline deadline)
    : loop_(loop), lock_(lock), deadline_(deadline) {}

Loop::Turn::~Turn() {
  if (!polls_) return;
  if (!slept_ && !sleeps_next_) loop_.spin_.came();
  // The core came back late, if with what was waited for.
  if (!slept_ && sleeps_next_ && loop_.spin_.yields()) loop_.spin_.in_vain();
  loop_.poller_ = Poller::nobody;
  loop_.poller_sleeps_ = false;
  if (loop_.followers_ > 0 || loop_.closed_) loop_.changed_.notify_all();
  if (slept_ && loop_.keeper_rests_) loop_.keeper_wake_.signal();
}

bool Loop::Turn::take() {
  loop_.check();
  if (!polls_) {
    if (loop_.poller_ == Poller::caller) return follow();
    // The keeper sleeps if it is the poller, since this thread has the lock.
    if (loop_.poller_ == Poller::keeper) loop_.keeper_wake_.signal();
    loop_.poller_ = Poller::caller;
    ++loop_.turns_;
    polls_ = true;
  }
  if (std::exchange(sleeps_next_, false)) sleep();
  if (std::exchange(yields_next_, false)) ::sched_yield();
  loop_.poll();
  loop_.let_others_in(lock_);
  const bool looks = loop_.spin_.yields() || !loop_.spin_.spins();
  if (++polled_ % polls_per_look != 0 && !looks) return true;
  const TimePoint before = std::exchange(now_, now());
  if (now_ >= deadline_.at()) return false;
  // The spinning begins with the first look at the clock, a microsecond after it has begun.
  if (spin_until_ == TimePoint{}) spin_until_ = now_ + loop_.spin_.next();
  if (now_ < spin_until_) {
    // Not at the first look: asking costs two system calls, and most waits are over by the second
    // look.
    if (before != TimePoint{} &&
        now_.time_since_epoch() / signals_every != before.time_since_epoch() / signals_every) {
      throw_if_interrupted(lock_);
    }
    yields_next_ = loop_.spin_.yields();
    return true;
  }
  // Not now: this poll may have brought what the caller waits for.
  sleeps_next_ = true;
  return true;
}

void Loop::Turn::sleep() {
  slept_ = true;
  loop_.spin_.in_vain();
  loop_.poller_sleeps_ = true;
  loop_.sleep(lock_, deadline_, false);
  loop_.poller_sleeps_ = false;
  spin_until_ = {};
  loop_.check();
}

bool Loop::Turn::follow() {
  // close() waits for threads that follow, also while they look for signals without the lock.
  struct Following {
    explicit Following(Loop& followed) : loop(followed) { ++loop.followers_; }
    ~Following() {
      --loop.followers_;
      if (loop.closed_) loop.changed_.notify_all();
    }
    Loop& loop;
  };
  const Following following(loop_);
  if (!waiting_) waiting_.emplace(lock_, deadline_);
  return waiting_->sleep(loop_.changed_);
}

void Loop::keep() try {
  tensorbus::Lock lock(mutex_);
  std::uint64_t seen = 0;
  while (!closed_) {
    if (poller_ == Poller::caller || turns_ != seen) {
      // A caller that sleeps for long says when it leaves; one that spins, or comes again at once,
      // must not have to.
      keeper_rests_ = poller_sleeps_ && turns_ == seen;
      seen = turns_;
      const Deadline until = keeper_rests_ ? Deadline::never() : Deadline::after(between_looks);
      std::array<pollfd, 2> fds{pollfd{wake_.get(), POLLIN, 0},
                                pollfd{keeper_wake_.get(), POLLIN, 0}};
      lock.unlock();
      os::sleep_ready(fds, until);
      lock.lock();
      keeper_rests_ = false;
      keeper_wake_.drain();
      continue;
    }
    poller_ = Poller::keeper;
    poll();
    sleep(lock, Deadline::never(), true);
    keeper_wake_.drain();
    if (poller_ == Poller::keeper) poller_ = Poller::nobody;
  }
} catch (...) {
  const tensorbus::Lock lock(mutex_);
  failure_ = current_exception_status();
  log::error("push-pull: connections cannot be kept alive: {}", failure_->message);
  if (poller_ == Poller::keeper) poller_ = Poller::nobody;
  changed_.notify_all();
}

}  // namespace tensorbus::push_pull
