// What a worker does with its agent, wherever that runs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "bus/channel/channel.h"
#include "bus/client/transfer.h"
#include "copy/crew.h"
#include "device/core/copier.h"
#include "device/cuda/device.h"
#include "fabric/core/pool.h"
#include "tensor/view.h"

namespace tensorbus::bus {

// A tensor to register, with the pair it belongs to.
struct BatchTensor {
  TensorView view;
  std::string pair;
  std::string name;
  std::optional<Shape> global_shape;
  std::optional<SideLayout> layout{};  // its own; none: the pair's
  std::optional<Shape> start{};        // of a box: where it begins in the whole
  // The worker copies the tensor for every send, and lends the memory of the copy later, by
  // lend_stage().
  bool staged = false;
};

struct RegisterOptions {
  std::optional<std::int64_t> chunk_bytes;
  std::optional<std::string> role;
  // None: of a registration with tensors on a device the first round that is read, of others none.
  std::optional<Verify> verify{};
  std::optional<Versioned> versioned{};
  std::vector<std::string> pairs{};    // that it takes part in also without a tensor of theirs
  std::optional<Dtype> shelf_dtype{};  // that a shelf narrows floating point to
  // Of the memory: kept until the agent has let go of it. Null: the caller sees to that.
  std::shared_ptr<const void> owner{};
};

struct PublishOptions {
  std::optional<std::int64_t> version{};
  Duration patience{};                    // with readers that hold every slot
  bool withdraw = false;                  // the oldest from them after that, instead of waiting on
  delta::Mode deltas = delta::Mode::off;  // only with a registration for deltas
  std::optional<std::int64_t> delta_memory{};
};

// For the agent that has taken over from one that had not answered: the registration becomes a new
// one. The old number may stand in a generation, which has ended with the old agent.
void renew_registration(RegisterBatch& command, std::uint64_t number) noexcept;

// Thread safe. Calls throw Error: the agent's, with its message, as CommandError. A blocking call
// that expires or is interrupted has cancelled its command, and the memory of a send is the
// caller's again.
class Client {
 public:
  // `gates`: where the agent finds the counters of sends; the fabric's pool if the agent runs here.
  // `crew`: whose threads copy for this worker; null: one of the client's own, of the size that the
  // agent says.
  Client(std::shared_ptr<Connection> connection, std::shared_ptr<fabric::Pool> gates,
         std::shared_ptr<copy::Crew> crew = nullptr);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Not blocking: the first later call that names the pair waits for it and throws its error.
  void init_pair(const InitPair& pair, bool blocking, Deadline deadline);
  // Returns the number of the registration. The memory stays lent until it is closed; of a shelf,
  // which has memory of its own, nothing is lent.
  std::uint64_t register_tensors(const std::string& batch, std::span<const BatchTensor> tensors,
                                 const RegisterOptions& options, Deadline deadline);
  // `now`: where the tensors are today; one that has moved since it was registered is an
  // Error(invalid_argument) that names it.
  std::shared_ptr<TransferState> transfer(const std::string& batch, Direction direction,
                                          const std::optional<std::string>& role,
                                          std::span<const TensorView> now, bool blocking,
                                          Deadline deadline,
                                          std::optional<std::int64_t> version = std::nullopt,
                                          std::int64_t min_readers = 0,
                                          RunningCall* call = nullptr);
  // Copies these tensors to the shelf as its next version, which is returned; the tensors are the
  // caller's again then. Threads take turns.
  std::int64_t publish(const std::string& batch, const std::optional<std::string>& role,
                       std::span<const TensorView> tensors, const PublishOptions& options,
                       Deadline deadline);
  // Reads a version into the registered tensors, which are at `now`.
  std::shared_ptr<TransferState> pull(Pull pull, std::span<const TensorView> now, bool blocking,
                                      Deadline deadline, RunningCall* call = nullptr);
  std::int64_t newest(const QueryNewest& query, Deadline deadline);
  // What is published there, whole tensors in the order of their names; waits for the first
  // version.
  std::vector<Content> contents(const std::string& batch, Deadline deadline);
  // Tells the other ranks of a batch, as soon as its pair is complete, that this rank cannot take
  // part and why: the others would wait for it. The call waits only until the agent has accepted
  // that.
  void refuse(const std::string& batch, const std::string& role, const std::string& pair,
              Versioned versioned, const std::string& why, Deadline deadline);
  // Other memory for the tensors of a versioned batch that this rank receives, of the same types
  // and shapes.
  void replace(const std::string& batch, const std::optional<std::string>& role,
               std::span<const TensorView> tensors, Deadline deadline,
               std::shared_ptr<const void> owner = nullptr);
  // In which types the tensors of a versioned batch that this rank sends should be staged, for a
  // send that is to have so many readers; empty: each tensor in its own type.
  std::vector<Dtype> stage_types(const QueryStage& query, Deadline deadline);
  // Memory for the tensors of such a batch: no_tensor() for those that are staged and have none
  // now, and for others places of their own types or narrower ones. `staged`: which tensors are.
  // False: readers have come since the types were asked for, and want others.
  bool lend_stage(const std::string& batch, const std::optional<std::string>& role,
                  std::span<const TensorView> tensors, const std::vector<bool>& staged,
                  Deadline deadline, std::shared_ptr<const void> owner);
  // Which of the registered tensors are elsewhere now, or have another shape or type; all, if there
  // are more or fewer.
  std::vector<std::size_t> moved(const std::string& batch, const std::optional<std::string>& role,
                                 std::span<const TensorView> now);
  Versions versions(const QueryVersions& query, Deadline deadline);
  // False, too, when the agent has waited in vain: the ranks that are missing are logged.
  bool query_signal(const QuerySignal& query, Deadline deadline);
  // Closes this registration, never a newer one of the same batch.
  void close_batch(const CloseBatch& close, bool blocking, Deadline deadline);
  // The same, without waiting for anything: the memory of the batch must stay until the result, if
  // there is one, is done.
  std::shared_ptr<Pending> drop_batch(const CloseBatch& close) noexcept;

