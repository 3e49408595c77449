// SPDX-License-Identifier: Apache-2.0
// A context of libllama as a SequenceHost: one unified cache, flash attention, no rollback snapshots.
//
// Threads: confined. Lifetime: the model outlives the host. Errors: kInvalidArgument: libllama refuses these settings
// for this model; what it said is in the log. kOverloaded: no cells are free. kInternal: a call failed otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/llama/gguf_geometry.h"
#include "engine/llama/sequence_host.h"

struct llama_context;
struct llama_model;

namespace larder::llama {

// Sends libllama's warnings and errors to base/log.h, and drops what else it says. Once per process, before all else.
void start_libllama();

struct ModelCloser {
  void operator()(llama_model* model) const;
};
using ModelHandle = std::unique_ptr<llama_model, ModelCloser>;

// Reads all weights. kInvalidArgument with the path.
[[nodiscard]] Result<ModelHandle> load_model(const std::string& path, int gpu_layers = 0);

struct HostSettings {
  std::uint32_t context_tokens = 4096;  // of all sequences together
  std::uint32_t batch_tokens = 64;      // decode() takes at most so many; one micro-batch
  std::uint32_t sequences = 3;
  CacheType keys{}, values{};
  int threads = 1;
};

// A token of a batch of several sequences.
struct BatchRow {
  std::uint32_t sequence = 0, position = 0;
  TokenId token = 0;
  bool wants_logits = false;
};

class LlamaHost final : public SequenceHost {
 public:
  [[nodiscard]] static Result<std::unique_ptr<LlamaHost>> open(llama_model& model, const HostSettings& settings);
  ~LlamaHost() override;

  [[nodiscard]] Result<std::vector<float>> decode(std::uint32_t sequence, std::uint32_t position,
                                                  std::span<const TokenId> tokens) override;
  // One batch of several sequences, each of which is continued. kOverloaded: no cells; nothing was computed. Logits are
  // those of context(), by index in `rows`.
  [[nodiscard]] Status decode(std::span<const BatchRow> rows);
  // Drops positions from `end` on. False: the model cannot (recurrent layers, windows that have moved on).
  [[nodiscard]] bool trim(std::uint32_t sequence, std::uint32_t end);
  [[nodiscard]] llama_context& context() { return *context_; }
  [[nodiscard]] const HostSettings& settings() const { return settings_; }
  [[nodiscard]] Result<std::vector<std::byte>> save(std::uint32_t sequence, bool is_partial) override;
  [[nodiscard]] Status load(std::uint32_t sequence, std::span<const std::byte> blob, bool is_partial) override;
  void share(std::uint32_t from, std::uint32_t to, std::uint32_t begin, std::uint32_t end) override;
  void clear(std::uint32_t sequence) override;
  [[nodiscard]] std::uint32_t vocabulary_size() const override { return vocabulary_; }

 private:
  LlamaHost(llama_context* context, const HostSettings& settings, std::uint32_t vocabulary)
      : context_(context), settings_(settings), vocabulary_(vocabulary) {}

  llama_context* const context_;
  const HostSettings settings_;
  const std::uint32_t vocabulary_;
};

}  // namespace larder::llama
