// The memory that the subscribers of one sender read: its region, what each of them reads there,
// and in which types they want what the worker stages for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bus/registration/own_registration.h"
#include "bus/round/source.h"
#include "fabric/core/region.h"

namespace tensorbus::bus {

class Exposure {
 public:
  explicit Exposure(OwnRegistration& self) : self_(self) {}

  // Of the items, those that the worker stages; the others are read where they are.
  void set_staged(std::vector<bool> items);

  // Lays the region out by the senders of a generation.
  void begin(const Group& group);
  void end() noexcept;

  // What a subscriber reads here: its streams, with their numbers.
  struct Reading {
    std::vector<std::pair<std::uint64_t, plan::Stream>> streams;
    Verify verify = Verify::off;
  };
  // What a new subscriber is told. `source` has the others.
  Source::Memory add(std::uint64_t serial, Reading reading, const Source& source);
  // Whether readers that have joined could read all they want from this memory. What is not there
  // yet does not count.
  bool suits(const Loan& loan, const Source& source) const;
  // The registration lends this memory from now on, which suits, and its worker stages these items.
  // Only between rounds. `source`: null if there is none. Throws before anything has changed if
  // there is no room for another region.
  void replace(std::shared_ptr<Loan> loan, std::vector<bool> staged, Source* source);
  // A round has begun: nobody reads what was replaced before.
  void forget_replaced() noexcept { replaced_.clear(); }

  // In which type each item should be staged: a narrower one if all its readers want that one. What
  // nobody reads stays as it is. Empty: every item in its own type.
  const std::vector<Dtype>& wanted(const Source& source);
  // In which type each item is staged now. Empty: every one in its own.
  std::vector<Dtype> stored() const;

 private:
  // The region of some memory.
  struct Exposed {
    std::shared_ptr<Loan> loan;
    std::unique_ptr<fabric::Region> region;
  };

  Exposed expose(const std::shared_ptr<Loan>& loan) const;
  Source::Memory serve(const Reading& reading, const Source& source);
  std::shared_ptr<Digest> digest_of(const plan::Stream& stream, Verify verify,
                                    const Source& source) const;
  bool stages() const noexcept;
  // The worker lends no memory yet for something that it stages.
  bool is_bare(const Loan& loan) const;
  // By item, of those that somebody reads.
  std::map<std::size_t, Dtype> common_types() const;
  std::vector<Dtype> with(const std::map<std::size_t, Dtype>& common) const;

  OwnRegistration& self_;
  std::vector<bool> staged_;
  ItemOrder order_;  // of the items in the region
  Exposed now_;
  std::vector<Exposed> replaced_;              // readers may still be on their way there
  std::map<std::uint64_t, Reading> readings_;  // by serial; of a registration that stages
  std::optional<std::vector<Dtype>> wanted_;   // by these readings
};

}  // namespace tensorbus::bus
