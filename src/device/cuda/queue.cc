#include "device/cuda/queue.h"

#include <fmt/format.h>

#include "base/log.h"
#include "device/cuda/copies.h"

namespace tensorbus::device::cuda {
namespace {

using Shared = std::shared_ptr<StreamQueue::State>;

using SharedRecording = std::shared_ptr<const Recording>;

SharedRecording recording_of(const Moment& moment) {
  return dynamic_cast<const EventMoment&>(moment).recording();
}

void make_streams(StreamQueue::State& queue) {
  Calls& calls = queue.engine.calls();
  // Non-blocking: other streams of the process are none of ours, and order comes from events alone.
  if (queue.copies == nullptr) {
    calls(&Functions::cuStreamCreate, &queue.copies, stream_non_blocking);
  }
  if (queue.watches == nullptr) {
    calls(&Functions::cuStreamCreate, &queue.watches, stream_non_blocking);
  }
}

// The driver rings when it has come here. Whoever is not rung for looks.
void ask_to_ring(StreamQueue::State& queue, Stream stream) {
  const HostFunction ring = &Bell::ring;
  queue.engine.calls().ask(&Functions::cuLaunchHostFunc, stream, ring,
                           static_cast<void*>(&queue.engine.thread().bell()));
}

class QueueJob : public Job {
 public:
  explicit QueueJob(Shared queue) : queue_(std::move(queue)) {}

 protected:
  StreamQueue::State& queue() const { return *queue_; }
  Calls& calls() const { return queue_->engine.calls(); }

 private:
  const Shared queue_;
};

// What follows in the queue comes after the moment, or does not come.
class WaitJob final : public QueueJob {
 public:
  WaitJob(Shared queue, SharedRecording moment)
      : QueueJob(std::move(queue)), moment_(std::move(moment)) {}

  void start() override {
    make_streams(queue());
    calls()(&Functions::cuStreamWaitEvent, queue().copies, moment_->event(), 0U);
  }
  void end(const Status& status) noexcept override {
    if (!status.ok() && queue().broken.ok()) queue().broken = status;
  }

 private:
  const SharedRecording moment_;
};

// Work whose end the driver is asked for.
class MarkedJob : public QueueJob {
 public:
  MarkedJob(Shared queue, Mark mark) : QueueJob(std::move(queue)), mark_(std::move(mark)) {}

  bool is_over() override {
    constexpr int patience = 1000;
    const Result result = ask();
    if (result == success || result == not_ready) return result == success;
    // Whether the device still touches the memory is not known now.
    if (++failures_ < patience) return false;
    calls().die({Code::failed, fmt::format("{} does not say whether a copy is over: {}",
                                           to_string(calls().id()), calls().text_of(result))});
    throw Error(calls().health());
  }
  void end(const Status& status) noexcept override {
    if (uses_streams_) --queue().open_jobs;
    mark_.end(status);
    queue().told.signal();
  }

 protected:
  // The queue's streams stay until the end.
  void use_streams() {
    make_streams(queue());
    ++queue().open_jobs;
    uses_streams_ = true;
  }

 private:
  virtual Result ask() = 0;

  const Mark mark_;
  int failures_ = 0;
  bool uses_streams_ = false;
};

class WatchJob final : public MarkedJob {
 public:
  WatchJob(Shared queue, SharedRecording moment, Mark mark)
      : MarkedJob(std::move(queue), std::move(mark)), moment_(std::move(moment)) {}

  void start() override {
    use_streams();
    const Result result = calls().ask(&Functions::cuStreamWaitEvent, queue().watches, event(), 0U);
    if (result == success) ask_to_ring(queue(), queue().watches);
  }

 private:
  Event event() const { return moment_->event(); }
  Result ask() override { return calls().ask(&Functions::cuEventQuery, event()); }

