// Where the files of an agent are if nobody says.
#pragma once

#include <string>

#include "tensorbus/layout.h"

namespace tensorbus::bus {

// TENSORBUS_STATE_DIR, else /tmp. The former folder is made if it is not there (mode 0700); Error
// if that path is not a folder that only this user can enter.
std::string agent_folder();

// The paths that clients of this rank look at if they are told none.
std::string default_queue_path(Rank rank);
std::string default_state_path(Rank rank);

}  // namespace tensorbus::bus
