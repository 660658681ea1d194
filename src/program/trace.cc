// tensorbus trace: the timelines of many processes as one, and in figures.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "program/commands.h"
#include "tensorbus/status.h"

namespace tensorbus::program {
namespace {

using Event = nlohmann::json;

struct TraceOptions {
  std::string folder;
  std::string output = "-";
};

// One process's file, on a clock that all files share.
struct Timeline {
  std::string boot;
  std::int64_t offset_ns = 0;  // from its clock to the wall clock's
  std::vector<Event> events;
};

// One event a line: what a process that was killed has not finished is passed over.
Timeline read_timeline(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw Error(Code::failed, fmt::format("{} cannot be read", path.string()));
  Timeline timeline;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with(',')) line.pop_back();
    if (!line.starts_with('{')) continue;
    Event event = Event::parse(line, nullptr, false);
    if (event.is_discarded() || !event.contains("ph")) continue;
    if (event.value("name", "") == "tensorbus_clock") {
      const Event& clock = event["args"];
      timeline.boot = clock.value("boot", "");
      timeline.offset_ns =
          clock.value("wall_ns", std::int64_t{0}) - clock.value("steady_ns", std::int64_t{0});
    } else {
      timeline.events.push_back(std::move(event));
    }
  }
  return timeline;
}

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

std::int64_t nanoseconds(const Event& event, const char* what) {
  return std::llround(event.value(what, 0.0) * 1000);
}

// Processes of one machine have one clock: how it stands to the wall clock is asked once for all,
// so that nobody is shifted against another. `base`: what becomes 0.
void shift_to_one_clock(std::vector<Timeline>& timelines) {
  std::map<std::string, std::int64_t> offsets;
  std::int64_t base = std::numeric_limits<std::int64_t>::max();
  for (Timeline& timeline : timelines) {
    timeline.offset_ns = offsets.try_emplace(timeline.boot, timeline.offset_ns).first->second;
    for (const Event& event : timeline.events) {
      if (event.contains("ts"))
        base = std::min(base, nanoseconds(event, "ts") + timeline.offset_ns);
    }
  }
  for (std::size_t at = 0; at < timelines.size(); ++at) {
    for (Event& event : timelines[at].events) {
      event["pid"] = at + 1;  // pids of several machines may be the same
      if (!event.contains("ts")) continue;
      const std::int64_t since = nanoseconds(event, "ts") + timelines[at].offset_ns - base;
      event["ts"] = static_cast<double>(since) / 1000;
    }
  }
}

// What a publish or send, and the pull or recv of it, have in common.
struct Parcel {
  std::string work;
  std::string what;
  std::int64_t version = 0;
  std::int64_t rank = 0;
  auto operator<=>(const Parcel&) const = default;
};

Event arrow_end(const Event& of, std::int64_t id, bool begins) {
  // Inside of the slice that it belongs to.
  const double at = of.value("ts", 0.0) + std::max(0.0, of.value("dur", 0.0) - 0.001);
  Event arrow{{"ph", begins ? "s" : "f"}, {"id", id},         {"name", "version"}, {"cat", "flow"},
              {"pid", of["pid"]},         {"tid", of["tid"]}, {"ts", at}};
  if (!begins) arrow["bp"] = "e";
  return arrow;
}

std::vector<Event> arrows_between(const std::vector<Timeline>& timelines) {
  static const std::map<std::string, std::string> came_by{{"pull", "publish"}, {"recv", "send"}};
  std::map<Parcel, const Event*> sent;
  const auto each_move = [&](const auto& look) {
    for (const Timeline& timeline : timelines) {
      for (const Event& event : timeline.events) {
        if (!event.contains("args")) continue;
        const Event& args = event["args"];
        if (args.contains("work") && args.value("outcome", "") == "ok") look(event, args);
      }
    }
  };
  const auto parcel = [](const std::string& work, const Event& args, std::int64_t rank) {
    return Parcel{work, args.value("what", ""), args.value("version", std::int64_t{0}), rank};
  };
  each_move([&](const Event& event, const Event& args) {
    sent[parcel(args.value("work", ""), args, args.value("rank", std::int64_t{-1}))] = &event;
  });
  std::vector<Event> arrows;
  each_move([&](const Event& event, const Event& args) {
    const auto from = came_by.find(args.value("work", ""));
    if (from == came_by.end() || !args.contains("peers")) return;
    for (const Event& peer : args["peers"]) {
      const auto found = sent.find(parcel(from->second, args, peer.get<std::int64_t>()));
      if (found == sent.end()) continue;
      const auto id = static_cast<std::int64_t>(arrows.size() / 2 + 1);
      arrows.push_back(arrow_end(*found->second, id, true));
      arrows.push_back(arrow_end(event, id, false));
    }
  });
  return arrows;
}

