#include "bus/client/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/secret.h"
#include "bus/channel/loan.h"
#include "bus/channel/names.h"
#include "bus/channel/pending_command.h"
#include "bus/client/shelf_memory.h"
#include "bus/client/turns.h"

namespace tensorbus::bus {
namespace {

// An agent ends a command at the command's deadline itself, and knows why; the client gives the
// agent this long to say so.
constexpr Duration grace = std::chrono::milliseconds(1000);

Deadline later(Deadline deadline) {
  return deadline.is_never() ? deadline : Deadline(deadline.at() + grace);
}

std::string name_of(const BatchItem& item, std::size_t index) {
  return item.name.empty() ? fmt::format("tensor {} (pair \"{}\")", index, item.pair)
                           : fmt::format("tensor \"{}\" (pair \"{}\")", item.name, item.pair);
}

bool is_over_by(TransferState& state, Deadline deadline) {
  try {
    state.wait(deadline);
    return true;
  } catch (const Error& error) {
    if (error.code() != Code::timeout) throw;
    return false;
  }
}

// Whatever `kept` holds may be touched until an agent has answered.
void keep_until_done(const std::shared_ptr<Pending>& pending, std::shared_ptr<const void> kept) {
  if (pending != nullptr && kept != nullptr) pending->on_done([kept = std::move(kept)] {});
}

ProcessMutex forever_mutex;

void keep_for_good(std::shared_ptr<const void> kept) {
  static auto* const forever GUARDED_BY(forever_mutex) =
      new std::vector<std::shared_ptr<const void>>;
  const Lock lock(forever_mutex);
  forever->push_back(std::move(kept));
}

void check_count(const RegisterBatch& command, std::size_t tensors) {
  if (tensors == command.items.size()) return;
  throw Error(Code::invalid_argument, fmt::format("batch \"{}\" has {} tensors, not {}",
                                                  command.batch, command.items.size(), tensors));
}

// What has not run on a real device yet is not believed unseen.
Verify usual_verify(std::span<const TensorView> tensors) {
  return std::ranges::any_of(tensors, &TensorView::on_device) ? Verify::first : Verify::off;
}

bool has_moved(const TensorView& then, const TensorView& now) {
  return then.dtype != now.dtype || !std::ranges::equal(then.shape, now.shape) ||
         then.device != now.device ||
         (!then.empty() &&
          (then.data != now.data || !std::ranges::equal(then.strides, now.strides)));
}

}  // namespace

// A batch of this client at the agent. Sends lend the memory while the gate has not passed them.
struct Client::Registration {
  RegisterBatch command;
  std::shared_ptr<Loan> loan;
  std::shared_ptr<const void> owner;   // of its memory
  std::unique_ptr<ShelfMemory> shelf;  // if it publishes
  // Publishing takes one version at a time. No mutex: the thread whose turn it is asks for Ctrl-C
  // meanwhile.
  const std::shared_ptr<Turns> publishing = std::make_shared<Turns>();

  Mutex mutex;
  std::uint64_t last_ticket GUARDED_BY(mutex) = 0;
  std::set<std::uint64_t> lending GUARDED_BY(mutex);
  // A recv whose agent has not said that it stopped writing.
  std::shared_ptr<TransferState> unclear GUARDED_BY(mutex);

