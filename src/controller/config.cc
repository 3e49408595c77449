// SPDX-License-Identifier: Apache-2.0
#include "controller/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

namespace larder {
namespace {

constexpr std::array<std::pair<WritePolicy, std::string_view>, 3> kWritePolicies = {{
    {WritePolicy::kWriteThrough, "write_through"},
    {WritePolicy::kWriteThroughSelective, "write_through_selective"},
    {WritePolicy::kWriteBack, "write_back"},
}};

constexpr std::array<std::pair<PrefetchPolicy, std::string_view>, 3> kPrefetchPolicies = {{
    {PrefetchPolicy::kBestEffort, "best_effort"},
    {PrefetchPolicy::kWaitComplete, "wait_complete"},
    {PrefetchPolicy::kTimeout, "timeout"},
}};

// Limits of the tables that are sized from the configuration: a million entries of each fit in a few hundred MB.
constexpr std::uint32_t kMaxTableEntries = 1'000'000;
// A transfer in each direction and a storage operation of each kind: with fewer, nothing can overlap.
constexpr std::uint32_t kMinOperations = 4;
constexpr std::uint32_t kMinPollBudget = 8;
constexpr std::uint32_t kMaxOpenSteps = 64;      // they are looked through one by one
constexpr std::uint32_t kMaxBackupRetries = 32;  // the delay doubles: 100 ms x 2^32 is more than ten years
constexpr Nanos kMaxConfiguredWait = std::chrono::hours(24);

template <class Value, class Table>
std::string_view name_in(const Table& table, Value value) {
  for (const auto& [known, name] : table) {
    if (known == value) return name;
  }
  return "?";
}

template <class Value, class Table>
std::optional<Value> value_in(const Table& table, std::string_view text) {
  for (const auto& [value, name] : table) {
    if (name == text) return value;
  }
  return std::nullopt;
}

Status check_count(std::string_view field, std::uint32_t value, std::uint32_t low, std::uint32_t high) {
  if (value >= low && value <= high) return Status::ok();
  return invalid_argument(fmt::format("cache config: {} is {}, must be {} to {}", field, value, low, high));
}

// name: of the value; "?" of none.
Status check_word(std::string_view field, std::string_view name) {
  if (name != "?") return Status::ok();
  return invalid_argument(fmt::format("cache config: {} is none of the values that its type has", field));
}

Status check_rank(std::string_view name, std::uint32_t rank, std::uint32_t size) {
  if (rank < size) return Status::ok();
  return invalid_argument(fmt::format("{}_rank is {} of {}; ranks count from 0", name, rank, size));
}

Status check_wait(std::string_view field, Nanos value, Nanos low) {
  if (value >= low && value <= kMaxConfiguredWait) return Status::ok();
  return invalid_argument(fmt::format("cache config: {} is {} s, must be {} to {} s", field,
                                      static_cast<double>(value.count()) * 1e-9,
                                      static_cast<double>(low.count()) * 1e-9,
                                      std::chrono::duration_cast<std::chrono::seconds>(kMaxConfiguredWait).count()));
}

}  // namespace

std::string_view write_policy_name(WritePolicy p) { return name_in(kWritePolicies, p); }
std::optional<WritePolicy> parse_write_policy(std::string_view s) { return value_in<WritePolicy>(kWritePolicies, s); }
std::string_view prefetch_policy_name(PrefetchPolicy p) { return name_in(kPrefetchPolicies, p); }
std::optional<PrefetchPolicy> parse_prefetch_policy(std::string_view s) {
  return value_in<PrefetchPolicy>(kPrefetchPolicies, s);
}

Status validate_config(const CacheConfig& config) {
  LARDER_RETURN_IF_ERROR(check_word("write_policy", write_policy_name(config.write_policy)));
  LARDER_RETURN_IF_ERROR(check_word("prefetch_policy", prefetch_policy_name(config.prefetch_policy)));
  LARDER_RETURN_IF_ERROR(check_word("eviction_policy", eviction_policy_name(config.eviction_policy)));
  LARDER_RETURN_IF_ERROR(check_count("selective_hits", config.selective_hits, 1, kMaxTableEntries));
  if (!(config.prefetch_capacity > 0 && config.prefetch_capacity <= 1)) {
    return invalid_argument(
        fmt::format("cache config: prefetch_capacity is {}, must be above 0 and at most 1 (a share "
                    "of the host blocks)",
                    config.prefetch_capacity));
  }
  LARDER_RETURN_IF_ERROR(check_wait("prefetch_timeout_base", config.prefetch_timeout_base, Nanos{0}));
  LARDER_RETURN_IF_ERROR(check_wait("prefetch_timeout_per_ki_token", config.prefetch_timeout_per_ki_token, Nanos{0}));
  LARDER_RETURN_IF_ERROR(check_wait("prefetch_timeout_max", config.prefetch_timeout_max, config.prefetch_timeout_base));
  LARDER_RETURN_IF_ERROR(check_wait("prefetch_wait_limit", config.prefetch_wait_limit, Nanos{0}));
  LARDER_RETURN_IF_ERROR(check_count("chunked_prefill_tokens", config.chunked_prefill_tokens, 1, kMaxTableEntries));
  LARDER_RETURN_IF_ERROR(check_count("decode_headroom_tokens", config.decode_headroom_tokens, 1, kMaxTableEntries));
  LARDER_RETURN_IF_ERROR(check_count("max_open_steps", config.max_open_steps, 1, kMaxOpenSteps));
  LARDER_RETURN_IF_ERROR(check_count("max_requests", config.max_requests, 1, kMaxTableEntries));
  LARDER_RETURN_IF_ERROR(check_count("max_operations", config.max_operations, kMinOperations, kMaxTableEntries));
  LARDER_RETURN_IF_ERROR(check_count("poll_budget", config.poll_budget, kMinPollBudget, kMaxTableEntries));
  LARDER_RETURN_IF_ERROR(check_count("max_namespaces", config.max_namespaces, 1, kMaxTableEntries));
  LARDER_RETURN_IF_ERROR(check_wait("rank_plan_wait", config.rank_plan_wait, std::chrono::microseconds(100)));
  const Nanos least_limit = std::max<Nanos>(config.rank_plan_wait, std::chrono::seconds(1));
  LARDER_RETURN_IF_ERROR(check_wait("rank_plan_limit", config.rank_plan_limit, least_limit));
  LARDER_RETURN_IF_ERROR(check_count("backup_retries", config.backup_retries, 0, kMaxBackupRetries));
  LARDER_RETURN_IF_ERROR(check_count("store_batch_nodes", config.store_batch_nodes, 1, kMaxTableEntries));
  LARDER_RETURN_IF_ERROR(check_tenant_limits(config.tenant_limits, {}));
  return check_wait("backup_retry_delay", config.backup_retry_delay, Nanos{0});
}

Status validate_scope(const NamespaceScope& scope) {
  LARDER_RETURN_IF_ERROR(check_rank("tp", scope.tp_rank, scope.tp_size));
  LARDER_RETURN_IF_ERROR(check_rank("pp", scope.pp_rank, scope.pp_size));
  return check_rank("cp", scope.cp_rank, scope.cp_size);
}

Nanos prefetch_deadline(const CacheConfig& config, std::uint64_t tokens) {
  switch (config.prefetch_policy) {
    case PrefetchPolicy::kBestEffort: return Nanos{0};
    case PrefetchPolicy::kWaitComplete: return Nanos::max();
    case PrefetchPolicy::kTimeout: break;
  }
  // In floating point: a huge token count must end at the maximum, not overflow below it.
  const double base = static_cast<double>(config.prefetch_timeout_base.count());
  const double wait =
      base + static_cast<double>(config.prefetch_timeout_per_ki_token.count()) * (static_cast<double>(tokens) / 1024.0);
  const double most = static_cast<double>(config.prefetch_timeout_max.count());
  return wait >= most ? config.prefetch_timeout_max : Nanos(std::llround(wait));
}

}  // namespace larder
