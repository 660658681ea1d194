// The thread of one device in this process. Any call of the driver may block, and an agent's loop
// must not: so the calls of copying are made here and nowhere else.
#pragma once

#include <condition_variable>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "device/cuda/calls.h"

namespace tensorbus::device::cuda {

// What the thread is given to do. All but the constructor is called by the thread.
class Job {
 public:
  virtual ~Job() = default;
  // Gives the job to the driver. An Error ends the job.
  virtual void start() = 0;
  // Whether the device has done the job; asked again and again until it is over.
  virtual bool is_over() { return true; }
  // The end of the job, however the end came to be; called once, also for a job that the thread
  // never started.
  virtual void end(const Status& status) noexcept = 0;
};

// Wakes the thread. The driver's threads ring the bell, also late: a bell outlives its device.
class Bell {
 public:
  // For cuLaunchHostFunc.
  static void ring(void* bell);
  void ring();
  // Sleeps until somebody has rung, at most so long.
  void wait(Deadline at_latest);

 private:
  Mutex mutex_;
  std::condition_variable changed_;
  bool rung_ GUARDED_BY(mutex_) = false;
};

class Thread {
 public:
  Thread(Calls& calls, Context context);
  // Ends when all is done that was posted.
  ~Thread();

  void post(std::unique_ptr<Job> job);
  Bell& bell() noexcept { return *bell_; }

 private:
  using Jobs = std::vector<std::unique_ptr<Job>>;

  void run();
  void set_up();
  Jobs take_posted();
  void start(std::unique_ptr<Job> job);
  // True if a job has ended.
  bool look();
  bool look_at(Job& job);
  void end_all(const Status& status);
  bool is_stopping() const;

  Calls& calls_;
  const Context context_;
  std::unique_ptr<Bell> bell_;
  mutable Mutex mutex_;
  Jobs posted_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  Jobs open_;  // the thread's own
  std::thread thread_;
};

}  // namespace tensorbus::device::cuda
