// That the suite sees a fabric that does not wait for its device: with a device that says too early
// that it has copied, bytes are wrong every time.
#include <gtest/gtest.h>

#include <cstring>

#include "fabric/conformance/device_fabric.h"
#include "fabric/conformance/party.h"
#include "fabric/shm/fabric.h"

namespace tensorbus::fabric {
namespace {

// Copies come after a moment; each is said to be over at once.
struct Late {
  std::shared_ptr<const device::Moment> moment;
  std::vector<device::Mark> marks;
};

class HastyQueue final : public device::Queue {
 public:
  HastyQueue(std::unique_ptr<device::Queue> queue, Late& late)
      : queue_(std::move(queue)), late_(late) {}

  void wait(std::shared_ptr<const device::Moment> moment) override { queue_->wait(moment); }
  device::Mark watch(std::shared_ptr<const device::Moment> moment) override {
    return queue_->watch(moment);
  }
  device::Mark copy(std::vector<device::Block> blocks) override {
    queue_->wait(late_.moment);
    late_.marks.push_back(queue_->copy(std::move(blocks)));
    const device::Mark mark;
    mark.end({});
    return mark;
  }
  int fd() const noexcept override { return queue_->fd(); }
  void drain() noexcept override { queue_->drain(); }

 private:
  const std::unique_ptr<device::Queue> queue_;
  Late& late_;
};

class HastyDevice final : public device::Device {
 public:
  HastyDevice(device::Device& device, Late& late) : device_(device), late_(late) {}

  const device::Info& info() const noexcept override { return device_.info(); }
  std::unique_ptr<device::Queue> open_queue() override {
    return std::make_unique<HastyQueue>(device_.open_queue(), late_);
  }
  std::shared_ptr<const device::Moment> moment(device::Stream stream) override {
    return device_.moment(stream);
  }
  std::shared_ptr<const device::Pin> pin(device::HostRange range) override {
    return device_.pin(std::move(range));
  }
  std::shared_ptr<const device::Window> make_window(std::size_t bytes) override {
    return device_.make_window(bytes);
  }
  std::shared_ptr<const device::Window> open_window(const std::string& name) override {
    return device_.open_window(name);
  }
  Status health() const override { return device_.health(); }

 private:
  device::Device& device_;
  Late& late_;
};

struct Case {
  bool reader = false;  // its device is believed too early, or else the owner's
  bool window = false;  // in device memory
};

// A reader and an owner, one of them with a device that is believed too early.
class DeviceMistakeTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr std::int64_t size = 3'000'000;

  std::unique_ptr<Fabric> make(const char* name, bool hasty) {
    ShmOptions options;
    options.name = name;
    options.open_device = [this, hasty](device::Id) -> device::Device& {
      if (hasty) return hasty_;
      return device_->device();
    };
    return std::make_unique<DeviceFabric>(make_shm_fabric(std::move(options)), device_);
  }
  TensorView tensor(int value) {
    std::byte* const memory = device_->allocate(size);
    std::memset(memory, value, size);
    return {memory, Dtype::uint8, shape_, strides_};
  }
  // Whether the target has what the source has when the read is over.
  bool reads_right(Fabric& reader, Fabric& owner) {
    const TensorView from = tensor(3);
    const TensorView into = tensor(5);
    const auto region = owner.expose({&from, 1});
    const auto peer = reader.connect(owner.address(), "", Deadline::never());
    const Deadline patience = Deadline::after(std::chrono::seconds(60));
    const auto finished = [&](OpId id) {
      while (!patience.expired()) {
        owner.poll();
        for (const Event& event : reader.poll()) {
          const auto* done = std::get_if<Completion>(&event);
          if (done != nullptr && done->id == id) return *done;
        }
      }
      return Completion{id, {Code::timeout, "nothing happens"}, 0, {}};
    };
    while (!peer->up() && !patience.expired()) {
      owner.poll();
      reader.poll();
    }
    reader.attach(*peer, region->number(), OpId{1}, Deadline::never());
    const Source source{peer, finished(OpId{1}).region, 0};
    const Dtype types[] = {Dtype::uint8};
    const auto stream = std::make_shared<plan::Stream>(whole_stream(source.region->forms(), types));
    reader.read({stream, 0, {source}, {into}}, OpId{2}, Deadline::never());
    EXPECT_TRUE(finished(OpId{2}).status.ok());
    EXPECT_EQ(source.region->path_to_device(), GetParam().window ? "device window" : "staged");
    return std::memcmp(from.data, into.data, size) == 0;
  }

  const Shape shape_{size};
  const Shape strides_{1};
  const std::shared_ptr<TestDevice> device_ =
      std::make_shared<TestDevice>(device::Standin::Variables{
          {"STANDIN_LAZY", "1"}, {"STANDIN_IPC_SELF", GetParam().window ? "1" : "0"}});
  Late late_{};
  HastyDevice hasty_{device_->device(), late_};
};

TEST_P(DeviceMistakeTest, BytesThatWereNotWaitedForAreWrongEveryTime) {
  for (int run = 0; run < 10; ++run) {
    const device::Stream stream = device_->bench().make_stream();
    device_->bench().hold(stream);
    late_.moment = device_->device().moment(stream);
    const auto reader = make("reader", GetParam().reader);
    const auto owner = make("owner", !GetParam().reader);
    EXPECT_FALSE(reads_right(*reader, *owner));
    device_->bench().release(stream);
    for (const device::Mark& mark : std::exchange(late_.marks, {})) {
      EXPECT_TRUE(mark.wait(Deadline::after(std::chrono::seconds(30))));
    }
  }
}

TEST_P(DeviceMistakeTest, WithoutTheMistakeTheyAreRight) {
  const auto reader = make("reader", false);
  const auto owner = make("owner", false);
  EXPECT_TRUE(reads_right(*reader, *owner));
}

INSTANTIATE_TEST_SUITE_P(OfOneEnd, DeviceMistakeTest,
                         testing::Values(Case{true, false}, Case{false, false}, Case{true, true},
                                         Case{false, true}),
                         [](const auto& info) {
                           return std::string(info.param.reader ? "TheReaders" : "TheOwners") +
                                  (info.param.window ? "WithAWindow" : "");
                         });

}  // namespace
}  // namespace tensorbus::fabric
