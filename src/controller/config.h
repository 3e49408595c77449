// SPDX-License-Identifier: Apache-2.0
// Policies and limits of a cache. Names and defaults are the field's (SGLang HiCache flags) where they exist.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "model/model_spec.h"
#include "policy/admission.h"
#include "policy/eviction_policies.h"
#include "policy/tenant_limits.h"
#include "tree/tree.h"

namespace larder {

// When a device page gets a host copy, and a host page a storage copy.
enum class WritePolicy : std::uint8_t { kWriteThrough, kWriteThroughSelective, kWriteBack };
[[nodiscard]] std::string_view write_policy_name(WritePolicy p);
[[nodiscard]] std::optional<WritePolicy> parse_write_policy(std::string_view s);

// How long a request waits for storage. What has come by then it uses, as far as that is a restore point. Reads that
// are under way go on, and what they bring is adopted into the host tier (rule 3: their buffers stay their own); no
// others begin.
//   best_effort   does not wait: takes what has come when it starts
//   wait_complete waits for all of it, at most prefetch_wait_limit (a storage that hangs must not hang its requests)
//   timeout       waits until timeout_base + timeout_per_ki_token * tokens / 1024, at most timeout_max
enum class PrefetchPolicy : std::uint8_t { kBestEffort, kWaitComplete, kTimeout };
[[nodiscard]] std::string_view prefetch_policy_name(PrefetchPolicy p);
[[nodiscard]] std::optional<PrefetchPolicy> parse_prefetch_policy(std::string_view s);

struct CacheConfig {
  bool enabled = true;  // false: every lookup misses, nothing is kept (--disable-radix-cache)
  EvictionPolicy eviction_policy = EvictionPolicy::kValue;
  std::shared_ptr<const EvictionOrder> eviction_order;  // an embedder's own, instead of that; null: none
  WritePolicy write_policy = WritePolicy::kWriteThrough;
  // Exclusive tiers: pages that the device has, too, are the first to leave the host. While the host is full, a page is
  // copied there when it leaves the device (under each write policy); with storage also before, in place of pages that
  // storage has. More fits, and requests wait more often for such copies.
  bool exclusive_tiers = false;
  TenantLimits tenant_limits{};                // floors and ceilings of tenants; none by default
  std::uint32_t selective_hits = 2;            // write_through_selective: hits before a backup
  std::shared_ptr<const Admission> admission;  // an embedder's own, instead of write_through*; null: none

  PrefetchPolicy prefetch_policy = PrefetchPolicy::kTimeout;
  std::uint32_t prefetch_threshold = 256;  // tokens; a shorter storage gain is not fetched
  double prefetch_capacity = 0.25;         // share of host blocks: while running ones hold it, no other begins
  std::uint64_t prefetch_batch_bytes = std::uint64_t{8} << 20;  // of full in one read of a prefetch: about so many
  Nanos prefetch_timeout_base = std::chrono::seconds(1);
  Nanos prefetch_timeout_per_ki_token = std::chrono::milliseconds(250);
  Nanos prefetch_timeout_max = std::chrono::seconds(30);
  Nanos prefetch_wait_limit = std::chrono::minutes(5);  // wait_complete: from begin() to the end of "all of it"

  std::uint32_t load_back_threshold = 10;  // tokens of full; fewer are recomputed
  // False: the engine waits for all layers of a load before it computes the first, as for a CUDA graph of the whole
  // step. Where a page's parts of a layer are small its loads are faster then (docs/cuda.md).
  bool loads_by_layer = true;
  std::uint32_t chunked_prefill_tokens = 1024;  // the engine's longest chunk: bounds window slots per request
  std::uint32_t decode_headroom_tokens = 256;   // slots that start() reserves for tokens to come; more as they come
  std::uint32_t checkpoint_grid = 8192;         // tokens between weak checkpoints of recurrent state; 0: none
  std::uint32_t max_open_steps = 8;             // of one request: granted, neither completed nor cancelled
  std::uint32_t max_requests = 1024;            // begun and not finished
  std::uint32_t max_operations = 1024;          // transfers + storage operations in flight (inbox places)
  // What one poll does at most, in units of a quarter of a microsecond or so (work_budget.h); the rest is the next
  // one's.
  std::uint32_t poll_budget = 4096;
  std::uint32_t max_namespaces = 65536;  // adapters x salts; more: idle ones go, with their pages
  std::uint32_t backup_retries = 3;      // of a storage write that failed, before its pages rest for a while
  Nanos backup_retry_delay = std::chrono::milliseconds(100);  // doubles with each retry
  std::uint32_t store_batch_nodes = 64;                       // nodes of the tree in one storage write, at most
  std::uint64_t store_group_bytes = std::uint64_t{32} << 20;  // pages that commit as one: about so many bytes
  bool host_tier_for_state = true;  // false: recurrent checkpoints stay on the device only (control run)
  bool host_tier_for_full = true;   // false: KV stays on the device only (control run)
  Nanos rank_plan_wait = std::chrono::milliseconds(2);  // one wait for the leader's plan, or for slow followers
  Nanos rank_plan_limit = std::chrono::seconds(30);     // ... and for how long it is repeated (cache.h, "Ranks")
  bool storage_durable = false;                         // wait for fsync before a page counts as stored
};

// kInvalidArgument names the field and its range.
[[nodiscard]] Status validate_config(const CacheConfig& config);

// May the component have copies on the host? Without those of full, nothing may: all else stands on them.
[[nodiscard]] inline bool keeps_on_host(const CacheConfig& config, ComponentKind c) {
  return config.host_tier_for_full && (c != ComponentKind::kMamba || config.host_tier_for_state);
}
// kInvalidArgument names the rank that is not below its size.
[[nodiscard]] Status validate_scope(const NamespaceScope& scope);

// Pure: how long to wait for a prefetch that is known to bring `tokens` (0 while the existence query runs).
[[nodiscard]] Nanos prefetch_deadline(const CacheConfig& config, std::uint64_t tokens);

}  // namespace larder
