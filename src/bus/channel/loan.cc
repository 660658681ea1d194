#include "bus/channel/loan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/bytes.h"
#include "os/io/memory.h"
#include "os/process/process.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

constexpr std::uint8_t offer_version = 1;
// The first two descriptors; segments of the pool follow.
constexpr std::size_t pidfd_at = 0;
constexpr std::size_t gate_at = 1;

enum Flags : std::uint8_t { read_only = 1, is_private = 2 };

[[noreturn]] void malformed(const std::string& why) {
  throw Error(Code::invalid_argument, "a loan of memory is malformed: " + why);
}

class Views final : public Loan {
 public:
  Views(fabric::Forms forms, fabric::Gate gate) : forms_(std::move(forms)), gate_(std::move(gate)) {
    tensors_.reserve(forms_.size());
  }

  const std::vector<TensorView>& tensors() const noexcept override { return tensors_; }
  std::shared_ptr<const fabric::Lender> lender() const noexcept override { return lender_; }
  fabric::Gate gate() const override { return gate_; }

  // The memory of the next tensor.
  void add(std::byte* data, bool is_read_only, bool elsewhere, std::int32_t device = host_memory) {
    const fabric::TensorForm& form = forms_[tensors_.size()];
    tensors_.push_back(
        {data, form.dtype, form.shape, form.strides, is_read_only, elsewhere, device});
  }
  void set_lender(std::shared_ptr<const fabric::Lender> lender) { lender_ = std::move(lender); }
  void keep(std::vector<std::shared_ptr<std::byte>> adopted) { adopted_ = std::move(adopted); }

 private:
  fabric::Forms forms_;
  fabric::Gate gate_;
  std::vector<TensorView> tensors_;
  std::shared_ptr<const fabric::Lender> lender_;
  std::vector<std::shared_ptr<std::byte>> adopted_;
};

std::shared_ptr<const fabric::Lender> enter(os::Fd pidfd, const fabric::Probe& probe,
                                            std::size_t tensor) try {
  return std::make_shared<fabric::Lender>(std::move(pidfd), probe);
} catch (const Error& error) {
  throw Error(Code::denied,
              fmt::format("tensor {} lies in private memory of the worker that its agent (pid {}) "
                          "may not read: {}; allocate it with tensorbus.empty(), move it with "
                          "tensorbus.share_(), or run the agent in the worker with "
                          "TensorBusClient.embedded()",
                          tensor, ::getpid(), error.what()));
}

struct Segment {
  std::shared_ptr<std::byte> memory;
  std::size_t size = 0;
};

Segment adopt(os::Fd file, fabric::Pool& pool) {
  const std::size_t size = os::checked_memfd_size(file);
  return {pool.adopt(std::move(file)), size};
}

std::byte* inside(const Segment& segment, std::uint64_t offset, const fabric::Extent& extent) {
  const auto before = static_cast<std::uint64_t>(-extent.begin);
  const auto after = static_cast<std::uint64_t>(extent.end);
  if (offset > segment.size || before > offset || after > segment.size - offset) {
    malformed("a tensor leads outside of its memory");
  }
  return segment.memory.get() + offset;
}

// A context of CUDA costs a process hundreds of MB on each device: a daemon that serves others
// makes none.
void check_on_host(std::span<const TensorView> tensors) {
  const auto found = std::ranges::find_if(tensors, &TensorView::on_device);
  if (found == tensors.end()) return;
  throw Error(
      Code::unsupported,
      fmt::format("tensor {} is on cuda:{}; an agent in another process cannot reach it: run "
                  "the agent in the worker with TensorBusClient.embedded(), or publish",
                  found - tensors.begin(), found->device));
}

fabric::Gate gate_in(const Segment& segment, std::uint64_t offset) {
  auto* word = reinterpret_cast<std::atomic<std::uint64_t>*>(inside(segment, offset, {0, 8}));
  if (offset % 8 != 0) malformed("its gate is not aligned");
  return fabric::Gate({segment.memory, word});
}

}  // namespace

std::shared_ptr<Loan> make_loan(std::span<const TensorView> tensors, fabric::Pool& gates,
                                std::shared_ptr<std::byte> segment) {
  fabric::Forms forms;
  for (const TensorView& tensor : tensors) forms.push_back(fabric::form_of(tensor));
  auto loan = std::make_shared<Views>(std::move(forms), fabric::Gate(gates.allocate_word(0)));
  for (const TensorView& tensor : tensors) {
    loan->add(tensor.data, tensor.read_only, false, tensor.device);
  }
  if (segment != nullptr) loan->keep({std::move(segment)});
  return loan;
}

