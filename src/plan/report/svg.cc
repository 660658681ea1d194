#include "plan/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tensorbus::plan {
namespace {

constexpr std::size_t most_boxes = 32;  // per side; beyond it neighbours share one
constexpr double width = 900;
constexpr double margin = 24;
constexpr double header = 64;
constexpr double box_width = 150;
constexpr double box_height = 56;
constexpr double gap = 10;
constexpr double tile = 40;  // the little map of the tensor inside a box
constexpr double band_edge = 14;

// Neighbouring ranks of one side that are drawn as one.
struct Plate {
  Rank first = 0;
  Rank last = 0;
  std::size_t ranks = 0;
  std::int64_t bytes = 0;
  double top = 0;
  double used = 0;  // of the edge where bands meet the box
};

struct Column {
  std::vector<Plate> boxes;
  std::map<Rank, std::size_t> box_of;
  double left = 0;
  double height = 0;
};

Column column_of(const std::map<Rank, Traffic>& side, double left) {
  Column column;
  column.left = left;
  const std::size_t per_box = (side.size() + most_boxes - 1) / most_boxes;
  for (const auto& [rank, traffic] : side) {
    if (column.boxes.empty() || column.boxes.back().ranks == per_box) {
      column.boxes.push_back({rank, rank, 0, 0, 0, 0});
    }
    Plate& box = column.boxes.back();
    box.last = rank;
    ++box.ranks;
    box.bytes += traffic.bytes;
    column.box_of[rank] = column.boxes.size() - 1;
  }
  column.height = static_cast<double>(column.boxes.size()) * (box_height + gap) - gap;
  return column;
}

void place(Column& column, double height) {
  double top = header + margin + (height - column.height) / 2;
  for (Plate& box : column.boxes) {
    box.top = top;
    top += box_height + gap;
  }
}

// Neighbours get colours that are far apart: hues at steps of the golden angle. In hexadecimal,
// which every viewer knows.
std::string colour(std::size_t index) {
  const double hue = std::fmod(static_cast<double>(index) * 137.508 + 210, 360) / 60;
  const double lightness = 0.46 + 0.08 * static_cast<double>(index % 3);
  const double chroma = 0.62 * (1 - std::abs(2 * lightness - 1));
  const auto channel = [&](double shift) {
    const double distance = std::abs(std::fmod(hue + shift, 6.0) - 3) - 1;
    const double level = chroma * std::clamp(distance, 0.0, 1.0) + lightness - chroma / 2;
    return static_cast<int>(std::lround(255 * level));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", channel(0), channel(4), channel(2));
}

std::string text(double x, double y, int size, std::string_view fill, std::string_view content) {
  std::string escaped;
  for (const char c : content) {
    if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '&') {
      escaped += "&amp;";
    } else {
      escaped += c;
    }
  }
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" fill=\"{}\">{}</text>\n", x,
                     y, size, fill, escaped);
}

std::string rectangle(double x, double y, double w, double h, std::string_view style) {
  return fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" {}/>\n", x,
                     y, w, h, style);
}

// The global indices of local ones.
Intervals global(const Intervals& held, const Spans& spans) {
  Intervals found;
  for (const Span& span : spans) {
    std::int64_t position = 0;
    for (const Interval& interval : held) {
      const std::int64_t begin = std::max(span.target, position);
      const std::int64_t end = std::min(span.target + span.length, position + interval.size());
      const std::int64_t shift = interval.begin - position;
      if (begin < end) found.push_back({begin + shift, end + shift});
      position += interval.size();
    }
  }
  return found;
}

// Draws regions of one tensor, seen along its first two dimensions that have any extent.
class Map {
 public:
  explicit Map(const Plan& plan) : shape_(plan.shape()) {
    for (std::size_t dim = 0; dim < shape_.size() && axes_.size() < 2; ++dim) {
      if (shape_[dim] > 1) axes_.push_back(dim);
    }
  }

