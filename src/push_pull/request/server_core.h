// A server. One class, two files: server.cc takes requests and gives them out, server_answer.cc
// answers them.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "push_pull/job/node.h"
#include "push_pull/request/numbered.h"
#include "push_pull/request/pack.h"
#include "push_pull/request/words.h"
#include "tensorbus/push_pull.h"

namespace tensorbus::push_pull {

class Server::Impl final : private Node::Client {
 public:
  explicit Impl(const NodeOptions& options);
  ~Impl() override;

  void get_batch(std::vector<Request>& batch, std::span<const int> workers, Deadline deadline);
  void respond(Handler handler, std::span<const TensorView> tensors);
  void respond_rows(const TensorView& buffer, std::span<const TensorView> tensors,
                    std::span<const Handler> handlers, bool every_from_row_0);
  void register_buffer(const TensorView& tensor, std::span<const int> workers,
                       std::span<const std::int64_t> keys, std::shared_ptr<const void> keep);
  ServerCounts counts();
  Node& node() noexcept { return node_; }

 private:
  using Lock = Loop::Lock;
  using Word = std::atomic<std::uint64_t>;

  struct WorkerState;
  // A chunk of a registered buffer. Requests that lie in the landing hold it.
  struct Landing {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    std::shared_ptr<const void> keep;
    wire::InletPlace place;  // as the worker knows it, if it may write there
    OwnSlot word_slot;
    std::shared_ptr<Word> word;
    bool retired = false;  // another was registered in its place: nothing new goes there
  };
  // A request from its arrival to its answer. The next request uses the memory again.
  struct Incoming {
    WorkerState* worker = nullptr;
    std::uint64_t handler = 0;
    std::uint64_t number = 0;
    Word* word = nullptr;
    std::int64_t received = 0;
    std::int64_t given = 0;
    std::vector<Received> tensors;
    std::vector<std::shared_ptr<Landing>> landed;  // by tensor: the landing that it lies in
    std::vector<std::size_t> dims;                 // by tensor
    std::vector<std::int64_t> extents;             // of each its shape, then its strides
    std::vector<wire::Pull> pulls;
    std::vector<std::byte*> targets;  // the same where we see them; null on a network
    std::vector<Measure> answers;     // by pull
    Incoming* next = nullptr;         // in the queue, or among the free
    bool under_way = false;
    bool stands = false;  // kept for the next time
  };
  // What the server has of one worker.
  struct WorkerState {
    Partner* partner = nullptr;
    std::byte* words = nullptr;  // of the worker's requests
    std::size_t words_bytes = 0;
    std::map<std::pair<std::uint64_t, std::uint64_t>, OwnSlot> slots;  // by place
    std::map<std::int64_t, std::shared_ptr<Landing>> landings;         // by key
    std::vector<std::shared_ptr<Landing>> retired;  // those with a push that is not yet answered
    std::array<Incoming*, wire::most_standing> standing{};  // requests that come again
    Incoming* first = nullptr;
    Incoming* last = nullptr;
    bool reported = false;  // that it is gone
  };

  WorkerState& worker_at(int group);
  Incoming& new_incoming();
  void release(Incoming& incoming);
  void recycle(Incoming& incoming);
  Incoming& movable(Incoming& incoming);
  void deliver(Incoming& incoming);
  void move_to_landings(Incoming& incoming);
  void drop_queue(WorkerState& worker);
  void report_losses(std::span<WorkerState* const> workers);
  static bool is_missing(const WorkerState* worker);

  void on_up(Partner& partner) override;
  void on_message(Partner& partner, wire::Kind kind, wire::Body& message) override;
  void on_request(WorkerState& worker, wire::Body& message);
  void on_again(WorkerState& worker, wire::Body& message);
  void on_forget(WorkerState& worker, wire::Body& message);
  static void keep_standing(Incoming& incoming, std::uint64_t number);
  void stop_standing(Incoming& incoming);
  void queue(Incoming& incoming);
  void take_push(Incoming& incoming, wire::Numbers& message) const;
  static void bind_extents(Incoming& incoming);
  std::shared_ptr<Landing> landing_at(const WorkerState& worker,
                                      const wire::InletPlace& place) const;
  // Empty, or why the worker must not push this.
  std::string objection(const Incoming& incoming) const;
  void on_want_slot(WorkerState& worker, wire::Body& message);
  void on_free_slot(WorkerState& worker, wire::Body& message);
  void on_words(WorkerState& worker, wire::Body& message);
  Word& word_at(const WorkerState& worker, std::uint64_t index) const;
  void on_lost(Partner& partner) override;
  void on_turn() override {}

  Incoming& take_handler(Handler handler);
  // Empty, or why these tensors are no answer. Measures the tensors.
  std::string mismatch(Incoming& incoming, std::span<const TensorView> tensors) const;
  void answer(Incoming& incoming, std::int64_t handed_over, const Status& status);
  void keep_span(const Incoming& incoming, std::array<std::int64_t, 4> times, Code code);
  void write_answers(Lock& lock, Incoming& incoming, std::span<const TensorView> tensors);
  void leave(WorkerState& worker, Landing& landing);
  void retire(WorkerState& worker, std::int64_t key);
  void offer(WorkerState& worker, std::int64_t key, Landing& landing);

  std::vector<WorkerState> workers_;  // by worker group
  std::vector<std::unique_ptr<Incoming>> incoming_;
  Incoming* free_ = nullptr;
  Numbered<Incoming> by_handler_;
  bool any_lost_;                     // worker; or there is none at all
  std::vector<WorkerState*> wanted_;  // of the get_batch under way
  ServerCounts counts_;
  wire::Message message_;
  std::vector<std::byte> packed_;
  Node node_;
};

}  // namespace tensorbus::push_pull
