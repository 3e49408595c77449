// SPDX-License-Identifier: Apache-2.0
// What the tests with the real libllama share: a random model on disk, loaded, with hosts on it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "base/rng.h"
#include "engine/llama/gguf_geometry.h"
#include "engine/llama/libllama/llama_host.h"
#include "engine/llama/libllama/random_model.h"
#include "tests/support/temporary_directory.h"

namespace larder::llama::llama_test {

class LoadedModel {
 public:
  explicit LoadedModel(RandomModel model, const std::string& label = "")
      : path_(directory_.path() + "/" + model.architecture + label + ".gguf") {
    start_libllama();
    const Status status = write_random_model(model, path_);
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    auto gguf = read_gguf(real_file_system(), path_);
    EXPECT_TRUE(gguf) << gguf.status().to_string();
    if (gguf) gguf_ = std::move(*gguf);
    auto loaded = load_model(path_);
    EXPECT_TRUE(loaded) << loaded.status().to_string();
    if (loaded) model_ = std::move(*loaded);
  }

  [[nodiscard]] const GgufModel& gguf() const { return gguf_; }
  [[nodiscard]] llama_model& get() const { return *model_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] GgufGeometry geometry(const HostSettings& settings = {}) const {
    auto geometry = gguf_geometry(gguf_.first, settings.keys, settings.values);
    EXPECT_TRUE(geometry) << geometry.status().to_string();
    return geometry.value_or({});
  }
  [[nodiscard]] std::unique_ptr<LlamaHost> open(const HostSettings& settings) const {
    auto host = LlamaHost::open(*model_, settings);
    EXPECT_TRUE(host) << host.status().to_string();
    return host ? std::move(*host) : nullptr;
  }

 private:
  // Of its own: libllama maps the file, and another process must not write it anew meanwhile.
  const support::TemporaryDirectory directory_;
  const std::string path_;
  GgufModel gguf_;
  ModelHandle model_;
};

[[nodiscard]] inline RandomModel random_model(std::string_view architecture) {
  RandomModel model;
  model.architecture = architecture;
  return model;
}

[[nodiscard]] inline std::vector<TokenId> random_tokens(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng.below(256));
  return tokens;
}

// Tokens [begin, end) in batches of `batch`; the logits behind the last one.
[[nodiscard]] inline std::vector<float> decode(SequenceHost& host, std::uint32_t sequence,
                                               const std::vector<TokenId>& tokens, std::uint32_t begin,
                                               std::uint32_t end, std::uint32_t batch) {
  std::vector<float> last;
  for (std::uint32_t at = begin; at < end; at += batch) {
    auto logits = host.decode(sequence, at, std::span(tokens).subspan(at, std::min(batch, end - at)));
    EXPECT_TRUE(logits) << logits.status().to_string();
    if (!logits) return {};
    last = std::move(*logits);
  }
  return last;
}

}  // namespace larder::llama::llama_test
