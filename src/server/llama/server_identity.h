// SPDX-License-Identifier: Apache-2.0
// Which llama-server a proxy speaks to: the model that it was proven with, or another one behind the same address.
//
// Pages of one model restored into another are wrong answers, and no error. So before a slot is given anything the
// proxy asks who is there; a server that was started anew is proven again before it is given anything. A request may
// wait long for its slot or for storage: so the same is asked right before a restore, and after a save.
//
//   known ──(started anew, has slept, adapters changed)──► proven again ──► known
//                                          (after a pause) ▲ ▲    │ ├──► failed ──┐
//                                                          │ └────┼─┼─────────────┘
//              (started anew, has slept, adapters changed) └──────┼─┴──► refused: it is not as it was
//                                                                 └────► refused for good: another model
//
// Refused: a message says why, and requests go on plainly, without the cache; of another model for good, else until
// what makes it another one may have changed. Failed: they do so until the next try, after a pause that grows with each
// failure, or until the server is started anew.
//
// Requests that go on plainly may be in any slot, and with other adapters leave rows there that nobody can tell from
// those of ours. So no proof begins while one runs that came before the adapters were changed last (Stay).
//
// Threads: any. Cost: check() and is_still() one small call of llama-server; check() after a restart that of the probe.
// The probe needs all slots. Requests wait for its end, as whoever used a slot meanwhile would spoil it. Where a long
// answer keeps it from beginning, they wait for at most `slots_limit`, go on plainly, and each tries anew.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "base/status.h"
#include "engine/llama/gguf_file.h"
#include "server/llama/llama_upstream.h"
#include "server/llama/proxy_metrics.h"
#include "server/llama/slot_table.h"

namespace larder::llama {

// What of a context is part of the pages' identity: its size, if the model has two sets of RoPE factors (Phi-3,
// MiniCPM), of which llama.cpp takes one by that size; else nothing.
[[nodiscard]] std::string context_identity(const GgufModel& model, std::uint32_t context_tokens);
// What of the environment is: llama.cpp rotates the rows of quantised caches unless a variable says otherwise, here and
// in a llama-server that we start.
[[nodiscard]] std::string environment_identity();
// Whether slots of so many tokens leave open which set that is: llama-server tells what a slot may use of its context
// (at most what the model was trained for, or --kv-unified-per-slot: is_capped), and chooses by what there is.
[[nodiscard]] bool hides_context(const GgufModel& model, std::uint32_t slot_tokens, bool is_capped);

class ServerIdentity {
 public:
  struct Proof {
    Status status;                // kConflict: it is not the one whose pages we have; others: it was not proven now
    bool is_other_model = false;  // with kConflict: and will not be
  };
  // Proves a server that was started anew, has slept, or whose adapters were changed. All slots are held. client, own:
  // as of check().
  using Prove = std::function<Proof(LlamaUpstream& client, LlamaUpstream& own, const UpstreamFacts& facts)>;
  // How often a llama-server of our own was started so far, any thread. Empty: it is somebody else's, and its marker
  // tells its starts apart.
  using Starts = std::function<std::uint64_t()>;
  struct Parts {
    SlotTable& slots;
    Clock& clock;
    ProxyMetrics& metrics;
    Starts starts;
    Prove prove;
    Nanos slots_limit;  // for all slots to be free
    Nanos first_pause;  // behind a proof that failed
  };
  // facts: of the server that has been proven.
  ServerIdentity(UpstreamFacts facts, Parts parts);
  // A request, from check() to the end of all that it asks of llama-server. Lifetime: the identity outlives it.
  class Stay {
   public:
    Stay() = default;
    ~Stay();
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;

   private:
    friend class ServerIdentity;
    ServerIdentity* identity_ = nullptr;
    std::uint64_t changes_ = 0;  // of adapters, before it came
  };
  // Who answers now.
  [[nodiscard]] static Result<UpstreamFacts> ask(LlamaUpstream& upstream, const Starts& starts);

