#include "bus/report/status_record.h"

#include "wire/message.h"

namespace tensorbus::bus {
namespace {

constexpr std::size_t most_named = 16;
constexpr std::size_t longest_wait = 160;

}  // namespace

constexpr wire::Title title_of(const AgentStatus*) { return {"status record", 1}; }

template <typename Archive>
void fields(Archive& a, BatchStatus& batch) {
  a("batch", batch.batch);
  a("side", batch.side);
  a("work", batch.work);
  a("version", batch.version);
  a("moved_at", batch.moved_at);
  a("bytes", batch.bytes);
  a("took", batch.took);
  a("since", batch.since);
  a("bytes_done", batch.bytes_done);
  a("bytes_total", batch.bytes_total);
  a.list("from", batch.from, most_named);
  a.list("awaited", batch.awaited, most_named);
  a("waits", batch.waits);
}

template <typename Archive>
void fields(Archive& a, AgentStatus& status) {
  a("rank", status.rank);
  a.require(status.rank >= 0, "there is no such rank");
  a("host", status.host);
  a("pid", status.pid);
  a("embedded", status.embedded);
  a("written_at", status.written_at);
  a.list("batches", status.batches, largest_status);
  a("left_out", status.left_out);
  a("metrics", status.metrics);
}

std::string status_key(Rank rank) { return "agents/" + std::to_string(rank); }

std::string encode(AgentStatus status) {
  for (BatchStatus& batch : status.batches) {
    if (batch.from.size() > most_named) batch.from.resize(most_named);
    if (batch.awaited.size() > most_named) batch.awaited.resize(most_named);
    if (batch.waits.size() > longest_wait) batch.waits.resize(longest_wait);
  }
  std::string bytes = wire::write(status);
  for (std::size_t at = status.batches.size(); at-- > 0 && bytes.size() > largest_status;) {
    status.batches[at].waits.clear();
    bytes = wire::write(status);
  }
  while (bytes.size() > largest_status && !status.batches.empty()) {
    status.batches.pop_back();
    ++status.left_out;
    bytes = wire::write(status);
  }
  return bytes;
}

AgentStatus decode_status(std::string_view bytes) { return wire::read<AgentStatus>(bytes); }

std::string print_status(std::string_view bytes) { return wire::print(decode_status(bytes)); }

}  // namespace tensorbus::bus
