#include "device/fake/device.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "os/io/poll.h"

namespace tensorbus::device {
namespace {

// A line's work up to a number. A line that is gone has done everything.
class LineMoment final : public Moment {
 public:
  LineMoment(const std::uint64_t* done, std::weak_ptr<const void> line, std::uint64_t number)
      : done_(done), line_(std::move(line)), number_(number) {}

  bool passed() const { return line_.expired() || *done_ >= number_; }

 private:
  const std::uint64_t* const done_;
  const std::weak_ptr<const void> line_;
  const std::uint64_t number_;
};

class AlwaysPinned final : public Pin {
 public:
  explicit AlwaysPinned(HostRange range) : range_(std::move(range)) {}
  State state() const override { return State::pinned; }

 private:
  const HostRange range_;
};

using Piece = std::function<void()>;

void copy_rows(const Block& block, std::int64_t plane, std::int64_t begin, std::int64_t end) {
  const std::byte* from = block.from + plane * block.from_pitch.plane;
  std::byte* to = block.to + plane * block.to_pitch.plane;
  for (std::int64_t row = begin; row < end; ++row) {
    std::memcpy(to + row * block.to_pitch.row, from + row * block.from_pitch.row, block.bytes);
  }
}

// Every plane in two, so that a half can be seen.
void add_pieces(const Block& block, std::vector<Piece>& pieces) {
  if (block.bytes == 0) return;
  for (std::int64_t plane = 0; plane < block.planes; ++plane) {
    const std::int64_t half = block.rows / 2;
    pieces.emplace_back([=] { copy_rows(block, plane, 0, half); });
    pieces.emplace_back([=] { copy_rows(block, plane, half, block.rows); });
  }
}

}  // namespace

struct FakeDevice::Task {
  std::shared_ptr<const Moment> after = {};
  std::vector<Piece> pieces = {};
  std::size_t next_piece = 0;
  std::optional<Mark> mark = {};
  std::shared_ptr<os::EventFd> told = {};

  bool can_go_on() const {
    return after == nullptr || dynamic_cast<const LineMoment&>(*after).passed();
  }
  // True when nothing is left.
  bool step() {
    if (next_piece < pieces.size()) pieces[next_piece++]();
    return next_piece == pieces.size();
  }
  void end(const Status& status) {
    if (mark) mark->end(status);
    if (told != nullptr) told->signal();
  }
};

// One thing after another. What is done is counted.
class FakeDevice::Line {
 public:
  std::deque<Task> tasks;
  std::uint64_t added = 0;
  std::uint64_t done = 0;
  bool held = false;
  bool capturing = false;
};

class FakeQueue final : public Queue {
 public:
  explicit FakeQueue(FakeDevice& device)
      : device_(device), line_(device.make_line()), told_(std::make_shared<os::EventFd>()) {}

  void wait(std::shared_ptr<const Moment> moment) override {
    add(*line_, {.after = std::move(moment)});
  }
  Mark watch(std::shared_ptr<const Moment> moment) override {
    return add_marked(*device_.make_line(), {.after = std::move(moment)});
  }
  Mark copy(std::vector<Block> blocks) override {
    FakeDevice::Task task;
    for (const Block& block : blocks) {
      add_pieces(block, task.pieces);
      if (device_.death_.ok()) device_.spoil(block);
    }
    return add_marked(*line_, std::move(task));
  }
  int fd() const noexcept override { return told_->get(); }
  void drain() noexcept override { told_->drain(); }

 private:
  Mark add_marked(FakeDevice::Line& line, FakeDevice::Task task) {
    const Mark mark;
    task.mark = mark;
    task.told = told_;
    add(line, std::move(task));
    return mark;
  }
  void add(FakeDevice::Line& line, FakeDevice::Task task) {
    if (!device_.death_.ok()) return task.end(device_.death_);
    line.tasks.push_back(std::move(task));
    ++line.added;
  }

