// SPDX-License-Identifier: Apache-2.0
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
#include <span>
#include <string>
#include <vector>

#include "tests/cache/harness.h"
#include "tests/cache/trace.h"

namespace larder::test {

inline constexpr std::array kAllWritePolicies = {WritePolicy::kWriteThrough, WritePolicy::kWriteThroughSelective,
                                                 WritePolicy::kWriteBack};
struct TierRule {
  WritePolicy policy = WritePolicy::kWriteThrough;
  bool is_exclusive = false;
};
inline constexpr std::array<TierRule, 4> kTierRules = {{{WritePolicy::kWriteThrough, false},
                                                        {WritePolicy::kWriteThroughSelective, false},
                                                        {WritePolicy::kWriteBack, false},
                                                        {WritePolicy::kWriteThrough, true}}};
[[nodiscard]] std::string name_of(const TierRule& rule);

enum class LoadKind {
  kDocuments,      // a few documents often, many seldom, each followed by a question of its own
  kConversations,  // turn after turn, the one that spoke last most likely next
  kTrace,          // as it was recorded (trace.h), or generated
};
struct Load {
  LoadKind kind = LoadKind::kDocuments;
  std::uint64_t seed = 1;
  const Trace* trace = nullptr;  // of kTrace
};

struct HitRate {
  // Tokens. device: of those cached, whose KV the device had; window and state may have come from the host.
  std::uint64_t prompt = 0, device = 0, cached = 0;
  std::string failure;  // empty: all went well
  // Percent of the prompts' tokens.
  [[nodiscard]] double on_device() const { return 100.0 * static_cast<double>(device) / static_cast<double>(prompt); }
  [[nodiscard]] double total() const { return 100.0 * static_cast<double>(cached) / static_cast<double>(prompt); }
};

// No storage, and every hit is loaded back. host_slots 0: the device alone.
[[nodiscard]] HarnessOptions hit_rate_options(Shape shape, WritePolicy policy, ComponentCounts device,
                                              std::size_t host_slots);
[[nodiscard]] HitRate replay(const HarnessOptions& options, const Load& load, std::size_t requests);

// What caches whose hosts are so many quarters of the device found of one load, for each rule; host 0 first.
struct HostSizeRow {
  TierRule rule;
  std::size_t host = 0;  // full pages' worth of bytes
  HitRate rate;
};
inline constexpr std::array<std::size_t, 7> kHostQuarters = {1, 2, 3, 4, 6, 10, 20};
[[nodiscard]] std::vector<HostSizeRow> replay_host_sizes(Shape shape, const Load& load, ComponentCounts device,
                                                         std::size_t requests,
                                                         std::span<const std::size_t> quarters = kHostQuarters);
// Adds what other loads of the same kind found, row by row.
void add_rows(std::vector<HostSizeRow>& sum, const std::vector<HostSizeRow>& rows);
// The first breach of the laws; slack: points of hit rate that count as equal.
[[nodiscard]] std::string broken_host_size_law(std::span<const HostSizeRow> rows, double slack);
// The slack that the random loads need, and why (hit_rate.cc).
[[nodiscard]] double slack_of(Shape shape);
// A line per host size, a column per rule: percent found (of these on the device).
[[nodiscard]] std::string table_of(std::span<const HostSizeRow> rows);

}  // namespace larder::test
