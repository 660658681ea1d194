#include "program/look/job.h"

#include "base/config.h"
#include "base/log.h"
#include "bus/directory/records.h"
#include "store/common/lease_times.h"

namespace tensorbus::program {
namespace {

std::string job_url(const JobPlace& place) {
  if (!place.url.empty()) return place.url;
  if (const auto url = config::variable("TENSORBUS_STORE")) return *url;
  throw Error(Code::invalid_argument,
              "which store? give --store URL or set TENSORBUS_STORE (for example "
              "tensorbus://127.0.0.1:29500)");
}

std::string job_space(const JobPlace& place, const StoreUrl& url) {
  if (!place.space.empty()) return url.space_or(place.space);
  return url.space_or(config::variable("TENSORBUS_NAMESPACE").value_or("default"));
}

}  // namespace

JobSight::JobSight(const JobPlace& place, std::optional<std::string> token)
    : place_(place),
      token_(std::move(token)),
      url_(StoreUrl::parse(job_url(place))),
      space_(job_space(place, url_)),
      scope_(space_, bus::component_of_status),
      records_(space_, bus::component_of_records) {}

JobSight::~JobSight() {
  if (store_ != nullptr) store_->close(true);
}

Store& JobSight::store(Deadline deadline) {
  if (store_ == nullptr) store_ = connect(url_, {deadline, token_});
  return *store_;
}

bus::Catalog JobSight::records() {
  const Deadline deadline = Deadline::after_seconds(place_.timeout);
  const auto keys = store(deadline).list(records_.full(""), deadline);
  const auto values = store(deadline).get(keys, deadline);
  bus::Catalog catalog;
  for (std::size_t at = 0; at < keys.size(); ++at) {
    if (values[at]) catalog.apply({std::string(records_.local(keys[at])), values[at]});
  }
  return catalog;
}

// Nothing of a store that does not know, or of one of an older release.
std::vector<std::optional<double>> JobSight::leases_left(const std::vector<std::string>& keys,
                                                         Deadline deadline) {
  std::vector<std::optional<double>> left(keys.size());
  auto* known = dynamic_cast<store::LeaseTimes*>(store_.get());
  if (known == nullptr) return left;
  try {
    const auto times = known->lease_times(keys, deadline);
    for (std::size_t at = 0; at < keys.size(); ++at) {
      if (!times[at]) continue;
      left[at] = std::chrono::duration<double>(times[at]->left) / times[at]->time_to_live;
    }
  } catch (const Error& error) {
    if (error.code() != Code::invalid_argument) throw;
  }
  return left;
}

std::vector<bus::AgentStatus> JobSight::look() {
  const Deadline deadline = Deadline::after_seconds(place_.timeout);
  const auto keys = store(deadline).list(scope_.full("agents/"), deadline);
  const auto values = store(deadline).get(keys, deadline);
  const auto left = leases_left(keys, deadline);
  std::vector<bus::AgentStatus> agents;
  for (std::size_t at = 0; at < keys.size(); ++at) {
    if (!values[at]) continue;
    try {
      agents.push_back(bus::decode_status(*values[at]));
      agents.back().lease_left = left[at];
    } catch (const Error& error) {
      log::warn("a record is passed over: {}", error.what());
    }
  }
  return agents;
}

}  // namespace tensorbus::program
