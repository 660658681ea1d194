// For tests: this process has no descriptors left while it lives, or only so many. Nothing is
// checked or logged meanwhile: the sanitizers need some to look at objects that they have not seen
// before.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>

#include <cstddef>
#include <vector>

#include "os/io/fd.h"

namespace tensorbus::os {

class NoDescriptors {
 public:
  explicit NoDescriptors(std::size_t left = 0) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    taken_.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    rlimit little = before_;
    little.rlim_cur = static_cast<rlim_t>(taken_.front().get()) + 32;
    ::setrlimit(RLIMIT_NOFILE, &little);
    while (true) {
      Fd taken(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!taken) break;
      taken_.push_back(std::move(taken));
    }
    taken_.resize(taken_.size() - left);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
  std::vector<Fd> taken_;
};

}  // namespace tensorbus::os
