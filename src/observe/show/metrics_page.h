// GET /metrics: the numbers of this process, for Prometheus.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "observe/show/http.h"

namespace tensorbus::observe {

// The page of this process at the address (HOST:PORT), or at TENSORBUS_METRICS; null if neither is
// there. Whoever has got it keeps it open. An address of the environment that cannot be used is
// only warned of: a job of many processes has the same one in all of them.
std::shared_ptr<HttpServer> open_metrics(const std::optional<std::string>& address);

}  // namespace tensorbus::observe
