// Families as text that Prometheus reads.
#pragma once

#include <string>
#include <string_view>

#include "observe/metrics.h"

namespace tensorbus::observe {

enum class TextFormat : std::uint8_t {
  prometheus,   // text format 0.0.4
  openmetrics,  // OpenMetrics 1.0
};

// Which one a client takes, by the Accept header of its request.
TextFormat format_for(std::string_view accept) noexcept;
std::string_view content_type(TextFormat format) noexcept;
std::string to_text(const Families& families, TextFormat format);

}  // namespace tensorbus::observe
