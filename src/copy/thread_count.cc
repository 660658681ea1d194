#include "copy/thread_count.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "base/config.h"
#include "base/refuse.h"
#include "copy/crew.h"
#include "os/process/cores.h"

namespace tensorbus::copy {
namespace {

constexpr const char* variable = "TENSORBUS_COPY_THREADS";

[[noreturn]] void refuse_count(const std::string& which, const std::string& value) {
  refuse(which + " is " + value + "; it is the number of threads that copy for a rank, 1 to " +
         std::to_string(most_threads) +
         ". Without it the cores are shared among the agents of this host");
}

bool is_allowed(std::int64_t count) {
  return count >= 1 && count <= static_cast<std::int64_t>(most_threads);
}

}  // namespace

std::optional<std::size_t> threads_asked_for(std::optional<std::int64_t> argument) {
  if (argument) {
    if (!is_allowed(*argument)) refuse_count("copy_threads", std::to_string(*argument));
    return static_cast<std::size_t>(*argument);
  }
  const auto text = config::variable(variable);
  if (!text) return std::nullopt;
  std::int64_t count = 0;
  const char* const end = text->data() + text->size();
  const auto [at, failure] = std::from_chars(text->data(), end, count);
  if (failure != std::errc{} || at != end || !is_allowed(count)) {
    refuse_count(variable, "\"" + *text + "\"");
  }
  return static_cast<std::size_t>(count);
}

std::size_t threads_beside(std::size_t agents_here) {
  return std::clamp(os::usable_cores() / std::max<std::size_t>(agents_here, 1), std::size_t{1},
                    most_threads);
}

}  // namespace tensorbus::copy