  FakeDevice& device_;
  const std::shared_ptr<FakeDevice::Line> line_;
  const std::shared_ptr<os::EventFd> told_;
};

FakeDevice::FakeDevice(Id id, unsigned seed)
    : info_{id, "fake device", "FAKE-" + std::to_string(id.ordinal), false}, dice_(seed) {}

FakeDevice::~FakeDevice() = default;

std::unique_ptr<Queue> FakeDevice::open_queue() { return std::make_unique<FakeQueue>(*this); }

std::shared_ptr<const Moment> FakeDevice::moment(Stream stream) {
  if (!death_.ok()) throw Error(death_);
  const Line& line = line_of(stream);
  if (line.capturing) throw Error(Code::invalid_argument, "the stream captures a graph");
  return std::make_shared<LineMoment>(&line.done, streams_.at(stream.handle), line.added);
}

std::shared_ptr<const Pin> FakeDevice::pin(HostRange range) {
  return std::make_shared<AlwaysPinned>(std::move(range));
}

bool FakeDevice::step() {
  std::vector<Line*> ready;
  for (const auto& line : lines_) {
    const bool has_work = !line->held && !line->tasks.empty();
    if (has_work && line->tasks.front().can_go_on()) ready.push_back(line.get());
  }
  if (ready.empty()) return false;
  Line& line = *ready[dice_() % ready.size()];
  if (line.tasks.front().step()) {
    Task ended = std::move(line.tasks.front());
    line.tasks.pop_front();
    ++line.done;
    ended.end({});
  }
  lines_.remove_if([](const auto& each) { return each.use_count() == 1 && each->tasks.empty(); });
  return true;
}

std::byte* FakeDevice::allocate(std::size_t bytes) {
  std::vector<std::byte> memory(bytes, std::byte{0xA5});
  std::byte* const data = memory.data();
  memory_.emplace(data, std::move(memory));
  return data;
}

Stream FakeDevice::make_stream() {
  const std::uintptr_t handle = streams_.size() + 3;  // after the numbers that mean something
  streams_.emplace(handle, make_line());
  return {handle};
}

void FakeDevice::write(Stream stream, std::byte* to, std::vector<std::byte> bytes) {
  auto kept = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  const std::size_t half = kept->size() / 2;
  Task task;
  task.pieces = {[=] { std::memcpy(to, kept->data(), half); },
                 [=] { std::memcpy(to + half, kept->data() + half, kept->size() - half); }};
  Line& line = line_of(stream);
  line.tasks.push_back(std::move(task));
  ++line.added;
}

// Adds work that is not done yet, also for a caller that asks for a moment.
void FakeDevice::hold(Stream stream) {
  Line& line = line_of(stream);
  line.tasks.emplace_back();
  ++line.added;
  line.held = true;
}

void FakeDevice::release(Stream stream) { line_of(stream).held = false; }

void FakeDevice::set_capturing(Stream stream, bool capturing) {
  line_of(stream).capturing = capturing;
}

void FakeDevice::die(const Status& why) {
  death_ = why;
  for (const auto& line : lines_) {
    for (Task& task : std::exchange(line->tasks, {})) task.end(why);
  }
}

std::shared_ptr<FakeDevice::Line> FakeDevice::make_line() {
  return lines_.emplace_back(std::make_shared<Line>());
}

FakeDevice::Line& FakeDevice::line_of(Stream stream) {
  const auto found = streams_.find(stream.handle);
  if (found == streams_.end()) {
    throw Error(Code::invalid_argument, "the stream is none of this device's");
  }
  return *found->second;
}

bool FakeDevice::is_on_device(const std::byte* data) const {
  const auto after = memory_.upper_bound(data);
  if (after == memory_.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return data < begin + bytes.size();
}

void FakeDevice::spoil(const Block& block) const {
  if (block.bytes == 0 || is_on_device(block.to)) return;
  for (std::int64_t plane = 0; plane < block.planes; ++plane) {
    for (std::int64_t row = 0; row < block.rows; ++row) {
      std::memset(block.to + plane * block.to_pitch.plane + row * block.to_pitch.row, 0xDE,
                  block.bytes);
    }
  }
}

}  // namespace tensorbus::device
