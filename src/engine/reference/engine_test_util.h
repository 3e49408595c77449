// SPDX-License-Identifier: Apache-2.0
// A model on fresh device pools, and sequences whose pages lie anywhere in them. For the engine's tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "engine/reference/engine_impl.h"
#include "model/presets.h"

namespace larder::reference {

// One sequence: tokens, pages, and how far it has been computed.
struct TestSequence {
  std::vector<TokenId> tokens;
  PageTable pages;
  std::uint64_t done = 0;
  std::vector<StateSnapshot> snapshots;  // all of the sequence; a step gets those of its range
  LayerGate* gate = nullptr;
};

inline std::vector<TokenId> random_tokens(std::uint64_t seed, std::size_t count, const ModelSpec& model) {
  Rng rng(seed);
  std::vector<TokenId> tokens(count);
  for (auto& token : tokens) token = static_cast<TokenId>(rng.below(model.vocab_size));
  return tokens;
}

// FNV-1a: what is compared is bytes, what a failing test prints is this.
inline std::string fingerprint(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

class TestRig {
 public:
  TestRig(const ModelSpec& model, std::uint32_t threads, const Kernels& kernels = best_kernels(),
          std::uint32_t slots = 96)
      : model_(model) {
    ComponentCounts counts{};
    for (const ComponentKind c : kAllComponents) counts[index_of(c)] = model.has(c) ? slots : 0;
    auto pools = DevicePools::create(model_, counts, host_memory_source());
    EXPECT_TRUE(pools.is_ok()) << pools.status().to_string();
    pools_ = std::move(pools).value();
    auto engine = create_engine(model_, *pools_, threads, kernels);
    EXPECT_TRUE(engine.is_ok()) << engine.status().to_string();
    engine_ = std::move(engine).value();
  }

  [[nodiscard]] const ModelSpec& model() const { return model_; }
  [[nodiscard]] DevicePools& pools() { return *pools_; }

  [[nodiscard]] DeviceSlot slot(ComponentKind c) {
    const auto slot = pools_->allocate(c);
    EXPECT_TRUE(slot.has_value());
    return slot.value_or(DeviceSlot{});
  }

  // Pages before `first_page` are left invalid: for the caller to fill in.
  [[nodiscard]] TestSequence sequence(std::vector<TokenId> tokens, std::size_t first_page = 0) {
    TestSequence out;
    const std::size_t pages = (tokens.size() + model_.page_size - 1) / model_.page_size;
    for (std::size_t i = 0; i < pages; ++i) {
      const auto page = [&](ComponentKind c) { return i < first_page ? DeviceSlot{} : slot(c); };
      if (model_.has(ComponentKind::kFull)) out.pages.full.push_back(page(ComponentKind::kFull));
      if (model_.has(ComponentKind::kSwa)) out.pages.swa.push_back(page(ComponentKind::kSwa));
    }
    if (model_.has(ComponentKind::kMamba)) out.pages.state = slot(ComponentKind::kMamba);
    out.tokens = std::move(tokens);
    return out;
  }

  // What the controller does between steps: window pages that no query needs any more are taken away.
  void drop_left_window(TestSequence& sequence) const {
    if (!model_.has(ComponentKind::kSwa) || sequence.done < model_.dims.window) return;
    const std::uint64_t first = (sequence.done - model_.dims.window) / model_.page_size;
    for (std::uint64_t page = 0; page < first; ++page) sequence.pages.swa[page] = DeviceSlot{};
  }

  // Advances each sequence by its count (0: not in the batch).
  std::vector<StepResult> step(std::vector<TestSequence*> sequences, const std::vector<std::size_t>& counts) {
    std::vector<SequenceStep> steps;
    std::vector<std::vector<StateSnapshot>> snapshots(sequences.size());
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      if (counts[i] == 0) continue;
      TestSequence& s = *sequences[i];
      for (const StateSnapshot& snapshot : s.snapshots) {
        if (snapshot.position > s.done && snapshot.position <= s.done + counts[i]) snapshots[i].push_back(snapshot);
      }
      SequenceStep one;
      one.tokens = std::span(s.tokens).subspan(s.done, counts[i]);
      one.start = s.done;
      one.pages = &s.pages;
      one.snapshots = snapshots[i];
      one.gate = s.gate;
      steps.push_back(one);
    }
    auto results = engine_->step(steps);
    for (std::size_t i = 0; i < sequences.size(); ++i) sequences[i]->done += counts[i];
    return results;
  }

  // The rest of a sequence in chunks of at most `chunk` tokens.
  StepResult run(TestSequence& sequence, std::size_t chunk = std::size_t{1} << 30, bool drop_pages = false) {
    StepResult result;
    while (sequence.done < sequence.tokens.size()) {
      if (drop_pages) drop_left_window(sequence);
      auto results = step({&sequence}, {std::min<std::size_t>(chunk, sequence.tokens.size() - sequence.done)});
      result = std::move(results[0]);
      EXPECT_TRUE(result.status.is_ok()) << result.status.to_string();
    }
    return result;
  }

  // Fingerprint of all bytes that a component keeps in a slot.
  [[nodiscard]] std::string bytes(ComponentKind c, DeviceSlot slot) const {
    std::string out;
    for (const PoolSpec* pool : model_.pools_of(c)) {
      for (std::size_t l = 0; l < pool->layers.size(); ++l) {
        for (std::size_t p = 0; p < pool->planes.size(); ++p) {
          out.append(reinterpret_cast<const char*>(pools_->page(pool->name, l, p, slot)),
                     pool->planes[p].layer_bytes());
        }
      }
    }
    return fingerprint(out);
  }

  void copy_slot(ComponentKind c, DeviceSlot from, DeviceSlot to) {
    for (const PoolSpec* pool : model_.pools_of(c)) {
      for (std::size_t l = 0; l < pool->layers.size(); ++l) {
        for (std::size_t p = 0; p < pool->planes.size(); ++p) {
          std::memcpy(pools_->page(pool->name, l, p, to), pools_->page(pool->name, l, p, from),
                      pool->planes[p].layer_bytes());
        }
      }
    }
  }

  // Fingerprints of the pages (those still there) and the working state of a sequence.
  [[nodiscard]] std::string cached_bytes(const TestSequence& sequence) const {
    std::string out;
    for (const DeviceSlot slot : sequence.pages.full) out += " full:" + bytes(ComponentKind::kFull, slot);
    for (const DeviceSlot slot : sequence.pages.swa) {
      if (slot.valid()) out += " swa:" + bytes(ComponentKind::kSwa, slot);
    }
    if (sequence.pages.state.valid()) out += " state:" + bytes(ComponentKind::kMamba, sequence.pages.state);
    return out;
  }

 private:
  const ModelSpec model_;
  std::unique_ptr<DevicePools> pools_;
  std::unique_ptr<ReferenceEngine> engine_;
};

// Bit for bit: NaN would compare unequal to itself, and -0 equal to 0.
inline std::string float_bytes(const std::vector<float>& values) {
  return fingerprint({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
}

inline std::string output_bytes(const StepResult& result) {
  return float_bytes(result.logits) + "|" + float_bytes(result.draft_logits);
}

inline ModelSpec preset(const std::string& name) {
  auto model = preset_model(name);
  EXPECT_TRUE(model.is_ok()) << model.status().to_string();
  return std::move(model).value();
}

}  // namespace larder::reference
