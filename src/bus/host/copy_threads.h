// How many threads copy for a rank while agents come to its host and go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "copy/crew.h"
#include "copy/thread_count.h"

namespace tensorbus::bus {

// What an agent asks as AgentParts::copy_threads; copies share the crew.
class CopyThreads {
 public:
  // Error(invalid_argument) as copy::threads_asked_for().
  explicit CopyThreads(std::optional<std::int64_t> argument)
      : fixed_(copy::threads_asked_for(argument)) {
    (*this)(1);
  }

  const std::shared_ptr<copy::Crew>& crew() const noexcept { return crew_; }
  std::size_t operator()(std::size_t agents_here) const {
    crew_->resize(fixed_ ? *fixed_ : copy::threads_beside(agents_here));
    return crew_->size();
  }

 private:
  const std::optional<std::size_t> fixed_;
  const std::shared_ptr<copy::Crew> crew_ = std::make_shared<copy::Crew>();
};

}  // namespace tensorbus::bus
