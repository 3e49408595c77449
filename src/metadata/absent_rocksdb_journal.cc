// SPDX-License-Identifier: Apache-2.0
// In place of real_rocksdb_journal.cc in a build without RocksDB (CMake option LARDER_ROCKSDB).
#include "metadata/real_rocksdb_journal.h"

namespace larder::metadata {

Result<std::unique_ptr<Journal>> open_rocksdb_journal(const std::string& directory, Clock& /*clock*/) {
  return unsupported("metadata journal '" + directory +
                     "': this build of Larder has no RocksDB; install librocksdb-dev " +
                     "and build with -DLARDER_ROCKSDB=ON, or keep the page index in memory or in a service");
}

}  // namespace larder::metadata
