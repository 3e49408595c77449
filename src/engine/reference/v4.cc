// SPDX-License-Identifier: Apache-2.0
// DeepSeek V4 layers: attention to the latents of the window and to compressed entries of everything before.
//
// C4: entry j pools tokens [4j-4, 4j+4) with softmax weights of their scores, from the ring of the last 8 values that
// the window component keeps per page. A ring row is position % 8, so after a resume at a page boundary the 4 tokens
// before it are found in the previous page's ring. Entry j is complete after token 4j+3 and seen from position 4j+4 on.
// C128: entry j is the mean of its 128 tokens' values with fixed weights by position in the group, summed in token
// order in the entry's own row (through the pool's dtype): exact for any chunk split, and no other state is needed.
#include <array>

#include "engine/reference/indexer.h"
#include "engine/reference/latent.h"

namespace larder::reference {
namespace {

constexpr std::size_t kC4 = 4;
constexpr std::size_t kC4Span = 8;  // tokens that one C4 entry pools; rows of the ring
constexpr std::size_t kC128 = 128;

// One compressed stream of a C4 layer: latents, or index keys.
class C4Stream {
 public:
  C4Stream(const DevicePools& pools, std::uint32_t layer, PoolName ring, PoolName entries, std::string_view plane)
      : values_(pools, ring, layer, "value"),
        scores_(pools, ring, layer, "score"),
        entries_(pools, entries, layer, plane) {}

  [[nodiscard]] std::size_t width() const { return entries_.width(); }
  [[nodiscard]] const Plane& entries() const { return entries_; }

  // Token at `position`: its value and score go to the ring; every fourth makes an entry. scratch: 2 * width floats.
  void append(const PageTable& pages, std::size_t page_size, std::uint64_t position, const float* value, float score,
              float* scratch) const {
    const DeviceSlot page = pages.swa[static_cast<std::size_t>(position / page_size)];
    values_.write(page, static_cast<std::size_t>(position % kC4Span), value);
    scores_.write(page, static_cast<std::size_t>(position % kC4Span), &score);
    if (position % kC4 == kC4 - 1) pool_entry(pages, page_size, position, scratch);
  }

 private:
  void pool_entry(const PageTable& pages, std::size_t page_size, std::uint64_t position, float* scratch) const {
    const std::uint64_t first = position + 1 < kC4Span ? 0 : position + 1 - kC4Span;
    const std::size_t count = static_cast<std::size_t>(position + 1 - first);
    std::array<float, kC4Span> scores{};
    float maximum = kNoScore;
    for (std::size_t i = 0; i < count; ++i) {
      scores_.read(ring_page(pages, page_size, first + i), (first + i) % kC4Span, &scores[i]);
      maximum = std::max(maximum, scores[i]);
    }
    std::array<float, kC4Span> weights{};
    float sum = 0.0f;
    for (std::size_t i = 0; i < count; ++i) {
      weights[i] = static_cast<float>(exp_exact(double{scores[i]} - double{maximum}));
      sum = sum + weights[i];
    }
    float* value = scratch;
    float* pooled = scratch + width();
    std::fill_n(pooled, width(), 0.0f);
    for (std::size_t i = 0; i < count; ++i) {
      values_.read(ring_page(pages, page_size, first + i), (first + i) % kC4Span, value);
      const float weight = weights[i] / sum;
      for (std::size_t d = 0; d < width(); ++d) pooled[d] = pooled[d] + weight * value[d];
    }
    const DeviceSlot slot = pages.full[static_cast<std::size_t>(position / page_size)];
    entries_.write(slot, static_cast<std::size_t>(position % page_size) / kC4, pooled);
  }

  static DeviceSlot ring_page(const PageTable& pages, std::size_t page_size, std::uint64_t position) {
    return pages.swa[static_cast<std::size_t>(position / page_size)];
  }

  const Plane values_;
  const Plane scores_;
  const Plane entries_;
};

// Pools of a C4 layer.
struct C4Parts {
  C4Parts(const MixerContext& context)
      : latents(context.pools, context.layer, PoolName::kDeepseekV4C4State, PoolName::kDeepseekV4C4, "entry"),
        index_keys(context.pools, context.layer, PoolName::kDeepseekV4C4IndexerState, PoolName::kDeepseekV4C4Indexer,
                   "index_k"),
        indexer(context.pools.model(), index_keys.entries()),
        index_norm(context.weights.vector("index_norm", indexer.dim(), 1.0, 0.1)) {}

