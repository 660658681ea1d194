#include "bus/simulation/checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/overloaded.h"
#include "bus/directory/records.h"

namespace tensorbus::bus::simulation {
namespace {

// Said once per source in one joining.
bool is_of_joining(const MessageBody& body) {
  return std::visit(
      Overloaded{
          [](const OneOf<Subscribe, Join, Start, Leave, Follow> auto&) { return true; },
          [](const auto&) { return false; },
      },
      body);
}

}  // namespace

Checks::Checks(Cluster& cluster, Violate violate)
    : cluster_(cluster), violate_(std::move(violate)) {
  cluster_.store().watcher = [this](const auto& key, const auto& value) { on_store(key, value); };
  // A word may leave CONFLICT in the same step.
  cluster_.on_step = [this](Rank rank, Step step) {
    if (step == Step::conflicting) last_conflict_[rank] = steps_ + 1;
    if (on_step) on_step(rank, step);
  };
  fabric::tap_messages(cluster_.hub(),
                       [this](const auto& from, const auto& to, auto connection, auto bytes) {
                         return on_message(from, to, connection, std::move(bytes));
                       });
}

void Checks::note_registration(std::uint64_t registration, Life life) {
  lives_[registration] = life;
  life_begun_[life] = steps_;
  newest_[life.rank] = life.number;
  troubled_.insert(life.rank);
}

void Checks::note_registered(std::uint64_t registration, Rank rank, std::uint64_t since) {
  troubled_.erase(rank);
  const auto begun = begun_.find(registration);
  if (begun != begun_.end() && begun->second < since) {
    violate_("I17",
             fmt::format("rank {} has registered for a generation of an agent before", rank));
  }
}

std::optional<std::pair<End, std::int64_t>> Checks::generation_of(Life life) const {
  const auto found = generations_.find(life);
  return found == generations_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<Life> Checks::senders_with(Life sender) const {
  std::vector<Life> senders;
  const auto generation = generation_of(sender);
  for (const auto& [life, in] : generations_) {
    if (generation && in == *generation) senders.push_back(life);
  }
  return senders;
}

std::optional<std::int64_t> Checks::goes_on_until(Life sender) const {
  const auto generation = generation_of(sender);
  std::optional<std::int64_t> until;
  for (const auto& [life, in] : generations_) {
    if (!generation || in != *generation) continue;
    const auto death = deaths_.find(life.rank);
    if (death != deaths_.end() && death->second >= life_begun_.at(life)) return std::nullopt;
    const auto left = left_.find(life);
    if (left != left_.end()) until = std::min(until.value_or(left->second), left->second);
  }
  return until;
}

std::optional<Rank> Checks::waiting_for(Rank source, std::int64_t round) const {
  for (const auto& [line, word] : line_words_) {
    if (line.first == source && word == RoundWord{Mark::offered, round}) return line.second;
  }
  return std::nullopt;
}

bool Checks::left_about(Rank rank, std::uint64_t step) const {
  constexpr std::uint64_t a_while = 3'000;
  const auto left = last_left_.find(rank);
  return left != last_left_.end() && left->second + a_while >= step;
}

bool Checks::committed(Rank reader, std::int64_t round, std::uint64_t since) const {
  const auto found = last_read_.find({reader, round});
  return found != last_read_.end() && found->second > since;
}

void Checks::on_store(const std::string& key, const std::optional<std::string>& value) {
  const auto parsed = parse_key(key);
  if (!parsed || !value) return;
  std::visit(Overloaded{
                 [&](const BatchKey& batch) {
                   on_batch_record(batch, decode_batch_member(*value).registration);
                 },
                 [&](const GenerationKey& generation) {
                   on_generation(generation, decode_generation(*value));
                 },
                 [&](const ListKey& list) { on_list(list, *value); },
                 [](const OneOf<AgentKey, CallerKey, PairKey, VersionKey, ShelfKey> auto&) {},
             },
             *parsed);
}

void Checks::on_list(const ListKey& key, const std::string& bytes) {
  try {
    read_list(key.hash, bytes);
  } catch (const Error& error) {
    violate_("I28", fmt::format("{}: {}", to_text(key), error.what()));
  }
}

void Checks::on_batch_record(const BatchKey& key, std::uint64_t registration) {
  const auto life = lives_.find(registration);
  if (life == lives_.end() || life->second.number != newest_[key.rank]) return;
  if (generations_.contains(life->second)) return;  // published again
  if (!open_[key.rank].empty()) {
    violate_("I16", fmt::format("rank {} registers anew with round {} open", key.rank,
                                *open_[key.rank].begin()));
  }
}

void Checks::on_generation(const GenerationKey& key, const Generation& generation) {
  if (!generation.ended) {
    for (const auto& [rank, sender] : generation.senders) {
      const auto life = lives_.find(sender.registration);
      if (life == lives_.end() || life->second.rank != rank) {
        violate_("I17",
                 fmt::format("generation {}: rank {} has not registered", generation.number, rank));
        continue;
      }
      begun_.try_emplace(sender.registration, steps_);
      const auto [at, fresh] =
          generations_.emplace(life->second, std::pair(key.group, generation.number));
      if (!fresh && at->second != std::pair(key.group, generation.number)) {
        violate_("I17",
                 fmt::format("registration {} of rank {} is in generations {} and {}",
                             life->second.number, rank, at->second.second, generation.number));
      }
    }
    return;
  }
  const auto left = generation.senders.find(generation.left);
  if (left == generation.senders.end()) {
    return violate_("I12", fmt::format("generation {} was ended because of rank {}, which does "
                                       "not send in it",
                                       generation.number, generation.left));
  }
  const auto life = lives_.find(left->second.registration);
  const bool again = life != lives_.end() && life->second.number < newest_[generation.left];
  if (!again && !troubled_.contains(generation.left) && !lapsed_.contains(generation.left)) {
    violate_("I12", fmt::format("generation {} was ended because of rank {}, which is well: {}",
                                generation.number, generation.left, generation.why));
  }
}

void Checks::after_step(std::optional<Rank> acted) {
  ++steps_;
  open_now_.clear();
  fabric::visit_words(cluster_.hub(), [&](const fabric::MemoryWord& word) { look(word, acted); });
  for (const auto& [rank, rounds] : open_now_) {
    if (rounds.size() > 1) {
      violate_("I8", fmt::format("rank {} has {} rounds open", rank, rounds.size()));
    }
  }
  open_ = std::move(open_now_);
}

void Checks::look(const fabric::MemoryWord& now, std::optional<Rank> acted) {
  const Line line(rank_of(now.owner), rank_of(now.reader));
  const RoundWord word = unpack(now.value);
  const RoundWord before = std::exchange(words_[{now.connection, now.number}], word);
  if (!(before == word)) on_change(line, before, word, acted);
  if (!word.over()) open_now_[line.first].insert(word.round);
  line_words_[line] = word;
}

void Checks::on_change(Line line, RoundWord before, RoundWord now, std::optional<Rank> acted) {
  const auto [source, reader] = line;
  const bool by_source = acted == source;
  // In one step a source may end a round, open the next and end that.
  const bool went_on = by_source && before.mark != Mark::closed && now.round > before.round &&
                       now.mark != Mark::read && now.mark != Mark::skipped;
  const bool ended = by_source && now.mark == Mark::closed && now.round >= before.round;
  const bool allowed =
      went_on || ended || may_change(before, now, by_source ? Party::source : Party::reader);
  if (!allowed || (acted != source && acted != reader)) {
    violate_("I4", fmt::format("the word of rank {} for rank {} went from {} to {}", source, reader,
                               to_string(before), to_string(now)));
  }
  if (now.mark == Mark::offered) {
    last_offered_[line] = steps_;
    if (open_[source].contains(now.round)) {
      violate_("I8", fmt::format("rank {} lets rank {} into round {}, which was open", source,
                                 reader, now.round));
    }
  } else if (now.mark == Mark::read) {
    last_read_[{reader, now.round}] = steps_;
  } else if (now.mark == Mark::conflict) {
    check_conflict(line, by_source);
  }
  if (before.mark == Mark::offered) last_over_[line] = steps_;
}

// Two rounds were open and unread at one moment: the word of the other line was offered after that
// of this line, and was not over before.
void Checks::check_conflict(Line line, bool by_source) {
  const auto [source, reader] = line;
  const Line back(reader, source);
  const std::uint64_t offered = last_offered_[line];
  if (by_source) {
    // Both in one step if the other rank goes from one round to the next.
    const bool open = last_offered_[back] >= last_over_[back];
    const bool overlapped = last_offered_[back] != 0 && (open || last_over_[back] >= offered);
    if (!overlapped && !cluster_.weather.network) {
      violate_("I11", fmt::format("rank {} found a conflict with rank {}, which is not sending",
                                  source, reader));
    }
  } else if (last_conflict_[reader] < offered) {
    violate_("I11",
             fmt::format("rank {} ended the send of rank {} and not its own", reader, source));
  }
}

std::vector<std::string> Checks::on_message(const fabric::Identity& from,
                                            const fabric::Identity& to, std::uint64_t connection,
                                            std::string bytes) {
  told_.push_back(rank_of(to));
  AgentMessage message = decode_agent_message(bytes);
  if (on_said) on_said(rank_of(from), rank_of(to), message);
  if (is_of_joining(message.body)) count_join({rank_of(to), rank_of(from)}, message);
  // Each message comes a second time when its subscription is over: nobody may care. Only the
  // numbers of this connection tell a second SUBSCRIBE from the first.
  std::vector<std::string> said;
  std::vector<AgentMessage>& old = old_[connection];
  std::uint64_t& extra = replayed_[connection];
  if (std::holds_alternative<Subscribe>(message.body) ||
      std::holds_alternative<Subscribed>(message.body) ||
      std::holds_alternative<Shelved>(message.body) ||
      std::holds_alternative<Propose>(message.body) ||
      std::holds_alternative<Follow>(message.body)) {
    newest_serial_[connection] = message.serial;
    newest_of_[{connection, message.generation}] = message.serial;
  }
  message.sequence += extra;
  said.push_back(encode(message));
  const auto late = std::ranges::find_if(
      old, [&](const AgentMessage& each) { return is_over(connection, each); });
  if (late != old.end() && cluster_.random(2) == 0) {
    AgentMessage again = *late;
    old.erase(late);
    again.sequence = message.sequence + 1;
    ++extra;
    said.push_back(encode(again));
  }
  if (!std::holds_alternative<Subscribe>(message.body) &&
      !std::holds_alternative<Follow>(message.body)) {
    old.push_back(std::move(message));
  }
  return said;
}

// A rank that follows the first sender of a shelf which is retained follows the first sender of the
// next generation, too.
bool Checks::is_over(std::uint64_t connection, const AgentMessage& message) {
  const bool of_shelf = std::holds_alternative<Completed>(message.body) ||
                        std::holds_alternative<Common>(message.body);
  const std::uint64_t newest =
      of_shelf ? newest_of_[{connection, message.generation}] : newest_serial_[connection];
  return message.serial != newest;
}

void Checks::count_join(Line line, const AgentMessage& message) {
  const std::string what = fmt::format("{} to rank {}", name_of(message.body), line.first);
  if (++joins_[message.serial][what] > 1) {
    violate_("I10", fmt::format("rank {} says {} twice in one joining", line.second, what));
  }
}

// A list of tensors that no record refers to.
bool Checks::is_of_nobody(const RecordKey& key) const {
  const auto* list = std::get_if<ListKey>(&key);
  if (list == nullptr) return false;
  return std::ranges::none_of(cluster_.store().values, [&](const auto& each) {
    const auto other = parse_key(each.first);
    if (other && std::holds_alternative<BatchKey>(*other)) {
      return decode_batch_member(each.second).tensors.id.hash == list->hash;
    }
    return other && std::holds_alternative<ShelfKey>(*other) &&
           decode_shelf_record(each.second).member.tensors.id.hash == list->hash;
  });
}

void Checks::at_rest() {
  for (const auto& [rank, rounds] : open_) {
    if (!rounds.empty()) {
      violate_("I9", fmt::format("rank {} has round {} open at the end", rank, *rounds.begin()));
    }
  }
  for (const auto& [key, value] : cluster_.store().values) {
    const auto parsed = parse_key(key);
    if (!parsed) continue;
    if (std::holds_alternative<BatchKey>(*parsed) || is_of_nobody(*parsed)) {
      violate_("I9", "the record " + key + " is left over");
    }
  }
}

}  // namespace tensorbus::bus::simulation
