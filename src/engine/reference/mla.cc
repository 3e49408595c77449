// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention, and MLA with the DSA indexer.
#include <array>

#include "engine/reference/indexer.h"
#include "engine/reference/latent.h"

namespace larder::reference {
namespace {

class MlaMixer final : public LatentMixer {
 public:
  explicit MlaMixer(const MixerContext& context) : LatentMixer(context, PoolName::kKv, PageSet::kFull, 0) {}

  std::size_t stages() const override { return 1; }
  std::size_t scratch_floats() const override { return attention_scratch_floats(group_); }

  StageWork plan(const Round& round, std::size_t) const override {
    double keys = 0;
    for (const Segment& segment : round.segments) {
      keys += static_cast<double>(segment.count) * static_cast<double>(segment.end());
    }
    return {round.query_tiles.size(), keys * static_cast<double>(heads_ * width_)};
  }

  void run(const Round& round, std::size_t, std::size_t task, std::size_t worker) const override {
    const QueryTile& tile = round.query_tiles[task];
    if (!round.segments[tile.segment].failed) attend_tokens(round, tile, 0, round.scratch[worker]);
  }
};

class DsaMixer final : public LatentMixer {
 public:
  explicit DsaMixer(const MixerContext& context)
      : LatentMixer(context, PoolName::kKv, PageSet::kFull, extra(context.pools.model().dims)),
        indexer_(context.pools.model(), Plane(context.pools, PoolName::kIndexer, context.layer, "index_k")),
        index_rope_(context.round.rope_index(indexer_.dim() / 2 * 2)),
        index_norm_(context.weights.vector("index_norm", indexer_.dim(), 1.0, 0.1)) {}

  std::size_t stages() const override { return 1; }
  std::size_t scratch_floats() const override { return attention_scratch_floats(group_) + indexer_.scratch_floats(); }

  StageWork plan(const Round& round, std::size_t) const override {
    double keys = 0;
    for (const Segment& segment : round.segments) {
      keys += static_cast<double>(segment.count) * static_cast<double>(segment.end());
    }
    return {round.query_tiles.size() * kIndexTilesPerQueryTile,
            keys * static_cast<double>(indexer_.heads() * indexer_.dim())};
  }

  void run(const Round& round, std::size_t, std::size_t task, std::size_t worker) const override {
    const QueryTile& tile = round.query_tiles[task / kIndexTilesPerQueryTile];
    const std::size_t skip = task % kIndexTilesPerQueryTile * kIndexTile;
    const Segment& segment = round.segments[tile.segment];
    if (skip >= tile.count || segment.failed) return;
    const std::size_t count = std::min(kIndexTile, tile.count - skip);
    const std::size_t row = segment.first_row + tile.first + skip;
    float* scratch = round.scratch[worker];
    float* attention = scratch + indexer_.scratch_floats();
    std::array<std::size_t, kIndexTile> visible;
    for (std::size_t i = 0; i < count; ++i) visible[i] = static_cast<std::size_t>(round.position(row + i)) + 1;
    const auto slots = slots_of(segment, pages_);
    indexer_.score(*round.kernels, slots, projected_row(round, row) + index_offset(), projected_stride(),
                   std::span(visible.data(), count), scratch);
    std::vector<std::uint64_t> chosen;
    std::vector<const std::byte*> rows;
    for (std::size_t i = 0; i < count; ++i) {
      indexer_.choose(i, visible[i], scratch, chosen);
      rows.resize(chosen.size());
      for (std::size_t c = 0; c < chosen.size(); ++c) {
        gather_rows(latents_, slots, chosen[c], chosen[c] + 1, 0, rows.data() + c);
      }
      attend_chosen(round, row + i, rows, attention);
    }
  }

 protected:
  // Extra projection: [index queries: heads * dim | head weights: heads | index key: dim].
  void finish_row(const Round& round, const Segment& segment, std::size_t row, float* projected) const override {
    LatentMixer::finish_row(round, segment, row, projected);
    float* index = projected + index_offset();
    for (std::size_t h = 0; h < indexer_.heads(); ++h) finish_index(round, row, index + h * indexer_.dim());
    float* key = index + indexer_.query_floats();
    finish_index(round, row, key);
    const std::uint64_t position = round.position(row);
    const DeviceSlot slot = slots_of(segment, pages_)[static_cast<std::size_t>(position / round.page_size)];
    indexer_.keys().write(slot, static_cast<std::size_t>(position % round.page_size), key);
  }

 private:
  static std::size_t extra(const ModelDims& dims) {
    return std::size_t{dims.index_heads} * (dims.index_dim + 1) + dims.index_dim;
  }
  std::size_t index_offset() const { return (heads_ + 1) * width_; }
  void finish_index(const Round& round, std::size_t row, float* vector) const {
    round.kernels->rms_norm(vector, index_norm_.data(), vector, indexer_.dim());
    round.rotate(index_rope_, row, vector);
  }

  const Indexer indexer_;
  const std::size_t index_rope_;
  const Vector index_norm_;
};

}  // namespace

std::unique_ptr<Mixer> make_mla_mixer(const MixerContext& context) { return std::make_unique<MlaMixer>(context); }
std::unique_ptr<Mixer> make_dsa_mixer(const MixerContext& context) { return std::make_unique<DsaMixer>(context); }

}  // namespace larder::reference
