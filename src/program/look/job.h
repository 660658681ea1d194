// What the agents of a job say of themselves, read from their store.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bus/directory/catalog.h"
#include "bus/report/status_record.h"
#include "tensorbus/store.h"

namespace tensorbus::program {

struct JobPlace {
  std::string url;    // empty: TENSORBUS_STORE
  std::string space;  // empty: TENSORBUS_NAMESPACE, or "default"
  std::string token_file;
  double timeout = 5;
};

// Of one thread. A store that cannot be reached is an Error of a call; the next one tries again.
class JobSight {
 public:
  // `token`: what is in the file.
  JobSight(const JobPlace& place, std::optional<std::string> token);
  ~JobSight();
  JobSight(const JobSight&) = delete;
  JobSight& operator=(const JobSight&) = delete;

  std::vector<bus::AgentStatus> look();
  // What the agents tell each other.
  bus::Catalog records();
  const std::string& space() const noexcept { return space_; }
  std::string store_url() const { return url_.to_string(); }

 private:
  Store& store(Deadline deadline);
  std::vector<std::optional<double>> leases_left(const std::vector<std::string>& keys,
                                                 Deadline deadline);

  const JobPlace place_;
  const std::optional<std::string> token_;
  const StoreUrl url_;
  const std::string space_;
  const KeyScope scope_;
  const KeyScope records_;
  std::unique_ptr<Store> store_;
};

}  // namespace tensorbus::program
