// SPDX-License-Identifier: Apache-2.0
// A small CPU engine that computes every preset on the paged device pools, so that "is this restore right?" has an
// exact answer: same tokens, same logits, bit for bit.
//
// Exactness contract: the value written to a page, the recurrent state at a position, and the logits of a token depend
// only on the tokens at and before that position: not on batch composition, chunk split, thread count, prefix hit or
// instruction set. (Every reduction has one fixed order; compiled with -ffp-contract=off; lanes never cross tokens.)
//
// Threads: step() from the engine thread; it uses its own workers inside. Lifetime: pools outlive the engine.
// Cost: roughly 2 x parameters + attention per token; vectorised over output columns.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/strong.h"
#include "model/model_spec.h"
#include "pool/device_pools.h"
#include "pool/page_table.h"
#include "transfer/layer_gate.h"

namespace larder {

// Copy the working state into `slot` when exactly `position` tokens of the sequence have been processed.
struct StateSnapshot {
  std::uint64_t position = 0;  // tokens; start < position <= start + tokens.size()
  DeviceSlot slot;             // component mamba
};

// One sequence's share of a step: a chunk of prefill, or one token of decode.
struct SequenceStep {
  std::span<const TokenId> tokens;           // never empty; positions start .. start + size
  std::uint64_t start = 0;                   // tokens already in pages (full), window (swa) and state (mamba)
  const PageTable* pages = nullptr;          // covers ceil((start + size) / page_size) pages; swa at least the window
  std::span<const StateSnapshot> snapshots;  // ascending positions; ignored by models without recurrent layers
  LayerGate* gate = nullptr;                 // load-back under way for this sequence: waited on layer by layer
};

struct StepResult {
  Status status;                    // a failed gate fails only its own sequence
  std::vector<float> logits;        // of the last token, [vocab_size]
  std::vector<float> draft_logits;  // [vocab_size], models with a draft pool
};

class ReferenceEngine {
 public:
  // threads: workers for matrix work (>= 1). Errors: kInvalidArgument (a dimension the engine cannot compute, named).
  [[nodiscard]] static Result<std::unique_ptr<ReferenceEngine>> create(const ModelSpec& model, DevicePools& pools,
                                                                       std::uint32_t threads);
  // Whether create() could make one: asked before memory is taken for the pools. Errors: as of create(), of the model.
  [[nodiscard]] static Status check(const ModelSpec& model);
  virtual ~ReferenceEngine() = default;

  // Runs one batch; results[i] belongs to steps[i]. A sequence with start == 0 gets a zeroed working state first.
  // Token ids must be < vocab_size (kInvalidArgument for that sequence).
  [[nodiscard]] virtual std::vector<StepResult> step(std::span<const SequenceStep> steps) = 0;
};

}  // namespace larder
