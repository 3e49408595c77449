// SPDX-License-Identifier: Apache-2.0
// The road of a conversation through the tiers: computed, moved away, fetched back, compared bit for bit with a run
// that never heard of a cache. For tests of every store that there is.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/exactness/exactness_rig.h"

namespace larder::exactness {

// Where a turn must find what the turns before it left.
enum class From { kDevice, kHost, kMemoryStore, kFileStore, kHf3fsStore, kMooncakeStore };

inline constexpr std::size_t kRoadOutputs = 9;

// A conversation of two turns, and a second question after the same first prompt.
struct Script {
  explicit Script(const ModelSpec& model);
  Tokens first, question, other, second, forked;
  Truth turns, fork;
  Tokens first_output, second_output, forked_output;
  std::vector<StepLogits> first_logits, second_logits, forked_logits;
};

// `store`: further options of the backend, where `from` is one.
void check_road(const Script& script, const ModelSpec& model, HostLayout layout, From from,
                const BackendOptions& store = {});
// A store outlives the process: a second one, with the same model, goes on where the first one left.
void check_restart(const Script& script, const ModelSpec& model, From from, const BackendOptions& store = {});

// "gdn-tiny+draft" -> "gdn_tiny_draft".
[[nodiscard]] std::string preset_test_name(const testing::TestParamInfo<std::string>& info);

}  // namespace larder::exactness
