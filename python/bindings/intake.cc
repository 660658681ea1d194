#include "intake.h"

#include <algorithm>
#include <array>
#include <set>

#include "device/cuda/device.h"
#include "items.h"
#include "streams.h"

namespace tensorbus::python {
namespace {

struct KnownType {
  dlpack::DataType dlpack;
  Dtype dtype;
};

constexpr std::array known_types = {
    KnownType{{2, 64, 1}, Dtype::float64},
    KnownType{{2, 32, 1}, Dtype::float32},
    KnownType{{2, 16, 1}, Dtype::float16},
    KnownType{{4, 16, 1}, Dtype::bfloat16},
    KnownType{{10, 8, 1}, Dtype::float8_e4m3fn},
    KnownType{{12, 8, 1}, Dtype::float8_e5m2},
    KnownType{{0, 8, 1}, Dtype::int8},
    KnownType{{0, 16, 1}, Dtype::int16},
    KnownType{{0, 32, 1}, Dtype::int32},
    KnownType{{0, 64, 1}, Dtype::int64},
    KnownType{{1, 8, 1}, Dtype::uint8},
    KnownType{{6, 8, 1}, Dtype::bool_},
    KnownType{{1, 16, 1}, Dtype::uint16},
    KnownType{{1, 32, 1}, Dtype::uint32},
    KnownType{{1, 64, 1}, Dtype::uint64},
    KnownType{{5, 32, 1}, Dtype::complex32},
    KnownType{{5, 64, 1}, Dtype::complex64},
    KnownType{{5, 128, 1}, Dtype::complex128},
    KnownType{{11, 8, 1}, Dtype::float8_e4m3fnuz},
    KnownType{{13, 8, 1}, Dtype::float8_e5m2fnuz},
    KnownType{{14, 8, 1}, Dtype::float8_e8m0fnu},
    KnownType{{17, 4, 2}, Dtype::float4_e2m1fn_x2},
};

std::optional<Dtype> dtype_of(dlpack::DataType type) {
  for (const KnownType& known : known_types) {
    if (known.dlpack == type) return known.dtype;
  }
  return std::nullopt;
}

const char* name_of_device(std::int32_t type) {
  switch (type) {
    case dlpack::cuda:
      return "CUDA";
    case dlpack::cuda_managed:
      return "memory that CUDA manages";
    case 8:
      return "Metal";
    case 10:
      return "ROCm";
    case 14:
      return "oneAPI";
    default:
      return "another device";
  }
}

}  // namespace

const dlpack::ExchangeApi* exchange_api_of(PyTypeObject* type) {
  const nb::object capsule = nb::steal(
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
  if (!capsule.is_valid()) {
    PyErr_Clear();
    return nullptr;
  }
  const auto* api = static_cast<const dlpack::ExchangeApi*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (api == nullptr) PyErr_Clear();
  while (api != nullptr && api->version.major != dlpack::major_version) api = api->previous;
  return api != nullptr && api->tensor_from_object != nullptr ? api : nullptr;
}

dlpack::DataType dlpack_type(Dtype dtype) {
  return std::ranges::find(known_types, dtype, &KnownType::dtype)->dlpack;
}

// One pass over a sequence.
class Intake {
 public:
  explicit Intake(const NameOf& name) : name_(name) {}
  Intake(const NameOf& name, std::optional<device::Stream> stream)
      : name_(name), takes_devices_(true), stream_(stream) {}

  TensorList take(nb::handle sequence) {
    const Items items(sequence, "expected a list of tensors");
    const std::size_t count = items.size();
    list_.tensors_.reserve(count);
    list_.extents_.reserve(count * 4);
    for (std::size_t i = 0; i < count; ++i) {
      // A fallback runs Python code, which may shorten the list.
      if (i >= items.size()) fail("was removed from the list while it was read");
      add(items[i]);
    }
    take_moments();
    return std::move(list_);
  }

 private:
  void add(PyObject* object) {
    // Neighbours nearly always have the same class, and the same type of elements.
    if (Py_TYPE(object) != type_) {
      type_ = Py_TYPE(object);
      api_ = exchange_api_of(type_);
    }
    if (api_ == nullptr) return add_by_method(object);
    dlpack::Tensor tensor;
    if (api_->tensor_from_object(object, &tensor) != 0) fail_with_python_error();
    add_view(tensor, false);
    check_lazy_flags(object);
    if (tensor.device.type == dlpack::cuda) note_current_stream(tensor.device.id);
  }

  // Asked once for each device.
  void note_current_stream(std::int32_t id) {
    if (stream_) return note(id, *stream_);
    if (!asked_.insert({api_, id}).second) return;
    if (api_->current_stream == nullptr) {
      fail_about(list_.size() - 1, "does not say on which stream it is used; pass stream=");
    }
    void* current = nullptr;
    if (api_->current_stream(dlpack::cuda, id, &current) != 0) fail_with_python_error();
    note(id, {reinterpret_cast<std::uintptr_t>(current)});
  }

  void note(std::int32_t id, device::Stream stream) { streams_.emplace(id, stream.handle); }

  // When all tensors are read: by then every producer has told its stream.
  void take_moments() {
    for (const auto& [id, handle] : streams_) {
      device::Device& device = device::cuda::open({id});
      list_.moments_.push_back({&device, device.moment({handle})});
    }
  }

  void add_by_method(PyObject* object) {
    const nb::object keep = nb::borrow(object);
    if (!nb::hasattr(keep, "__dlpack__")) {
      if (takes_devices_ && nb::hasattr(keep, "__cuda_array_interface__")) return add_array(keep);
      fail(std::string("is no tensor but a ") + nb::inst_name(keep).c_str());
    }
    // A capsule lives until its tensor is read; the memory is the object's own and lives on.
    nb::object capsule = capsule_of(keep, nb::none());
    const dlpack::Device where = in_capsule(capsule).tensor.device;
    if (takes_devices_ && where.type == dlpack::cuda) {
      // Asked again, now that it is known to be a device's: the producer makes the stream that it
      // is given wait for its work. The legacy one, which every producer knows.
      if (!stream_) capsule = capsule_of(keep, nb::int_(1));
      note(where.id, stream_.value_or(device::Stream{1}));
    }
    const InCapsule taken = in_capsule(capsule);
    add_view(taken.tensor, taken.read_only);
  }

  void add_array(const nb::object& object) {
    const CudaArray array = cuda_array_of(object);
    if (!array.problem.empty()) fail(array.problem);
    add_view(array.tensor, array.read_only);
    const std::optional<device::Stream> used = stream_ ? stream_ : array.stream;
    if (used) note(array.tensor.device.id, *used);
  }

  struct InCapsule {
    const dlpack::Tensor& tensor;
    bool read_only;
  };
  InCapsule in_capsule(const nb::object& capsule) const {
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
      const auto* versioned = static_cast<const dlpack::VersionedTensor*>(
          PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
      if (versioned->version.major != dlpack::major_version) fail("speaks another DLPack version");
      if ((versioned->flags & dlpack::flag_copied) != 0) fail("gives only copies of its memory");
      return {versioned->tensor, (versioned->flags & dlpack::flag_read_only) != 0};
    }
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor") == 0) fail("gives no DLPack capsule");
    const auto* managed =
        static_cast<const dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    return {managed->tensor, false};
  }

  // `stream`: None as long as it is not known to be a device's.
  nb::object capsule_of(const nb::object& object, const nb::object& stream) {
    try {
      try {
        const nb::tuple newest = nb::make_tuple(dlpack::major_version, 0);
        if (stream.is_none()) return object.attr("__dlpack__")(nb::arg("max_version") = newest);
        return object.attr("__dlpack__")(nb::arg("stream") = stream,
                                         nb::arg("max_version") = newest);
      } catch (const nb::python_error& error) {
        if (!error.matches(PyExc_TypeError)) throw;
        return stream.is_none()  // older than version 1
                   ? object.attr("__dlpack__")()
                   : object.attr("__dlpack__")(nb::arg("stream") = stream);
      }
    } catch (nb::python_error& error) {
      error.restore();
      fail_with_python_error();
    }
  }

  void add_view(const dlpack::Tensor& tensor, bool read_only) {
    const std::int32_t device = tensor.device.type;
    const bool on_host =
        device == dlpack::cpu || device == dlpack::cuda_host || device == dlpack::rocm_host;
    if (!on_host && !(takes_devices_ && device == dlpack::cuda)) {
      fail(std::string("is on ") + name_of_device(device) + "; only CPU tensors " +
           (takes_devices_ ? "and those of CUDA devices can be moved" : "can be moved"));
    }
    if (!dtype_ || tensor.dtype != dlpack_type_) learn_type(tensor.dtype);
    auto* data = static_cast<std::byte*>(tensor.data);
    if (data != nullptr) data += tensor.byte_offset;
    const auto dims = static_cast<std::size_t>(tensor.dims);
    std::vector<std::int64_t>& extents = list_.extents_;
    const std::size_t first = extents.size();
    extents.insert(extents.end(), tensor.shape, tensor.shape + dims);
    if (tensor.strides != nullptr) {
      extents.insert(extents.end(), tensor.strides, tensor.strides + dims);
    } else {
      add_dense_strides(first, dims);
    }
    if (data == nullptr && std::count(tensor.shape, tensor.shape + dims, 0) == 0) {
      fail("has no memory; of a DTensor pass to_local()");
    }
    list_.on_devices_ = list_.on_devices_ || !on_host;
    list_.tensors_.push_back({data, *dtype_, read_only, on_host ? host_memory : tensor.device.id,
                              static_cast<std::uint32_t>(dims), first});
  }

  void learn_type(dlpack::DataType type) {
    dtype_ = dtype_of(type);
    dlpack_type_ = type;
    if (!dtype_) {
      fail("has an unknown type (DLPack code " + std::to_string(type.code) + ", " +
           std::to_string(type.bits) + " bits, " + std::to_string(type.lanes) + " lanes)");
    }
  }

  void add_dense_strides(std::size_t first, std::size_t dims) {
    list_.extents_.resize(first + 2 * dims);
    std::int64_t* const shape = list_.extents_.data() + first;
    std::int64_t stride = 1;
    for (std::size_t dim = dims; dim-- > 0; stride *= shape[dim]) shape[dims + dim] = stride;
  }

  // torch may keep a conjugation or a negation as a flag that DLPack does not carry. Such tensors
  // are complex or the imaginary part of one, whose elements never lie side by side.
  void check_lazy_flags(nb::handle object) const {
    const bool complex = *dtype_ >= Dtype::complex32 && *dtype_ <= Dtype::complex128;
    if (!complex && (!is_floating_point(*dtype_) || !is_spaced())) return;
    for (const char* flag : {"is_conj", "is_neg"}) {
      if (nb::hasattr(object, flag) && nb::cast<bool>(object.attr(flag)())) {
        fail_about(list_.size() - 1, std::string("is a view with ") + flag +
                                         "() set; pass resolve_conj().resolve_neg()");
      }
    }
  }

  // Whether the elements of the last tensor nowhere lie side by side.
  bool is_spaced() const {
    const auto& extents = list_.extents_;
    const auto dims = static_cast<std::ptrdiff_t>(list_.tensors_.back().dims);
    if (dims > 0 && extents.back() == 1) return false;
    return std::find(extents.end() - dims, extents.end(), 1) == extents.end();
  }

  [[noreturn]] void fail(const std::string& what) const { fail_about(list_.size(), what); }

  [[noreturn]] void fail_about(std::size_t index, const std::string& what) const {
    throw Error(Code::invalid_argument, name_(index) + " " + what);
  }

  [[noreturn]] void fail_with_python_error() const {
    nb::python_error error;
    const std::string message = nb::str(error.value()).c_str();
    // torch adds its C++ stack after the first line.
    nb::raise_from(error, PyExc_ValueError, "%s cannot be read: %s", name_(list_.size()).c_str(),
                   message.substr(0, message.find('\n')).c_str());
  }

  const NameOf& name_;
  const bool takes_devices_ = false;
  const std::optional<device::Stream> stream_;  // that the caller has named
  std::set<std::pair<const dlpack::ExchangeApi*, std::int32_t>> asked_;
  std::set<std::pair<std::int32_t, std::uintptr_t>> streams_;  // that have a device's tensors
  TensorList list_;
  PyTypeObject* type_ = nullptr;
  const dlpack::ExchangeApi* api_ = nullptr;
  dlpack::DataType dlpack_type_{};
  std::optional<Dtype> dtype_;  // what the last tensor's type is to us
};

TensorView TensorList::operator[](std::size_t index) const {
  const TakenTensor& taken = tensors_[index];
  const std::span<const std::int64_t> extents(extents_);
  return {taken.data,
          taken.dtype,
          extents.subspan(taken.first, taken.dims),
          extents.subspan(taken.first + taken.dims, taken.dims),
          taken.read_only,
          false,
          taken.device};
}

bool TensorList::is_same(std::size_t index, const TensorList& other) const {
  const TensorView here = (*this)[index];
  const TensorView there = other[index];
  return here.data == there.data && here.dtype == there.dtype && here.device == there.device &&
         here.read_only == there.read_only && std::ranges::equal(here.shape, there.shape) &&
         std::ranges::equal(here.strides, there.strides);
}

std::vector<TensorView> views_of(const TensorList& tensors) {
  std::vector<TensorView> views;
  views.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) views.push_back(tensors[i]);
  return views;
}

TensorList take_in(nb::handle sequence, const NameOf& name) { return Intake(name).take(sequence); }

TensorList take_in_with_devices(nb::handle sequence, nb::handle stream, const NameOf& name) {
  return Intake(name, stream_of(stream)).take(sequence);
}

}  // namespace tensorbus::python
