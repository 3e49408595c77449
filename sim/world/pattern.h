// SPDX-License-Identifier: Apache-2.0
// What every byte of a page must be: a pattern of (rank, tokens up to its end, tenant, pool, layer, plane, offset).
//
// The simulated engine does not compute; it fills pages with their patterns, and compares each page that a request
// resumes from. A wrong page, a stale slot, a copy that was half done, a page of another tenant or of another rank is
// seen at once, and any eight bytes of a pattern say what they are of: a wrong page is called by its name. Pools that
// are replicated hold the same on every rank.
//
// Cost: about 0.5 ns per byte. Threads: const methods, any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/strong.h"
#include "model/model_spec.h"
#include "pool/device_pools.h"

namespace larder::sim {

class Pattern {
 public:
  // Both outlive the object. rank: below 16.
  Pattern(const ModelSpec& model, DevicePools& pools, std::uint32_t rank = 0)
      : model_(model), pools_(pools), rank_(rank) {}

  // The slot holds what component `c` has after the first `tokens` of `content` (fewer there: all of it).
  void write(ComponentKind c, std::span<const TokenId> content, std::uint64_t tokens, std::string_view tenant,
             DeviceSlot slot) const;
  // Empty, or which byte is wrong where, and what is there instead.
  [[nodiscard]] std::string check(ComponentKind c, std::span<const TokenId> content, std::uint64_t tokens,
                                  std::string_view tenant, DeviceSlot slot) const;

 private:
  const ModelSpec& model_;
  DevicePools& pools_;
  const std::uint32_t rank_;
};

// The "model": the token that follows from all before it.
[[nodiscard]] TokenId next_token(std::span<const TokenId> tokens, std::uint32_t vocab);

}  // namespace larder::sim
