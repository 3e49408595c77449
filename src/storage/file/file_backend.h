// Backend `file`: pages in append-only segment files of one directory. Persistent, atomic per group, zero copy.
//
// docs/formats.md has the bytes. Opening scans the segments (one small read per page), so create() may take seconds for
// a large store: do it on a worker.
//
// Options
//   directory     where the files go; made if absent. Required. It must hold nothing else.
//   max_size      bytes on disk (200G, 64Mi, unlimited). Full: the segments used longest ago are dropped, whole.
//   segment_size  bytes per segment file; at most max_size / 4
//   fsync         off:     only for writes that ask to be durable; after a power cut a group may be incomplete, which
//                          its readers see as corrupt pages (info().atomic_groups is then false)
//                 segment: in addition when a segment is full and at close (default)
//                 group:   every write is durable
//   threads       executor tasks that one read request may use at once
//   queue_limit   operations in flight before submit refuses
//   open_files    segment files kept open
//
// exists runs inside submit_exists(): it is an index lookup (~0.2 us per key and pool) and does no I/O.
#pragma once

#include "base/status.h"
#include "storage/factory.h"

namespace larder {

// Registers "file". kConflict: registered already.
[[nodiscard]] Status register_file_backend(BackendFactory& factory);

}  // namespace larder
