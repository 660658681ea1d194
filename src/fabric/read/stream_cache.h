// What was made of a stream for the tensors of one read, kept as long as the stream lives: the same
// tensors are read again and again, and to compile for a thousand of them takes a millisecond.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "fabric/core/reads.h"

namespace tensorbus::fabric {

// The forms of the tensors on both sides of a read that was checked.
class ReadForms {
 public:
  explicit ReadForms(const Read& read);
  // The same forms, and targets that may be written: all that was checked holds for this read, too.
  bool fits(const Read& read) const;

  const Forms& source(std::size_t member) const { return sources_[member].forms; }
  const Forms& targets() const noexcept { return targets_; }

 private:
  struct Member {
    std::weak_ptr<const RemoteRegion> region;  // the usual one, which need not be compared
    Forms forms;
  };
  std::vector<Member> sources_;
  Forms targets_;
};

// A Value has fits(read, more...).
template <typename Value>
class StreamCache {
 public:
  // The value that fits, or what `make` makes.
  template <typename Make, typename... More>
  std::shared_ptr<Value> get(Make make, const Read& read, const More&... more) {
    if (read.stream == nullptr) return make();
    OfStream& cached = streams_[read.stream.get()];
    // Another stream at the address of one that is gone.
    if (cached.stream.lock() != read.stream) cached = {read.stream, {}};
    for (const std::shared_ptr<Value>& value : cached.values) {
      if (value->fits(read, more...)) return value;
    }
    std::shared_ptr<Value> value = make();
    if (cached.values.size() == most_per_stream) cached.values.erase(cached.values.begin());
    cached.values.push_back(value);
    forget_the_gone();
    return value;
  }

  std::size_t size() const noexcept { return streams_.size(); }

 private:
  static constexpr std::size_t most_per_stream = 4;
  struct OfStream {
    std::weak_ptr<const plan::Stream> stream;
    std::vector<std::shared_ptr<Value>> values;
  };

  // Called now and then, so that the clean-up costs little.
  void forget_the_gone() {
    if (streams_.size() < look_at_size_) return;
    std::erase_if(streams_, [](const auto& each) { return each.second.stream.expired(); });
    look_at_size_ = 2 * streams_.size() + 16;
  }

  std::map<const plan::Stream*, OfStream> streams_;
  std::size_t look_at_size_ = 16;
};

}  // namespace tensorbus::fabric
