#include "lane.h"

#include <algorithm>
#include <chrono>

namespace tensorbus::device::cuda {

void Point::wait() {
  demand();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached_; });
}

bool Point::looked_at() {
  constexpr int patience = 3;
  bool impatient = false;
  {
    const std::lock_guard lock(mutex_);
    impatient = ++looks_ > patience;
  }
  if (impatient) demand();
  const std::lock_guard lock(mutex_);
  return reached_;
}

void Point::reach() {
  {
    const std::lock_guard lock(mutex_);
    reached_ = true;
  }
  changed_.notify_all();
}

void Point::demand() {
  if (const auto lane = lane_.lock()) lane->demand(number_);
}

void Lane::start() {
  thread_ = std::thread([this] { run(); });
}

std::shared_ptr<Point> Lane::add(Work work, std::vector<std::shared_ptr<Point>> after) {
  std::shared_ptr<Point> end;
  {
    const std::lock_guard lock(mutex_);
    end = last_ = std::make_shared<Point>(weak_from_this(), ++added_);
    operations_.push_back({std::move(work), std::move(after), end, added_});
  }
  changed_.notify_all();
  return end;
}

std::shared_ptr<Point> Lane::last() {
  const std::lock_guard lock(mutex_);
  return last_;
}

void Lane::demand(std::uint64_t number) {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = std::max(wanted_, number);
  }
  changed_.notify_all();
}

void Lane::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

void Lane::finish() {
  stop();
  thread_.join();
}

void Lane::pause(Dice& dice) const {
  if (settings_.delay_us <= 0) return;
  const long time = static_cast<long>(dice() % static_cast<unsigned long>(settings_.delay_us));
  std::this_thread::sleep_for(std::chrono::microseconds(time));
}

bool Lane::may_run() const {
  if (operations_.empty()) return stopping_;
  return stopping_ || !settings_.lazy || operations_.front().number <= wanted_;
}

void Lane::run() {
  for (;;) {
    Operation next;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return may_run(); });
      if (operations_.empty()) return;
      next = std::move(operations_.front());
      operations_.pop_front();
    }
    for (const auto& point : next.after) point->wait();
    pause(dice_);
    next.work(dice_);
    next.end->reach();
  }
}

}  // namespace tensorbus::device::cuda
