// Model weights by name and version, from the ranks of one side to those of others that hold them
// differently. See docs/weights.md and examples/link.cc.
//
// A link is made by Bus::link(). The first call for a name waits for the other ranks and plans;
// later ones reuse the plan while names, types, shapes and what tensors hold stay the same. Calls
// for a name and direction take turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorbus/bus.h"
#include "tensorbus/deadline.h"
#include "tensorbus/dtype.h"
#include "tensorbus/layout.h"
#include "tensorbus/status.h"
#include "tensorbus/tensor.h"

#pragma GCC visibility push(default)

namespace tensorbus {

struct LinkOptions {
  std::int64_t world_size = 1;  // ranks of the local side
  // The caller promises that nobody else writes to the tensors between two pulls: then a pull may
  // get the changed values only.
  bool delta = false;
  // The most bytes that a publisher spends on deltas, beside its shelf; none: any.
  std::optional<std::int64_t> delta_memory{};
  // One of so many pulls that got the changed values only is compared with what the publishers
  // have, byte by byte; what differs is read anew, with a warning. 0: none.
  std::int64_t verify_every = 0;
};

// Where the calling rank stands in a tensor's own layout.
struct LinkLayout {
  Shape mesh;
  std::vector<Placement> placements;
  Shape coordinate;
  std::int64_t mesh_id = 0;  // ranks that say the same stand in one mesh
};

// A local tensor. Several boxes may share a name. Of a recv or pull the memory is lent until other
// tensors are passed for the name, or the link is closed.
struct LinkTensor {
  std::string name;
  void* data = nullptr;
  Dtype dtype = Dtype::float32;
  Shape shape{};
  Shape strides{};  // in elements; empty: contiguous
  // Of what whole it is the box that begins at `start`, or what `layout` says. Without them it is
  // the whole.
  std::optional<Shape> whole{};
  std::optional<Shape> start{};
  std::optional<LinkLayout> layout{};
  // A box may reach beyond the whole: what lies there is set to this when it is received. Not on a
  // device.
  std::optional<double> pad{};
  // The CUDA device that `data` is an address of, as this process numbers devices, and the stream
  // of it, as CUDA's own handle, whose work until the call comes before whatever the call does with
  // the tensor. When a recv or pull returns the bytes are in place for every stream. Not yet run on
  // a GPU: see docs/device.md.
  std::int32_t device = host_memory;
  std::uintptr_t stream = 0;
};

struct LinkSend {
  std::optional<std::int64_t> version{};  // none: the last plus one
  bool allow_lost = false;                // readers that are gone are passed over
  std::int64_t min_readers = 0;           // fewer are waited for
};
struct LinkRecv {
  std::optional<std::int64_t> version{};  // none: whatever comes next
  bool subset = false;                    // senders may have tensors that this side does not take
};
// Whether readers that promised get the changed values only.
enum class LinkDelta : std::uint8_t {
  off,
  automatic,  // whenever that is sooner
  always,     // whenever it can be
};
struct LinkPublish {
  std::optional<std::int64_t> version{};        // none: the last plus one
  std::int64_t keep = 2;                        // versions on the shelf
  std::optional<Dtype> dtype{};                 // that floating point is narrowed to
  Duration patience = std::chrono::seconds(5);  // with readers that hold every slot
  bool withdraw = false;  // the oldest slot from them after that, instead of waiting on
  LinkDelta delta = LinkDelta::off;
};
struct LinkPull {
  std::optional<std::int64_t> version{};     // this one
  std::optional<std::int64_t> newer_than{};  // or one above that; neither: the newest
  bool together = true;                      // the same at all ranks of the side
  bool subset = false;
  bool delta = true;  // false: somebody has written to the tensors, all of the version is needed
  // Of a fetch that cannot get by with the changed values: it reads all into other memory, as large
  // as the tensors, instead of leaving that to apply().
  bool scratch = false;
};
// How the last version got to a reader that promised.
struct LinkUpdate {
  std::int64_t version = 0;
  bool patched = false;
  std::string why;            // "patch", or why all was read: "no base", "dense is sooner", ...
  std::int64_t elements = 0;  // that the reader has
  std::int64_t values = 0;    // of them in patches
  std::int64_t patch_bytes = 0;
  Duration asking{};     // until all sources had answered,
  Duration fetching{};   // until all patches were here,
  Duration applying{};   // until they were applied,
  Duration verifying{};  // and until the result was compared
  bool verified = false;
};

// The version that was asked for was recycled or never published; ask for a newer one.
class VersionGone : public Error {
 public:
  using Error::Error;
};
// The sender that published has closed: nothing newer comes.
class EndOfStream : public Error {
 public:
  EndOfStream(const Status& status, std::int64_t version) : Error(status), version_(version) {}
  std::int64_t version() const noexcept { return version_; }  // the last one

