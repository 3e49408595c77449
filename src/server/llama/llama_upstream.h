// SPDX-License-Identifier: Apache-2.0
// What we ask of a llama-server besides a client's own request.
//
// Threads: confined, as its HttpClient. Errors: kUnavailable, kDeadlineExceeded: it does not answer; kUnsupported: it
// answers that it cannot do this, or with something else than expected (another version); kInvalidArgument: it refuses
// what it was given, with its own words; kOverloaded: it is loading its model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/http_client.h"
#include "base/status.h"
#include "base/strong.h"

namespace larder::llama {

struct UpstreamFacts {  // of GET /props
  std::string model_path, build;
  std::string instance;      // its media marker: see tells_starts_apart()
  bool is_sleeping = false;  // it has let its model go, and loads it anew when it is asked (--sleep-idle-seconds)
  std::uint32_t slots = 0;
  std::uint32_t slot_context = 0;  // tokens
};

// Whether another start of llama-server has another `instance`: a marker that it draws. Versions before April 2026 have
// none, or one for all, and LLAMA_MEDIA_MARKER pins it.
[[nodiscard]] bool tells_starts_apart(const UpstreamFacts& facts);

struct Continuation {  // what a greedy answer was
  std::uint64_t cached = 0;
  std::vector<TokenId> tokens;
  std::vector<double> log_probabilities;  // of each
};

class LlamaUpstream {
 public:
  // client: outlives this; its bearer is the key with which this asks.
  explicit LlamaUpstream(HttpClient& client) : client_(client) {}

  // Ok: it has loaded its model.
  [[nodiscard]] Status check_health();
  [[nodiscard]] Result<UpstreamFacts> facts();
  // False: it has refused the key when it was last asked for facts().
  [[nodiscard]] bool is_let_in() const { return is_let_in_; }
  // Its LoRA adapters and their scales, as JSON text. Waits for the batch that it computes.
  [[nodiscard]] Result<std::string> adapters();
  // As llama-server makes tokens of a prompt that is text.
  [[nodiscard]] Result<std::vector<TokenId>> tokenize(std::string_view text);
  // The text that a chat request becomes. body: of /v1/chat/completions.
  [[nodiscard]] Result<std::string> apply_template(std::string_view body);

  // Computes a prompt and no answer: the slot then stands exactly at its end. How many tokens were there before.
  [[nodiscard]] Result<std::uint64_t> prefill(std::uint32_t slot, std::span<const TokenId> prompt);
  // The `count` likeliest tokens that follow, one after another.
  [[nodiscard]] Result<Continuation> continue_greedily(std::uint32_t slot, std::span<const TokenId> prompt,
                                                       std::uint32_t count);
  // name: of a file in its --slot-save-path.
  [[nodiscard]] Status save_slot(std::uint32_t slot, std::string_view name);
  [[nodiscard]] Status restore_slot(std::uint32_t slot, std::string_view name);
  [[nodiscard]] Status erase_slot(std::uint32_t slot);

 private:
  [[nodiscard]] Status slot_action(std::uint32_t slot, std::string_view action, std::string_view name);

  HttpClient& client_;
  bool is_let_in_ = true;
};

// "[1,2,3]": faster than a document of them.
[[nodiscard]] std::string tokens_text(std::span<const TokenId> tokens);

}  // namespace larder::llama
