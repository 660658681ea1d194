#include "bus/host/fabrics.h"

#include "fabric/route/fabric.h"
#include "fabric/shm/fabric.h"
#include "fabric/ucx/ucx.h"

namespace tensorbus::bus {

std::unique_ptr<fabric::Fabric> make_agent_fabric(Rank rank, const std::string& secret,
                                                  std::shared_ptr<fabric::Pool> pool,
                                                  const std::string& bind,
                                                  const fabric::PortRange& ports) {
  fabric::ShmOptions shm;
  shm.name = "rank " + std::to_string(rank);
  shm.secret = secret;
  shm.pool = std::move(pool);
  std::vector<std::unique_ptr<fabric::Fabric>> parts;
  parts.push_back(fabric::make_shm_fabric(std::move(shm)));
  if (bind.empty()) return std::move(parts.front());
  fabric::UcxOptions ucx;
  ucx.identity = parts.front()->address().identity;
  ucx.secret = secret;
  ucx.bind = bind;
  ucx.ports = ports;
  ucx.hosts.emplace();
  parts.push_back(fabric::make_ucx_fabric(ucx));
  return fabric::make_routed_fabric(std::move(parts), fabric::own_reach(bind));
}

}  // namespace tensorbus::bus
