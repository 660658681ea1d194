#include "fabric/ucx/endpoint.h"

#include <utility>

#include "fabric/ucx/address.h"

namespace tensorbus::fabric::ucx {
namespace {

// A handful stays warm in the caches; more are needed only while a peer is slow.
constexpr std::size_t most_free = 16;

}  // namespace

std::unique_ptr<Outgoing> Outbox::take() {
  if (free_.empty()) return std::make_unique<Outgoing>();
  std::unique_ptr<Outgoing> message = std::move(free_.back());
  free_.pop_back();
  message->bytes = 0;
  return message;
}

void Outbox::give_back(std::unique_ptr<Outgoing> message) {
  if (free_.size() < most_free) free_.push_back(std::move(message));
}

void Outbox::completed(void* request, ucs_status_t status, void* user_data) noexcept {
  auto* send = static_cast<Send*>(user_data);
  Traffic& traffic = *send->traffic;
  --traffic.sends;
  traffic.bytes -= send->message->bytes;
  if (status != UCS_OK && !traffic.failure) traffic.failure = status;
  send->outbox->give_back(std::move(send->message));
  send->outbox->under_way_.erase(send->self);
  library().ucp_request_free(request);
}

Endpoint::Endpoint(Worker& worker, Outbox& outbox, std::string_view remote)
    : outbox_(outbox), traffic_(std::make_shared<Outbox::Traffic>()) {
  const WorkerAddress address = unpack(remote);
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(address.worker.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler.cb = [](void* argument, ucp_ep_h, ucs_status_t status) {
    auto* traffic = static_cast<Outbox::Traffic*>(argument);
    if (!traffic->failure) traffic->failure = status;
  };
  parameters.err_handler.arg = traffic_.get();
  const ucs_status_t status = library().ucp_ep_create(worker.handle(), &parameters, &endpoint_);
  if (status != UCS_OK) throw Error(status_of(Code::unreachable, "connecting through UCX", status));
}

Endpoint::~Endpoint() {
  if (flush_ != nullptr) library().ucp_request_free(flush_);
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = library().ucp_ep_close_nbx(endpoint_, &parameters);
  if (UCS_PTR_IS_PTR(request)) library().ucp_request_free(request);
}

void Endpoint::send(std::unique_ptr<Outgoing> message) noexcept {
  if (traffic_->failure) return;
  outbox_.under_way_.push_back({&outbox_, traffic_, std::move(message), {}});
  const auto self = std::prev(outbox_.under_way_.end());
  self->self = self;
  Outgoing& outgoing = *self->message;
  ++traffic_->sends;
  traffic_->bytes += outgoing.bytes;

  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = UCP_AM_SEND_FLAG_EAGER;
  parameters.cb.send = Outbox::completed;
  parameters.user_data = &*self;
  void* request =
      library().ucp_am_send_nbx(endpoint_, message_id, outgoing.frame.data(), frame_bytes,
                                outgoing.body.get(), outgoing.bytes, &parameters);
  if (UCS_PTR_IS_PTR(request)) return;
  // Over already, well or badly; the callback does not come.
  --traffic_->sends;
  traffic_->bytes -= outgoing.bytes;
  const ucs_status_t status = UCS_PTR_RAW_STATUS(request);
  if (status != UCS_OK && !traffic_->failure) traffic_->failure = status;
  outbox_.give_back(std::move(self->message));
  outbox_.under_way_.erase(self);
}

bool Endpoint::flushed() noexcept {
  if (traffic_->failure) return true;
  if (!flush_started_) {
    flush_started_ = true;
    ucp_request_param_t parameters{};
    void* request = library().ucp_ep_flush_nbx(endpoint_, &parameters);
    if (UCS_PTR_IS_PTR(request)) flush_ = request;
  }
  if (flush_ == nullptr) return true;
  if (library().ucp_request_check_status(flush_) == UCS_INPROGRESS) return false;
  library().ucp_request_free(flush_);
  flush_ = nullptr;
  return true;
}

}  // namespace tensorbus::fabric::ucx
