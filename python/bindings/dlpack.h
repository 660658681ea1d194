// The part of DLPack's binary interface that the intake of tensors uses, version 1.3.
//
// Declared here because the build knows no framework. Fields and their order are the standard's.
#pragma once

#include <cstdint>

namespace tensorbus::python::dlpack {

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};
inline constexpr std::uint32_t major_version = 1;

struct Device {
  std::int32_t type;
  std::int32_t id;
};
inline constexpr std::int32_t cpu = 1;
inline constexpr std::int32_t cuda = 2;
inline constexpr std::int32_t cuda_managed = 13;
inline constexpr std::int32_t cuda_host = 3;   // pinned, and as readable as any
inline constexpr std::int32_t rocm_host = 11;  // the same

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  friend bool operator==(const DataType&, const DataType&) = default;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t dims;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null before version 1.2 if dense
  std::uint64_t byte_offset;
};

// What a capsule named "dltensor" holds.
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

// What a capsule named "dltensor_versioned" holds.
struct VersionedTensor {
  Version version;
  void* context;
  void (*deleter)(VersionedTensor*);
  std::uint64_t flags;
  Tensor tensor;
};
inline constexpr std::uint64_t flag_read_only = 1;
inline constexpr std::uint64_t flag_copied = 2;

// What the capsule `__dlpack_c_exchange_api__` of a type, named "dlpack_exchange_api", holds. The
// functions that the intake does not call are declared as plain pointers.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  void* allocate;
  void* managed_from_object;
  // Takes the tensor over; null or -1 and a Python error as below.
  int (*managed_to_object)(VersionedTensor* tensor, void** result);
  // Borrows: valid while the object lives. Null if the framework has no such function; -1 and a
  // Python error if the function fails.
  int (*tensor_from_object)(void* object, Tensor* result);
  // The stream that the calling thread works on. Null if the framework has no such function; -1 and
  // a Python error if the function fails.
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** result);
};

}  // namespace tensorbus::python::dlpack
