// What the agents of a job say of themselves, read from their store.
#pragma once

#include <memory>
#include <string>
#include <vector>

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
class Job {
 public:
  explicit Job(const JobPlace& place);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  std::vector<bus::AgentStatus> look();
  const std::string& space() const noexcept { return space_; }
  std::string store_url() const { return url_.to_string(); }

 private:
  const JobPlace place_;
  const StoreUrl url_;
  const std::string space_;
  const KeyScope scope_;
  std::unique_ptr<Store> store_;
};

}  // namespace tensorbus::program
