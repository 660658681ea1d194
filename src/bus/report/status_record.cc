#include "bus/report/status_record.h"

#include <algorithm>

#include "observe/text.h"
#include "wire/message.h"

namespace tensorbus::bus {
namespace {

constexpr std::size_t most_named = 16;
constexpr std::size_t most_batches = 64;  // far more than fit
constexpr std::size_t longest_name = 96;
constexpr std::size_t longest_wait = 160;

void shorten(std::string& text, std::size_t most) {
  text.resize(observe::cut_text(text, most).size());
}

template <typename List>
void keep_first(List& list, std::size_t most) {
  if (list.size() > most) list.erase(list.begin() + static_cast<std::ptrdiff_t>(most), list.end());
}

void shorten(BatchStatus& batch) {
  keep_first(batch.from, most_named);
  keep_first(batch.awaited, most_named);
  shorten(batch.batch, longest_name);
  shorten(batch.side, longest_name);
  shorten(batch.waits, longest_wait);
}

void leave_out(AgentStatus& status, std::size_t kept) {
  status.left_out += static_cast<std::int64_t>(status.batches.size() - kept);
  keep_first(status.batches, kept);
}

}  // namespace

constexpr wire::Title title_of(const AgentStatus*) { return {"status record", 2}; }

template <typename Archive>
void fields(Archive& a, BatchStatus& batch) {
  a("batch", batch.batch);
  a("side", batch.side);
  a("work", batch.work);
  a.natural("version", batch.version);
  a.natural("moved_at", batch.moved_at);
  a.natural("bytes", batch.bytes);
  a.natural("took", batch.took);
  a.natural("world_size", batch.world_size);
  a.natural("since", batch.since);
  a.natural("bytes_done", batch.bytes_done);
  a.natural("bytes_total", batch.bytes_total);
  a("reads", batch.reads);
  a.list("from", batch.from, most_named);
  a.list("awaited", batch.awaited, most_named);
  a("waits", batch.waits);
}

template <typename Archive>
void fields(Archive& a, AgentStatus& status) {
  a.natural("rank", status.rank);
  a("host", status.host);
  a.natural("pid", status.pid);
  a("embedded", status.embedded);
  a.natural("written_at", status.written_at);
  a.list("batches", status.batches, most_batches);
  a.natural("left_out", status.left_out);
  a("metrics", status.metrics);
}

std::string_view shown_batch(std::string_view batch) noexcept {
  const std::size_t slash = batch.find('/');
  return slash == std::string_view::npos ? batch : batch.substr(slash + 1);
}

std::string status_key(Rank rank) { return "agents/" + std::to_string(rank); }

std::string encode(AgentStatus status) {
  if (status.batches.size() > most_batches) leave_out(status, most_batches);
  for (BatchStatus& batch : status.batches) shorten(batch);
  shorten(status.host, longest_name);
  shorten(status.metrics, longest_name);
  std::string bytes = wire::write(status);
  if (bytes.size() > largest_status) {
    for (BatchStatus& batch : status.batches) batch.waits.clear();
    bytes = wire::write(status);
  }
  // As many as would fit if all were alike: few writings, however many there are.
  for (std::size_t count = status.batches.size(); bytes.size() > largest_status && count > 0;) {
    count = std::min(count - 1, count * largest_status / bytes.size());
    leave_out(status, count);
    bytes = wire::write(status);
  }
  return bytes;
}

AgentStatus decode_status(std::string_view bytes) { return wire::read<AgentStatus>(bytes); }

std::string print_status(std::string_view bytes) { return wire::print(decode_status(bytes)); }

}  // namespace tensorbus::bus