  std::uint64_t lend() {
    const Lock lock(mutex);
    lending.insert(++last_ticket);
    return last_ticket;
  }
  // The gate is the lowest ticket that still lends.
  void take_back(std::uint64_t ticket) {
    const Lock lock(mutex);
    lending.erase(ticket);
    loan->gate().move_to(lending.empty() ? last_ticket + 1 : *lending.begin());
  }
  // Whatever the agent does, and whatever other sends still lend.
  void take_back_by_force(std::uint64_t ticket) {
    const Lock lock(mutex);
    loan->gate().move_to(ticket + 1);
  }
};

void renew_registration(RegisterBatch& command, std::uint64_t number) noexcept {
  command.registration = number;
}

Client::Client(std::shared_ptr<Connection> connection, std::shared_ptr<fabric::Pool> gates,
               std::shared_ptr<copy::Crew> crew)
    : connection_(std::move(connection)),
      gates_(std::move(gates)),
      crew_is_own_(crew == nullptr),
      crew_(crew_is_own_ ? std::make_shared<copy::Crew>() : std::move(crew)) {}

Client::~Client() { close(Deadline::after(Duration::zero())); }

std::optional<Outcome> Client::try_to_run(const Command& command, std::shared_ptr<Loan> loan,
                                          Deadline deadline) {
  // Waits for an agent that is about to come back.
  const std::shared_ptr<Pending> pending =
      connection_->submit(command, std::move(loan), deadline, deadline);
  Outcome outcome;
  try {
    outcome = pending->wait(later(deadline));
  } catch (const Error& error) {
    pending->cancel({Code::cancelled, "its caller has given up"});
    if (error.code() != Code::timeout) throw;
    throw Error(Code::timeout, fmt::format("{}: the agent (process {}) has not answered in time",
                                           describe(command), connection_->agent_pid()));
  }
  if (crew_is_own_ && outcome.copy_threads > 0) {
    crew_->resize(static_cast<std::size_t>(outcome.copy_threads));
  }
  if (outcome.status.ok()) return outcome;
  if (outcome.status.code != Code::unreachable || deadline.expired()) throw CommandError(outcome);
  log::info("{}; trying again", outcome.status.message);
  return std::nullopt;
}

Outcome Client::run(const Command& command, std::shared_ptr<Loan> loan, Deadline deadline) {
  while (true) {
    if (auto outcome = try_to_run(command, loan, deadline)) return *std::move(outcome);
  }
}

void Client::init_pair(const InitPair& pair, bool blocking, Deadline deadline) {
  check_names(pair);
  if (blocking) {
    wait_for_pair(pair.pair, pair.local, deadline);
    run(pair, nullptr, deadline);
    return;
  }
  std::shared_ptr<Pending> pending =
      connection_->submit(pair, nullptr, Deadline::never(), deadline);
  const Lock lock(mutex_);
  pairs_[{pair.pair, pair.local}] = std::move(pending);
}

void Client::wait_for_pair(const std::string& pair, const std::optional<std::string>& local,
                           Deadline deadline) {
  std::vector<std::pair<PairSide, std::shared_ptr<Pending>>> asked;
  {
    const Lock lock(mutex_);
    for (const auto& [side, pending] : pairs_) {
      if (side.first == pair && (!local || side.second == *local))
        asked.emplace_back(side, pending);
    }
  }
  for (const auto& [side, pending] : asked) {
    const Outcome outcome = [&, &command = *pending] {
      try {
        return command.wait(deadline);
      } catch (const Error& error) {
        if (error.code() != Code::timeout) throw;
        throw Error(Code::timeout,
                    fmt::format("pair \"{}\" is still waiting for its other side, or "
                                "for ranks of its own",
                                pair));
      }
    }();
    {
      const Lock lock(mutex_);
      const auto found = pairs_.find(side);
      if (found != pairs_.end() && found->second == pending) pairs_.erase(found);
    }
    if (!outcome.status.ok()) throw CommandError(outcome);
  }
}

std::uint64_t Client::register_tensors(const std::string& batch,
                                       std::span<const BatchTensor> tensors,
                                       const RegisterOptions& options, Deadline deadline) {
  const auto registration = std::make_shared<Registration>();
  RegisterBatch& command = registration->command;
  command.batch = batch;
  command.registration = random_number();
  command.role = options.role;
  command.chunk_bytes = options.chunk_bytes;
  command.versioned = options.versioned;
  command.pairs = options.pairs;
  registration->owner = options.owner;
  take_back_refusal(batch, options.role);
  std::vector<TensorView> views;
  std::set<std::string> pairs(options.pairs.begin(), options.pairs.end());
  for (const BatchTensor& tensor : tensors) {
    const TensorView& view = tensor.view;
    std::optional<std::size_t> layout;
    if (tensor.layout) {
      const auto known = std::ranges::find(command.layouts, *tensor.layout);
      layout = static_cast<std::size_t>(known - command.layouts.begin());
      if (known == command.layouts.end()) command.layouts.push_back(*tensor.layout);
    }
    command.items.push_back({tensor.pair, tensor.name, view.dtype,
                             Shape(view.shape.begin(), view.shape.end()),
                             Shape(view.strides.begin(), view.strides.end()), tensor.global_shape,
                             layout, tensor.start, tensor.staged});
    views.push_back(tensor.staged ? no_tensor() : view);
    pairs.insert(tensor.pair);
  }
  check_names(command);
  command.verify = options.verify.value_or(usual_verify(views));
  for (const std::string& pair : pairs) wait_for_pair(pair, std::nullopt, deadline);
  const auto& versioned = command.versioned;
  if (versioned && versioned->keep && versioned->direction == Direction::send) {
    make_shelf(*registration, options.shelf_dtype);
  } else {
    registration->loan = make_loan(views, *gates_);
  }
  try {
    while (!try_to_run(command, registration->loan, deadline))
      renew_registration(command, random_number());
  } catch (const Error&) {
    // The agent may have registered the batch just when the client gave up.
    keep_until_done(connection_->post(CloseBatch{batch, command.registration}), registration);
    throw;
  }
  const Lock lock(mutex_);
  registrations_[command.registration] = registration;
  return command.registration;
}

// What is not whole at one rank is reduced when it is read, and keeps its type until then.
void Client::make_shelf(Registration& registration, std::optional<Dtype> dtype) {
  RegisterBatch& command = registration.command;
  fabric::Forms forms;
  for (BatchItem& item : command.items) {
    const bool partial =
        item.layout &&
        std::ranges::any_of(command.layouts[*item.layout].placements,
                            [](auto& each) { return std::holds_alternative<Partial>(each); });
    if (!partial) item.dtype = shelf_dtype(item.dtype, dtype);
    item.strides = plan::contiguous_strides(item.shape);
    forms.push_back({item.dtype, item.shape, item.strides});
  }
  const auto keep = static_cast<std::size_t>(*command.versioned->keep);
  registration.shelf =
      std::make_unique<ShelfMemory>(std::move(forms), keep, command.versioned->delta, *gates_);
  registration.loan =
      make_loan(registration.shelf->tensors(), *gates_, registration.shelf->segment());
}

std::int64_t Client::publish(const std::string& batch, const std::optional<std::string>& role,
                             std::span<const TensorView> tensors, const PublishOptions& options,
                             Deadline deadline) {
  const std::shared_ptr<Registration> registration = find(batch, role);
  const RegisterBatch& command = registration->command;
  if (registration->shelf == nullptr || tensors.size() != command.items.size()) {
    throw Error(Code::invalid_argument,
                fmt::format("batch \"{}\" has no shelf for {} tensors", batch, tensors.size()));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (std::ranges::equal(tensors[i].shape, command.items[i].shape)) continue;
    throw Error(Code::invalid_argument,
                fmt::format("{} of batch \"{}\" has another shape than it was registered with",
                            name_of(command.items[i], i), batch));
  }
  Turn turn(registration->publishing);
  if (!turn.wait(deadline)) {
    throw Error(Code::timeout,
                fmt::format("batch \"{}\": another thread is publishing to its shelf", batch));
  }
  const std::int64_t patience =
      std::chrono::duration_cast<std::chrono::milliseconds>(options.patience).count();
  const Outcome granted = run(Publish{batch, command.role, options.version, patience,
                                      options.withdraw, options.deltas, options.delta_memory},
                              nullptr, deadline);
  // What a device holds is copied without a comparison: readers of such a version get all of it.
  const auto previous =
      std::ranges::any_of(tensors, &TensorView::on_device) ? std::nullopt : granted.previous;
  Shelve shelve{batch, command.role, granted.version, true, previous.has_value()};
  try {
    registration->shelf->fill(static_cast<std::size_t>(granted.slot), previous, tensors, *crew_,
                              copiers_, deadline);
  } catch (...) {
    shelve.whole = false;
    connection_->post(shelve);
    throw;
  }
  run(shelve, nullptr, deadline);
  return granted.version;
}

std::int64_t Client::newest(const QueryNewest& query, Deadline deadline) {
  return run(query, nullptr, deadline).version;
}

std::vector<Content> Client::contents(const std::string& batch, Deadline deadline) {
  return run(QueryContents{batch}, nullptr, deadline).contents;
}

void Client::refuse(const std::string& batch, const std::string& role, const std::string& pair,
                    Versioned versioned, const std::string& why, Deadline deadline) {
  RegisterBatch command;
  command.batch = batch;
  command.registration = random_number();
  command.role = role;
  command.versioned = versioned;
  command.pairs = {pair};
  command.refused = why;
  take_back_refusal(batch, role);
  std::shared_ptr<Pending> pending =
      connection_->submit(command, make_loan({}, *gates_), Deadline::never(), deadline);
  const Lock lock(mutex_);
  refusals_[{batch, role}] = std::move(pending);
}

void Client::take_back_refusal(const std::string& batch, const std::optional<std::string>& role) {
  std::shared_ptr<Pending> refusal;
  {
    const Lock lock(mutex_);
    const auto found = refusals_.find({batch, role.value_or("")});
    if (found == refusals_.end()) return;
    refusal = std::move(found->second);
    refusals_.erase(found);
  }
  if (!refusal->done()) refusal->cancel({Code::cancelled, "it is registered after all"});
}

std::shared_ptr<Client::Registration> Client::find(const std::string& batch,
                                                   const std::optional<std::string>& role) {
  const Lock lock(mutex_);
  if (closed_) throw Error(Code::failed, "this client is closed");
  std::vector<std::shared_ptr<Registration>> found;
  for (const auto& [number, registration] : registrations_) {
    if (registration->command.batch != batch) continue;
    if (role && registration->command.role && *role != *registration->command.role) continue;
    found.push_back(registration);
  }
  if (found.empty()) {
    throw Error(Code::invalid_argument,
                fmt::format("batch \"{}\" is not registered by this client", batch));
  }
  if (found.size() > 1) {
    throw Error(
        Code::invalid_argument,
        fmt::format("batch \"{}\" is registered for both sides of a pair; give role=", batch));
  }
  return found.front();
}

std::uint64_t Client::registration_of(const std::string& batch,
                                      const std::optional<std::string>& role) {
  const Lock lock(mutex_);
  std::uint64_t number = 0;
  for (const auto& [each, registration] : registrations_) {
    if (registration->command.batch != batch) continue;
    if (role && registration->command.role && *role != *registration->command.role) continue;
    number = each;
  }
  return number;
}

std::shared_ptr<TransferState> Client::transfer(const std::string& batch, Direction direction,
                                                const std::optional<std::string>& role,
                                                std::span<const TensorView> now, bool blocking,
                                                Deadline deadline,
                                                std::optional<std::int64_t> version,
                                                std::int64_t min_readers, RunningCall* call) {
  const std::shared_ptr<Registration> registration = find(batch, role);
  check_ready(*registration, now);
  const bool send = direction == Direction::send;
  Transfer command{batch, direction, role ? role : registration->command.role,
                   0,     version,   min_readers};
  if (send) command.ticket = registration->lend();
  return carry_out(registration, command, send ? std::optional(command.ticket) : std::nullopt,
                   blocking, deadline, call);
}

std::shared_ptr<TransferState> Client::pull(Pull pull, std::span<const TensorView> now,
                                            bool blocking, Deadline deadline, RunningCall* call) {
  const std::shared_ptr<Registration> registration = find(pull.batch, pull.role);
  check_ready(*registration, now);
  return carry_out(registration, std::move(pull), std::nullopt, blocking, deadline, call);
}

void Client::check_ready(Registration& registration, std::span<const TensorView> now) {
  const std::string& batch = registration.command.batch;
  const std::vector<TensorView>& then = registration.loan->tensors();
  for (std::size_t i = 0; i < std::min(now.size(), then.size()); ++i) {
    if (has_moved(then[i], now[i])) {
      throw Error(Code::invalid_argument,
                  fmt::format("{} of batch \"{}\" is not where it was when it was registered: its "
                              "storage or shape has changed; register the batch again",
                              name_of(registration.command.items[i], i), batch));
    }
  }
  const Lock lock(registration.mutex);
  if (registration.unclear != nullptr && !registration.unclear->done()) {
    throw Error(Code::failed,
                fmt::format("batch \"{}\": its agent does not answer and may still write to the "
                            "tensors of an earlier recv; wait until it does or has ended",
                            batch));
  }
  registration.unclear = nullptr;
}

std::shared_ptr<TransferState> Client::carry_out(const std::shared_ptr<Registration>& registration,
                                                 const Command& command,
                                                 std::optional<std::uint64_t> ticket, bool blocking,
                                                 Deadline deadline, RunningCall* call) {
  const std::string& batch = registration->command.batch;
  const bool send = ticket.has_value();
  const auto give_back = [registration, ticket] {
    if (ticket) registration->take_back(*ticket);
  };
  std::shared_ptr<Pending> pending;
  std::shared_ptr<TransferState> state;
  try {
    pending = blocking ? connection_->begin(command, deadline)
                       : connection_->submit(command, nullptr, Deadline::never(), deadline);
    state = std::make_shared<TransferState>(pending, connection_, "transfer", batch, give_back);
  } catch (const Error& error) {
    // Unless the agent refused the command nobody will ever know whether it was accepted.
    if (send && error.code() != Code::queue_full) registration->take_back_by_force(*ticket);
    give_back();
    throw;
  }
  state->start();
  if (call != nullptr) call->transfers(state);
  {
    const Lock lock(mutex_);
    std::erase_if(transfers_, [](const auto& each) { return each.expired(); });
    transfers_.push_back(state);
  }
  if (!blocking) return state;
  try {
    if (!is_over_by(*state, deadline) && !connection_->withdraw(*pending) && send) {
      registration->take_back_by_force(*ticket);
    }
    state->result(later(deadline));
  } catch (const CommandError&) {
    throw;
  } catch (const Error& error) {
    // Expired or interrupted: the agent gets one more moment to end the command.
    const bool expired = error.code() == Code::timeout;
    state->cancel({expired ? Code::timeout : Code::cancelled, "its caller has given up"});
    try {
      state->wait(Deadline::after(grace));
      if (!expired) throw error;
    } catch (const Error& silent) {
      if (silent.code() != Code::timeout) throw;
      if (send) {
        registration->take_back_by_force(*ticket);
      } else {
        const Lock lock(registration->mutex);
        registration->unclear = state;
      }
      if (!expired) throw error;
    }
    throw Error(Code::timeout, fmt::format("{}: the agent (process {}) has not ended it in time{}",
                                           describe(command), connection_->agent_pid(),
                                           send ? "; the tensors may be used again"
                                                : "; it may still write to the tensors"));
  }
  return state;
}

void Client::replace(const std::string& batch, const std::optional<std::string>& role,
                     std::span<const TensorView> tensors, Deadline deadline,
                     std::shared_ptr<const void> owner) {
  const std::shared_ptr<Registration> registration = find(batch, role);
  RegisterBatch command = registration->command;
  check_count(command, tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    command.items[i].strides.assign(tensors[i].strides.begin(), tensors[i].strides.end());
  }
  pass_memory(*registration, std::move(command), tensors, deadline, std::move(owner));
}

bool Client::lend_stage(const std::string& batch, const std::optional<std::string>& role,
                        std::span<const TensorView> tensors, const std::vector<bool>& staged,
                        Deadline deadline, std::shared_ptr<const void> owner) try {
  const std::shared_ptr<Registration> registration = find(batch, role);
  RegisterBatch command = registration->command;
  check_count(command, tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) command.items[i].staged = staged[i];
  pass_memory(*registration, std::move(command), tensors, deadline, std::move(owner));
  return true;
} catch (const CommandError& error) {
  if (error.code() != Code::withdrawn) throw;
  return false;
}

void Client::pass_memory(Registration& registration, RegisterBatch command,
                         std::span<const TensorView> tensors, Deadline deadline,
                         std::shared_ptr<const void> owner) {
  const std::shared_ptr<Loan> loan = make_loan(tensors, *gates_);
  run(command, loan, deadline);
  const Lock lock(registration.mutex);
  // A reader that still looks at the old memory finds that nothing is lent.
  registration.loan->gate().move_to(UINT64_MAX);
  registration.command.items = std::move(command.items);  // the rest is read without this mutex
  registration.loan = loan;
  std::swap(registration.owner, owner);
}

std::vector<Dtype> Client::stage_types(const QueryStage& query, Deadline deadline) {
  return run(query, nullptr, deadline).stage;
}

std::vector<std::size_t> Client::moved(const std::string& batch,
                                       const std::optional<std::string>& role,
                                       std::span<const TensorView> now) {
  const std::shared_ptr<Registration> registration = find(batch, role);
  const std::vector<TensorView>& then = registration->loan->tensors();
  std::vector<std::size_t> moved;
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now.size() != then.size() || has_moved(then[i], now[i])) moved.push_back(i);
  }
  return moved;
}

