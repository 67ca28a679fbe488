// The store of an MDT, with the memory that the configuration gives it (server/kv/rocks_kv.h has the errors).
#pragma once

#include <memory>

#include "daemon/config.h"
#include "server/kv/kv_store.h"

namespace nacre {

StatusOr<std::unique_ptr<KvStore>> OpenMdtStore(const MdsConfig& config);

}  // namespace nacre
