// UCX's functions, found when the network is first needed. Nothing of ours links UCX: one build
// runs on machines with any UCX from 1.13 on and on machines with none, and loads UCX only for a
// process that binds to an address.
#pragma once

#include <ucp/api/ucp.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>
#include <uct/api/uct.h>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tensorbus::fabric::ucx {

// Each lies in libucp or in a library that libucp brings along.
#define TENSORBUS_UCX_FUNCTIONS(EACH)  \
  EACH(ucp_am_send_nbx)                \
  EACH(ucp_cleanup)                    \
  EACH(ucp_config_modify)              \
  EACH(ucp_config_read)                \
  EACH(ucp_config_release)             \
  EACH(ucp_ep_close_nbx)               \
  EACH(ucp_ep_create)                  \
  EACH(ucp_ep_flush_nbx)               \
  EACH(ucp_get_version)                \
  EACH(ucp_get_version_string)         \
  EACH(ucp_init_version)               \
  EACH(ucp_request_check_status)       \
  EACH(ucp_request_free)               \
  EACH(ucp_worker_arm)                 \
  EACH(ucp_worker_create)              \
  EACH(ucp_worker_destroy)             \
  EACH(ucp_worker_get_address)         \
  EACH(ucp_worker_get_efd)             \
  EACH(ucp_worker_progress)            \
  EACH(ucp_worker_release_address)     \
  EACH(ucp_worker_set_am_recv_handler) \
  EACH(ucs_debug_disable_signal)       \
  EACH(ucs_log_push_handler)           \
  EACH(ucs_status_string)              \
  EACH(uct_component_query)            \
  EACH(uct_query_components)           \
  EACH(uct_release_component_list)

struct Library {
#define TENSORBUS_DECLARE(name) decltype(&::name) name = nullptr;
  TENSORBUS_UCX_FUNCTIONS(TENSORBUS_DECLARE)
#undef TENSORBUS_DECLARE
  std::string file;  // that it was loaded from
};

// Loads UCX on the first call that finds one, for the life of the process. Error(unsupported) that
// says where this process looked for UCX and what to install.
const Library& library();

// Files, or names for the system's loader, in the order in which library() tries them: what
// TENSORBUS_UCX names, else what UCX_ROOT does, else the system's and those that Python packages
// beside ours bring. `own` is the file of our extension or program.
std::vector<std::string> candidates(const std::filesystem::path& own);
// The first file that fits. Error as library()'s.
Library load(std::span<const std::string> files);

}  // namespace tensorbus::fabric::ucx