  const C4Stream latents;
  const C4Stream index_keys;
  const Indexer indexer;
  const Vector index_norm;
};

// Pool of a C128 layer.
struct C128Parts {
  C128Parts(const MixerContext& context)
      : entries(context.pools, PoolName::kDeepseekV4C128, context.layer, "entry"),
        weights(context.weights.vector("c128_weights", kC128, 4.0 / kC128, 2.0 / kC128)) {}

  const Plane entries;
  const Vector weights;  // [kC128]
};

class V4Mixer final : public LatentMixer {
 public:
  V4Mixer(const MixerContext& context, LayerKind kind)
      : LatentMixer(context, PoolName::kSwa, PageSet::kWindow, extra(context.pools.model().dims, kind)),
        window_(context.pools.model().dims.window),
        value_norm_(context.weights.vector("value_norm", width_, 1.0, 0.1)) {
    if (kind == LayerKind::kV4C4) c4_ = std::make_unique<C4Parts>(context);
    if (kind == LayerKind::kV4C128) c128_ = std::make_unique<C128Parts>(context);
  }

  // 0: compress (one task per segment: entries are summed in token order). 1: attend.
  std::size_t stages() const override { return 2; }
  std::size_t scratch_floats() const override {
    return attention_scratch_floats(group_) + (c4_ ? c4_->indexer.scratch_floats() : 0) + 2 * width_;
  }

  StageWork plan(const Round& round, std::size_t stage) const override {
    const auto rows = static_cast<double>(round.rows);
    if (stage == 0) return {c4_ || c128_ ? round.segments.size() : 0, rows * static_cast<double>(width_) * 8};
    double keys = 0;
    for (const Segment& segment : round.segments) {
      keys += static_cast<double>(segment.count) * (static_cast<double>(segment.end()) / 16 + window_);
    }
    return {round.query_tiles.size() * kIndexTilesPerQueryTile, keys * static_cast<double>(heads_ * width_)};
  }

  void run(const Round& round, std::size_t stage, std::size_t task, std::size_t worker) const override {
    float* scratch = round.scratch[worker];
    if (stage == 0) return compress(round, round.segments[task], scratch);
    QueryTile tile = round.query_tiles[task / kIndexTilesPerQueryTile];
    const std::size_t skip = task % kIndexTilesPerQueryTile * kIndexTile;
    if (skip >= tile.count || round.segments[tile.segment].failed) return;
    tile.first += skip;
    tile.count = std::min(kIndexTile, tile.count - skip);
    if (c4_) return attend_c4(round, tile, scratch);
    if (c128_) return attend_c128(round, tile, scratch);
    attend_tokens(round, tile, window_, scratch);
  }

 protected:
  // Extra projection, C4: [value: width | score | index value: dim | index score | index queries: heads * dim | head
  // weights: heads]; C128: [value: width].
  void finish_row(const Round& round, const Segment& segment, std::size_t row, float* projected) const override {
    LatentMixer::finish_row(round, segment, row, projected);
    if (!c4_ && !c128_) return;
    float* value = projected + extra_offset();
    finish_vector(round, row, value_norm_, value);
    if (!c4_) return;
    const std::size_t dim = c4_->indexer.dim();
    const auto norm = [&](float* v) { round.kernels->rms_norm(v, c4_->index_norm.data(), v, dim); };
    norm(value + index_value_offset());
    for (std::size_t h = 0; h < c4_->indexer.heads(); ++h) norm(value + index_query_offset() + h * dim);
  }

 private:
  static std::size_t extra(const ModelDims& dims, LayerKind kind) {
    const std::size_t width = std::size_t{dims.kv_lora_rank} + dims.rope_dim;
    if (kind == LayerKind::kV4C128) return width;
    if (kind == LayerKind::kV4Window) return 0;
    return width + 1 + dims.index_dim + 1 + std::size_t{dims.index_heads} * (dims.index_dim + 1);
  }
  std::size_t extra_offset() const { return (heads_ + 1) * width_; }
  std::size_t index_value_offset() const { return width_ + 1; }
  std::size_t index_query_offset() const { return width_ + 1 + c4_->indexer.dim() + 1; }

