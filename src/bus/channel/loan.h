// Memory that a worker lends to its agent for the life of a batch's registration: at the worker, on
// the way, and at the agent.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fabric/core/lender.h"
#include "fabric/core/pool.h"
#include "fabric/core/region.h"
#include "os/io/fd.h"
#include "tensor/view.h"

namespace tensorbus::bus {

// The agent's sight of the tensors of one registration, in the order of its items. In the worker's
// own process they are plain views; a daemon sees pooled tensors through a mapping of the same
// memory, and private ones are `elsewhere`: only the fabric touches those, through the lender.
class Loan {
 public:
  virtual ~Loan() = default;
  virtual const std::vector<TensorView>& tensors() const noexcept = 0;
  // Null if no tensor is elsewhere.
  virtual std::shared_ptr<const fabric::Lender> lender() const noexcept = 0;
  // The worker's own counter of its sends of this batch: the worker moves the gate past a ticket
  // before it uses its memory again, whatever the agent does.
  virtual fabric::Gate gate() const = 0;
};

// At the worker, with a new gate in `gates`, the pool in which an agent in this process or a peer
// finds the gate: the fabric's own pool if the agent runs here. Forms are copied, memory stays
// borrowed; unless all of it lies in `segment`, which lives as long as the loan.
std::shared_ptr<Loan> make_loan(std::span<const TensorView> tensors, fabric::Pool& gates,
                                std::shared_ptr<std::byte> segment = nullptr);

// What an agent in another process needs, over a socket: the bytes with their descriptors, in this
// order, at most one per segment and two more. The same loan can be offered again, to the agent
// that replaces a dead one.
struct LoanOffer {
  std::string bytes;
  std::vector<os::Fd> fds;
};
// Tensors that lie in `pool` are passed as shared memory, others by their addresses.
LoanOffer offer(const Loan& loan, const fabric::Pool& pool, const fabric::Pool& gates);

// At the agent, whose fabric has `pool`. Error(denied) with what to do if a tensor is private and
// the kernel does not let the agent in, Error(invalid_argument) for what is malformed.
std::shared_ptr<Loan> open_loan(LoanOffer offer, fabric::Pool& pool);

}  // namespace tensorbus::bus
