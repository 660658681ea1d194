#include "push_pull/job/membership.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/bytes.h"
#include "base/log.h"
#include "base/secret.h"
#include "base/waiting.h"
#include "push_pull/job/records.h"

namespace tensorbus::push_pull {
namespace {

const std::string job_key = "push_pull/job";
// Barriers miss a node that dies after this time; nodes that talk to it know sooner.
constexpr Duration time_to_live = std::chrono::seconds(5);
// The rank of a node that has lapsed can be taken again after this time at the latest.
constexpr Duration lapse_grace = std::chrono::seconds(2);
// The scheduler is given up when it could not be reached for so long.
constexpr Duration patience_with_scheduler = std::chrono::seconds(5);
// How often the scheduler is asked whether it is there while nothing changes.
constexpr Duration look_every = std::chrono::seconds(1);
// How long the scheduler serves nodes that have not yet seen that all is over.
constexpr Duration farewell = std::chrono::seconds(5);

// What stands at a rank's place while somebody takes it; no record begins so.
constexpr std::string_view claim_mark = "?";

std::string shape(int workers, int servers, int group_size) {
  return fmt::format("{} worker and {} server groups of {}", workers, servers, group_size);
}

int instances(const Job& job, Role role) {
  if (role == Role::scheduler) return 1;
  return (role == Role::worker ? job.workers : job.servers) * job.group_size;
}

std::string names(const auto& members) {
  std::vector<std::string> texts;
  for (const Member& member : members) texts.push_back(to_string(member));
  return fmt::format("{}", fmt::join(texts, ", "));
}

// The member of a text like "worker/3"; nothing if the text names none.
std::optional<Member> parse_member(std::string_view text) {
  for (const Role role : {Role::scheduler, Role::server, Role::worker}) {
    const std::string_view name = to_string(role);
    if (!text.starts_with(name) || text.size() < name.size() + 2) continue;
    const std::string_view number = text.substr(name.size() + 1);
    int rank = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
    if (error == std::errc() && end == number.data() + number.size()) return Member{role, rank};
  }
  return std::nullopt;
}

Status lost_at_start(const Member& member) {
  return {Code::peer_lost, to_string(member) + " was lost while the job was starting"};
}

}  // namespace

std::string_view to_string(Role role) noexcept {
  switch (role) {
    case Role::scheduler:
      return "scheduler";
    case Role::server:
      return "server";
    case Role::worker:
      break;
  }
  return "worker";
}

std::string to_string(const Member& member) {
  if (member.role == Role::scheduler) return "the scheduler";
  return fmt::format("{} {}", to_string(member.role), member.rank);
}

void check(const Job& job) {
  if (job.workers < 1 || job.servers < 1 || job.group_size < 1 || job.workers > largest_job ||
      job.servers > largest_job || job.group_size > largest_job) {
    throw Error(Code::invalid_argument,
                fmt::format("a job of {}; each number must be at least 1",
                            shape(job.workers, job.servers, job.group_size)));
  }
}

void check(const Job& job, const Member& member) {
  check(job);
  const int count = instances(job, member.role);
  if (member.rank < 0 || member.rank >= count) {
    throw Error(Code::invalid_argument,
                fmt::format("{} rank {}, but the job has {}, so that ranks are 0 to {}",
                            to_string(member.role), member.rank,
                            shape(job.workers, job.servers, job.group_size), count - 1));
  }
}

void publish_job(Store& store, const Job& job, Deadline deadline) {
  const JobRecord record{to_hex(view(random_id())), to_hex(view(random_id())), job.workers,
                         job.servers, job.group_size};
  store.set(std::array{Entry{job_key, tensorbus::wire::write(record)}}, deadline);
}

void withdraw_job(Store& store, Deadline deadline) { store.erase(job_key, deadline); }

Membership::Membership(const Member& self, const NodeOptions& options)
    : self_(self), job_(options.job) {
  check(job_, self_);
  StoreUrl url;
  url.hosts = {{job_.host, job_.port}};
  store_ = connect(url, {options.deadline, options.token});
  find_job(options);
}

Membership::~Membership() { close(); }

void Membership::find_job(const NodeOptions& options) {
  JobRecord record;
  try {
    Condition published;
    published.key = job_key;
    record = tensorbus::wire::read<JobRecord>(store_->wait(published, options.deadline).value);
  } catch (const Error& error) {
    if (error.code() != Code::timeout) throw;
    throw Error(Code::timeout,
                fmt::format("{} serves no push-pull job: is it the scheduler?", store_->url()));
  }
  if (record.workers != job_.workers || record.servers != job_.servers ||
      record.group_size != job_.group_size) {
    throw Error(Code::invalid_argument,
                fmt::format("{} was told of {}, its scheduler of {}", to_string(self_),
                            shape(job_.workers, job_.servers, job_.group_size),
                            shape(record.workers, record.servers, record.group_size)));
  }
  secret_ = record.secret;
  prefix_ = "push_pull/" + record.id + "/";
}

std::string Membership::key(const char* what, const Member& member) const {
  return fmt::format("{}{}/{}/{}", prefix_, what, to_string(member.role), member.rank);
}

std::vector<Member> Membership::everybody() const {
  std::vector<Member> all;
  for (const Role role : {Role::scheduler, Role::server, Role::worker}) {
    for (int rank = 0; rank < instances(job_, role); ++rank) all.push_back({role, rank});
  }
  return all;
}

// First a mark, since nothing is set under a lease only if it is absent; others count who has a
// record.
void Membership::claim(const std::string& record, Deadline deadline) {
  const std::string own = key("member", self_);
  const std::string mark = std::string(claim_mark) + to_hex(view(random_id()));
  const Deadline patience = sooner(deadline, Deadline::after(time_to_live + lapse_grace));
  std::optional<std::string> expected;
  while (true) {
    const Swap swap = store_->compare_and_set(own, expected, mark, deadline);
    if (swap.swapped) break;
    expected.reset();
    // A node that died a moment ago still has its lease: the lease is given time to lapse.
    const std::unique_ptr<Watch> watch = store_->watch(own, false, deadline);
    try {
      if (store_->exists(own, deadline)) watch->next(patience);
    } catch (const Error& error) {
      if (error.code() != Code::timeout) throw;
      // A mark that stays was left by a node that died before it had its rank.
      if (swap.value && swap.value->starts_with(claim_mark)) {
        expected = swap.value;
        continue;
      }
      throw Error(Code::invalid_argument,
                  fmt::format("there are two nodes of rank {} among the {}s of this job; ranks are "
                              "unique",
                              self_.rank, to_string(self_.role)));
    }
  }
  store_->set(std::array{Entry{own, record}}, deadline, lease_.get());
}

void Membership::join(const std::string& record, Deadline deadline) {
  lease_ = store_->lease(time_to_live, {}, deadline);
  claim(record, deadline);
  watch_ = store_->watch("push_pull/", true, deadline);
  follower_ = std::thread([this] { follow_changes(); });
}

template <typename Done>
bool Membership::wait(Lock& lock, Deadline deadline, Done done) {
  return tensorbus::wait(lock, changed_, deadline, [&]() REQUIRES(mutex_) {
    if (done()) return true;
    if (scheduler_lost_) throw Error(*scheduler_lost_);
    return false;
  });
}

std::vector<Member> Membership::missing(const std::map<Member, std::string>& from) const {
  std::vector<Member> absent;
  for (const Member& member : everybody()) {
    if (!from.contains(member)) absent.push_back(member);
  }
  return absent;
}

void Membership::wait_for_all(Deadline deadline) {
  Lock lock(mutex_);
  const bool decided = wait(lock, deadline, [this]() REQUIRES(mutex_) {
    return another_gave_up_ || first_lost_ || missing(records_).empty();
  });
  if (missing(records_).empty() && !first_lost_) return;
  Status failure;
  if (another_gave_up_) {
    failure = *another_gave_up_;
  } else if (decided) {
    failure = lost_at_start(*first_lost_);
  } else {
    failure = {Code::timeout,
               fmt::format("the job is not complete; missing: {}", names(missing(records_)))};
    lock.unlock();
    say_that_we_give_up(failure.message);
    lock.lock();
  }
  if (self_.role == Role::scheduler) {
    wait(lock, Deadline::after(farewell),
         [this]() REQUIRES(mutex_) { return records_.size() <= 1; });
  }
  throw Error(failure);
}

// The other nodes end too, and know why before they see this node go.
void Membership::say_that_we_give_up(const std::string& why) {
  try {
    const std::string text = fmt::format("{} has given up: {}", to_string(self_), why);
    store_->set(std::array{Entry{key("gave_up", self_), text}},
                Deadline::after(patience_with_scheduler), lease_.get());
  } catch (const Error& error) {
    log::warn("push-pull: the others do not know that we give up: {}", error.what());
  }
}

std::string Membership::record(const Member& member) const {
  const Lock lock(mutex_);
  return records_.at(member);
}

std::optional<Status> Membership::lost() const {
  const Lock lock(mutex_);
  if (!first_lost_) return std::nullopt;
  return lost_at_start(*first_lost_);
}

void Membership::publish_address(const std::string& address, Deadline deadline) {
  store_->set(std::array{Entry{key("address", self_), address}}, deadline, lease_.get());
}

std::string Membership::address(const Member& member, Deadline deadline) {
  Lock lock(mutex_);
  const bool there = wait(lock, deadline, [&]() REQUIRES(mutex_) {
    return addresses_.contains(member) || lost_.contains(member);
  });
  if (lost_.contains(member)) {
    throw Error(lost_at_start(member));
  }
  if (!there) {
    throw Error(Code::timeout, to_string(member) + " did not say how the network reaches it");
  }
  return addresses_.at(member);
}

std::set<Member> Membership::members_of(const Party& party) const {
  std::set<Member> members;
  for (const Member& member : everybody()) {
    if (member.role == Role::scheduler) continue;
    if (member.role == Role::server ? !party.servers : !party.workers) continue;
    const bool lane = member.rank % job_.group_size == self_.rank % job_.group_size;
    if (party.all_lanes || lane) members.insert(member);
  }
  return members;
}

void Membership::barrier(const Party& party, Deadline deadline) {
  Barrier barrier{members_of(party), {}, {}};
  if (!barrier.members.contains(self_)) {
    throw Error(Code::invalid_argument, to_string(self_) + " has no part in this barrier");
  }
  std::string name = prefix_ + "barrier";
  if (party.servers) name += "/servers";
  if (party.workers) name += "/workers";
  if (!party.all_lanes) name += fmt::format("/lane {}", self_.rank % job_.group_size);
  {
    const Lock lock(mutex_);
    if (scheduler_lost_) throw Error(*scheduler_lost_);
    for (const Member& member : barrier.members) {
      if (lost_.contains(member) || left_.contains(member)) barrier.lost = member;
    }
    if (!barrier.lost) barriers_.insert(&barrier);
  }
  Status failure{Code::peer_lost, ""};
  if (!barrier.lost) {
    try {
      store_->barrier(name, barrier.members.size(), to_string(self_), deadline,
                      &barrier.cancellation);
      failure = {};
    } catch (const Error& error) {
      failure = error.status();
    }
  }
  const Lock lock(mutex_);
  barriers_.erase(&barrier);
  if (failure.ok()) return;
  if (barrier.lost) {
    throw Error(Code::peer_lost, fmt::format("{} is gone and will not come to this barrier",
                                             to_string(*barrier.lost)));
  }
  if (scheduler_lost_) throw Error(*scheduler_lost_);
  throw Error(failure);
}

void Membership::say_goodbye(Deadline deadline) {
  while (true) {
    {
      const Lock lock(mutex_);
      if (scheduler_lost_) throw Error(*scheduler_lost_);
    }
    try {
      return store_->set(std::array{Entry{key("left", self_), ""}},
                         sooner(deadline, Deadline::after(patience_with_scheduler)));
    } catch (const Error& error) {
      if (error.code() == Code::unreachable) {
        lose_scheduler(error.what());
      } else if (error.code() != Code::timeout || deadline.expired()) {
        throw;
      }
    }
  }
}

void Membership::leave(Deadline deadline) {
  const bool schedules = self_.role == Role::scheduler;
  {
    const Lock lock(mutex_);
    leaving_ = true;
  }
  if (schedules) withdraw_job(*store_, deadline);
  say_goodbye(deadline);
  std::set<Member> awaited;
  {
    Lock lock(mutex_);
    const auto here = [&]() REQUIRES(mutex_) {
      awaited.clear();
      for (const Member& member : everybody()) {
        if (!left_.contains(member) && !lost_.contains(member)) awaited.insert(member);
      }
      if (job_is_over_) awaited.clear();
      return !awaited.empty();
    };
    const bool all = wait(lock, deadline, [&]() REQUIRES(mutex_) { return !here(); });
    // All nodes have left or are lost by now, but some may still have to hear so from the store.
    if (all && schedules) {
      wait(lock, sooner(deadline, Deadline::after(farewell)),
           [this]() REQUIRES(mutex_) { return records_.size() <= 1; });
    }
  }
  close();
  if (!awaited.empty()) {
    throw Error(Code::timeout, names(awaited) + " did not stop in time");
  }
}

void Membership::close() noexcept {
  if (store_ == nullptr || closed_.exchange(true)) return;
  // First the watch: this node's own end is no news. Then the store, which the thread of this
  // object may be asking.
  if (watch_ != nullptr) watch_->close();
  store_->close(!scheduler_is_lost());
  if (follower_.joinable()) follower_.join();
  watch_.reset();
}

bool Membership::scheduler_is_lost() const {
  const Lock lock(mutex_);
  return scheduler_lost_.has_value();
}

void Membership::follow_changes() {
  while (true) {
    try {
      take(watch_->next(Deadline::after(look_every)));
      continue;
    } catch (const Error& error) {
      if (error.code() == Code::cancelled) return;
      if (error.code() != Code::timeout) return lose_scheduler(error.what());
    }
    try {
      store_->exists(job_key, Deadline::after(patience_with_scheduler));
    } catch (const Error& error) {
      if (error.code() == Code::cancelled) return;
      if (error.code() == Code::unreachable) lose_scheduler(error.what());
    }
  }
}

void Membership::take(const StoreEvent& event) {
  const bool put = event.kind == StoreEvent::Kind::put;
  if (event.key == job_key) {
    // The job's record is withdrawn at the end; another record means another scheduler.
    if (put && "push_pull/" + tensorbus::wire::read<JobRecord>(event.value).id + "/" != prefix_)
      begin_of_another_job();
    return;
  }
  if (!event.key.starts_with(prefix_)) return;
  const std::string_view rest = std::string_view(event.key).substr(prefix_.size());
  const std::string_view what = rest.substr(0, rest.find('/'));
  if (what.size() == rest.size()) return;
  const auto member = parse_member(rest.substr(what.size() + 1));
  if (!member) return;
  const Lock lock(mutex_);
  if (what == "member") {
    if (put) {
      if (!event.value.starts_with(claim_mark)) records_[*member] = event.value;
    } else if (records_.erase(*member) > 0 && !left_.contains(*member)) {
      lose(*member);
    }
  } else if (what == "gave_up" && put) {
    if (!another_gave_up_) another_gave_up_ = {Code::timeout, event.value};
  } else if (what == "address" && put) {
    addresses_[*member] = event.value;
  } else if (what == "left" && put) {
    left_.insert(*member);
    // Nobody who left comes to a barrier.
    for (Barrier* barrier : barriers_) {
      if (!barrier->members.contains(*member)) continue;
      barrier->lost = *member;
      barrier->cancellation.cancel();
    }
  }
  changed_.notify_all();
}

// To a node that leaves, the beginning of the next job says what the node wants to know: this job
// is over.
void Membership::begin_of_another_job() {
  {
    const Lock lock(mutex_);
    job_is_over_ = leaving_;
    changed_.notify_all();
    if (leaving_) return;
  }
  lose_scheduler("another one was started in its place; start this node again");
}

void Membership::lose(const Member& member) {
  if (!lost_.insert(member).second) return;
  if (!first_lost_) first_lost_ = member;
  log::warn("push-pull: {} is gone", to_string(member));
  for (Barrier* barrier : barriers_) {
    if (!barrier->members.contains(member)) continue;
    barrier->lost = member;
    barrier->cancellation.cancel();
  }
}

void Membership::lose_scheduler(const std::string& why) {
  const Lock lock(mutex_);
  if (scheduler_lost_) return;
  scheduler_lost_ = {Code::unreachable,
                     fmt::format("the scheduler at {} is gone: {}", store_->url(), why)};
  log::warn("push-pull: {}", scheduler_lost_->message);
  for (Barrier* barrier : barriers_) barrier->cancellation.cancel();
  changed_.notify_all();
}

}  // namespace tensorbus::push_pull
