#include "device/cuda/thread.h"

#include <algorithm>

#include "base/waiting.h"

namespace tensorbus::device::cuda {
namespace {

using std::chrono::microseconds;

// The driver rings when work is done, but not when the context has an error, and nobody rings for
// users' streams: so the thread looks, too, ever more seldom.
constexpr Duration first_pause = microseconds(50);
constexpr Duration longest_pause = microseconds(1000);

ProcessMutex kept_mutex;

// For the rest of the process. The driver rings late: for work that was seen to be over before, and
// for devices that died. Whether a ring is still to come is not known.
void keep(std::unique_ptr<Bell> bell) {
  static auto* const kept = new std::vector<std::unique_ptr<Bell>>;
  const Lock lock(kept_mutex);
  kept->push_back(std::move(bell));
}

}  // namespace

void Bell::ring(void* bell) { static_cast<Bell*>(bell)->ring(); }

void Bell::ring() {
  const Lock lock(mutex_);
  rung_ = true;
  changed_.notify_one();
}

void Bell::wait(Deadline at_latest) {
  Lock lock(mutex_);
  Waiting waiting(lock, at_latest, Waiting::CtrlC::ignored);
  while (!rung_ && waiting.sleep(changed_)) {
  }
  rung_ = false;
}

Thread::Thread(Calls& calls, Context context)
    : calls_(calls),
      context_(context),
      bell_(std::make_unique<Bell>()),
      thread_([this] { run(); }) {}

Thread::~Thread() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  bell_->ring();
  thread_.join();
  keep(std::move(bell_));
}

void Thread::post(std::unique_ptr<Job> job) {
  {
    const Lock lock(mutex_);
    posted_.push_back(std::move(job));
  }
  bell_->ring();
}

void Thread::run() {
  set_up();
  Duration pause = first_pause;
  for (;;) {
    const bool stopping = is_stopping();  // before the look at what is posted, which comes first
    Jobs jobs = take_posted();
    if (stopping && jobs.empty() && open_.empty()) return;
    for (auto& job : jobs) start(std::move(job));
    if (look() || !jobs.empty()) pause = first_pause;
    if (open_.empty() && is_stopping()) continue;  // its ring may have been heard already
    bell_->wait(open_.empty() ? Deadline::never() : Deadline::after(pause));
    pause = std::min(2 * pause, longest_pause);
  }
}

// Without the mode our calls would spoil every graph that a framework captures meanwhile.
void Thread::set_up() {
  try {
    calls_(&Functions::cuCtxPushCurrent, context_);
    CaptureMode mode = capture_relaxed;
    calls_(&Functions::cuThreadExchangeStreamCaptureMode, &mode);
  } catch (const Error& error) {
    calls_.die(error.status());
  }
}

Thread::Jobs Thread::take_posted() {
  const Lock lock(mutex_);
  return std::exchange(posted_, {});
}

void Thread::start(std::unique_ptr<Job> job) {
  Status status = calls_.health();
  try {
    if (status.ok()) job->start();
  } catch (...) {
    status = current_exception_status();
  }
  if (!status.ok()) {
    job->end(status);
  } else if (!look_at(*job)) {  // what is over at once ends before the next one starts
    open_.push_back(std::move(job));
  }
}

bool Thread::look() {
  const std::size_t before = open_.size();
  std::erase_if(open_, [&](const std::unique_ptr<Job>& job) { return look_at(*job); });
  if (calls_.is_dead()) end_all(calls_.health());
  return open_.size() != before;
}

bool Thread::look_at(Job& job) {
  Status status;
  try {
    if (calls_.is_dead() || !job.is_over()) return false;
  } catch (...) {
    status = current_exception_status();
  }
  job.end(status);
  return true;
}

void Thread::end_all(const Status& status) {
  for (const auto& job : open_) job->end(status);
  open_.clear();
}

bool Thread::is_stopping() const {
  const Lock lock(mutex_);
  return stopping_;
}

}  // namespace tensorbus::device::cuda
