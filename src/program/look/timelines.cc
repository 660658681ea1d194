#include "program/look/timelines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <utility>

#include "tensorbus/status.h"

namespace tensorbus::program {
namespace {

// One event a line: what a process that was killed has not finished is passed over.
Timeline read_timeline(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw Error(Code::failed, fmt::format("{} cannot be read", path.string()));
  Timeline timeline;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with(',')) line.pop_back();
    if (!line.starts_with('{')) continue;
    TraceEvent event = TraceEvent::parse(line, nullptr, false);
    if (event.is_discarded() || !event.contains("ph")) continue;
    if (event.value("name", "") == "tensorbus_clock") {
      const TraceEvent& clock = event["args"];
      timeline.boot = clock.value("boot", "");
      timeline.offset_ns =
          clock.value("wall_ns", std::int64_t{0}) - clock.value("steady_ns", std::int64_t{0});
    } else {
      timeline.events.push_back(std::move(event));
    }
  }
  return timeline;
}

std::int64_t nanoseconds(const TraceEvent& event, const char* what) {
  return std::llround(event.value(what, 0.0) * 1000);
}

// What a publish or send, and the pull or recv of it, have in common.
struct Parcel {
  std::string work;
  std::string what;
  std::int64_t version = 0;
  std::int64_t rank = 0;
  auto operator<=>(const Parcel&) const = default;
};

Parcel parcel_of(const std::string& work, const TraceEvent& args, std::int64_t rank) {
  return {work, args.value("what", ""), args.value("version", std::int64_t{0}), rank};
}

// An event that something has come from, or come to.
struct Move {
  const Timeline* timeline = nullptr;
  const TraceEvent* event = nullptr;

  // When it left, or arrived: no arrow points back in time.
  double at() const {
    const std::string work = (*event)["args"].value("work", "");
    const double begin = event->value("ts", 0.0);
    const bool at_end = work == "publish" || work == "pull" || work == "recv";
    // Inside of the slice that it belongs to.
    return at_end ? begin + std::max(0.0, event->value("dur", 0.0) - 0.001) : begin;
  }
};
using Way = std::pair<Move, Move>;

template <typename Look>
void each_move(const std::vector<Timeline>& timelines, const Look& look) {
  for (const Timeline& timeline : timelines) {
    for (const TraceEvent& event : timeline.events) {
      if (!event.contains("args")) continue;
      const TraceEvent& args = event["args"];
      if (args.contains("work") && args.value("outcome", "") == "ok") {
        look(Move{&timeline, &event}, args);
      }
    }
  }
}

// Who got what from whom.
std::vector<Way> ways_between(const std::vector<Timeline>& timelines) {
  static const std::map<std::string, std::string> came_by{
      {"pull", "publish"}, {"recv", "send"}, {"answer", "request"}};
  std::map<Parcel, Move> sent;
  each_move(timelines, [&](const Move& move, const TraceEvent& args) {
    const auto rank = args.value("rank", std::int64_t{-1});
    sent[parcel_of(args.value("work", ""), args, rank)] = move;
  });
  std::vector<Way> ways;
  each_move(timelines, [&](const Move& move, const TraceEvent& args) {
    const auto from = came_by.find(args.value("work", ""));
    if (from == came_by.end() || !args.contains("peers")) return;
    for (const TraceEvent& peer : args["peers"]) {
      const auto found = sent.find(parcel_of(from->second, args, peer.get<std::int64_t>()));
      if (found != sent.end()) ways.emplace_back(found->second, move);
    }
  });
  return ways;
}

void shift(Timeline& timeline, double microseconds) {
  for (TraceEvent& event : timeline.events) {
    if (event.contains("ts")) event["ts"] = event.value("ts", 0.0) + microseconds;
  }
}

// Wall clocks of two machines differ, but nothing arrives before it has left: that bounds by how
// much the clock of each stands wrong against the first one's.
void mend_clocks(std::vector<Timeline>& timelines) {
  struct Bounds {
    double least = -std::numeric_limits<double>::infinity();
    double most = std::numeric_limits<double>::infinity();
  };
  const std::string first = timelines.front().boot;
  std::map<std::string, Bounds> bounds;
  for (const auto& [from, to] : ways_between(timelines)) {
    const double took = to.at() - from.at();
    const std::string& left = from.timeline->boot;
    const std::string& came = to.timeline->boot;
    if (left == came) continue;
    if (left == first) bounds[came].least = std::max(bounds[came].least, -took);
    if (came == first) bounds[left].most = std::min(bounds[left].most, took);
  }
  for (Timeline& timeline : timelines) {
    const auto found = bounds.find(timeline.boot);
    if (found == bounds.end()) continue;
    const auto& [least, most] = found->second;
    const double off = std::max(std::min(0.0, most), least);
    if (off != 0) shift(timeline, off);
  }
}

TraceEvent arrow_end(const Move& move, std::int64_t id, bool begins) {
  const TraceEvent& of = *move.event;
  TraceEvent arrow{
      {"ph", begins ? "s" : "f"}, {"id", id},         {"name", "version"}, {"cat", "flow"},
      {"pid", of["pid"]},         {"tid", of["tid"]}, {"ts", move.at()}};
  if (!begins) arrow["bp"] = "e";
  return arrow;
}

}  // namespace

std::vector<Timeline> read_timelines(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("tensorbus-") && name.ends_with(".json")) paths.push_back(entry.path());
  }
  if (paths.empty()) {
    throw Error(Code::invalid_argument,
                fmt::format("there is no trace in {}; run the job with TENSORBUS_TRACE={}", folder,
                            folder));
  }
  std::ranges::sort(paths);
  std::vector<Timeline> timelines;
  for (const auto& path : paths) timelines.push_back(read_timeline(path));
  return timelines;
}

// Processes of one machine have one clock: how it stands to the wall clock is asked once for all,
// so that nobody is shifted against another.
void put_on_one_clock(std::vector<Timeline>& timelines) {
  std::map<std::string, std::int64_t> offsets;
  std::int64_t base = std::numeric_limits<std::int64_t>::max();
  for (Timeline& timeline : timelines) {
    timeline.offset_ns = offsets.try_emplace(timeline.boot, timeline.offset_ns).first->second;
    for (const TraceEvent& event : timeline.events) {
      if (!event.contains("ts")) continue;
      base = std::min(base, nanoseconds(event, "ts") + timeline.offset_ns);
    }
  }
  for (std::size_t at = 0; at < timelines.size(); ++at) {
    for (TraceEvent& event : timelines[at].events) {
      event["pid"] = at + 1;  // pids of several machines may be the same
      if (!event.contains("ts")) continue;
      const std::int64_t since = nanoseconds(event, "ts") + timelines[at].offset_ns - base;
      event["ts"] = static_cast<double>(since) / 1000;
    }
  }
  mend_clocks(timelines);
}

std::vector<TraceEvent> arrows_between(const std::vector<Timeline>& timelines) {
  std::vector<TraceEvent> arrows;
  for (const auto& [from, to] : ways_between(timelines)) {
    const auto id = static_cast<std::int64_t>(arrows.size() / 2 + 1);
    arrows.push_back(arrow_end(from, id, true));
    arrows.push_back(arrow_end(to, id, false));
  }
  return arrows;
}

}  // namespace tensorbus::program
