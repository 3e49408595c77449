// SPDX-License-Identifier: Apache-2.0
// Shows, before a model is served, that its sequences survive being cut into pages and put together again.
//
// llama.cpp's blobs have no version, and a wrong restore is not an error but a wrong answer. So the whole road is gone
// once, with random tokens: decode, export page by page, cut, compose, restore by the rules of sequence_moves.h, decode
// on, and compare the logits with those of a sequence that was never taken apart. What does not come out the same is
// refused, by name.
//
// Sequences 0, 1 and 2 of the host are used, and left empty. Cost: with 4 pages the decoding of some 26; it grows with
// the square of the pages. Measured: 4.7 s on one core for a model of 280 MB (Q4_0), with pages of 16 tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "engine/llama/blob_geometry.h"
#include "engine/llama/sequence_host.h"

namespace larder::llama {

struct ProbeSettings {
  std::string model;                // for messages
  std::uint32_t page_size = 16;     // tokens in a batch, too
  std::uint32_t pages = 4;          // at least 3; with sliding layers better more than their window
  std::uint32_t window_tokens = 0;  // as in the model's file
  // By how much logits may differ, as a part of the largest one: 0 on a CPU, where all is the same bit for bit.
  float tolerance = 0;
  std::uint64_t seed = 1;
};

// What came out when a part was wrong on purpose: by how much logits differed, as a part of the largest one. Nothing:
// the model has no such part. 0: the model does not look at it, so that the probe says nothing about it.
struct ProbeControls {
  std::optional<float> pages, window, checkpoint;
};

struct ProbeReport {
  BlobGeometry geometry;
  ProbeControls controls;
  float difference = 0;  // the largest one that was within the tolerance
};

// kUnsupported: "<model> cannot be cached: ..." with the step that failed.
[[nodiscard]] Result<ProbeReport> probe_model(SequenceHost& host, const ProbeSettings& settings);

}  // namespace larder::llama
