// SPDX-License-Identifier: Apache-2.0
// What storage has of a prompt: asked page by page, nothing is read.
//
// Threads: any. Errors: what the backend says; kDeadlineExceeded: it did not answer in time.
// Cost: a hash of the prompt, and a query of the backend.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/strong.h"
#include "model/model_spec.h"
#include "model/restore_point.h"
#include "storage/backend.h"

namespace larder::llama {

struct StoredPrefix {
  std::uint64_t pages = 0;                // where a prompt could resume with storage alone; its last token is computed
  StopReason reason = StopReason::kNone;  // why it is not longer
  ComponentKind component = ComponentKind::kFull;
  std::vector<std::uint64_t> pool_pages;  // of each pool of the model, in its order
};

// scope: layout, ranks and salt, as those of the connector that writes.
[[nodiscard]] Result<StoredPrefix> find_stored(StorageBackend& storage, const ModelSpec& model,
                                               const NamespaceScope& scope, std::span<const TokenId> prompt,
                                               Nanos limit);

}  // namespace larder::llama
