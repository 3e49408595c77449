// SPDX-License-Identifier: Apache-2.0
// The journal on RocksDB.
//
// Purpose: one directory holds all namespaces of a service. A write goes to RocksDB's log with one system call (kill -9
// loses nothing), a synced one is followed by fdatasync. The log is bounded, so that opening takes seconds.
// Threads: as Journal; RocksDB has background threads of its own.
// After a failure: the next call tries to mend it. Where that fails too, calls are refused at once for 1 s, 2 s, ... at
// most 30 s between two tries. A write looks at the folder, once a second. A folder that is gone, or is not the one
// that was opened, is never made anew: that is kUnavailable until the folder is back, and one error in the log.
// RocksDB's warnings and errors go to our log, at most some ten a minute; there is no file LOG. Errors of open:
// kConflict: another process (or another journal of this one) has the directory. kCorrupt: RocksDB cannot read it.
// kNotFound, kInvalidArgument: there can be no such directory. kUnavailable: the disk refuses. kUnsupported: a build
// without RocksDB (LARDER_ROCKSDB).
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "metadata/journal.h"

namespace larder::metadata {

// Makes the directory if it is absent. `clock` outlives the journal.
[[nodiscard]] Result<std::unique_ptr<Journal>> open_rocksdb_journal(const std::string& directory,
                                                                    Clock& clock = real_clock());

}  // namespace larder::metadata
