// One watch request to etcd and the messages that come back, until the connection ends.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/etcd/access.h"

namespace tensorbus::store::etcd {

class WatchStream {
 public:
  struct Message {
    enum class Kind { created, events, compacted, ended };
    Kind kind = Kind::events;
    std::vector<StoreEvent> events;  // whole revisions, in order
    std::string cause;               // of an end
  };

  // Changes from this revision on.
  WatchStream(Gateway& gateway, const KeyRange& range, std::int64_t start_revision,
              const Call& call);
  ~WatchStream();
  WatchStream(const WatchStream&) = delete;
  WatchStream& operator=(const WatchStream&) = delete;

  // Nothing at the deadline. After `compacted` and `ended` there is no more.
  std::optional<Message> next(const Call& call);

 private:
  // Shared with the thread that receives.
  class Inbox final : public Receiver {
   public:
    bool receive(std::string_view bytes) override;
    void end(const HttpOutcome& outcome) override;

    Signal signal;
    std::deque<std::string> lines GUARDED_BY(signal.mutex);
    std::optional<HttpOutcome> outcome;  // under the mutex until it is set, then never changed
    bool closed GUARDED_BY(signal.mutex) = false;

   private:
    std::string partial_;  // of the receiving thread
  };

  Message parse(const std::string& line);

  Gateway& gateway_;
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace tensorbus::store::etcd