  std::string frame(double x, double y) const {
    return rectangle(x, y, tile, tile, "fill=\"#f1f3f5\" stroke=\"#868e96\" stroke-width=\"0.5\"");
  }

  std::string region(double x, double y, const std::vector<Intervals>& dims,
                     const std::string& fill) const {
    // More bars than can be seen are drawn as what they span.
    constexpr std::size_t most_bars = 40;
    const auto bars = [&](std::size_t axis) {
      if (axis >= axes_.size()) return Intervals{{0, 1}};
      const Intervals& all = dims[axes_[axis]];
      if (all.size() <= most_bars) return all;
      return Intervals{{all.front().begin, all.back().end}};
    };
    const auto scale = [&](std::size_t axis) {
      return axis < axes_.size() ? tile / static_cast<double>(shape_[axes_[axis]]) : tile;
    };
    // A tensor of one dimension reads from left to right.
    const std::size_t down = axes_.size() > 1 ? 0 : 1;
    const std::size_t across = axes_.size() > 1 ? 1 : 0;
    std::string drawn;
    for (const Interval& row : bars(down)) {
      for (const Interval& column : bars(across)) {
        drawn += rectangle(x + static_cast<double>(column.begin) * scale(across),
                           y + static_cast<double>(row.begin) * scale(down),
                           static_cast<double>(column.size()) * scale(across),
                           static_cast<double>(row.size()) * scale(down),
                           fmt::format("fill=\"{}\"", fill));
      }
    }
    return drawn;
  }

 private:
  Shape shape_;
  std::vector<std::size_t> axes_;
};

class Picture {
 public:
  Picture(const Model& model, const Summary& summary)
      : model_(model),
        summary_(summary),
        sources_(column_of(summary.sources, margin)),
        targets_(column_of(summary.targets, width - margin - box_width)) {
    const double tallest = std::max(sources_.height, targets_.height);
    place(sources_, tallest);
    place(targets_, tallest);
    height_ = header + tallest + 2 * margin;
  }

