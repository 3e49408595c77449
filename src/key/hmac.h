// SPDX-License-Identifier: Apache-2.0
// HMAC-SHA-256 (RFC 2104): who knows a key shows it, and what was said is what arrives.
//
// Threads: immutable after construction; any number of threads may call of(). Cost: two blocks at construction, and per
// message two blocks more than its SHA-256 (~0.3 us for a short one, with SHA-NI).
#pragma once

#include <initializer_list>
#include <string_view>

#include "base/bytes.h"
#include "key/sha256.h"

namespace larder {

class HmacSha256 {
 public:
  // key: of any length; its bytes are not kept, what follows from them is.
  explicit HmacSha256(std::string_view key);
  // Of the message that the pieces make, one after the other.
  [[nodiscard]] Digest256 of(std::initializer_list<std::string_view> pieces) const;

 private:
  Sha256 inner_, outer_;  // after their first block
};

// Of the same length: compares in a time that does not tell where the two differ. Else false.
[[nodiscard]] bool are_equal_macs(std::string_view a, std::string_view b);

}  // namespace larder
