#include "base/config.h"
#include "push_pull/job/membership.h"
#include "tensorbus/push_pull.h"

namespace tensorbus::push_pull {
namespace {

StoreServerOptions server_options(const NodeOptions& options) {
  StoreServerOptions server;
  server.host = options.job.host;
  server.port = options.job.port;
  server.token = options.token ? options.token : config::variable("TENSORBUS_TOKEN");
  return server;
}

}  // namespace

// The store first, since the job is published in it; the membership ends before it.
class Scheduler::Impl {
 public:
  explicit Impl(NodeOptions options) : server_((check(options.job), server_options(options))) {
    options.job.port = server_.port();
    options.rank = 0;
    {
      StoreUrl url;
      url.hosts = {{options.job.host, options.job.port}};
      const auto store = connect(url, {options.deadline, options.token});
      publish_job(*store, options.job, options.deadline);
    }
    membership_ = std::make_unique<Membership>(Member{Role::scheduler, 0}, options);
    membership_->join("", options.deadline);
  }

  std::uint16_t port() const noexcept { return server_.port(); }
  Membership& membership() { return *membership_; }
  void stop_server() noexcept { server_.stop(); }

 private:
  StoreServer server_;
  std::unique_ptr<Membership> membership_;
};

Scheduler::Scheduler(const NodeOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Scheduler::~Scheduler() = default;

std::uint16_t Scheduler::port() const noexcept { return impl_->port(); }
void Scheduler::wait_for_all(Deadline deadline) { impl_->membership().wait_for_all(deadline); }

void Scheduler::stop(Deadline deadline) {
  try {
    impl_->membership().leave(deadline);
  } catch (...) {
    impl_->stop_server();
    throw;
  }
  impl_->stop_server();
}

}  // namespace tensorbus::push_pull
