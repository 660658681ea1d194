#include "bus/patching/version_read.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/log.h"
#include "delta/patch/apply.h"

namespace tensorbus::bus {
namespace {

// Between two looks at what else there is to do.
constexpr std::size_t blocks_at_once = 256;
// A patch is never much larger than what it patches: the writer would have sent dense blocks.
constexpr std::int64_t largest_header = 4096;
constexpr double seed_rate = 1.25e9;
// And a second for each gigabyte.
constexpr Duration shortest_patience = std::chrono::seconds(1);
constexpr double per_mille = 1000;
constexpr double largest_factor = 1000;
constexpr std::string_view said_of_targets = "; the tensors' contents are undefined";

std::int64_t nanoseconds(Duration duration) {
  return std::max<std::int64_t>(
      0, std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
}

std::int64_t to_per_mille(double factor) {
  return static_cast<std::int64_t>(per_mille * std::clamp(factor, 1 / per_mille, largest_factor));
}

}  // namespace

void VersionRead::start() {
  begun_ = context_.measured();
  verify_ = origin_.manner.verify;
  outcome_.version = origin_.version;
  if (!origin_.promises) return read_dense(delta::Why::switched_off);
  for (const auto& stream : origin_.streams) {
    for (const plan::Part& part : stream->parts) update_.elements += part.elements;
  }
  ask();
}

bool VersionRead::can_be_patched() const noexcept {
  const auto& held = held_->content;
  return held && held->generation == origin_.generation && held->version <= origin_.version;
}

// Also who holds nothing tells its sources what it will hold, and then waits for no answer.
void VersionRead::ask() {
  const bool waits = can_be_patched() && origin_.loan->lender() == nullptr;
  AskPatch question = this->question();
  if (!waits) question.held = 0;
  for (const auto& [rank, source] : origin_.sources) {
    answered_[rank] = false;
    context_.connections.send(*source.connection, origin_.generation, origin_.serial, question);
  }
  be_patient();
  if (!waits) read_dense(can_be_patched() ? delta::Why::no_patches : delta::Why::no_base);
}

AskPatch VersionRead::question() const {
  AskPatch question{origin_.version, can_be_patched() ? held_->content->version : 0};
  const double rate = held_->rate.value_or(seed_rate);
  if (origin_.is_far) {
    question.rate = std::max<std::int64_t>(1, static_cast<std::int64_t>(rate));
  } else if (held_->rate) {
    question.dense = to_per_mille(1 / (rate * delta::Speeds().copy_seconds_per_byte));
  }
  if (held_->apply) question.apply = to_per_mille(*held_->apply);
  return question;
}

void VersionRead::on_patched(Rank rank, const Patched& answer) {
  const auto found = answered_.find(rank);
  if (phase_ != Phase::asking || answer.version != origin_.version) return;
  if (found == answered_.end() || std::exchange(found->second, true)) return;
  if (answer.why != delta::Why::patch) return read_dense(answer.why);
  if (!add_patches(rank, answer)) return read_dense(delta::Why::damaged);
  be_patient();
  if (std::ranges::all_of(answered_, [](const auto& each) { return each.second; })) fetch();
}

// False: these are no patches for this reader.
bool VersionRead::add_patches(Rank rank, const Patched& answer) {
  const Origin::Source& source = origin_.sources.at(rank);
  if (answer.patches.size() != source.streams.size()) return false;
  for (std::size_t at = 0; at < answer.patches.size(); ++at) {
    const OfferedPatch& offered = answer.patches[at];
    const std::size_t stream = source.streams[at];
    const std::int64_t most = 2 * origin_.streams[stream]->wire_bytes + largest_header +
                              64 * std::ssize(origin_.streams[stream]->parts);
    if (offered.bytes <= 0 || offered.bytes > most) return false;
    Fetched& patch = patches_.emplace_back();
    patch.stream = stream;
    patch.rank = rank;
    patch.offered = offered;
    patch.peer = source.connection->peer();
  }
  return true;
}

fabric::OpId VersionRead::operation(Phase phase, std::size_t at,
                                    void (VersionRead::*then)(std::size_t,
                                                              const fabric::Completion&)) {
  return context_.operations.add(
      [self = shared_from_this(), phase, at, then](const fabric::Completion& done) {
        self->patches_[at].running.reset();
        if (self->phase_ == phase) (self.get()->*then)(at, done);
      });
}

void VersionRead::fetch() {
  update_.asking = nanoseconds(context_.measured() - begun_);
  phase_ = Phase::fetching;
  context_.at(Step::fetching);
  for (std::size_t at = 0; at < patches_.size() && phase_ == Phase::fetching; ++at) attach(at);
  if (patches_.empty()) check_all();
}

void VersionRead::attach(std::size_t at) {
  const fabric::OpId id = operation(Phase::fetching, at, &VersionRead::on_attached);
  try {
    context_.fabric.attach(*patches_[at].peer, patches_[at].offered.region, id, Deadline::never());
    patches_[at].running = id;
  } catch (const Error&) {
    context_.operations.forget(id);
    read_dense(delta::Why::damaged);
  }
}

void VersionRead::on_attached(std::size_t at, const fabric::Completion& done) {
  Fetched& patch = patches_[at];
  const Shape shape{patch.offered.bytes};
  const fabric::Forms expected{{Dtype::uint8, shape, {1}}};
  if (!done.status.ok() || done.region->forms() != expected) {
    return read_dense(delta::Why::damaged);
  }
  be_patient();
  patch.bytes.resize(static_cast<std::size_t>(patch.offered.bytes));
  patch.shape = shape;
  patch.path = done.region->path();
  const Dtype type = Dtype::uint8;
  patch.all = std::make_shared<const plan::Stream>(fabric::whole_stream(expected, {&type, 1}));
  const TensorView to{patch.bytes.data(), Dtype::uint8, patch.shape, patch.strides};
  const fabric::OpId id = operation(Phase::fetching, at, &VersionRead::on_fetched);
  try {
    context_.fabric.read({patch.all, 0, {{patch.peer, done.region, 0}}, {to}}, id,
                         Deadline::never());
    patch.running = id;
  } catch (const Error&) {
    context_.operations.forget(id);
    read_dense(delta::Why::damaged);
  }
}

void VersionRead::on_fetched(std::size_t at, const fabric::Completion& done) {
  if (!done.status.ok()) return read_dense(delta::Why::damaged);
  patches_[at].whole = true;
  be_patient();
  if (std::ranges::all_of(patches_, [](const Fetched& each) { return each.whole; })) check_all();
}

void VersionRead::bind_streams() {
  if (held_->streams == nullptr) {
    auto streams = std::make_shared<HeldState::Streams>();
    for (const auto& stream : origin_.streams) {
      streams->push_back(
          std::make_unique<const BoundStream>(stream, plan::BoundSide::target, origin_.targets));
    }
    held_->streams = std::move(streams);
  }
  streams_ = held_->streams;
}

// Everything that a patch claims is looked at before the first byte is written.
void VersionRead::check_all() {
  try {
    bind_streams();
    for (Fetched& patch : patches_) {
      const BoundStream& stream = *(*streams_)[patch.stream];
      patch.checked.emplace(patch.bytes, stream.packed().parts());
      if (patch.checked->checksum() != patch.offered.checksum) {
        throw Error(Code::failed, "it is not what the source has made");
      }
      const delta::PatchId& id = patch.checked->id();
      if (id.version != origin_.version || id.stream != stream.fingerprint()) {
        throw Error(Code::failed, "it was made for something else");
      }
      update_.values += patch.checked->values();
      update_.bytes += static_cast<std::int64_t>(patch.checked->bytes());
      outcome_.bytes_by_path[patch.path] += static_cast<std::int64_t>(patch.checked->bytes());
    }
  } catch (const Error& error) {
    log::warn("bus: rank {}: a patch to version {} was refused, and all of it is read: {}",
              context_.rank, origin_.version, error.what());
    return read_dense(delta::Why::damaged);
  }
  update_.fetching = nanoseconds(context_.measured() - begun_) - update_.asking;
  update_.why = delta::Why::patch;
  if (holds_back()) return wait();
  if (!fits()) return;
  origin_.manner.together ? wait() : begin_apply();
}

void VersionRead::wait() {
  phase_ = Phase::waiting;
  outcome_.status = {};
  if (origin_.promises) outcome_.update = update_;
}

void VersionRead::resume(Verify verify) {
  if (phase_ != Phase::waiting) return;
  resumed_ = true;
  verify_ = verify;
  if (dense_later_) return read_dense(*dense_later_);
  if (scratch_ != nullptr || fits()) begin_apply();
}

std::string VersionRead::label_of(std::size_t target) const {
  const bool known = origin_.labels != nullptr && target < origin_.labels->size();
  return known ? (*origin_.labels)[target] : std::to_string(target);
}

bool VersionRead::are_untouched() const {
  const auto changed = held_->canaries.first_changed(origin_.targets);
  if (!changed) return true;
  log::warn(
      "bus: rank {}: somebody has written to tensor \"{}\" since version {} was pulled, although "
      "the link promised that nobody would; all of version {} is read",
      context_.rank, label_of(*changed), held_->content->version, origin_.version);
  return false;
}

// Once: nobody writes to the targets while their ranks agree.
bool VersionRead::fits() {
  if (fits_) return true;
  const bool bases_fit = std::ranges::all_of(patches_, [&](const Fetched& patch) {
    return delta::may_apply(held_->content, patch.checked->id());
  });
  if (!bases_fit) return read_dense(delta::Why::no_base), false;
  if (!are_untouched()) return read_dense(delta::Why::overwritten), false;
  return fits_ = true;
}

void VersionRead::touch() {
  held_->content.reset();
  held_->touched = true;
}

void VersionRead::begin_apply() {
  phase_ = Phase::applying;
  if (scratch_ == nullptr) context_.at(Step::applying);
  touch();
  begun_ = context_.measured();
  apply();
}

// Whoever makes patches may stand still while its memory can be read.
void VersionRead::be_patient() {
  std::int64_t bytes = 0;
  for (const auto& stream : origin_.streams) bytes += stream->payload_bytes;
  patient_until_ = context_.now + shortest_patience + std::chrono::nanoseconds(bytes);
}

TimePoint VersionRead::wake_at() const noexcept {
  const bool waits =
      phase_ == Phase::asking || phase_ == Phase::fetching || phase_ == Phase::verifying;
  return waits ? patient_until_ : TimePoint::max();
}

void VersionRead::step() {
  if (context_.now >= wake_at()) {
    phase_ == Phase::verifying ? finish_verifying(false) : read_dense(delta::Why::no_answer);
  }
  if (phase_ == Phase::applying) apply();
  if (phase_ == Phase::verifying) verify();
  if (phase_ == Phase::dense) step_dense();
}

void VersionRead::apply() {
  if (scratch_ != nullptr) {
    if (scratch_->copy_to(origin_.targets)) finish_dense();
    return;
  }
  std::vector<std::byte*> to;
  for (const TensorView& target : origin_.targets) to.push_back(target.data);
  std::size_t budget = blocks_at_once;
  for (Fetched& patch : patches_) {
    const std::size_t blocks = patch.checked->blocks().size();
    const std::size_t end = std::min(blocks, patch.applied + budget);
    delta::apply_blocks(*patch.checked, (*streams_)[patch.stream]->packed(), to, patch.applied,
                        end);
    budget -= end - patch.applied;
    patch.applied = end;
    if (end < blocks) return;
  }
  finish_apply();
}

void VersionRead::finish_apply() {
  const Duration took = context_.measured() - begun_;
  update_.applying = nanoseconds(took);
  std::int64_t dense = 0;
  for (const auto& stream : origin_.streams) dense += stream->payload_bytes;
  const double share = update_.elements == 0 ? 0
                                             : static_cast<double>(update_.values) /
                                                   static_cast<double>(update_.elements);
  const double expected =
      delta::apply_cost(share) * static_cast<double>(dense) * delta::Speeds().copy_seconds_per_byte;
  if (context_.clock != nullptr && expected > 0) {
    held_->apply =
        delta::learnt(held_->apply, std::chrono::duration<double>(took).count() / expected);
  }
  if (verify_ != Verify::off) return begin_verifying();
  hold();
  finish({});
}

void VersionRead::begin_verifying() {
  phase_ = Phase::verifying;
  begun_ = context_.measured();
  SumCheck::Sources from;
  for (const auto& [rank, source] : origin_.sources) from[rank] = source.streams;
  sums_ =
      std::make_unique<SumCheck>(origin_.streams, from, verify_, origin_.version, origin_.targets);
  be_patient();
  for (const auto& [rank, source] : origin_.sources) {
    context_.connections.send(*source.connection, origin_.generation, origin_.serial,
                              AskSums{origin_.version, verify_});
  }
}

void VersionRead::on_sums(Rank rank, const VersionSums& sums) {
  if (phase_ != Phase::verifying || sums.version != origin_.version) return;
  if (!sums_->take(rank, sums)) return finish_verifying(false);
  be_patient();
}

void VersionRead::verify() {
  if (!summed_) summed_ = sums_->work();
  if (!summed_ || !sums_->answered()) return;
  const std::vector<std::size_t> different = sums_->different();
  if (different.empty()) return finish_verifying(true);
  std::vector<std::string> labels;
  for (const std::size_t target : different) labels.push_back(label_of(target));
  log::warn(
      "bus: rank {}: version {} was patched, and is not what the publishers have in {}: somebody "
      "has written there, although the link promised that nobody would; all of it is read",
      context_.rank, origin_.version, fmt::join(labels, ", "));
  read_dense(delta::Why::differs);
}

// Whoever cannot be asked, or has recycled the version, says nothing against it.
void VersionRead::finish_verifying(bool verified) {
  update_.verified = verified;
  update_.verifying = nanoseconds(context_.measured() - begun_);
  hold();
  finish({});
}

void VersionRead::hold() {
  held_->content = delta::HeldContent{origin_.generation, origin_.version};
  if (origin_.loan->lender() == nullptr) {
    held_->canaries.take(origin_.targets, static_cast<std::uint64_t>(origin_.version));
  }
}

void VersionRead::stop_fetching() {
  for (const Fetched& patch : patches_) {
    if (patch.running) context_.fabric.cancel(*patch.running);
  }
}

std::shared_ptr<Scratch> VersionRead::new_scratch() const {
  if (!origin_.manner.scratch || origin_.loan->lender() != nullptr) return nullptr;
  try {
    return std::make_shared<Scratch>(origin_.targets);
  } catch (const std::bad_alloc&) {
    log::warn("bus: rank {}: there is no memory for version {} beside the tensors", context_.rank,
              origin_.version);
    return nullptr;
  }
}

// What is being fetched goes on into memory that its operations keep.
void VersionRead::read_dense(delta::Why why) {
  stop_fetching();
  update_.why = why;
  update_.values = update_.bytes = 0;
  outcome_.bytes_by_path.clear();
  if (holds_back()) scratch_ = new_scratch();
  if (holds_back() && scratch_ == nullptr) {
    dense_later_ = why;
    return wait();
  }
  phase_ = Phase::dense;
  begun_ = context_.measured();
  const auto content = held_->content;
  const bool touched = held_->touched;
  if (scratch_ == nullptr) touch();
  recv_ = origin_.dense(scratch_);
  if (recv_ != nullptr) return;
  held_->content = content;
  held_->touched = touched;
  finish({Code::withdrawn,
          fmt::format("version {} was recycled before it was read", origin_.version)});
}

void VersionRead::step_dense() {
  recv_->step();
  if (!recv_->done()) return;
  outcome_ = recv_->outcome();
  if (!outcome_.status.ok()) {
    std::string& why = outcome_.status.message;
    if (scratch_ != nullptr) why.erase(std::min(why.find(said_of_targets), why.size()));
    return finish(outcome_.status);
  }
  const double seconds = std::chrono::duration<double>(context_.measured() - begun_).count();
  const auto bytes = static_cast<double>(recv_->bytes_total());
  if (context_.clock != nullptr && seconds > 0 && bytes > 0) {
    held_->rate = delta::learnt(held_->rate, bytes / seconds);
  }
  scratch_ != nullptr ? wait() : finish_dense();
}

void VersionRead::finish_dense() {
  if (scratch_ != nullptr) update_.applying = nanoseconds(context_.measured() - begun_);
  if (origin_.promises) hold();
  finish({});
}

void VersionRead::finish(Status status) {
  outcome_.status = std::move(status);
  if (origin_.promises) outcome_.update = update_;
  scratch_.reset();
  phase_ = Phase::done;
}

bool VersionRead::done() {
  if (phase_ == Phase::dense && recv_->done()) step_dense();
  return phase_ == Phase::done || phase_ == Phase::waiting;
}

std::int64_t VersionRead::bytes_done() const noexcept {
  if (recv_ != nullptr) return recv_->bytes_done();
  std::int64_t bytes = 0;
  for (const Fetched& patch : patches_) {
    if (patch.whole) bytes += patch.offered.bytes;
  }
  return bytes;
}

std::int64_t VersionRead::bytes_total() const noexcept {
  if (recv_ != nullptr) return recv_->bytes_total();
  std::int64_t bytes = 0;
  for (const Fetched& patch : patches_) bytes += patch.offered.bytes;
  return bytes;
}

std::optional<BeingRead> VersionRead::being_read() const {
  if (recv_ != nullptr) return recv_->being_read();
  if (phase_ == Phase::asking || phase_ == Phase::waiting || phase_ == Phase::done) {
    return std::nullopt;
  }
  BeingRead read{origin_.version, {}};
  for (const auto& [rank, source] : origin_.sources) read.from.push_back(rank);
  return read;
}

void VersionRead::lose_sources(const Status& why) {
  if (phase_ == Phase::applying) return;
  phase_ == Phase::verifying ? finish_verifying(false) : end(why);
}

void VersionRead::end(const Status& why) {
  if (phase_ == Phase::done || phase_ == Phase::waiting) return;
  if (phase_ == Phase::dense) return recv_->end(why);
  stop_fetching();
  finish({why.code, held_->touched
                        ? why.message + "; the tensors' contents are undefined until the next pull"
                        : why.message});
}

}  // namespace tensorbus::bus