Versions Client::versions(const QueryVersions& query, Deadline deadline) {
  return run(query, nullptr, deadline).versions;
}

bool Client::query_signal(const QuerySignal& query, Deadline deadline) {
  try {
    return run(query, nullptr, deadline).signal;
  } catch (const CommandError& error) {
    // The agent has answered that there is no signal so far: as good an answer as any.
    if (error.code() != Code::timeout) throw;
    log::info("{}", error.what());
    return false;
  }
}

std::shared_ptr<Client::Registration> Client::forget(std::uint64_t registration) noexcept {
  const Lock lock(mutex_);
  const auto found = registrations_.find(registration);
  if (found == registrations_.end()) return nullptr;
  return std::move(registrations_.extract(found).mapped());
}

void Client::close_batch(const CloseBatch& close, bool blocking, Deadline deadline) {
  if (blocking) {
    run(close, nullptr, deadline);
    forget(close.registration);
  } else {
    const std::shared_ptr<Pending> pending =
        connection_->submit(close, nullptr, Deadline::never(), deadline);
    keep_until_done(pending, forget(close.registration));
  }
}

std::shared_ptr<Pending> Client::drop_batch(const CloseBatch& close) noexcept {
  std::shared_ptr<Registration> registration = forget(close.registration);
  std::shared_ptr<Pending> pending = connection_->post(close);
  keep_until_done(pending, std::move(registration));
  return pending;
}

