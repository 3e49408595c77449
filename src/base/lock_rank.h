// SPDX-License-Identifier: Apache-2.0
// The order of all locks. A thread takes locks only upward in rank, and never two of the same rank.
//
// | rank        | lock                                   | allowed under it           |
// |-------------|----------------------------------------|----------------------------|
// | kServer     | HTTP sessions, request tables          | table updates              |
// | kEngine     | engine front door                      | queue push / pop           |
// | kController | registries of backends, attach/detach  | table updates              |
// | kMetadata   | page index tables                      | table updates              |
// | kStorage    | a backend's own tables                 | table updates              |
// | kTransfer   | a copy engine's queues                 | queue push / pop           |
// | kPool       | host/device allocators used by workers | bitmap updates             |
// | kFileSystem | simulated files                        | memory copies              |
// | kExecutor   | task queues                            | queue push / pop           |
// | kInbox      | completion inboxes                     | queue push / pop           |
// | kSocket     | a client's descriptor, for who cancels | shutdown(2) of it          |
// | kMetrics    | metric registration and rendering      | map updates                |
// | kLog        | log sink                               | one write                  |
//
// Never under any lock: I/O (the log's sink apart; shutdown(2) does not wait), callbacks, destructors of foreign
// objects.
#pragma once

namespace larder {

enum class LockRank : unsigned char {
  kServer = 10,
  kEngine = 20,
  kController = 30,
  kMetadata = 40,
  kStorage = 50,
  kTransfer = 60,
  kPool = 70,
  kFileSystem = 80,
  kExecutor = 90,
  kInbox = 100,
  kSocket = 105,
  kMetrics = 110,
  kLog = 120,
};

}  // namespace larder
