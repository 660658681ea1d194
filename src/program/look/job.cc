#include "program/job.h"

#include "base/config.h"
#include "base/log.h"
#include "bus/directory/records.h"
#include "program/commands.h"

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

Job::Job(const JobPlace& place)
    : place_(place),
      url_(StoreUrl::parse(job_url(place))),
      space_(job_space(place, url_)),
      scope_(space_, bus::component_of_status) {}

Job::~Job() {
  if (store_ != nullptr) store_->close(true);
}

std::vector<bus::AgentStatus> Job::look() {
  const Deadline deadline = Deadline::after_seconds(place_.timeout);
  if (store_ == nullptr) store_ = connect(url_, {deadline, read_token(place_.token_file)});
  const auto keys = store_->list(scope_.full("agents/"), deadline);
  std::vector<bus::AgentStatus> agents;
  for (const auto& value : store_->get(keys, deadline)) {
    if (!value) continue;
    try {
      agents.push_back(bus::decode_status(*value));
    } catch (const Error& error) {
      log::warn("a record is passed over: {}", error.what());
    }
  }
  return agents;
}

}  // namespace tensorbus::program
