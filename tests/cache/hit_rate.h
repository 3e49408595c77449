// Loads whose requests come back to what others computed, what a cache of given sizes finds of them, and the laws of
// that: a host of any size lowers neither the hit rate nor the part of it that the device has below those of the device
// alone, and a larger host lowers the hit rate below that of no smaller one.
//
// Requests go one after another, every copy is done before the next, and nothing else depends on what was found: a load
// is the same for every cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/cache/harness.h"

namespace larder::test {

inline constexpr std::array kAllWritePolicies = {WritePolicy::kWriteThrough, WritePolicy::kWriteThroughSelective,
                                                 WritePolicy::kWriteBack};

enum class LoadKind {
  kDocuments,      // a few documents often, many seldom, each followed by a question of its own
  kConversations,  // turn after turn, the one that spoke last most likely next
};
struct Load {
  LoadKind kind = LoadKind::kDocuments;
  std::uint64_t seed = 1;
};

struct HitRate {
  std::uint64_t prompt = 0, device = 0, cached = 0;  // tokens
  std::string failure;                               // empty: all went well
  // Percent of the prompts' tokens.
  [[nodiscard]] double on_device() const { return 100.0 * static_cast<double>(device) / static_cast<double>(prompt); }
  [[nodiscard]] double total() const { return 100.0 * static_cast<double>(cached) / static_cast<double>(prompt); }
};

// No storage, and every hit is loaded back. host_slots 0: the device alone.
[[nodiscard]] HarnessOptions hit_rate_options(Shape shape, WritePolicy policy, ComponentCounts device,
                                              std::size_t host_slots);
[[nodiscard]] HitRate replay(const HarnessOptions& options, const Load& load, std::size_t requests);
// The first breach of the laws, for each write policy and hosts from a quarter of the device to five times as much.
[[nodiscard]] std::string broken_host_size_law(Shape shape, const Load& load, ComponentCounts device,
                                               std::size_t requests);

}  // namespace larder::test
