// SPDX-License-Identifier: Apache-2.0
// kill -9 of a metadata service under load, again and again, and what must hold after each restart.
//
// The child (this program, started with kCrashChild) opens the service in a directory, has clients at it
// (crash_client.h), and writes what they say to its standard output, a line each.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/rng.h"

namespace larder::conformance {

inline constexpr const char* kCrashChild = "--metadata-crash-child";

// Runs until it is killed. Arguments: directory, seed.
int run_crash_child(const std::string& directory, std::uint64_t seed);

// So many kills; every ten of them on one directory. Failures are those of the test that calls it.
void run_crash_rounds(std::uint64_t seed, int kills);

// What kills services, and how: `kill_some(directory, rng, kills)` kills so many times in a fresh directory, and gives
// how many confirmations were answered. Ends with the first failure, which names the kill and the seed.
using KillSome = std::function<std::uint64_t(const std::string& directory, Rng& rng, int kills)>;
void run_kills(std::uint64_t seed, int kills, const KillSome& kill_some);

}  // namespace larder::conformance