  const SharedRecording moment_;
};

class CopyJob final : public MarkedJob {
 public:
  CopyJob(Shared queue, std::vector<Block> blocks, Mark mark)
      : MarkedJob(std::move(queue), std::move(mark)), blocks_(std::move(blocks)) {}

  void start() override {
    if (!queue().broken.ok()) throw Error(queue().broken);
    use_streams();
    try {
      for (const Block& block : blocks_) issue(block);
    } catch (const Error& error) {
      // What was issued before goes on: the job waits for the end of that first.
      failure_ = error.status();
      if (calls().is_dead()) throw;
    }
    record_end();
  }
  void end(const Status& status) noexcept override {
    if (end_ != nullptr) queue().engine.events().give_back(end_);
    MarkedJob::end(failure_.ok() ? status : failure_);
  }

 private:
  void issue(const Block& block) {
    for (const Memcpy2D& copy : copies_of(block, queue().engine.longest_pitch())) {
      const Result result = calls().ask(&Functions::cuMemcpy2DAsync, &copy, queue().copies);
      if (result != success) refuse(result);
    }
  }
  [[noreturn]] void refuse(Result result) const {
    const char* const hint = result == invalid_value
                                 ? "; the memory was freed or unmapped after it was registered "
                                   "(an allocator that sleeps?), or is none of this device's"
                                 : "";
    throw Error(Code::failed, fmt::format("{}: a copy gives {}{}", to_string(calls().id()),
                                          calls().text_of(result), hint));
  }
  // Without an event the whole stream is asked for, which ends no sooner.
  void record_end() {
    try {
      Event event = queue().engine.events().take();
      if (calls().ask(&Functions::cuEventRecord, event, queue().copies) == success) {
        end_ = event;
      } else {
        queue().engine.events().give_back(event);
      }
      ask_to_ring(queue(), queue().copies);
    } catch (const Error&) {
      if (calls().is_dead()) throw;
    }
  }
  Result ask() override {
    return end_ != nullptr ? calls().ask(&Functions::cuEventQuery, end_)
                           : calls().ask(&Functions::cuStreamQuery, queue().copies);
  }

  const std::vector<Block> blocks_;
  Event end_ = nullptr;
  Status failure_;
};

// The streams go when nobody asks for them any more.
class CloseJob final : public QueueJob {
 public:
  using QueueJob::QueueJob;

  void start() override {}
  bool is_over() override {
    if (queue().open_jobs > 0) return false;
    for (Stream* stream : {&queue().copies, &queue().watches}) {
      if (*stream == nullptr) continue;
      calls().ask(&Functions::cuStreamDestroy, *stream);
      *stream = nullptr;
    }
    return true;
  }
  void end(const Status&) noexcept override {}
};

}  // namespace

StreamQueue::StreamQueue(std::shared_ptr<Engine> engine)
    : engine_(std::move(engine)), state_(std::make_shared<State>(*engine_)) {}

StreamQueue::~StreamQueue() {
  if (!engine_->is_forked()) engine_->thread().post(std::make_unique<CloseJob>(state_));
}

void StreamQueue::post(std::unique_ptr<Job> job) {
  engine_->check_not_forked();
  engine_->thread().post(std::move(job));
}

void StreamQueue::wait(std::shared_ptr<const Moment> moment) {
  post(std::make_unique<WaitJob>(state_, recording_of(*moment)));
}

Mark StreamQueue::watch(std::shared_ptr<const Moment> moment) {
  const Mark mark;
  post(std::make_unique<WatchJob>(state_, recording_of(*moment), mark));
  return mark;
}

Mark StreamQueue::copy(std::vector<Block> blocks) {
  const Mark mark;
  post(std::make_unique<CopyJob>(state_, std::move(blocks), mark));
  return mark;
}

int StreamQueue::fd() const noexcept { return state_->told.get(); }

void StreamQueue::drain() noexcept { state_->told.drain(); }

}  // namespace tensorbus::device::cuda