  // It may be given prefixes as long as is_current() says so of what this returns; nullopt: it is not proven now.
  // Errors: kConflict: it is another one; others: it does not answer, or not to this client. client: has the client's
  // own key: who may not ask llama-server is given nothing. own: proves a new server. is_gone: as of SlotTable::Wish.
  // stay: of the request, begins here.
  [[nodiscard]] Result<std::optional<std::uint64_t>> check(LlamaUpstream& client, LlamaUpstream& own,
                                                           const std::function<bool()>& is_gone, Stay& stay)
      LARDER_EXCLUDES(mutex_);
  // Before a request that uses no slot: it may wake the server up, whose slots are empty then.
  void look(LlamaUpstream& client) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool is_current(std::uint64_t checked) const LARDER_EXCLUDES(mutex_);
  // The same, and asks who is there: for a restore that comes next, or a save that was made since.
  [[nodiscard]] bool is_still(std::uint64_t checked, LlamaUpstream& client) LARDER_EXCLUDES(mutex_);
  // What counts is being changed (its adapters): nothing is current until the end, and if it was changed the server is
  // proven again.
  void begin_change() LARDER_EXCLUDES(mutex_);
  void end_change(bool is_changed) LARDER_EXCLUDES(mutex_);

 private:
  using Checked = std::optional<std::uint64_t>;
  // One proof at a time: who has all slots.
  class Turn;
  // Who answers now. One that sleeps has to be proven again, whatever becomes of the request that wakes it up.
  [[nodiscard]] Result<UpstreamFacts> ask_now(LlamaUpstream& upstream) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool is_known(const UpstreamFacts& now) const LARDER_REQUIRES(mutex_);
  // The request has asked nothing yet that uses a slot.
  void enter(Stay& stay) LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::size_t& count_of(const Stay& stay) LARDER_REQUIRES(mutex_);
  void leave(const Stay& stay) LARDER_EXCLUDES(mutex_);
  // Until none is older. False: the limit has passed, or the client is gone.
  [[nodiscard]] bool wait_for_older(Stay& stay, TimePoint end, const std::function<bool()>& is_gone)
      LARDER_EXCLUDES(mutex_);
  // What check() says without a proof; nullopt: one is due.
  [[nodiscard]] std::optional<Result<Checked>> verdict(const UpstreamFacts& now) const LARDER_REQUIRES(mutex_);
  [[nodiscard]] Result<Checked> prove_again(LlamaUpstream& client, LlamaUpstream& own) LARDER_EXCLUDES(mutex_);
  // Before a proof of it. Whether it is the start that was proven before.
  [[nodiscard]] bool meet(const UpstreamFacts& now) LARDER_REQUIRES(mutex_);
  [[nodiscard]] Result<Checked> note_failure(const Proof& why) LARDER_REQUIRES(mutex_);
  [[nodiscard]] Result<Checked> refuse(const Proof& why) LARDER_REQUIRES(mutex_);
  // It may be as it was by now.
  void end_refusal() LARDER_REQUIRES(mutex_);

  const Parts parts_;
  std::atomic<std::uint64_t> turns_ = 0;  // up at the begin and at the end of each
  mutable RankedMutex mutex_{LockRank::kServer};
  std::uint32_t changing_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint64_t version_ LARDER_GUARDED_BY(mutex_) = 0;  // up with each change, and each proof that failed
  std::uint64_t changes_ LARDER_GUARDED_BY(mutex_) = 0;  // of adapters
  // Stays of since the last of these changes, and of before it.
  std::size_t current_ LARDER_GUARDED_BY(mutex_) = 0, older_ LARDER_GUARDED_BY(mutex_) = 0;
  RankedCondition left_;                             // a stay has ended
  UpstreamFacts facts_ LARDER_GUARDED_BY(mutex_);    // of the start that was proven
  UpstreamFacts met_ LARDER_GUARDED_BY(mutex_);      // of the last one that was to be
  bool is_proven_ LARDER_GUARDED_BY(mutex_) = true;  // false: it has slept since, or its adapters were changed
  Status refused_ LARDER_GUARDED_BY(mutex_);         // met_, or, for good, whoever answers
  bool is_for_good_ LARDER_GUARDED_BY(mutex_) = false;
  Nanos pause_ LARDER_GUARDED_BY(mutex_){0};          // behind the last proof of met_, if it failed
  TimePoint next_proof_ LARDER_GUARDED_BY(mutex_){};  // of met_, not before
};

}  // namespace larder::llama
