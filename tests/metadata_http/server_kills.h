// SPDX-License-Identifier: Apache-2.0
// kill -9 of the metadata server under load, through HTTP: what tests/metadata/crash_rounds.h does to the service.
//
// The child (this program, started with kServerChild) is the server: a journal in a directory, a free port, nothing
// else. Its clients are here, and live longer than it: what it did not answer they ask the next one, with the same
// session. Each server looks at its own tables (EmbeddedMetadata::check()) before it serves.
// The moment of a kill is a number of answers and a time after it; the seed gives both. What the server does in that
// moment is the scheduler's business, so a seed replays the load, not the instruction.
#pragma once

#include <cstdint>
#include <string>

namespace larder::conformance {

inline constexpr const char* kServerChild = "--metadata-server-child";

// Runs until it is killed.
int run_server_child(const std::string& directory);

// So many kills; every ten of them on one directory. Failures are those of the test that calls it.
void run_server_kills(std::uint64_t seed, int kills);

}  // namespace larder::conformance
