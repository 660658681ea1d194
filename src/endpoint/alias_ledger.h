// Who still aliases frozen memory, and when the memory may be used again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "endpoint/messages.h"
#include "fabric/core/identity.h"
#include "os/io/fd.h"

namespace tensorbus::endpoint {

// At the owner. Holders are processes: a holder whose connection is lost may still look at the
// memory (the process was stopped for a while, or has closed its endpoint), so only the holder's
// death ends what it holds.
class AliasLedger {
 public:
  AliasLedger() = default;
  AliasLedger(const AliasLedger&) = delete;
  AliasLedger& operator=(const AliasLedger&) = delete;
  // Memory that somebody still holds is never used again by this process.
  ~AliasLedger();

  void lend(std::uint64_t region, std::vector<std::shared_ptr<void>> memory);
  // No new holders; the memory is let go when the last holder is gone.
  void take_back(std::uint64_t region);

  // The answer. Refused: we could not see the death of that process.
  AliasMessage::Kind hold(const fabric::Identity& holder, std::uint64_t region);
  void let_go(const fabric::Identity& holder, std::uint64_t region);
  // The connection to a process is gone.
  void lost(const fabric::Identity& holder);

  // Descriptors of lost holders, readable when they end; then call look().
  std::vector<int> descriptors() const;
  void look();

 private:
  struct Loan {
    std::vector<std::shared_ptr<void>> memory;
    std::map<Id16, std::size_t> holders;  // and how often
    bool taken_back = false;
  };

  void forget(const Id16& holder);
  void drop_if_free(std::map<std::uint64_t, Loan>::iterator loan);

  std::map<std::uint64_t, Loan> loans_;  // by region
  std::map<Id16, os::Fd> lost_;          // pidfds
};

}  // namespace tensorbus::endpoint
