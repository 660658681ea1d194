#include "observe/show/metrics_page.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/config.h"
#include "base/log.h"
#include "base/mutex.h"
#include "observe/openmetrics.h"
#include "observe/registry.h"
#include "tensorbus/status.h"

namespace tensorbus::observe {
namespace {

PageAnswer metrics_answer(const PageRequest& request) {
  const TextFormat format = format_for(request.accept);
  return {to_text(registry().collect(), format), std::string(content_type(format))};
}

std::shared_ptr<HttpServer> serve(const std::string& address) {
  auto page = std::make_shared<HttpServer>(
      parse_page_address(address), Pages{{"/metrics", &metrics_answer}}, registry().watch());
  log::info("observe: metrics of this process at {}/metrics", page->url());
  return page;
}

ProcessMutex pages_mutex;

}  // namespace

std::shared_ptr<HttpServer> open_metrics(const std::optional<std::string>& address) {
  static auto& open = *new std::map<std::string, std::weak_ptr<HttpServer>>;
  const auto wanted = address ? address : config::variable("TENSORBUS_METRICS");
  if (!wanted) return nullptr;
  const Lock lock(pages_mutex);
  auto& known = open[fmt::format("{} {}", ::getpid(), *wanted)];
  if (auto there = known.lock()) return there;
  try {
    auto made = serve(*wanted);
    known = made;
    return made;
  } catch (const Error& error) {
    if (address) throw;
    log::warn("observe: TENSORBUS_METRICS is ignored: {}; with port 0 every process has its own",
              error.what());
    return nullptr;
  }
}

}  // namespace tensorbus::observe
