// A worker. One class, three files: worker.cc makes requests, worker_recurring.cc sends those that
// come again, worker_wait.cc ends them.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "push_pull/job/node.h"
#include "push_pull/request/numbered.h"
#include "push_pull/request/pack.h"
#include "push_pull/request/recurring.h"
#include "push_pull/request/slots.h"
#include "push_pull/request/words.h"
#include "tensorbus/push_pull.h"

namespace tensorbus::push_pull {

struct PreparedRequest::Content {
  std::weak_ptr<const void> worker;
  std::vector<std::int64_t> extents;  // of each tensor its shape, then its strides
  std::vector<Item> pushes;
  std::vector<Item> pulls;
  Likeness likeness;
  std::shared_ptr<const void> keep;
  Standing standing;  // as it was last sent
};

class Worker::Impl final : private Node::Client {
 public:
  explicit Impl(const NodeOptions& options);
  ~Impl() override;

  Handler push_pull(std::span<const Item> pushes, std::span<const Item> pulls, Deadline deadline,
                    std::shared_ptr<const void> keep);
  std::shared_ptr<PreparedRequest::Content> prepare(std::span<const Item> pushes,
                                                    std::span<const Item> pulls,
                                                    std::shared_ptr<const void> keep) const;
  Handler push_pull(PreparedRequest::Content* prepared, Deadline deadline);
  void wait(Handler handler, Deadline deadline);
  std::vector<Handler> handlers(Handler handler);
  Trace trace(Handler handler, std::optional<int> server);
  WorkerCounts counts();
  Node& node() noexcept { return node_; }

 private:
  using Lock = Loop::Lock;
  using Word = std::atomic<std::uint64_t>;
  static constexpr std::size_t most_finished = 1024;  // that are remembered

  // A chunk of a server's registered buffer.
  struct Landing {
    wire::InletPlace place;
    std::size_t bytes = 0;
    std::byte* memory = nullptr;
    Word* word = nullptr;
  };
  // What the worker has of one server.
  struct ServerState {
    Partner* partner = nullptr;
    FreeSlots<PeerSlot> push_slots;
    std::multiset<std::size_t> awaited_slots;  // sizes, of threads that wait for one each
    FreeSlots<OwnSlot> pull_slots;
    std::map<std::int64_t, Landing> landings;
    OwnSlot words;
    int requests = 0;       // under way
    std::size_t bytes = 0;  // of them
    Status refusal;         // of the last slot that we asked for
    std::uint64_t refusals = 0;
    std::uint64_t slots = 0;
  };
  // Where one push of a request went.
  struct UsedSlot {
    PeerSlot slot;
    Word* landing = nullptr;  // the word of the landing that it is
  };
  // A request's part at one server.
  struct Leg {
    bool over = true;
    Status status;
    std::vector<UsedSlot> pushes;
    std::size_t bytes = 0;
    Trace times{};
  };
  struct Target {
    std::byte* data = nullptr;
    Dtype dtype{};
    Measure measured;
    std::size_t dims = 0;    // if it is not dense
    std::size_t first = 0;   // where its shape, then its strides begin in extents
    wire::InletPlace place;  // where the answer comes
    OwnSlot slot;            // that place, if it is not the tensor itself
    bool once = false;       // it was opened for this request alone
  };
  // A request from its making to its end. The next request uses the memory again.
  struct SentRequest {
    std::size_t index = 0;  // of its words
    std::uint64_t number = 0;
    std::uint64_t first = 0;  // handler
    std::uint64_t handlers = 0;
    std::vector<Leg> legs;
    std::vector<Measure> pushes;
    std::size_t bytes = 0;  // of them
    std::vector<Target> pulls;
    std::size_t pulls_each = 0;  // of every server
    std::vector<std::int64_t> extents;
    std::shared_ptr<const void> keep;
    bool under_way = false;
    bool finishing = false;  // its answers are being copied out
    bool abandoned = false;  // nobody waits for it any more
    // The number by which the servers know the request when it comes again; 0: they do not. A
    // request with a number keeps its memory.
    std::uint64_t standing = 0;
    bool known = false;              // they have been told
    std::uint64_t pool_changes = 0;  // when it was last looked up where its pulls lie
  };
  // What somebody wants to send.
  struct Wish {
    std::span<const Item> pushes;
    std::span<const Item> pulls;
    const Likeness* likeness = nullptr;  // if it may come again
    Standing* standing = nullptr;        // of a request that comes again for sure
    std::int64_t handed_over = 0;
  };
  struct Finished {
    std::uint64_t first = 0;
    std::uint64_t handlers = 0;
    Status status;
    std::vector<Trace> traces;  // by server
    bool in_ticks = false;      // they are not yet times
  };
  // A server that the worker lost while the server was writing into a pull tensor, and that may
  // still be there.
  struct Orphan {
    std::shared_ptr<const void> keep;
    fabric::Identity server;
    std::shared_ptr<std::byte> words;
    Word* word = nullptr;
    std::uint64_t number = 0;
  };

