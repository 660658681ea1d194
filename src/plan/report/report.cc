// A summary as text for people and as JSON for programs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "plan/report/summary.h"

namespace tensorbus::plan {
namespace {

using nlohmann::json;

constexpr std::size_t most_rows = 32;

std::string layout_line(const Model& model, const Layout& (Plan::*side)() const) {
  if (model.empty()) return "no tensors";
  const Layout& first = (model.front().plan.*side)();
  const bool same = std::ranges::all_of(
      model, [&](const ModelTensor& tensor) { return (tensor.plan.*side)() == first; });
  return same ? to_string(first) : "several layouts";
}

std::string shape_text(const Shape& shape) {
  if (shape.empty()) return "scalar";
  return fmt::format("{}", fmt::join(shape, "x"));
}

std::string types_text(Types types) {
  if (types.source == types.target) return std::string(to_string(types.source));
  return fmt::format("{} -> {}", to_string(types.source), to_string(types.target));
}

std::string tensor_line(const Model& model, const Summary& summary) {
  if (model.size() != 1) {
    return fmt::format("{} tensors, {}", model.size(), human_bytes(summary.tensor_bytes));
  }
  const Plan& plan = model.front().plan;
  return fmt::format("{} {}, {}", shape_text(plan.shape()), types_text(plan.types()),
                     human_bytes(summary.tensor_bytes));
}

void add_rows(std::string& text, const char* name, const std::map<Rank, Traffic>& side) {
  std::vector<std::pair<Rank, Traffic>> rows(side.begin(), side.end());
  const bool cut = rows.size() > most_rows;
  if (cut) {
    std::ranges::stable_sort(rows, std::greater{},
                             [](const auto& row) { return row.second.bytes; });
    rows.resize(most_rows);
  }
  for (const auto& [rank, traffic] : rows) {
    text += fmt::format("{:<7} {:>6} {:>12} {:>7} {:>8}\n", name, rank, human_bytes(traffic.bytes),
                        traffic.peers, traffic.pieces);
  }
  if (cut) {
    text += fmt::format("{:<7}    ... {} more, none busier; --json has all\n", name,
                        side.size() - most_rows);
  }
}

json traffic_json(const std::map<Rank, Traffic>& side) {
  json ranks = json::array();
  for (const auto& [rank, traffic] : side) {
    ranks.push_back({{"rank", rank},
                     {"bytes", traffic.bytes},
                     {"peers", traffic.peers},
                     {"pieces", traffic.pieces}});
  }
  return {{"imbalance", imbalance(side)}, {"ranks", std::move(ranks)}};
}

json piece_json(const Piece& piece) {
  json dims = json::array();
  for (const Spans& spans : piece.dims) {
    json list = json::array();
    for (const Span& span : spans) {
      list.push_back({{"source", span.source}, {"target", span.target}, {"length", span.length}});
    }
    dims.push_back(std::move(list));
  }
  json folds = json::array();
  for (const Fold& fold : piece.source.folds) {
    folds.push_back({{"op", to_string(fold.op)}, {"count", fold.count}});
  }
  return {{"target", piece.target},
          {"sources", piece.source.ranks},
          {"folds", std::move(folds)},
          {"elements", piece.elements()},
          {"dims", std::move(dims)}};
}

}  // namespace

std::string human_bytes(std::int64_t bytes) {
  constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

std::string to_table(const Model& model, const Summary& summary, double link_bytes_per_second) {
  std::string text;
  text += fmt::format("source   {} ({} ranks)\n", layout_line(model, &Plan::source),
                      summary.sources.size());
  text += fmt::format("target   {} ({} ranks)\n", layout_line(model, &Plan::target),
                      summary.targets.size());
  text += fmt::format("tensor   {}\n", tensor_line(model, summary));
  text += fmt::format("moved    {} in {} pieces, {} runs\n", human_bytes(summary.moved_bytes),
                      summary.pieces, summary.runs);
  text += fmt::format("balance  busiest source {:.2f} x the mean, busiest target {:.2f} x\n",
                      imbalance(summary.sources), imbalance(summary.targets));
  if (link_bytes_per_second > 0) {
    text += fmt::format("time     {:.3f} ms at {:.1f} GB/s per rank\n",
                        1e3 * seconds_over(summary, link_bytes_per_second),
                        link_bytes_per_second / 1e9);
  }
  text +=
      fmt::format("\n{:<7} {:>6} {:>12} {:>7} {:>8}\n", "side", "rank", "bytes", "peers", "pieces");
  add_rows(text, "source", summary.sources);
  add_rows(text, "target", summary.targets);
  return text;
}

std::string to_json(const Model& model, const Summary& summary, double link_bytes_per_second) {
  json tensors = json::array();
  for (const ModelTensor& tensor : model) {
    const Plan& plan = tensor.plan;
    tensors.push_back({{"name", tensor.name},
                       {"shape", plan.shape()},
                       {"dtype", to_string(plan.types().source)},
                       {"target_dtype", to_string(plan.types().target)},
                       {"wire_dtype", to_string(plan.wire_dtype())},
                       {"source", to_string(plan.source())},
                       {"target", to_string(plan.target())}});
  }
  if (model.size() == 1) {
    json pieces = json::array();
    const Plan& plan = model.front().plan;
    for (const Rank target : plan.target().mesh().ranks()) {
      for (const Piece& piece : plan.reads(target)) pieces.push_back(piece_json(piece));
    }
    tensors[0]["pieces"] = std::move(pieces);
  }
  json between = json::array();
  for (const auto& [ranks, bytes] : summary.bytes_between) {
    between.push_back({{"source", ranks.first}, {"target", ranks.second}, {"bytes", bytes}});
  }
  json all = {{"tensors", std::move(tensors)},
              {"tensor_bytes", summary.tensor_bytes},
              {"moved_bytes", summary.moved_bytes},
              {"pieces", summary.pieces},
              {"runs", summary.runs},
              {"sources", traffic_json(summary.sources)},
              {"targets", traffic_json(summary.targets)},
              {"bytes_between", std::move(between)}};
  if (link_bytes_per_second > 0) all["seconds"] = seconds_over(summary, link_bytes_per_second);
  return all.dump(2);
}

}  // namespace tensorbus::plan
