// kill -9 of a metadata service under load, again and again, and what must hold after each restart.
//
// The child (this program, started with kCrashChild) serves two namespaces from a RocksDB journal to its own threads
// and says what it was promised:
//   V <space> <key> <page> <generation>   the page is reserved for the key     C ...   and confirmed
//   X <key>   is about to be removed from "big"                                x <key> was removed
// "big" has room for all keys, so nothing is evicted there; in "small" almost every reservation evicts. A key is the
// business of one thread, so the order of its lines is that of what happened.
#pragma once

#include <cstdint>
#include <string>

namespace larder::conformance {

inline constexpr const char* kCrashChild = "--metadata-crash-child";

// Runs until it is killed. Arguments: directory, seed.
int run_crash_child(const std::string& directory, std::uint64_t seed);

// So many kills; every ten of them on one directory. Failures are those of the test that calls it.
void run_crash_rounds(std::uint64_t seed, int kills);

}  // namespace larder::conformance
