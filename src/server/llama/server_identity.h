// SPDX-License-Identifier: Apache-2.0
// Which llama-server a proxy speaks to: the model that it was proven with, or another one behind the same address.
//
// Pages of one model restored into another are wrong answers, and no error. So before a slot is given anything the
// proxy asks who is there; a server that was started anew is proven again before it is given anything.
//
//   known ──(another start of the server)──► proven again ──► known
//                                                   └──► refused: a message says why; only plain requests from here on
//
// Threads: any. Cost: check() one small call of llama-server; after a restart that of the probe, during which other
// requests wait.
#pragma once

#include <functional>
#include <string>

#include "base/ranked_mutex.h"
#include "base/status.h"
#include "server/llama/llama_upstream.h"
#include "server/llama/proxy_metrics.h"
#include "server/llama/slot_table.h"

namespace larder::llama {

class ServerIdentity {
 public:
  // Proves a server that was started anew: kUnsupported if it is not the one whose pages we have. All slots are held.
  using Prove = std::function<Status(LlamaUpstream& upstream, const UpstreamFacts& facts)>;
  ServerIdentity(UpstreamFacts facts, SlotTable& slots, ProxyMetrics& metrics, Prove prove);

  // Ok: it may be given prefixes. kConflict: it is another one, for good. Others: it does not answer now.
  [[nodiscard]] Status check(LlamaUpstream& upstream) LARDER_EXCLUDES(mutex_);
  // Something that counts may have been changed (its adapters): it is proven again.
  void doubt() LARDER_EXCLUDES(mutex_);

 private:
  [[nodiscard]] Status prove_again(LlamaUpstream& upstream, const UpstreamFacts& facts);

  SlotTable& slots_;
  ProxyMetrics& metrics_;
  const Prove prove_;
  RankedMutex mutex_{LockRank::kServer};
  UpstreamFacts facts_ LARDER_GUARDED_BY(mutex_);
  Status refused_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::llama
