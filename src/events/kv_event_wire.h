// SPDX-License-Identifier: Apache-2.0
// Batches of events as bytes: msgpack, in the shapes that routers read.
//
//   [ts, [event, ...], data_parallel_rank]
//
//   {"type": "BlockStored", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
//    "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "cache_salt"}
//   {"type": "BlockRemoved", "block_hashes", "medium", "group_idx"}
//   {"type": "AllBlocksCleared"}
//
// What is null is missing, but for parent_block_hash, lora_id (always null), medium and lora_name, which readers want.
// extra_keys is always missing: it keeps the place that it has in vLLM. kArrays: an event is an array of these values
// in this order, up to lora_name at least, without cache_salt and what is missing at its end.
//
// hash: i64. medium: "GPU" (the device), "CPU_PINNED" (the host), as in SGLang. Groups are told only where all
// components are: 0 full attention, 1 sliding window, 2 recurrent state; "full_attention", "sliding_window", "mamba",
// as in vLLM.
//
// Sources: sglang/srt/disaggregation/kv_events.py, vllm/distributed/kv_events.py. Threads: pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "controller/kv_events.h"
#include "events/kv_event_config.h"

namespace larder {

struct KvEventShape {
  KvEventForm form = KvEventForm::kMaps;
  bool all_components = false;
  std::uint32_t page_size = 0;      // tokens
  std::uint32_t window_tokens = 0;  // 0: none
  std::uint32_t data_parallel_rank = 0;
};

// unix_seconds: when the batch was taken.
[[nodiscard]] std::vector<std::uint8_t> encode_kv_events(const KvEventShape& shape, std::span<const KvEvent> events,
                                                         double unix_seconds);

}  // namespace larder
