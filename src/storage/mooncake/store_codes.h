// SPDX-License-Identifier: Apache-2.0
// The numbers with which Mooncake Store and the helper say how an object fared.
//
// Threads: pure. The numbers are those of the store's own documentation, seen with package 0.3.13; tests/mooncake/
// traps_test.cc meets most of them.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace larder::mooncake {

inline constexpr std::int64_t kWritten = 0, kWasThere = 1;  // of a put
// The helper's own.
inline constexpr std::int64_t kBusyCode = -2, kShortCode = -3;
// The store's.
inline constexpr std::int64_t kNoRoomCode = -200, kRefusedCode = -600, kNotFoundCode = -704, kRemovedCode = -707;

// What a code below 0 means for the caller, as a backend's status. `what`: begins the message ("writing a page").
//   kNotFound     not there, or it has gone meanwhile
//   kOverloaded   no room in the store, a quota is used up, or another client is writing the same page: later
//   kUnavailable  all else: the master or the owner of the bytes does not answer
[[nodiscard]] Status status_of(std::int64_t code, const std::string& what);

}  // namespace larder::mooncake
