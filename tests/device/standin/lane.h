// A stream's thread: runs operations one after the other, each when what it waits for is over.
//
// In lazy mode an operation runs only when somebody waits for it, here or on another stream, or has
// looked at it often: who forgets to wait finds nothing done.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "settings.h"

namespace tensorbus::device::cuda {

class Lane;

// The end of one operation of a lane.
class Point {
 public:
  Point(std::weak_ptr<Lane> lane, std::uint64_t number) : lane_(std::move(lane)), number_(number) {}

  void wait();
  // Whether it has been reached. The fourth look counts as a wait.
  bool looked_at();
  void reach();

 private:
  void demand();

  const std::weak_ptr<Lane> lane_;
  const std::uint64_t number_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int looks_ = 0;
  bool reached_ = false;
};

using Dice = std::minstd_rand;
using Work = std::function<void(Dice&)>;

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  Lane(const Settings& settings, unsigned seed) : settings_(settings), dice_(seed) {}

  void start();
  // Runs `work` after `after` and all that was added before.
  std::shared_ptr<Point> add(Work work, std::vector<std::shared_ptr<Point>> after);
  std::shared_ptr<Point> last();
  // Operations up to this one are waited for.
  void demand(std::uint64_t number);
  // Runs what is left, also if nobody waits for it, and ends. finish() waits for that.
  void stop();
  void finish();
  // Sleeps for a while that the dice choose.
  void pause(Dice& dice) const;

 private:
  struct Operation {
    Work work;
    std::vector<std::shared_ptr<Point>> after;
    std::shared_ptr<Point> end;
    std::uint64_t number = 0;
  };

  void run();
  bool may_run() const;

  const Settings settings_;
  Dice dice_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> operations_;
  std::shared_ptr<Point> last_;
  std::uint64_t added_ = 0;
  std::uint64_t wanted_ = 0;
  bool stopping_ = false;
};

}  // namespace tensorbus::device::cuda
