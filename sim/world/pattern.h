// What every byte of a page must be: a pattern of (tokens up to its end, tenant, pool, layer, plane, offset).
//
// The simulated engine does not compute; it fills pages with their patterns, and compares each page that a request
// resumes from. A wrong page, a stale slot, a copy that was half done or a page of another tenant is seen at once.
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
  // Both outlive the object.
  Pattern(const ModelSpec& model, DevicePools& pools) : model_(model), pools_(pools) {}

  // The slot holds what component `c` has after the first `tokens` of `content` (fewer there: all of it).
  void write(ComponentKind c, std::span<const TokenId> content, std::uint64_t tokens, std::string_view tenant,
             DeviceSlot slot) const;
  // Empty, or which byte is wrong where.
  [[nodiscard]] std::string check(ComponentKind c, std::span<const TokenId> content, std::uint64_t tokens,
                                  std::string_view tenant, DeviceSlot slot) const;

 private:
  const ModelSpec& model_;
  DevicePools& pools_;
};

// The "model": the token that follows from all before it.
[[nodiscard]] TokenId next_token(std::span<const TokenId> tokens, std::uint32_t vocab);

}  // namespace larder::sim
