// SPDX-License-Identifier: Apache-2.0
// Which llama-server a proxy speaks to: the model that it was proven with, or another one behind the same address.
//
// Pages of one model restored into another are wrong answers, and no error. So before a slot is given anything the
// proxy asks who is there; a server that was started anew is proven again before it is given anything. A request may
// wait long for its slot or for storage: so the same is asked right before a restore, and after a save.
//
//   known ──(the server was started anew, or has slept)──► proven again ──► known
//                                                                └──► refused
//
// Refused: a message says why, and requests go on plainly, without the cache.
//
// Threads: any. Cost: check() and is_still() one small call of llama-server; check() after a restart that of the probe,
// during which other requests wait. The probe needs all slots. Where a long answer holds one, check() waits for at most
// `slots_limit` and is then kDeadlineExceeded: requests go on plainly, and each asks anew.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/ranked_mutex.h"
#include "base/status.h"
#include "engine/llama/gguf_file.h"
#include "server/llama/llama_upstream.h"
#include "server/llama/proxy_metrics.h"
#include "server/llama/slot_table.h"

namespace larder::llama {

// What of a context is part of the pages' identity: its size, if the model has two sets of RoPE factors (Phi-3,
// MiniCPM), of which llama.cpp takes one by that size; else nothing.
[[nodiscard]] std::string context_identity(const GgufFile& model, std::uint32_t context_tokens);
// What of the environment is: llama.cpp rotates the rows of quantised caches unless a variable says otherwise, here and
// in a llama-server that we start.
[[nodiscard]] std::string environment_identity();
// Whether slots of so many tokens leave open which set that is: llama-server tells what a slot may use of its context
// (at most what the model was trained for, or --kv-unified-per-slot: is_capped), and chooses by what there is.
[[nodiscard]] bool hides_context(const GgufFile& model, std::uint32_t slot_tokens, bool is_capped);

class ServerIdentity {
 public:
  // Proves a server that was started anew: kUnsupported if it is not the one whose pages we have. All slots are held.
  using Prove = std::function<Status(LlamaUpstream& upstream, const UpstreamFacts& facts)>;
  // How often a llama-server of our own was started so far, any thread. Empty: it is somebody else's, and its marker
  // tells its starts apart.
  using Starts = std::function<std::uint64_t()>;
  ServerIdentity(UpstreamFacts facts, SlotTable& slots, Nanos slots_limit, ProxyMetrics& metrics, Starts starts,
                 Prove prove);
  // Who answers now.
  [[nodiscard]] static Result<UpstreamFacts> ask(LlamaUpstream& upstream, const Starts& starts);

  // Ok: it may be given prefixes as long as is_current() says so of what this returns. kConflict: it is another one,
  // for good. Others: it does not answer now, or not to this client. client: has the client's own key: who may not ask
  // llama-server is given nothing. own: proves a new server.
  [[nodiscard]] Result<std::uint64_t> check(LlamaUpstream& client, LlamaUpstream& own) LARDER_EXCLUDES(mutex_);
  // Before a request that uses no slot: it may wake the server up, whose slots are empty then.
  void look(LlamaUpstream& client) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool is_current(std::uint64_t checked) const LARDER_EXCLUDES(mutex_);
  // The same, and asks who is there: for a restore that comes next, or a save that was made since.
  [[nodiscard]] bool is_still(std::uint64_t checked, LlamaUpstream& client) const LARDER_EXCLUDES(mutex_);
  // What counts is being changed (its adapters): nothing is current until the end, and if it was changed the server is
  // proven again.
  void begin_change() LARDER_EXCLUDES(mutex_);
  void end_change(bool is_changed) LARDER_EXCLUDES(mutex_);

 private:
  [[nodiscard]] bool is_known(const UpstreamFacts& now) const LARDER_REQUIRES(mutex_);
  [[nodiscard]] Result<std::uint64_t> prove_again(LlamaUpstream& upstream) LARDER_EXCLUDES(mutex_);

  SlotTable& slots_;
  const Nanos slots_limit_;
  ProxyMetrics& metrics_;
  const Starts starts_;
  const Prove prove_;
  mutable RankedMutex mutex_{LockRank::kServer};
  std::uint32_t changing_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint64_t version_ LARDER_GUARDED_BY(mutex_) = 0;  // up with each change
  UpstreamFacts facts_ LARDER_GUARDED_BY(mutex_);
  bool is_proven_ LARDER_GUARDED_BY(mutex_) = true;  // false: it has slept since, or its adapters were changed
  Status refused_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::llama