 private:
  std::int64_t version_;
};

// A whole tensor of what is published.
struct WholeTensor {
  std::string name;
  Dtype dtype = Dtype::float32;
  Shape shape{};
};
// A tensor that was pulled, contiguous in memory of the bus' pool.
struct PulledTensor {
  std::string name;
  Dtype dtype = Dtype::float32;
  Shape shape{};
  std::shared_ptr<std::byte> memory{};  // null if it has no elements
};
struct PulledTensors {
  std::int64_t version = 0;
  std::vector<PulledTensor> tensors;
};

// How a send ended at its readers.
struct LinkSent {
  std::int64_t version = 0;
  std::map<Rank, ReadBy> readers;
};

// A call that runs. Dropping it cancels the call and waits until nobody touches its tensors.
class LinkHandle {
 public:
  ~LinkHandle();
  LinkHandle(LinkHandle&&) noexcept;
  LinkHandle& operator=(LinkHandle&&) noexcept;

  bool done() const;
  // Until it is over; Error(timeout) cancels nothing. Does not throw its error.
  void wait(Deadline deadline);
  // The version, or its error.
  std::int64_t result(Deadline deadline);
  // result() throws Error(cancelled), unless the call was over.
  void cancel() noexcept;
  // Bytes done and in all; (0, 0) before the first.
  std::pair<std::int64_t, std::int64_t> progress() const;
  // Of a send: until its tensors are the caller's again. Tensors in the pool are read where they
  // are.
  void wait_until_staged(Deadline deadline);
  std::map<Rank, ReadBy> readers() const;

 private:
  friend class Link;
  struct Impl;
  explicit LinkHandle(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Thread safe. Errors of sends that readers or senders are to blame for are TransferErrors.
class Link {
 public:
  ~Link();
  Link(Link&&) noexcept;
  Link& operator=(Link&&) noexcept;

  // Offers a version and returns it when every reader of every rank has read it. Tensors in the
  // bus' pool are read where they are and stay there; others are copied first, in a narrower
  // floating type if all readers want that one.
  std::int64_t send(const std::string& name, std::span<const LinkTensor> tensors, Deadline deadline,
                    const LinkSend& how = {});
  // Fills the tensors with the next version that is sent.
  std::int64_t recv(const std::string& name, std::span<const LinkTensor> tensors, Deadline deadline,
                    const LinkRecv& how = {});
  // Puts a copy of the tensors on the shelf as the next version. Waits for no reader.
  std::int64_t publish(const std::string& name, std::span<const LinkTensor> tensors,
                       Deadline deadline, const LinkPublish& how = {});
  // Fills the tensors with a version that the other side has published, all of it or none.
  // VersionGone, EndOfStream.
  std::int64_t pull(const std::string& name, std::span<const LinkTensor> tensors, Deadline deadline,
                    const LinkPull& how = {});
  // The first part of a pull, which leaves the tensors as they are: what patches need is here then.
  // last_update() says what there is to apply.
  std::int64_t fetch(const std::string& name, std::span<const LinkTensor> tensors,
                     Deadline deadline, const LinkPull& how = {});
  // The rest of it, for the version that was fetched last; what no patch can do is read now.
  std::int64_t apply(const std::string& name, std::span<const LinkTensor> tensors,
                     std::int64_t version, Deadline deadline);
  // The same while the caller goes on; the deadline is that of the call.
  LinkHandle send_async(const std::string& name, std::span<const LinkTensor> tensors,
                        Deadline deadline, const LinkSend& how = {});
  LinkHandle pull_async(const std::string& name, std::span<const LinkTensor> tensors,
                        Deadline deadline, const LinkPull& how = {});

  // What the other side publishes, in the order of the names. Waits for the first version.
  std::vector<WholeTensor> describe(const std::string& name, Deadline deadline);
  // Pulls into new tensors, of all that describe() says or of these names.
  PulledTensors pull_new(const std::string& name, Deadline deadline,
                         const std::optional<std::vector<std::string>>& names = std::nullopt,
                         LinkPull how = {});

  // The newest version that a pull would find, or that this rank has published; 0: none.
  std::int64_t newest(const std::string& name, Deadline deadline);
  // Which version each rank of each side last sent or has read; a rank that is gone is not there.
  std::map<std::string, std::map<Rank, std::int64_t>> versions(const std::string& name,
                                                               Deadline deadline);
  // Nothing: the name was not pulled, or this link promised nothing.
  std::optional<LinkUpdate> last_update(const std::string& name) const;
  // Nothing: the name was not sent.
  std::optional<LinkSent> last_send(const std::string& name) const;
  // Frees what was registered; what other threads do with it fails. Of a publisher it is the end of
  // its stream.
  void close(Deadline deadline);

 private:
  friend class Bus;
  struct Impl;
  explicit Link(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace tensorbus

#pragma GCC visibility pop
