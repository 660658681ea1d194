#include "streams.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "device/cuda/device.h"

namespace tensorbus::python {
namespace {

device::Stream stream_at(nb::handle handle) { return {nb::cast<std::uintptr_t>(handle)}; }

// "<f4": of this machine's order, or of none.
std::optional<dlpack::DataType> type_of(const std::string& text) {
  if (text.size() < 3 || text.front() == '>') return std::nullopt;
  constexpr std::string_view kinds = "iuf";
  const int bytes = std::atoi(text.c_str() + 2);
  if (bytes < 1 || bytes > 16) return std::nullopt;
  const auto bits = static_cast<std::uint8_t>(8 * bytes);
  if (text[1] == 'b') return dlpack::DataType{6, bits, 1};
  if (text[1] == 'c') return dlpack::DataType{5, bits, 1};
  const std::size_t code = kinds.find(text[1]);
  if (code == std::string_view::npos) return std::nullopt;
  return dlpack::DataType{static_cast<std::uint8_t>(code), bits, 1};
}

// In elements. False if some stride is none of whole elements.
bool take_strides(CudaArray& array, const nb::dict& said) {
  const nb::object strides = said.get("strides", nb::none());
  if (strides.is_none()) return true;
  const std::int64_t item = array.tensor.dtype.bits / 8;
  array.strides = nb::cast<std::vector<std::int64_t>>(strides);
  for (std::int64_t& stride : array.strides) {
    if (stride % item != 0) return false;
    stride /= item;
  }
  return array.strides.size() == array.shape.size();
}

}  // namespace

std::optional<device::Stream> stream_of(nb::handle stream) {
  if (stream.is_none()) return std::nullopt;
  if (PyLong_Check(stream.ptr())) return stream_at(stream);
  if (nb::hasattr(stream, "cuda_stream")) return stream_at(stream.attr("cuda_stream"));
  if (nb::hasattr(stream, "__cuda_stream__")) {
    nb::object said = stream.attr("__cuda_stream__");
    if (PyCallable_Check(said.ptr()) != 0) said = said();
    return stream_at(nb::cast<std::pair<nb::object, nb::object>>(said).second);
  }
  throw nb::type_error("stream is an int, a stream of torch's or has __cuda_stream__");
}

CudaArray cuda_array_of(const nb::object& object) {
  CudaArray array;
  const auto said = nb::cast<nb::dict>(object.attr("__cuda_array_interface__"));
  if (!said.get("mask", nb::none()).is_none()) {
    array.problem = "is masked";
    return array;
  }
  const auto type = type_of(nb::cast<std::string>(said["typestr"]));
  if (!type) {
    array.problem = "has an unknown type (" + nb::cast<std::string>(said["typestr"]) + ")";
    return array;
  }
  const auto [address, read_only] = nb::cast<std::pair<std::uintptr_t, bool>>(said["data"]);
  array.shape = nb::cast<std::vector<std::int64_t>>(said["shape"]);
  array.read_only = read_only;
  const nb::object stream = said.get("stream", nb::none());
  if (!stream.is_none()) array.stream = stream_at(stream);
  array.tensor.data = reinterpret_cast<void*>(address);
  array.tensor.dims = static_cast<std::int32_t>(array.shape.size());
  array.tensor.dtype = *type;
  if (!take_strides(array, said)) array.problem = "has strides between its elements";
  array.tensor.shape = array.shape.data();
  array.tensor.strides = array.strides.empty() ? nullptr : array.strides.data();
  const bool empty = std::ranges::count(array.shape, 0) > 0;
  array.tensor.device = {dlpack::cuda,
                         empty ? 0 : device::cuda::device_of(array.tensor.data).ordinal};
  return array;
}

}  // namespace tensorbus::python