bool Client::close(Deadline deadline) noexcept {
  std::vector<std::weak_ptr<TransferState>> transfers;
  std::map<std::uint64_t, std::shared_ptr<Registration>> registrations;
  {
    const Lock lock(mutex_);
    if (std::exchange(closed_, true)) return true;
    transfers.swap(transfers_);
    registrations.swap(registrations_);
    pairs_.clear();
  }
  // No agent reads the memory of this client from here on.
  for (const auto& [number, registration] : registrations) {
    const Lock lock(registration->mutex);
    registration->loan->gate().move_to(registration->last_ticket + 1);
  }
  std::vector<std::shared_ptr<Pending>> ending;
  for (const auto& weak : transfers) {
    const auto state = weak.lock();
    if (state == nullptr) continue;
    state->unlink();
    state->cancel({Code::cancelled, "the client was closed"});
  }
  for (const auto& [number, registration] : registrations) {
    ending.push_back(connection_->post(CloseBatch{registration->command.batch, number}));
  }
  bool released = true;
  try {
    for (const auto& pending : ending) {
      if (pending != nullptr) pending->wait(deadline);
    }
  } catch (const Error&) {
    released = false;
  }
  connection_->close();
  crew_->dismiss();
  // An agent that does not answer may still touch the memory: the memory stays for as long as the
  // process.
  if (!released) {
    keep_for_good(std::make_shared<const decltype(registrations)>(std::move(registrations)));
  }
  return released;
}

}  // namespace tensorbus::bus