  std::string draw() {
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
        "width=\"{0:.0f}\" height=\"{1:.0f}\" font-family=\"sans-serif\">\n",
        width, height_);
    out_ += rectangle(0, 0, width, height_, "fill=\"#ffffff\"");
    draw_title();
    draw_bands();
    draw_boxes(sources_, "source");
    draw_boxes(targets_, "target");
    if (model_.size() == 1) draw_maps(model_.front().plan);
    return out_ + "</svg>\n";
  }

 private:
  void draw_title() {
    std::string what = fmt::format("{} tensors", model_.size());
    std::string how = "";
    if (model_.size() == 1) {
      const Plan& plan = model_.front().plan;
      what = fmt::format("{} of {}", to_string(plan.shape()), to_string(plan.types().source));
      how = fmt::format("{}  ->  {}", to_string(plan.source()), to_string(plan.target()));
    }
    out_ += text(margin, 30, 18, "#212529", how.empty() ? what : how);
    out_ += text(
        margin, 52, 13, "#495057",
        fmt::format("{}{} move in {} pieces; busiest source {:.2f} x the mean, busiest "
                    "target {:.2f} x",
                    how.empty() ? "" : what + ": ", human_bytes(summary_.moved_bytes),
                    summary_.pieces, imbalance(summary_.sources), imbalance(summary_.targets)));
  }

  void draw_bands() {
    std::map<std::pair<std::size_t, std::size_t>, std::int64_t> between;
    for (const auto& [ranks, bytes] : summary_.bytes_between) {
      between[{sources_.box_of[ranks.first], targets_.box_of[ranks.second]}] += bytes;
    }
    std::int64_t most = 1;
    for (const Column* column : {&sources_, &targets_}) {
      for (const Plate& box : column->boxes) most = std::max(most, box.bytes);
    }
    const double per_byte = (box_height - band_edge) / static_cast<double>(most);
    for (const auto& [boxes, bytes] : between) {
      Plate& source = sources_.boxes[boxes.first];
      Plate& target = targets_.boxes[boxes.second];
      const double thick = static_cast<double>(bytes) * per_byte;
      const double from = edge(source, per_byte) + thick / 2;
      const double to = edge(target, per_byte) + thick / 2;
      source.used += thick;
      target.used += thick;
      const double left = sources_.left + box_width;
      const double middle = (left + targets_.left) / 2;
      out_ += fmt::format(
          "<path d=\"M{0:.1f} {1:.1f} C{2:.1f} {1:.1f} {2:.1f} {3:.1f} {4:.1f} {3:.1f}\" "
          "fill=\"none\" stroke=\"{5}\" stroke-opacity=\"0.55\" stroke-width=\"{6:.2f}\">"
          "<title>source {7} to target {8}: {9}</title></path>\n",
          left, from, middle, to, targets_.left, colour(boxes.first), std::max(thick, 0.6),
          name(source), name(target), human_bytes(bytes));
    }
  }

  // Where the next band meets a box: bands are centred on its edge.
  static double edge(const Plate& box, double per_byte) {
    const double all = static_cast<double>(box.bytes) * per_byte;
    return box.top + (box_height - all) / 2 + box.used;
  }

  static std::string name(const Plate& box) {
    return box.ranks == 1 ? fmt::format("{}", box.first)
                          : fmt::format("{}..{}", box.first, box.last);
  }

  void draw_boxes(const Column& column, const char* side) {
    for (std::size_t i = 0; i < column.boxes.size(); ++i) {
      const Plate& box = column.boxes[i];
      const bool source = &column == &sources_;
      out_ += rectangle(column.left, box.top, box_width, box_height,
                        fmt::format("rx=\"5\" fill=\"#f8f9fa\" stroke=\"{}\" stroke-width=\"1.5\"",
                                    source ? colour(i) : "#495057"));
      const double x = column.left + (maps_fit() ? tile + 18 : 12);
      out_ += text(x, box.top + 25, 13, "#212529", fmt::format("{} {}", side, name(box)));
      out_ += text(x, box.top + 42, 11, "#495057", human_bytes(box.bytes));
    }
  }

  bool maps_fit() const {
    return model_.size() == 1 && sources_.boxes.size() == sources_.box_of.size() &&
           targets_.boxes.size() == targets_.box_of.size();
  }

  void draw_maps(const Plan& plan) {
    if (!maps_fit() || element_count(plan.shape()) == 0) return;
    const Map map(plan);
    const double inset = (box_height - tile) / 2;
    for (const auto& [rank, index] : sources_.box_of) {
      const double y = sources_.boxes[index].top + inset;
      out_ += map.frame(sources_.left + 9, y);
      out_ += map.region(sources_.left + 9, y, plan.source().holding(plan.shape(), rank).dims,
                         colour(index));
    }
    for (const auto& [rank, index] : targets_.box_of) {
      const double y = targets_.boxes[index].top + inset;
      const Holding holding = plan.target().holding(plan.shape(), rank);
      out_ += map.frame(targets_.left + 9, y);
      for (const Piece& piece : plan.reads(rank)) {
        std::vector<Intervals> dims;
        for (std::size_t dim = 0; dim < piece.dims.size(); ++dim) {
          dims.push_back(global(holding.dims[dim], piece.dims[dim]));
        }
        out_ += map.region(targets_.left + 9, y, dims,
                           colour(sources_.box_of.at(piece.source.ranks.front())));
      }
    }
  }

  const Model& model_;
  const Summary& summary_;
  Column sources_;
  Column targets_;
  double height_ = 0;
  std::string out_;
};

}  // namespace

std::string to_svg(const Model& model, const Summary& summary) {
  return Picture(model, summary).draw();
}

}  // namespace tensorbus::plan
