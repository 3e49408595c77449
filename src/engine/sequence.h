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
  Scheduler::Ticket ticket = 0;
  GenerateRequest request;  // request.tokens moved to `tokens`
  Scheduler::Update update;
  TimePoint submitted;

  std::vector<TokenId> tokens;
  std::uint64_t prompt = 0;    // tokens of the prompt
  std::uint64_t computed = 0;  // tokens that the engine has processed or the cache restored

  std::optional<RequestId> id;    // set once begun in the cache
  CachedTokens cached;            // of the (last) start
  std::uint32_t overtaken = 0;    // requests behind it that started while it had no room
  std::uint32_t restarts = 0;     // load-backs that failed
  std::uint64_t start_order = 0;  // grows with every start; 0: never started
  double queue_seconds = 0;
  double ttft_seconds = 0;  // 0: no token yet
  TimePoint last_token;

  [[nodiscard]] std::uint64_t completion() const { return tokens.size() - prompt; }
  [[nodiscard]] std::uint64_t unfed() const { return tokens.size() - computed; }
};

}  // namespace larder
