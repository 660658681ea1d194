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
  std::string space;
  std::string work;
  std::string what;
  std::int64_t version = 0;
  std::int64_t rank = 0;
  auto operator<=>(const Parcel&) const = default;
};

Parcel parcel_of(const std::string& work, const TraceEvent& args, std::int64_t rank) {
  return {args.value("namespace", ""), work, args.value("what", ""),
          args.value("version", std::int64_t{0}), rank};
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

// Of those that several runs into one folder have sent under one name: the last one that had begun
// to be there, but for what clocks may be off by and for who has heard of it before its sender.
const Move& sent_before(const std::vector<Move>& sent, const Move& came) {
  constexpr double slack = 1e6;  // microseconds
  const Move* found = &sent.front();
  for (const Move& each : sent) {
    const bool later = each.at() > found->at();
    const bool fits = each.at() <= came.at() + slack;
    if (found->at() > came.at() + slack ? !later : later && fits) found = &each;
  }
  return *found;
}

// Who got what from whom.
std::vector<Way> ways_between(const std::vector<Timeline>& timelines) {
  static const std::map<std::string, std::string> came_by{
      {"pull", "publish"}, {"recv", "send"}, {"answer", "request"}};
  std::map<Parcel, std::vector<Move>> sent;
  each_move(timelines, [&](const Move& move, const TraceEvent& args) {
    const auto rank = args.value("rank", std::int64_t{-1});
    sent[parcel_of(args.value("work", ""), args, rank)].push_back(move);
  });
  std::vector<Way> ways;
  each_move(timelines, [&](const Move& move, const TraceEvent& args) {
    const auto from = came_by.find(args.value("work", ""));
    if (from == came_by.end() || !args.contains("peers")) return;
    for (const TraceEvent& peer : args["peers"]) {
      const auto found = sent.find(parcel_of(from->second, args, peer.get<std::int64_t>()));
      if (found != sent.end()) ways.emplace_back(sent_before(found->second, move), move);
    }
  });
  return ways;
}

void shift(Timeline& timeline, double microseconds) {
  for (TraceEvent& event : timeline.events) {
    if (event.contains("ts")) event["ts"] = event.value("ts", 0.0) + microseconds;
  }
}

// By machine and machine, in microseconds: the clock of the first is moved by at most so much more
// than that of the second.
using Bounds = std::map<std::string, std::map<std::string, double>>;

// Nothing arrives before it has left, and by way of a third machine neither.
Bounds bounds_between(const std::vector<Timeline>& timelines) {
  Bounds most;
  for (const auto& [from, to] : ways_between(timelines)) {
    const std::string& left = from.timeline->boot;
    const std::string& came = to.timeline->boot;
    if (left == came) continue;
    const double took = to.at() - from.at();
    const auto [bound, fresh] = most[left].try_emplace(came, took);
    bound->second = std::min(bound->second, took);
    most.try_emplace(came);
  }
  for (const auto& [by, ways] : Bounds(most)) {
    for (auto& [left, reached] : most) {
      const auto there = reached.find(by);
      if (there == reached.end() || left == by) continue;
      const double first = there->second;
      for (const auto& [came, second] : most.at(by)) {
        if (came == left) continue;
        const auto [bound, fresh] = reached.try_emplace(came, first + second);
        bound->second = std::min(bound->second, first + second);
      }
    }
  }
  return most;
}

// Wall clocks of two machines differ, but nothing arrives before it has left: that bounds by how
// much each clock stands wrong against the others. None is moved further than it must be.
void mend_clocks(std::vector<Timeline>& timelines) {
  const Bounds most = bounds_between(timelines);
  const auto bound = [&](const std::string& left, const std::string& came) {
    const auto ways = most.find(left);
    if (ways == most.end() || !ways->second.contains(came)) {
      return std::numeric_limits<double>::infinity();
    }
    return ways->second.at(came);
  };
  std::map<std::string, double> moved;
  for (Timeline& timeline : timelines) {
    const auto [mine, fresh] = moved.try_emplace(timeline.boot, 0);
    if (fresh) {
      double least = -std::numeric_limits<double>::infinity();
      double largest = std::numeric_limits<double>::infinity();
      for (const auto& [other, by] : moved) {
        if (other == timeline.boot) continue;
        least = std::max(least, by - bound(other, timeline.boot));
        largest = std::min(largest, by + bound(timeline.boot, other));
      }
      mine->second = std::max(std::min(0.0, largest), least);
    }
    if (mine->second != 0) shift(timeline, mine->second);
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