  std::size_t servers() const noexcept { return states_.size(); }
  void check_items(std::span<const Item> pushes, std::span<const Item> pulls) const;
  void check_servers() const;
  ServerState* crowded(std::size_t bytes);
  SentRequest& new_request();
  // Whatever there is left to do for requests that are over. Nobody waits for that, so the worker
  // does it while somebody waits for an answer.
  void clear_up();
  void release(SentRequest& request);
  PeerSlot take_slot(Lock& lock, ServerState& state, std::size_t bytes, Deadline deadline);
  void reserve_pushes(Lock& lock, SentRequest& request, std::span<const Item> pushes,
                      Deadline deadline);
  void reserve_pulls(SentRequest& request, std::span<const Item> pulls);
  void reserve_pull(ServerState& state, Target& target);
  void give_back_slots(ServerState& state, Leg& leg);
  void put_slot(ServerState& state, PeerSlot slot);
  void close_targets(std::size_t server, SentRequest& request);
  void free_targets(SentRequest& request);
  void fill(Lock& lock, const SentRequest& request, std::span<const Item> pushes);
  void put_request(SentRequest& request, std::size_t server, std::span<const Item> pushes);
  void send(SentRequest& request, const Wish& wish);
  Handler send_or_make(Lock& lock, const Wish& wish, Deadline deadline,
                       std::shared_ptr<const void> keep);
  void wait_for_room(Lock& lock, std::size_t bytes, Deadline deadline);
  SentRequest& make(Lock& lock, const Wish& wish, Deadline deadline);
  Handler dispatch(SentRequest& request, const Wish& wish, std::shared_ptr<const void> keep);

  SentRequest* find_again(const Wish& wish);
  SentRequest* ready_again(const Wish& wish);
  bool may_stand() const;
  bool lies_as_before(SentRequest& request);
  static bool is_small(const SentRequest& request);
  static bool has_landed(const SentRequest& request);
  void stand(SentRequest& request, const Wish& wish);
  void forget(SentRequest& request);
  Word& word(ServerState& state, const SentRequest& request) const;

  std::span<Target> targets(SentRequest& request, std::size_t server) const;
  bool needs_word(SentRequest& request, std::size_t server) const;
  static bool straight(const Target& target) { return target.slot.memory == nullptr; }
  bool settled(const SentRequest& request) const;
  void copy_out(Lock& lock, SentRequest& request);
  void finish(SentRequest& request, const Status& status);
  void cancel(Lock& lock, SentRequest& request);
  [[noreturn]] void fail(Lock& lock, std::uint64_t handler);
  void end_leg(SentRequest& request, std::size_t server, const Status& status);
  void end_if_abandoned(SentRequest& request);
  Finished* finished(std::uint64_t handler);
  void turn_into_times(Finished& entry) const;
  void keep_span(const SentRequest& request, Finished& entry, Code code);
  bool still_writing(const Orphan& orphan) const;

  void on_up(Partner& partner) override;
  void on_message(Partner& partner, wire::Kind kind, wire::Body& message) override;
  void on_answer(ServerState& state, wire::Body& message);
  void on_slot(ServerState& state, wire::Body& message);
  void on_landing(ServerState& state, wire::Body& message);
  void on_lost(Partner& partner) override;
  void on_turn() override;

  const NodeOptions options_;
  std::vector<ServerState> states_;
  std::vector<std::unique_ptr<SentRequest>> requests_;
  std::vector<SentRequest*> free_requests_;
  std::vector<SentRequest*> ended_;  // to be cleared up
  Numbered<SentRequest> by_handler_;
  Numbered<SentRequest> by_number_;
  Recurring<SentRequest> recurring_;
  Likeness likeness_;                                                     // of the request at hand
  const std::shared_ptr<const void> self_ = std::make_shared<char>('w');  // for those it prepares
  std::vector<Finished> history_;
  std::size_t next_finished_ = 0;
  std::vector<Orphan> orphans_;
  TimePoint next_look_at_orphans_{};
  std::vector<std::shared_ptr<const void>> dropped_;  // to be let go without the lock
  wire::Message message_;
  std::vector<std::byte> packed_;
  WorkerCounts counts_;
  Node node_;
};

}  // namespace tensorbus::push_pull
