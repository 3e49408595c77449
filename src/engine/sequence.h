// SPDX-License-Identifier: Apache-2.0
// One request on its way through the scheduler (internal to engine/).
//
// Picture:  tokens = prompt, then what was sampled; the last sampled token is not fed to the model until the next step.
//
//           0 ........ computed ........ tokens.size()
//           └ in pages ┘└ to be fed ────┘
//
// Threads: owned by the loop thread from submit on.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/scheduler.h"

namespace larder {

struct Sequence {
  Sequence() = default;
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;
  // Tells its end if nobody has: an exception threw it away, and its client must not wait for ever.
  ~Sequence();

  Scheduler::Ticket ticket = 0;
  GenerateRequest request;  // request.tokens moved to `tokens`
  Scheduler::Update update;
  TimePoint submitted;

  std::vector<TokenId> tokens;
  std::uint64_t prompt = 0;    // tokens of the prompt
  std::uint64_t computed = 0;  // tokens that the engine has processed or the cache restored

  std::optional<RequestId> id;       // set once begun in the cache
  bool needs_no_storage = false;     // a long prompt: when it was begun, all that storage could bring was there
  std::uint64_t looked_at = 0;       // turn in which the cache was asked for that last; 0: never
  CachedTokens cached;               // of the (last) start
  std::uint32_t overtaken = 0;       // requests behind it that started while it had no room
  std::uint32_t restarts = 0;        // load-backs that failed since it was retracted last
  std::uint32_t stall_retracts = 0;  // times it was set aside because nothing moved
  std::uint64_t start_order = 0;     // grows with every start; 0: never started
  double queue_seconds = 0;
  double ttft_seconds = 0;  // 0: no token yet
  TimePoint last_token;
  std::uint64_t told = 0;   // of completion(): tokens that an update has brought
  bool is_counted = false;  // its prompt, and what it reuses: once, when its first step has succeeded
  bool is_over = false;     // the last update was sent

  [[nodiscard]] std::uint64_t completion() const { return tokens.size() - prompt; }
  [[nodiscard]] std::uint64_t unfed() const { return tokens.size() - computed; }
};

inline Sequence::~Sequence() {
  if (is_over || !update) return;
  try {
    GenerateUpdate last;
    last.finish = FinishReason::kAbort;
    last.cached = cached;
    last.completion_tokens = completion();
    last.status = internal_error("an exception inside the server ended the request");
    update(last);
  } catch (...) {  // a destructor: the server's own code must not end the process
  }
}

}  // namespace larder