LoanOffer offer(const Loan& loan, const fabric::Pool& pool, const fabric::Pool& gates) {
  check_on_host(loan.tensors());
  LoanOffer offer;
  const std::atomic<std::uint64_t>* gate = loan.gate().counter().get();
  const auto gate_place = gates.find(gate, sizeof *gate);
  if (!gate_place) throw Error(Code::invalid_argument, "the gate of a loan lies in another pool");
  offer.fds.push_back(os::open_pidfd(::getpid()));
  offer.fds.push_back(gates.share(gate_place->segment));

  const fabric::Probe probe = fabric::own_probe();
  Encoder encoder;
  encoder.integer(offer_version).integer(gate_place->offset);
  encoder.integer(probe.address).raw(view(probe.value));
  fabric::Forms forms;
  for (const TensorView& tensor : loan.tensors()) forms.push_back(fabric::form_of(tensor));
  encoder.string(fabric::encode(forms));

  std::map<std::uint64_t, std::uint32_t> positions;  // of segments among the descriptors
  for (std::size_t i = 0; i < forms.size(); ++i) {
    const TensorView& tensor = loan.tensors()[i];
    const fabric::Extent extent = fabric::extent_of(forms[i]);
    const auto bytes = static_cast<std::size_t>(extent.end - extent.begin);
    const auto place = bytes > 0 ? pool.find(tensor.data + extent.begin, bytes) : std::nullopt;
    std::uint8_t flags = tensor.read_only ? read_only : 0;
    if (!place) {
      encoder.integer(static_cast<std::uint8_t>(flags | is_private)).integer(std::uint32_t{0});
      encoder.integer(reinterpret_cast<std::uint64_t>(tensor.data));
      continue;
    }
    const auto next = static_cast<std::uint32_t>(offer.fds.size());
    const auto [position, added] = positions.emplace(place->segment, next);
    if (added) offer.fds.push_back(pool.lend(place->segment));
    encoder.integer(flags).integer(position->second);
    encoder.integer(place->offset + static_cast<std::uint64_t>(-extent.begin));
  }
  offer.bytes = std::move(encoder).bytes();
  return offer;
}

std::shared_ptr<Loan> open_loan(LoanOffer offer, fabric::Pool& pool) {
  Decoder decoder(offer.bytes);
  if (decoder.integer<std::uint8_t>() != offer_version) malformed("it is of another version");
  if (offer.fds.size() <= gate_at) malformed("it came without its descriptors");
  const auto gate_offset = decoder.integer<std::uint64_t>();
  fabric::Probe probe;
  probe.address = decoder.integer<std::uint64_t>();
  const std::string_view value = decoder.raw(probe.value.size());
  std::copy(value.begin(), value.end(), probe.value.begin());
  const fabric::Forms forms = fabric::decode_forms(decoder.string());

  std::vector<Segment> segments(offer.fds.size());
  for (std::size_t i = gate_at; i < segments.size(); ++i) {
    segments[i] = adopt(std::move(offer.fds[i]), pool);
  }
  auto loan = std::make_shared<Views>(forms, gate_in(segments[gate_at], gate_offset));
  for (std::size_t i = 0; i < forms.size(); ++i) {
    const fabric::Extent extent = fabric::extent_of(forms[i]);
    const auto flags = decoder.integer<std::uint8_t>();
    const auto segment = decoder.integer<std::uint32_t>();
    const auto at = decoder.integer<std::uint64_t>();
    const bool none = extent.begin == extent.end;
    if ((flags & is_private) != 0) {
      if (!none && loan->lender() == nullptr) {
        loan->set_lender(enter(std::move(offer.fds[pidfd_at]), probe, i));
      }
      loan->add(none ? nullptr : reinterpret_cast<std::byte*>(at), (flags & read_only) != 0, !none);
    } else {
      if (segment <= gate_at || segment >= segments.size()) malformed("it names memory it lacks");
      loan->add(inside(segments[segment], at, extent), (flags & read_only) != 0, false);
    }
  }
  decoder.end();
  std::vector<std::shared_ptr<std::byte>> adopted;
  for (Segment& each : segments) adopted.push_back(std::move(each.memory));
  loan->keep(std::move(adopted));
  return loan;
}

}  // namespace tensorbus::bus
