// What the records of generations mean for a registration: which generation its ends belong to,
// from when on, and until when.
#pragma once

#include "bus/batch/exchange.h"
#include "bus/registration/generations.h"
#include "bus/registration/matching.h"
#include "bus/registration/own_registration.h"

namespace tensorbus::bus {

class Following {
 public:
  Following(OwnRegistration& self, Matching& matching, Generations& generations, Exchange& exchange)
      : self_(self), matching_(matching), generations_(generations), exchange_(exchange) {}

  // `registers`: the batch waits for the others.
  void follow(bool registers);

 private:
  void follow_own();
  void follow_theirs(bool registers);
  void begin(const Generation& generation);
  void end_unseen(Generation ended);
  void end(const Generation& ended);

  OwnRegistration& self_;
  Matching& matching_;
  Generations& generations_;
  Exchange& exchange_;
};

}  // namespace tensorbus::bus