  // Which registration a call for this batch means; 0 if none of this client's.
  std::uint64_t registration_of(const std::string& batch, const std::optional<std::string>& role);

  // The threads that copy for this worker, and the queues of its devices.
  copy::Crew& crew() noexcept { return *crew_; }
  device::Copiers& copiers() noexcept { return copiers_; }

  QueueState queue(Deadline deadline) { return connection_->queue(deadline); }
  std::int64_t agent_pid() const noexcept { return connection_->agent_pid(); }
  // Cancels what runs and waits, no longer than this, until the agent lets go of the memory that
  // this client lends. True if the agent has.
  bool close(Deadline deadline) noexcept;

 private:
  struct Registration;

  // Submits and waits. Nothing: the agent has ended meanwhile, and there is time to ask the next.
  std::optional<Outcome> try_to_run(const Command& command, std::shared_ptr<Loan> loan,
                                    Deadline deadline);
  // For commands that can be repeated as they are.
  Outcome run(const Command& command, std::shared_ptr<Loan> loan, Deadline deadline);
  // Without a local name: every side of the pair that was asked for.
  void wait_for_pair(const std::string& pair, const std::optional<std::string>& local,
                     Deadline deadline);
  // What was said of a batch that is registered after all.
  void take_back_refusal(const std::string& batch, const std::optional<std::string>& role);
  std::shared_ptr<Registration> find(const std::string& batch,
                                     const std::optional<std::string>& role);
  // The registration, if there was one.
  std::shared_ptr<Registration> forget(std::uint64_t registration) noexcept;
  // Other memory for a registration, with the command that says so.
  void pass_memory(Registration& registration, RegisterBatch command,
                   std::span<const TensorView> tensors, Deadline deadline,
                   std::shared_ptr<const void> owner);
  // Memory for the versions of a shelf, in the forms that its items get.
  void make_shelf(Registration& registration, std::optional<Dtype> dtype);
  // A recv whose agent was silent may still write; a tensor may have moved.
  static void check_ready(Registration& registration, std::span<const TensorView> now);
  // `ticket`: what the command lends, of a send.
  std::shared_ptr<TransferState> carry_out(const std::shared_ptr<Registration>& registration,
                                           const Command& command,
                                           std::optional<std::uint64_t> ticket, bool blocking,
                                           Deadline deadline, RunningCall* call);

  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<fabric::Pool> gates_;
  const bool crew_is_own_;
  const std::shared_ptr<copy::Crew> crew_;
  device::Copiers copiers_{&device::cuda::open};
  Mutex mutex_;
  bool closed_ GUARDED_BY(mutex_) = false;
  using PairSide = std::pair<std::string, std::string>;  // its name and the local one
  // Asked for without blocking.
  std::map<PairSide, std::shared_ptr<Pending>> pairs_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::shared_ptr<Registration>> registrations_ GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<TransferState>> transfers_ GUARDED_BY(mutex_);
  // By batch and role.
  std::map<std::pair<std::string, std::string>, std::shared_ptr<Pending>> refusals_
      GUARDED_BY(mutex_);
};

}  // namespace tensorbus::bus
