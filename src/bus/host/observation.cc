#include "bus/host/observation.h"

#include "observe/registry.h"

namespace tensorbus::bus {
namespace {

observe::Labels labels_of(const ObservationOptions& options) {
  return {{"namespace", options.space}, {"rank", std::to_string(options.rank)}};
}

void collect(observe::Families& families, const observe::Labels& labels, const fabric::Pool& pool) {
  const PoolUse use = pool.use();
  const auto add = [&](const char* state, std::size_t bytes) {
    observe::Labels more = labels;
    more.emplace_back("state", state);
    families.add(observe::MetricKind::gauge, "tensorbus_pool_bytes",
                 "Memory of the pool that peers map.", std::move(more), static_cast<double>(bytes));
  };
  add("lent", use.lent_bytes);
  add("free", use.reserved_bytes - use.lent_bytes);
}

}  // namespace

Observation::Observation(Channel& channel, const std::shared_ptr<fabric::Pool>& pool,
                         const ObservationOptions& options)
    : page_(observe::open_metrics(options.metrics)),
      trace_(observe::open_trace(std::nullopt)),
      recorder_(labels_of(options)),
      pool_numbers_(
          observe::registry().add([pool, labels = labels_of(options)](observe::Families& families) {
            collect(families, labels, *pool);
          })),
      channel_(channel, recorder_, options.rank) {
  report_.rank = options.rank;
  report_.embedded = options.embedded;
  report_.period = status_period();
  if (page_ != nullptr) report_.metrics = page_->url() + "/metrics";
}

}  // namespace tensorbus::bus
