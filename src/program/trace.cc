// tensorbus trace: the timelines of many processes as one, and in figures.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>

#include "program/commands.h"
#include "program/look/timelines.h"
#include "tensorbus/status.h"

namespace tensorbus::program {
namespace {

struct TraceOptions {
  std::string folder;
  std::string output = "-";
};

int merge_traces(const TraceOptions& options) {
  std::vector<Timeline> timelines = read_timelines(options.folder);
  put_on_one_clock(timelines);
  TraceEvent events = TraceEvent::array();
  for (const Timeline& timeline : timelines) {
    for (const TraceEvent& event : timeline.events) events.push_back(event);
  }
  const std::vector<TraceEvent> arrows = arrows_between(timelines);
  for (const TraceEvent& arrow : arrows) events.push_back(arrow);
  const TraceEvent merged{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
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
  std::map<std::int64_t, Figures> pullers;  // how long they wait
  std::map<std::int64_t, std::size_t> last_sources;
  for (const Timeline& timeline : timelines) {
    for (const TraceEvent& event : timeline.events) {
      if (event.value("ph", "") != "X" || !event.contains("args")) continue;
      const TraceEvent& args = event["args"];
      const std::string phase = args.contains("of") ? event.value("name", "") : "";
      const double took = event.value("dur", 0.0) / 1000;
      phases[{args.value(phase.empty() ? "work" : "of", ""), phase}].milliseconds.push_back(took);
      if (phase == "read") {
        readers[event.value("tid", std::int64_t{-1})].milliseconds.push_back(took);
      }
      if (phase == "wait" && args.value("of", "") == "pull") {
        pullers[event.value("tid", std::int64_t{-1})].milliseconds.push_back(took);
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
  const auto median = [](auto& entry) { return entry.second.quantile(0.5); };
  if (pullers.size() > 1) {
    const auto [least, most] = std::ranges::minmax_element(pullers, {}, median);
    std::cout << fmt::format(
        "shortest wait in a pull: rank {}, for {:.3f} ms; longest: rank {}, for {:.3f} ms "
        "(medians)\n",
        least->first, median(*least), most->first, median(*most));
  }
  const auto slowest = std::ranges::max_element(readers, {}, median);
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
