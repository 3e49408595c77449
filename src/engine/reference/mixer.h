// SPDX-License-Identifier: Apache-2.0
// The part of a layer that mixes tokens: attention or a recurrence. One class per family of layer kinds.
//
// Road of a layer: normalise the residual stream, project (one fused matrix), then the mixer's own stages, each a set
// of independent tasks; the engine multiplies the result with the output matrix. A stage starts when the one before is
// complete, so a stage may read all that earlier ones wrote.
//
// Only the mixer touches the pools. A segment whose gate failed is never written to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/reference/paged.h"
#include "engine/reference/round.h"
#include "engine/reference/weights.h"

namespace larder::reference {

struct StageWork {
  std::size_t tasks = 0;
  double cost = 0;  // operations, roughly
};

class Mixer {
 public:
  virtual ~Mixer() = default;

  // Stage 0, shared by all: tasks are the round's row tiles.
  void project(const Round& round, std::size_t task, std::size_t worker) const;
  [[nodiscard]] double project_cost(const Round& round) const;

  // Stages after the projection.
  [[nodiscard]] virtual std::size_t stages() const = 0;
  [[nodiscard]] virtual StageWork plan(const Round& round, std::size_t stage) const = 0;
  virtual void run(const Round& round, std::size_t stage, std::size_t task, std::size_t worker) const = 0;

  // Buffer needs, in floats.
  [[nodiscard]] std::size_t projected_stride() const { return in_.row_stride(); }
  [[nodiscard]] virtual std::size_t aux_stride() const { return 0; }
  [[nodiscard]] virtual std::size_t mixed_stride() const = 0;
  [[nodiscard]] virtual std::size_t scratch_floats() const = 0;

  [[nodiscard]] const Matrix& out() const { return out_; }

 protected:
  // What a row needs after its projection: norms, rotation, writing keys to pages. The segment has not failed.
  virtual void finish_row(const Round& round, const Segment& segment, std::size_t row, float* projected) const = 0;

  void make_projections(WeightSource& weights, std::size_t hidden, std::size_t inner, std::size_t mixed);

  [[nodiscard]] float* projected_row(const Round& round, std::size_t row) const {
    return round.projected + row * projected_stride();
  }
  [[nodiscard]] float* aux_row(const Round& round, std::size_t row) const { return round.aux + row * aux_stride(); }
  [[nodiscard]] float* mixed_row(const Round& round, std::size_t row) const {
    return round.mixed + row * mixed_stride();
  }

  std::size_t hidden_ = 0;
  Vector norm_;
  Matrix in_;
  Matrix out_;
};

// Slots of a sequence's pages in the component that holds the mixer's keys.
enum class PageSet : std::uint8_t { kFull, kWindow };
[[nodiscard]] inline std::span<const DeviceSlot> slots_of(const Segment& segment, PageSet set) {
  const PageTable& pages = *segment.step->pages;
  return set == PageSet::kFull ? std::span<const DeviceSlot>(pages.full) : std::span<const DeviceSlot>(pages.swa);
}

struct MixerContext {
  const DevicePools& pools;
  Round& round;           // only for rope_index()
  WeightSource& weights;  // already in the layer
  std::uint32_t layer = 0;
};

// One factory per family. Precondition: the model passed finalize_model().
[[nodiscard]] std::unique_ptr<Mixer> make_gqa_mixer(const MixerContext& context, PoolName pool, std::uint32_t window);
[[nodiscard]] std::unique_ptr<Mixer> make_mla_mixer(const MixerContext& context);
[[nodiscard]] std::unique_ptr<Mixer> make_dsa_mixer(const MixerContext& context);
[[nodiscard]] std::unique_ptr<Mixer> make_gated_delta_mixer(const MixerContext& context);
[[nodiscard]] std::unique_ptr<Mixer> make_mamba2_mixer(const MixerContext& context);
[[nodiscard]] std::unique_ptr<Mixer> make_short_conv_mixer(const MixerContext& context);
[[nodiscard]] std::unique_ptr<Mixer> make_v4_mixer(const MixerContext& context, LayerKind kind);

}  // namespace larder::reference
