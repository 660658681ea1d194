#include "observe/openmetrics.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <iterator>

namespace tensorbus::observe {
namespace {

using Text = std::back_insert_iterator<std::string>;

// Backslash and line feed everywhere, quotation marks in labels.
std::string escaped(std::string_view text, bool label) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\\' || (label && c == '"')) {
      out += '\\';
      out += c;
    } else {
      out += c;
    }
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string braces(const Labels& labels, std::string_view more = {}) {
  if (labels.empty() && more.empty()) return "";
  std::string out = "{";
  for (const auto& [name, value] : labels) {
    if (out.size() > 1) out += ',';
    out += fmt::format("{}=\"{}\"", name, escaped(value, true));
  }
  if (!more.empty()) out += fmt::format("{}{}", out.size() > 1 ? "," : "", more);
  return out + "}";
}

void write_distribution(Text out, const std::string& name, const Sample& sample) {
  for (const auto& [bound, count] : sample.distribution.buckets) {
    fmt::format_to(out, "{}_bucket{} {}\n", name,
                   braces(sample.labels, fmt::format("le=\"{}\"", number(bound))), count);
  }
  fmt::format_to(out, "{}_bucket{} {}\n", name, braces(sample.labels, "le=\"+Inf\""),
                 sample.distribution.count);
  fmt::format_to(out, "{}_sum{} {}\n", name, braces(sample.labels),
                 number(sample.distribution.sum));
  fmt::format_to(out, "{}_count{} {}\n", name, braces(sample.labels), sample.distribution.count);
}

void write_family(Text out, const std::string& name, const Family& family, TextFormat format) {
  constexpr std::array<std::string_view, 3> kinds{"counter", "gauge", "histogram"};
  const bool counts = family.kind == MetricKind::counter;
  const std::string series = counts ? name + "_total" : name;
  // OpenMetrics names the family without its suffix, the older format with it.
  const std::string& named = format == TextFormat::openmetrics ? name : series;
  fmt::format_to(out, "# HELP {} {}\n", named, escaped(family.help, false));
  fmt::format_to(out, "# TYPE {} {}\n", named, kinds[static_cast<std::size_t>(family.kind)]);
  for (const Sample& sample : family.samples) {
    if (family.kind == MetricKind::histogram) {
      write_distribution(out, name, sample);
    } else {
      fmt::format_to(out, "{}{} {}\n", series, braces(sample.labels), number(sample.value));
    }
  }
}

}  // namespace

TextFormat format_for(std::string_view accept) noexcept {
  return accept.find("application/openmetrics-text") == std::string_view::npos
             ? TextFormat::prometheus
             : TextFormat::openmetrics;
}

std::string_view content_type(TextFormat format) noexcept {
  return format == TextFormat::openmetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

std::string to_text(const Families& families, TextFormat format) {
  std::string text;
  for (const auto& [name, family] : families.all()) {
    write_family(std::back_inserter(text), name, family, format);
  }
  if (format == TextFormat::openmetrics) text += "# EOF\n";
  return text;
}

}  // namespace tensorbus::observe