  void compress(const Round& round, const Segment& segment, float* scratch) const {
    if (segment.failed) return;
    const PageTable& pages = *segment.step->pages;
    for (std::size_t i = 0; i < segment.count; ++i) {
      const float* value = projected_row(round, segment.first_row + i) + extra_offset();
      const std::uint64_t position = segment.start + i;
      if (c128_) {
        accumulate_c128(pages, round.page_size, position, value, scratch);
        continue;
      }
      c4_->latents.append(pages, round.page_size, position, value, value[width_], scratch);
      const float* index = value + index_value_offset();
      c4_->index_keys.append(pages, round.page_size, position, index, index[c4_->indexer.dim()], scratch);
    }
  }

  void accumulate_c128(const PageTable& pages, std::size_t page_size, std::uint64_t position, const float* value,
                       float* entry) const {
    const DeviceSlot slot = pages.full[static_cast<std::size_t>(position / page_size)];
    const std::size_t row = static_cast<std::size_t>(position % page_size) / kC128;
    const std::size_t in_group = static_cast<std::size_t>(position % kC128);
    if (in_group == 0) {
      std::fill_n(entry, width_, 0.0f);
    } else {
      c128_->entries.read(slot, row, entry);
    }
    for (std::size_t d = 0; d < width_; ++d) entry[d] = entry[d] + c128_->weights[in_group] * value[d];
    c128_->entries.write(slot, row, entry);
  }

  void append_window(const Segment& segment, std::uint64_t position, std::vector<const std::byte*>& rows) const {
    const std::uint64_t first = window_start(position, window_);
    const std::size_t before = rows.size();
    rows.resize(before + static_cast<std::size_t>(position + 1 - first));
    gather_rows(latents_, slots_of(segment, pages_), first, position + 1, 0, rows.data() + before);
  }

  void attend_c4(const Round& round, const QueryTile& tile, float* scratch) const {
    const Segment& segment = round.segments[tile.segment];
    const Indexer& indexer = c4_->indexer;
    const std::size_t row = segment.first_row + tile.first;
    std::array<std::size_t, kIndexTile> visible;
    for (std::size_t i = 0; i < tile.count; ++i) visible[i] = static_cast<std::size_t>(round.position(row + i) / kC4);
    const std::span<const DeviceSlot> full = slots_of(segment, PageSet::kFull);
    indexer.score(*round.kernels, full, projected_row(round, row) + extra_offset() + index_query_offset(),
                  projected_stride(), std::span(visible.data(), tile.count), scratch);
    std::vector<std::uint64_t> chosen;
    std::vector<const std::byte*> rows;
    for (std::size_t i = 0; i < tile.count; ++i) {
      indexer.choose(i, visible[i], scratch, chosen);
      rows.resize(chosen.size());
      for (std::size_t c = 0; c < chosen.size(); ++c) {
        gather_rows(c4_->latents.entries(), full, chosen[c], chosen[c] + 1, 0, rows.data() + c);
      }
      append_window(segment, round.position(row + i), rows);
      attend_chosen(round, row + i, rows, scratch + indexer.scratch_floats());
    }
  }

  void attend_c128(const Round& round, const QueryTile& tile, float* scratch) const {
    const Segment& segment = round.segments[tile.segment];
    std::vector<const std::byte*> rows;
    for (std::size_t i = 0; i < tile.count; ++i) {
      const std::size_t row = segment.first_row + tile.first + i;
      const std::uint64_t position = round.position(row);
      rows.resize(static_cast<std::size_t>(position / kC128));
      gather_rows(c128_->entries, slots_of(segment, PageSet::kFull), 0, position / kC128, 0, rows.data());
      append_window(segment, position, rows);
      attend_chosen(round, row, rows, scratch);
    }
  }

  const std::uint32_t window_;
  const Vector value_norm_;
  std::unique_ptr<C4Parts> c4_;
  std::unique_ptr<C128Parts> c128_;
};

}  // namespace

std::unique_ptr<Mixer> make_v4_mixer(const MixerContext& context, LayerKind kind) {
  return std::make_unique<V4Mixer>(context, kind);
}

}  // namespace larder::reference
