// What a shelf has for readers that hold one of its versions: what has changed since then, and the
// patches that are made of it when a reader asks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "bus/patching/bound_stream.h"
#include "bus/round/context.h"
#include "bus/round/messages.h"
#include "delta/patch/patch_writer.h"
#include "delta/policy/bases.h"
#include "delta/policy/decision.h"

namespace tensorbus::bus {

class PatchMaker {
 public:
  struct Origin {
    std::int64_t generation = 0;
    // Of a slot, as streams count them: all slots are alike.
    std::vector<TensorView> tensors;
    // Where the worker writes down what a version changes, for each of them; none: it does not.
    std::vector<TensorView> words;
  };
  PatchMaker(Context& context, Origin origin);
  PatchMaker(const PatchMaker&) = delete;
  PatchMaker& operator=(const PatchMaker&) = delete;

  void set(delta::Mode mode, std::optional<std::int64_t> most_bytes);
  // Which version the next one is to be compared with; 0: it need not be compared.
  std::int64_t compares_with() const noexcept;
  // The version can be pulled from now on. `compared`: with the version above, and the worker has
  // written down the difference.
  void publish(std::int64_t version, bool compared);

  // A reader that promises to leave its tensors alone.
  void subscribe(std::uint64_t serial, std::vector<std::shared_ptr<const plan::Stream>> streams);
  void leave(std::uint64_t serial);
  // The reader has no use for the patches that were made for it last.
  void release(std::uint64_t serial);
  // `tensors`: of the slot that has the version; none: it is not there any more.
  Patched answer(std::uint64_t serial, const AskPatch& ask, std::span<const TensorView> tensors);

  // What this reader gets from here; none: it has promised nothing.
  std::vector<std::shared_ptr<const plan::Stream>> streams_of(std::uint64_t serial) const;

  // Of bitmaps and patches.
  std::size_t bytes() const noexcept;

 private:
  struct Patch {
    delta::PatchId id;
    std::shared_ptr<const BoundStream> stream;
    std::vector<std::byte> bytes;
    std::uint64_t checksum = 0;
    Shape shape{};
    Shape strides{1};
    std::unique_ptr<fabric::Region> region{};
    std::set<std::uint64_t> users{};  // by serial
  };
  struct Subscriber {
    std::vector<std::shared_ptr<const plan::Stream>> streams;
    std::int64_t elements = 0;                                // of all of them
    std::vector<std::shared_ptr<const BoundStream>> bound{};  // once a patch may pay
    std::optional<delta::Why> last{};
  };

  delta::Changes read_words() const;
  void learn_whether_it_paid();
  void bind(Subscriber& subscriber);
  std::shared_ptr<const BoundStream> bound(const std::shared_ptr<const plan::Stream>& stream);
  delta::Why offer(std::uint64_t serial, Subscriber& subscriber, const AskPatch& ask,
                   std::span<const TensorView> tensors, std::vector<OfferedPatch>& offered);
  delta::Offered expected(const Subscriber& subscriber, const delta::Bases::Since& since);
  delta::Why decide(const Subscriber& subscriber, const delta::Offered& all,
                    const AskPatch& ask) const;
  void learn_packing(const delta::Offered& all, Duration took);
  Patch* find(const delta::PatchId& id, const BoundStream& stream);
  bool has_room(std::size_t more) const noexcept;
  Patch& make(const delta::PatchId& id, const std::shared_ptr<const BoundStream>& stream,
              const delta::PatchWriter& writer, std::span<const TensorView> tensors);

  Context& context_;
  const Origin origin_;
  const std::vector<std::int64_t> elements_;  // of each tensor
  std::int64_t all_elements_ = 0;
  delta::Mode mode_ = delta::Mode::off;
  std::size_t most_bytes_ = SIZE_MAX;
  delta::Bases bases_;
  delta::Attention attention_;
  bool was_compared_ = false;              // the newest version
  bool asked_ = false;                     // a reader wanted it since
  bool paid_ = false;                      // and some reader got a patch
  std::map<std::int64_t, double> shares_;  // that have changed, by base, once they were counted
  std::optional<double> packing_;          // how long it takes, against what is expected
  std::map<std::uint64_t, Subscriber> subscribers_;
  std::list<std::weak_ptr<const BoundStream>> streams_;
  std::list<Patch> patches_;
};

}  // namespace tensorbus::bus
