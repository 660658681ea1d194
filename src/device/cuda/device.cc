#include "device/cuda/device.h"

#include <fmt/format.h>

#include <array>
#include <map>

#include "device/cuda/moment.h"
#include "device/cuda/pin.h"
#include "device/cuda/queue.h"
#include "device/cuda/window.h"
#include "os/process/fork.h"

namespace tensorbus::device::cuda {
namespace {

void check(const Functions& functions, Result result, const char* call) {
  if (result == success) return;
  throw Error(Code::unsupported, fmt::format("no CUDA device can be used: {} gives {}", call,
                                             describe(functions, result)));
}

std::string text_of(const Uuid& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

Info look_at(const Functions& functions, Id id) {
  Device device = 0;
  check(functions, functions.cuDeviceGet(&device, id.ordinal), "cuDeviceGet");
  std::array<char, 128> name{};
  check(functions, functions.cuDeviceGetName(name.data(), static_cast<int>(name.size()), device),
        "cuDeviceGetName");
  Uuid uuid{};
  check(functions, functions.cuDeviceGetUuid(&uuid, device), "cuDeviceGetUuid");
  const std::string found = name.data();
  return {id, found, text_of(uuid), found.find("stand-in") == std::string::npos};
}

class CudaDevice final : public device::Device {
 public:
  CudaDevice(const Functions& functions, Id id, const Options& options)
      : info_(look_at(functions, id)),
        engine_(std::make_shared<Engine>(functions, id, options.pinned_bytes)),
        windows_(std::make_shared<Windows>(engine_)) {}

  const Info& info() const noexcept override { return info_; }
  std::unique_ptr<Queue> open_queue() override { return std::make_unique<StreamQueue>(engine_); }
  std::shared_ptr<const Moment> moment(device::Stream stream) override {
    return std::make_shared<EventMoment>(engine_, stream);
  }
  std::shared_ptr<const Pin> pin(HostRange range) override {
    return std::make_shared<RegisteredPin>(engine_, std::move(range));
  }
  std::shared_ptr<const Window> make_window(std::size_t bytes) override {
    return windows_->make(bytes);
  }
  std::shared_ptr<const Window> open_window(const std::string& name) override {
    return std::make_shared<OpenedWindow>(engine_, name);
  }
  Status health() const override { return engine_->calls().health(); }

 private:
  const Info info_;
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<Windows> windows_;
};

// The devices of this process, for its life.
struct Opened {
  const unsigned generation = os::fork_generation();
  Mutex mutex;
  std::map<Id, std::unique_ptr<device::Device>> devices GUARDED_BY(mutex);
};

Opened& opened() {
  static auto* const only = new Opened;
  return *only;
}

}  // namespace

std::unique_ptr<device::Device> make(const Functions& functions, Id id, const Options& options) {
  initialise(functions);
  return std::make_unique<CudaDevice>(functions, id, options);
}

device::Device& open(Id id) {
  Opened& all = opened();
  check_not_forked(all.generation, id);
  const Lock lock(all.mutex);
  std::unique_ptr<device::Device>& device = all.devices[id];
  if (device == nullptr) device = make(library().functions, id, {});
  return *device;
}

Id device_of(const void* address) {
  const Functions& functions = library().functions;
  initialise(functions);
  unsigned type = 0;
  int managed = 0;
  Id id;
  std::array attributes{attribute_memory_type, attribute_is_managed, attribute_device_ordinal};
  std::array<void*, attributes.size()> found{&type, &managed, &id.ordinal};
  check(functions,
        functions.cuPointerGetAttributes(attributes.size(), attributes.data(), found.data(),
                                         reinterpret_cast<Pointer>(address)),
        "cuPointerGetAttributes");
  if (managed != 0) {
    throw Error(Code::invalid_argument,
                "memory that CUDA manages cannot be moved: copy it to a "
                "device's own, or to the host's");
  }
  if (type != memory_device) {
    throw Error(Code::invalid_argument, "the memory is none of a CUDA device's");
  }
  return id;
}

std::vector<Info> list(const Functions& functions) {
  int count = 0;
  check(functions, functions.cuDeviceGetCount(&count), "cuDeviceGetCount");
  std::vector<Info> found;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    found.push_back(look_at(functions, {ordinal}));
  }
  return found;
}

}  // namespace tensorbus::device::cuda
