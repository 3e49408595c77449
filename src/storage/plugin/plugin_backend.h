// SPDX-License-Identifier: Apache-2.0
// Backend `plugin`: a store that lives in a shared library, behind the C interface of larder_backend.h.
//
// The host side does what no library should have to: the bound on operations in flight, callbacks exactly once, checks
// of requests, the envelope in front of each page and its verification. A library answers with codes and counts; what
// it must not answer (no answer, unknown codes, other byte counts than were asked for) becomes kInternal, in words that
// name the library, and never more than that.
//
// Capabilities: persistent and atomic_groups as the table's flags say. No entry `clear`: submit_clear() gives
// kUnsupported. No entry `stats`: pages and bytes are not known (info().counts_pages is false); what the host counts
// itself (reads, misses, corrupt, writes, duplicates) is there in any case.
// Threads: any. Work runs on the environment's executor; one operation is one task, which may block in the library.
#pragma once

#include <memory>

#include "base/status.h"
#include "storage/factory.h"
#include "storage/plugin/larder_backend.h"

namespace larder {

// Registers "plugin". Options: library, queue_limit; every other key goes to the library. kConflict: registered
// already.
[[nodiscard]] Status register_plugin_backend(BackendFactory& factory);

namespace plugin {

// Opens a store by a table that take_table() has checked. `options`: the library's own. Errors: as create() says, with
// its words; a key or value that cannot be passed on is kInvalidArgument.
[[nodiscard]] Result<std::unique_ptr<StorageBackend>> open_backend(const LarderBackendTable& table,
                                                                   const BackendOptions& options,
                                                                   std::size_t queue_limit,
                                                                   const BackendEnvironment& environment);

}  // namespace plugin
}  // namespace larder
