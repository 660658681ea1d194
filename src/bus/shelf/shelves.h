// All shelves of one agent. A shelf that its worker has left stays until all senders have a version
// of the next generation, or the time of the shelf is over.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "bus/registration/routes.h"
#include "bus/shelf/shelf.h"

namespace tensorbus::bus {

class Shelves {
 public:
  // `retain`: how long a shelf stays that its worker has left.
  explicit Shelves(Context& context, Duration retain = Duration::max())
      : context_(context), retain_(retain) {}
  Shelves(const Shelves&) = delete;
  Shelves& operator=(const Shelves&) = delete;

  std::shared_ptr<Shelf> open(Shelf::Origin origin);
  // The highest version that this rank ever began to publish, with whatever worker.
  void note_begun(const BatchKey& key, std::int64_t version);
  std::int64_t last_begun(const BatchKey& key) const;

  const std::vector<std::shared_ptr<Shelf>>& all() const noexcept { return shelves_; }

  // SUBSCRIBE or FOLLOW.
  Taken take(const PeerConnectionPtr& connection, const AgentMessage& message);
  void on_message(const PeerConnectionPtr& connection, const AgentMessage& message);
  void on_up(const PeerConnectionPtr& connection);
  void on_lost(const PeerConnectionPtr& connection);
  void step();
  TimePoint wake_at() const;
  // The store has forgotten what this agent published.
  void show_again();
  void close();

 private:
  bool is_superseded(const Shelf& shelf) const;
  TimePoint kept_until(const Shelf& shelf) const;
  void end(const std::shared_ptr<Shelf>& shelf, const std::string& why);

  Context& context_;
  const Duration retain_;
  std::vector<std::shared_ptr<Shelf>> shelves_;
  Routes<Shelf> routes_;
  std::map<BatchKey, std::int64_t> begun_;
};

}  // namespace tensorbus::bus
