// SPDX-License-Identifier: Apache-2.0
// What the tests of LlamaEngine share: an engine on a tiny model, with a store or without, and answers that note what
// they are told.
//
// An answer goes the way of a reference, whatever it would have said itself, and its logits are compared with those of
// the reference at each token: up to rounding, as another split of a prompt into batches is another one.
#pragma once

#include <gtest/gtest.h>
#include <llama.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/llama/model_pools.h"
#include "server/llama/libllama/llama_engine.h"
#include "server/llama/prefix_store.h"
#include "tests/llama/llama_rig.h"
#include "tests/support/signal.h"

namespace larder::llama::llama_test {

using Tokens = std::vector<TokenId>;

inline constexpr std::uint32_t kEnginePage = 16;
// By which logits may differ. Seen: up to 0.009. Weights are such that a wrong page or state is more (random_model.h).
inline constexpr float kRounding = 0.02f;

using Logits = std::vector<float>;

[[nodiscard]] inline TokenId likeliest(const Logits& logits) {
  return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

// The likeliest tokens behind a prompt, and the logits of each place.
struct Reference {
  Tokens tokens;
  std::vector<Logits> logits;
};

class FakeWriter final : public AnswerWriter {
 public:
  // Says its own likeliest tokens.
  explicit FakeWriter(std::size_t count) : count_(count) {}
  explicit FakeWriter(Reference reference) : count_(reference.tokens.size()), reference_(std::move(reference)) {}

  // Before it starts: runs on the engine's thread before token `at`.
  void before(std::size_t at, std::function<void()> what) { before_[at] = std::move(what); }
  void leave() { is_gone_ = true; }

  bool is_gone() const override { return is_gone_; }
  void begin(const PromptUse& use) override {
    EXPECT_FALSE(has_ended_);
    if (begun_++ == 0) use_ = use;
    last_use_ = use;
  }
  std::optional<TokenId> next(llama_context& context, std::int32_t row) override {
    EXPECT_GT(begun_, 0);
    EXPECT_FALSE(has_ended_);
    const std::size_t at = tokens_.size();
    if (const auto what = before_.find(at); what != before_.end()) what->second();
    const float* first = llama_get_logits_ith(&context, row);
    const Logits logits(first, first + kRandomModelVocabulary);
    tokens_.push_back(likeliest(logits));
    if (at < reference_.tokens.size()) {
      tokens_.back() = reference_.tokens[at];
      for (std::size_t i = 0; i < logits.size(); ++i) {
        difference_ = std::max(difference_, std::abs(logits[i] - reference_.logits[at][i]));
      }
    }
    if (tokens_.size() >= count_) return std::nullopt;
    return tokens_.back();
  }
  void end(const Status& status) override {
    EXPECT_FALSE(has_ended_.exchange(true)) << "an answer ends once";
    status_ = status;
    ended_.set();
  }

  // What became of it.
  [[nodiscard]] Status wait() {
    ended_.wait();
    return status_;
  }
  // After wait().
  [[nodiscard]] const Tokens& tokens() const { return tokens_; }
  // The largest one from the reference.
  [[nodiscard]] float difference() const { return difference_; }
  [[nodiscard]] PromptUse use() const { return use_; }
  [[nodiscard]] PromptUse last_use() const { return last_use_; }  // after it was set back
  [[nodiscard]] int begun() const { return begun_; }
  [[nodiscard]] bool has_ended() const { return has_ended_; }

 private:
  const std::size_t count_;
  const Reference reference_;
  std::map<std::size_t, std::function<void()>> before_;
  std::atomic<bool> is_gone_{false}, has_ended_{false};
  support::Signal ended_;
  // Of the engine's thread until it has ended.
  Tokens tokens_;
  float difference_ = 0;
  PromptUse use_, last_use_;
  int begun_ = 0;
  Status status_;
};

struct EngineOptions {
  std::uint32_t slots = 1, max_waiting = 16, context = 2048, batch = kEnginePage;
  std::string store{};  // a folder; none: nothing is kept
};

class EngineRig {
 public:
  EngineRig(const LoadedModel& model, const EngineOptions& options) : model_(model) {
    settings_.context_tokens = options.context;
    settings_.batch_tokens = options.batch;
    settings_.sequences = options.slots + 1;
    format_.geometry = model.geometry(settings_).blob;
    format_.is_in_process = true;
    ModelSettings identity;
    identity.model = model.gguf().identity;
    identity.page_size = kEnginePage;
    auto pools = model_pools(format_.geometry, identity);
    EXPECT_TRUE(pools) << pools.status().to_string();
    format_.pools = std::move(*pools);
    if (!options.store.empty()) open_store(options.store);
    host_ = model.open(settings_);
    const EngineSettings engine{
        options.slots, options.max_waiting, {.page_size = kEnginePage, .grid = 0, .spacing = kEnginePage}};
    engine_ = std::make_unique<LlamaEngine>(*host_, format_, engine,
                                            [this](Tokens tokens, SequenceExport pages, const std::string& owner) {
                                              return keep(std::move(tokens), std::move(pages), owner);
                                            });
  }
  ~EngineRig() { close(); }
  EngineRig(const EngineRig&) = delete;
  EngineRig& operator=(const EngineRig&) = delete;

  void close() {
    engine_.reset();
    if (store_) {
      EXPECT_TRUE(store_->drain(std::chrono::seconds(20)).is_ok());
    }
    store_.reset();
  }
  [[nodiscard]] LlamaEngine& engine() { return *engine_; }
  [[nodiscard]] bool is_dense() const { return format_.is_dense(); }
  // How many tokens each restore point had.
  [[nodiscard]] std::vector<std::size_t> kept() const {
    LockGuard guard(mutex_);
    return kept_;
  }

  // As a front asks: with what the store has.
  [[nodiscard]] EngineRequest request(const Tokens& prompt, const std::shared_ptr<FakeWriter>& writer) {
    EngineRequest out;
    out.prompt = prompt;
    out.answers = {writer};
    if (!store_) return out;
    auto looked = store_->find(prompt, "", true);
    EXPECT_TRUE(looked) << looked.status().to_string();
    const auto found = std::make_shared<const PrefixStore::Found>(std::move(*looked));
    out.known = found->known();
    out.restorable = found->tokens();
    out.restores_from = found->from_storage() > 0 ? ReusedFrom::kStorage : ReusedFrom::kHost;
    out.load = [this, found](std::span<const TokenId> of) { return store_->load(*found, of); };
    return out;
  }
  // Begins it; its reference is what a context says that has computed nothing else.
  std::shared_ptr<FakeWriter> start(const Tokens& prompt, std::size_t count) {
    auto writer = std::make_shared<FakeWriter>(reference(prompt, count));
    submit(prompt, writer);
    return writer;
  }
  // Writers of one request.
  [[nodiscard]] std::vector<std::shared_ptr<FakeWriter>> several(const Tokens& prompt, std::size_t answers,
                                                                 std::size_t count) const {
    const Reference expected = reference(prompt, count);
    std::vector<std::shared_ptr<FakeWriter>> writers(answers);
    for (auto& writer : writers) writer = std::make_shared<FakeWriter>(expected);
    return writers;
  }
  void submit(const Tokens& prompt, const std::shared_ptr<FakeWriter>& writer) { submit(prompt, std::vector{writer}); }
  void submit(const Tokens& prompt, const std::vector<std::shared_ptr<FakeWriter>>& writers) {
    EngineRequest asked = request(prompt, writers.front());
    asked.answers.assign(writers.begin(), writers.end());
    const Status submitted = engine_->submit(std::move(asked));
    EXPECT_TRUE(submitted.is_ok()) << submitted.to_string();
  }
  std::shared_ptr<FakeWriter> ask(const Tokens& prompt, std::size_t count = 8) {
    auto writer = start(prompt, count);
    expect_right(*writer, count);
    return writer;
  }
  // Waits for its end.
  static void expect_right(FakeWriter& writer, std::size_t count) {
    const Status status = writer.wait();
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    EXPECT_EQ(writer.tokens().size(), count);
    EXPECT_LT(writer.difference(), kRounding) << writer.use().tokens << " tokens were reused";
  }
  [[nodiscard]] Reference reference(const Tokens& prompt, std::size_t count) const {
    const auto host = model_.open(settings_);
    Reference out;
    Logits logits = decode(*host, 0, prompt, 0, static_cast<std::uint32_t>(prompt.size()), settings_.batch_tokens);
    for (auto at = static_cast<std::uint32_t>(prompt.size()); !logits.empty(); ++at) {
      out.tokens.push_back(likeliest(logits));
      out.logits.push_back(std::move(logits));
      if (out.tokens.size() >= count) break;
      logits = static_cast<SequenceHost&>(*host).decode(0, at, std::span(&out.tokens.back(), 1)).value_or({});
    }
    return out;
  }

 private:
  void open_store(const std::string& folder) {
    PrefixStoreOptions options;
    options.host_bytes = std::uint64_t{64} << 20;
    options.storage = "file";
    options.storage_config = nlohmann::json{{"directory", folder}, {"max_size", "256Mi"}}.dump();
    auto storage = PrefixStore::open_storage(options);
    ASSERT_TRUE(storage) << storage.status().to_string();
    auto store = PrefixStore::open(format_, options, std::move(*storage));
    EXPECT_TRUE(store) << store.status().to_string();
    store_ = std::move(*store);
  }
  [[nodiscard]] bool keep(Tokens tokens, SequenceExport pages, const std::string& owner) {
    {
      LockGuard guard(mutex_);
      kept_.push_back(tokens.size());
    }
    if (!store_) return false;
    const auto slot = SavedSlot::of_export(format_, std::move(tokens), std::move(pages));
    const auto saved = store_->save(slot, slot->end(), owner);
    EXPECT_TRUE(saved) << saved.status().to_string();
    return saved.is_ok();
  }

  const LoadedModel& model_;
  HostSettings settings_;
  SlotFormat format_;
  std::unique_ptr<PrefixStore> store_;
  std::unique_ptr<LlamaHost> host_;
  mutable RankedMutex mutex_{LockRank::kServer};
  std::vector<std::size_t> kept_ LARDER_GUARDED_BY(mutex_);
  std::unique_ptr<LlamaEngine> engine_;  // first to go: it uses the rest
};

[[nodiscard]] inline Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
[[nodiscard]] inline Tokens first(const Tokens& tokens, std::size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace larder::llama::llama_test