int merge_traces(const TraceOptions& options) {
  std::vector<Timeline> timelines = read_timelines(options.folder);
  shift_to_one_clock(timelines);
  Event events = Event::array();
  for (const Timeline& timeline : timelines) {
    for (const Event& event : timeline.events) events.push_back(event);
  }
  const std::vector<Event> arrows = arrows_between(timelines);
  for (const Event& arrow : arrows) events.push_back(arrow);
  const Event merged{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
  if (options.output == "-") {
    std::cout << merged.dump() << '\n';
    return exit_ok;
  }
  std::ofstream file(options.output);
  file << merged.dump() << '\n';
  file.close();
  if (!file) throw Error(Code::failed, fmt::format("{} cannot be written", options.output));
  std::cerr << fmt::format("{}: {} processes, {} arrows\n", options.output, timelines.size(),
                           arrows.size() / 2);
  return exit_ok;
}

struct Figures {
  std::vector<double> milliseconds;

  double quantile(double share) {
    std::ranges::sort(milliseconds);
    const auto last = static_cast<double>(milliseconds.size() - 1);
    return milliseconds[static_cast<std::size_t>(std::llround(share * last))];
  }
};

int summarise_traces(const TraceOptions& options) {
  const std::vector<Timeline> timelines = read_timelines(options.folder);
  std::map<std::pair<std::string, std::string>, Figures> phases;  // work, phase
  std::map<std::int64_t, Figures> readers;
  std::map<std::int64_t, std::size_t> last_sources;
  for (const Timeline& timeline : timelines) {
    for (const Event& event : timeline.events) {
      if (event.value("ph", "") != "X" || !event.contains("args")) continue;
      const Event& args = event["args"];
      const std::string phase = args.contains("of") ? event.value("name", "") : "";
      const double took = event.value("dur", 0.0) / 1000;
      phases[{args.value(phase.empty() ? "work" : "of", ""), phase}].milliseconds.push_back(took);
      if (phase == "read") {
        readers[event.value("tid", std::int64_t{-1})].milliseconds.push_back(took);
      }
      if (!phase.empty()) continue;
      if (const auto source = args.value("slowest", std::int64_t{-1}); source >= 0) {
        ++last_sources[source];
      }
    }
  }
  std::cout << fmt::format("{:13} {:8} {:>7} {:>11} {:>11}\n", "work", "phase", "count", "p50 ms",
                           "p99 ms");
  for (auto& [name, figures] : phases) {
    std::cout << fmt::format("{:13} {:8} {:>7} {:>11.3f} {:>11.3f}\n", name.first,
                             name.second.empty() ? "all" : name.second, figures.milliseconds.size(),
                             figures.quantile(0.5), figures.quantile(0.99));
  }
  const auto slowest =
      std::ranges::max_element(readers, {}, [](auto& entry) { return entry.second.quantile(0.5); });
  if (slowest != readers.end()) {
    std::cout << fmt::format("slowest reader: rank {}, which reads for {:.3f} ms (median)\n",
                             slowest->first, slowest->second.quantile(0.5));
  }
  const auto waited =
      std::ranges::max_element(last_sources, {}, [](const auto& entry) { return entry.second; });
  if (waited != last_sources.end()) {
    std::cout << fmt::format("slowest source: rank {}, whose bytes came last {} times\n",
                             waited->first, waited->second);
  }
  return exit_ok;
}

}  // namespace

void add_trace(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("trace", "Timelines that processes wrote with TENSORBUS_TRACE=FOLDER");
  command->require_subcommand(1);
  auto options = std::make_shared<TraceOptions>();
  CLI::App* merge = command->add_subcommand(
      "merge", "Join them on one clock, with arrows from a publish to each pull of it");
  CLI::App* summary =
      command->add_subcommand("summary", "How long the phases took, and who is slow");
  for (CLI::App* each : {merge, summary}) {
    each->add_option("folder", options->folder, "Where the files are")->required();
  }
  merge->add_option("-o,--output", options->output, "File for Perfetto or chrome://tracing")
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  TENSORBUS_TRACE=/tmp/trace python trainer.py\n"
      "  tensorbus trace merge /tmp/trace -o job.json   # open in https://ui.perfetto.dev\n"
      "  tensorbus trace summary /tmp/trace");
  merge->callback([options, &run] { run = [options] { return merge_traces(*options); }; });
  summary->callback([options, &run] { run = [options] { return summarise_traces(*options); }; });
}

}  // namespace tensorbus::program
