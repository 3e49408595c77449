// SPDX-License-Identifier: Apache-2.0
// Backend "faulty" for tests of stores: memory behind a sim::FaultyBackend. Header only.
#pragma once

#include <memory>
#include <utility>

#include "sim/faulty_backend.h"
#include "storage/factory.h"
#include "storage/memory/memory_backend.h"

namespace larder::support {

// last: the one that was made last; outlives the factory's use.
[[nodiscard]] inline Status add_faulty_memory(BackendFactory& factory, sim::FaultyBackend*& last) {
  const auto plain = std::make_shared<BackendFactory>();
  LARDER_RETURN_IF_ERROR(register_memory_backend(*plain));
  const auto make = [plain, &last](const BackendOptions& options,
                                   const BackendEnvironment& environment) -> Result<std::unique_ptr<StorageBackend>> {
    Result<std::unique_ptr<StorageBackend>> inner = plain->create("memory", options, environment);
    if (!inner.is_ok()) return inner.status();
    auto made = std::make_unique<sim::FaultyBackend>(std::move(inner).value(), 3);
    last = made.get();
    return std::unique_ptr<StorageBackend>(std::move(made));
  };
  return factory.add("faulty", {}, make);
}

}  // namespace larder::support
