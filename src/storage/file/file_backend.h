// SPDX-License-Identifier: Apache-2.0
// Backend `file`: pages in append-only segment files of one directory. Persistent, atomic per group, zero copy.
//
// docs/formats.md has the bytes, docs/storage.md the options. Opening reads the page tables of all segments (seconds
// for millions of pages) and scans what was written since the last one was sealed: create() belongs on a worker.
//
// exists runs inside submit_exists(): it is an index lookup (~0.2 us per key and pool) and does no I/O.
#pragma once

#include "base/status.h"
#include "storage/factory.h"

namespace larder {

// Registers "file". kConflict: registered already.
[[nodiscard]] Status register_file_backend(BackendFactory& factory);

}  // namespace larder
