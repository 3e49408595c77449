// SPDX-License-Identifier: Apache-2.0
// --kv-events-config: who is told of pages that come and go, and how. SGLang's keys, and two of ours (groups,
// encoding).
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace larder {

// How an event is written in msgpack, and how a replay is framed.
enum class KvEventForm : std::uint8_t {
  kMaps,    // SGLang 0.5.23, vLLM 0.26: fields by name. Replays: topic, number, batch
  kArrays,  // both before that: fields by place. Replays: number, batch
};

struct KvEventConfig {
  bool is_on = false;  // publisher: "null" (default) or "zmq"
  // Where batches are published. SGLang's rule decides who binds: with '*', '::' or 0.0.0.0 in it, or for ipc://, this
  // side does; else a subscriber does, and this side connects. `binds` says otherwise. The default is bound, for this
  // machine only: events carry the token ids of prompts, and nobody is asked for a key.
  std::string endpoint = "tcp://127.0.0.1:5557";
  bool binds = true;
  std::string replay_endpoint;          // where batches that were missed are asked for; bound. Empty: nowhere
  std::uint64_t buffer_steps = 10'000;  // batches that are kept for it, 256 MiB at most
  // Batches that wait for a subscriber; what comes then is lost for that one. Those of buffer_steps are kept anyway.
  std::uint64_t hwm = 10'000;
  std::uint64_t max_queue_size = 100'000;  // batches that wait to be published
  std::string topic;                       // first frame of each batch
  bool all_components = false;             // groups: "full" (default) or "all": windows and recurrent states, too
  KvEventForm form = KvEventForm::kMaps;   // encoding: "map" (default) or "array"
};

// text: a JSON object; empty: off. kInvalidArgument names the key and what is allowed.
[[nodiscard]] Result<KvEventConfig> parse_kv_event_config(std::string_view text);

}  // namespace larder
