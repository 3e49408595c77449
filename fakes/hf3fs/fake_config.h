// SPDX-License-Identifier: Apache-2.0
// What the fake is told: configuration and fault rules, from JSON (fake_control.h has the keys).
#pragma once

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace larder::hf3fs {

enum class FakeMode : unsigned char { kThreads, kSync, kSim };
enum class PoisonMode : unsigned char { kOff, kTail, kPrep };
enum class RoleCheck : unsigned char { kOff, kCount, kAbort };

inline constexpr std::uint8_t kPoisonByte = 0xd5;

// Constant once published (World keeps every version, so readers need no lock).
struct FakeConfig {
  FakeMode mode = FakeMode::kThreads;
  std::uint64_t seed = 1;
  std::uint32_t workers = 32;  // I/Os of reads at once: a real daemon has coroutines
  std::uint64_t chunk_bytes = std::uint64_t{1} << 20;
  std::uint32_t start_at_prep_permille = 100;
  bool shuffle = true;
  PoisonMode poison = PoisonMode::kTail;
  bool check_ownership = false;
  bool check_overlap = true;
  RoleCheck roles = RoleCheck::kCount;
  std::uint64_t latency_us_least = 0, latency_us_most = 0;
  std::uint32_t stall_permille = 0;
  std::uint64_t stall_ms = 60'000;
  int stall_error = EREMOTEIO;
  std::uint32_t error_permille = 0;
  int error = EIO;
  std::uint32_t short_permille = 0;
  std::uint64_t lazy_length_ms = 30'000;
  std::uint64_t capacity_bytes = 0;
  bool read_only = false;
  std::uint64_t max_fds = 0;
  std::vector<std::int64_t> fail_registration;
  std::uint64_t die_after_events = 0;
  bool probe_blocks = false;
  std::uint64_t fail_call = 0;
  int call_error = EIO;
  bool d1_partial_batch_stays = true, d2_ring_link_stays = true, d4_semaphore_unchecked = false;
  bool d8_bounds_of_first_only = false;
  bool semaphores_fail = false;
  std::uint64_t entry_bytes = 96;
  bool report_leaks = false;
};

enum class HoldPoint : unsigned char { kNone, kBefore, kAfter };

// What happens to one I/O.
struct FaultEffect {
  int error = 0;
  bool has_chunks = false, random_chunks = false;
  std::vector<std::uint64_t> chunks;
  std::optional<std::uint64_t> short_bytes;
  std::uint64_t delay_ms = 0;
  HoldPoint hold = HoldPoint::kNone;
  bool drop = false;
  bool lands_late = false;
};

struct FaultRule {
  bool reads = true, writes = true;
  std::uint64_t skip = 0, count = 1;
  FaultEffect effect;
};

// Applies `json` to `config`. The empty text, or what is wrong with it (then `config` may be half changed).
[[nodiscard]] std::string parse_config(const char* json, FakeConfig& config);
[[nodiscard]] std::string parse_fault(const char* json, FaultRule& rule);

}  // namespace larder::hf3fs
