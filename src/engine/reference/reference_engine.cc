// SPDX-License-Identifier: Apache-2.0
#include "engine/reference/reference_engine.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "engine/reference/engine_impl.h"

namespace larder {
namespace reference {
namespace {

constexpr std::uint64_t kMaxParameters = 256u << 20;  // 1 GiB of floats
constexpr std::uint32_t kMostThreads = 256;
constexpr std::chrono::seconds kGateLimit{60};  // a load-back that takes longer has failed
constexpr std::size_t kBufferAlignment = 64;

// Floats aligned to a cache line, zeroed.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t size) : floats_(size + kBufferAlignment / sizeof(float), 0.0f) {}
  [[nodiscard]] float* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(floats_.data());
    return floats_.data() + (round_up(address, kBufferAlignment) - address) / sizeof(float);
  }

 private:
  Vector floats_;
};

// Owner of all fields: the engine thread; workers see them only inside a stage.
class CpuEngine final : public ReferenceEngine {
 public:
  CpuEngine(const ModelSpec& model, DevicePools& pools, std::uint32_t threads, const Kernels& kernels);

  std::vector<StepResult> step(std::span<const SequenceStep> steps) override;

 private:
  [[nodiscard]] Status check(const SequenceStep& step) const;
  [[nodiscard]] Status check_pages(const SequenceStep& step) const;
  [[nodiscard]] Status check_state(const SequenceStep& step) const;
  // Takes up to kRoundRows tokens of the sequences that are not done. False: nothing left.
  bool next_round(std::span<const SequenceStep> steps, const std::vector<StepResult>& results,
                  std::vector<std::size_t>& done);
  void run_round(std::vector<StepResult>& results);
  void embed();
  void wait_for_layer(std::uint32_t layer, std::vector<StepResult>& results);
  void run_layer(const Layer& layer);
  void finish_tile(const Layer& layer, const RowTile& tile, float* scratch) const;
  void read_head(const Head& head, std::vector<float> StepResult::*logits, std::vector<StepResult>& results);
  [[nodiscard]] std::size_t finish_scratch_floats(const Layer& layer) const;
  void allocate_buffers();

  const ModelSpec model_;
  const Kernels& kernels_;
  Round round_;
  ModelWeights weights_;
  Workers workers_;
  Buffer x_, projected_, aux_, mixed_;
  std::vector<Buffer> scratch_;  // per worker
};

CpuEngine::CpuEngine(const ModelSpec& model, DevicePools& pools, std::uint32_t threads, const Kernels& kernels)
    : model_(model), kernels_(kernels), weights_(build_weights(pools, round_, false)), workers_(threads) {
  round_.kernels = &kernels_;
  round_.page_size = model_.page_size;
  round_.x_stride = round_up(model_.dims.hidden, kPanel);
  allocate_buffers();
}

std::size_t CpuEngine::finish_scratch_floats(const Layer& layer) const {
  return kRowTile * (2 * round_.x_stride + layer.ffn_in.row_stride() + round_up(model_.dims.ffn, kLanes));
}

void CpuEngine::allocate_buffers() {
  std::size_t projected = 0, aux = 0, mixed = 0,
              scratch = std::max(weights_.head.out.row_stride() + round_.x_stride, kRowTile * round_.x_stride);
  for (const Layer& layer : weights_.layers) {
    projected = std::max(projected, layer.mixer->projected_stride());
    aux = std::max(aux, layer.mixer->aux_stride());
    mixed = std::max(mixed, layer.mixer->mixed_stride());
    scratch = std::max({scratch, layer.mixer->scratch_floats(), finish_scratch_floats(layer)});
  }
  // A row more than kRoundRows: kernels read and write up to their padding.
  const auto rows = [](std::size_t stride) { return Buffer((kRoundRows + 1) * stride + kPanel); };
  x_ = rows(round_.x_stride);
  projected_ = rows(projected);
  aux_ = rows(aux);
  mixed_ = rows(mixed);
  round_.x = x_.data();
  round_.projected = projected_.data();
  round_.aux = aux_.data();
  round_.mixed = mixed_.data();
  for (std::size_t w = 0; w < workers_.size(); ++w) scratch_.emplace_back(scratch + kPanel);
  for (Buffer& buffer : scratch_) round_.scratch.push_back(buffer.data());
}

Status CpuEngine::check(const SequenceStep& step) const {
  if (step.tokens.empty() || step.pages == nullptr) return invalid_argument("a sequence step needs tokens and pages");
  if (step.start + step.tokens.size() > model_.context_length) {
    return invalid_argument("the sequence would grow to " + std::to_string(step.start + step.tokens.size()) +
                            " tokens; context_length is " + std::to_string(model_.context_length));
  }
  for (const TokenId token : step.tokens) {
    if (token < model_.vocab_size) continue;
    return invalid_argument("token id " + std::to_string(token) + " is not below vocab_size " +
                            std::to_string(model_.vocab_size));
  }
  LARDER_RETURN_IF_ERROR(check_pages(step));
  return check_state(step);
}

Status CpuEngine::check_pages(const SequenceStep& step) const {
  const std::uint64_t end = step.start + step.tokens.size();
  const auto check_slots = [&](std::span<const DeviceSlot> slots, std::uint64_t first,
                               std::string_view name) -> Status {
    const std::uint64_t pages = (end + model_.page_size - 1) / model_.page_size;
    for (std::uint64_t page = first / model_.page_size; page < pages; ++page) {
      if (page < slots.size() && slots[static_cast<std::size_t>(page)].valid()) continue;
      return invalid_argument("the page table has no " + std::string(name) + " page " + std::to_string(page) +
                              " for tokens up to " + std::to_string(end));
    }
    return Status::ok();
  };
  if (model_.has(ComponentKind::kFull)) LARDER_RETURN_IF_ERROR(check_slots(step.pages->full, 0, "full"));
  if (!model_.has(ComponentKind::kSwa)) return Status::ok();
  const std::uint64_t window = std::min<std::uint64_t>(step.start, model_.dims.window);
  return check_slots(step.pages->swa, step.start - window, "swa");
}

Status CpuEngine::check_state(const SequenceStep& step) const {
  if (!model_.has(ComponentKind::kMamba)) return Status::ok();
  if (!step.pages->state.valid()) return invalid_argument("the page table has no working state slot");
  for (const StateSnapshot& snapshot : step.snapshots) {
    if (snapshot.slot.valid() && snapshot.position > step.start &&
        snapshot.position <= step.start + step.tokens.size()) {
      continue;
    }
    return invalid_argument("snapshot at " + std::to_string(snapshot.position) + " needs a slot and a position in (" +
                            std::to_string(step.start) + ", " + std::to_string(step.start + step.tokens.size()) + "]");
  }
  return Status::ok();
}

std::vector<StepResult> CpuEngine::step(std::span<const SequenceStep> steps) {
  std::vector<StepResult> results(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) results[i].status = check(steps[i]);
  std::vector<std::size_t> done(steps.size(), 0);
  while (next_round(steps, results, done)) run_round(results);
  return results;
}

bool CpuEngine::next_round(std::span<const SequenceStep> steps, const std::vector<StepResult>& results,
                           std::vector<std::size_t>& done) {
  round_.segments.clear();
  std::size_t rows = 0;
  for (std::size_t i = 0; i < steps.size() && rows < kRoundRows; ++i) {
    if (!results[i].status.is_ok() || done[i] == steps[i].tokens.size()) continue;
    Segment segment;
    segment.step = &steps[i];
    segment.index = i;
    segment.start = steps[i].start + done[i];
    segment.first_row = rows;
    segment.count = std::min(steps[i].tokens.size() - done[i], kRoundRows - rows);
    done[i] += segment.count;
    rows += segment.count;
    segment.ends_step = done[i] == steps[i].tokens.size();
    round_.segments.push_back(segment);
  }
  return !round_.segments.empty();
}

void CpuEngine::run_round(std::vector<StepResult>& results) {
  round_.lay_out();
  round_.compute_ropes();
  embed();
  for (std::uint32_t l = 0; l < weights_.layers.size(); ++l) {
    if (l == model_.layers.size()) read_head(weights_.head, &StepResult::logits, results);
    wait_for_layer(l, results);
    run_layer(weights_.layers[l]);
  }
  const bool has_draft = model_.draft.layers > 0;
  if (has_draft) {
    read_head(weights_.draft_head, &StepResult::draft_logits, results);
  } else {
    read_head(weights_.head, &StepResult::logits, results);
  }
}

void CpuEngine::embed() {
  const std::size_t stride = round_up(model_.dims.hidden, kLanes);
  for (const Segment& segment : round_.segments) {
    const std::size_t skip = static_cast<std::size_t>(segment.start - segment.step->start);
    for (std::size_t i = 0; i < segment.count; ++i) {
      const float* from = weights_.embedding.data() + segment.step->tokens[skip + i] * stride;
      std::copy_n(from, stride, round_.x + (segment.first_row + i) * round_.x_stride);
    }
  }
}

void CpuEngine::wait_for_layer(std::uint32_t layer, std::vector<StepResult>& results) {
  for (Segment& segment : round_.segments) {
    if (segment.step->gate == nullptr || segment.failed) continue;
    Status status = segment.step->gate->wait(layer, kGateLimit);
    if (status.is_ok()) continue;
    segment.failed = true;
    results[segment.index] = StepResult{std::move(status), {}, {}};
  }
}

void CpuEngine::run_layer(const Layer& layer) {
  const Mixer& mixer = *layer.mixer;
  workers_.run(round_.row_tiles.size(), mixer.project_cost(round_),
               [&](std::size_t task, std::size_t worker) { mixer.project(round_, task, worker); });
  for (std::size_t stage = 0; stage < mixer.stages(); ++stage) {
    const StageWork work = mixer.plan(round_, stage);
    workers_.run(work.tasks, work.cost,
                 [&](std::size_t task, std::size_t worker) { mixer.run(round_, stage, task, worker); });
  }
  const double cost = static_cast<double>(round_.rows) * static_cast<double>(model_.dims.hidden) *
                      static_cast<double>(mixer.mixed_stride() + std::size_t{3} * model_.dims.ffn);
  workers_.run(round_.row_tiles.size(), cost, [&](std::size_t task, std::size_t worker) {
    finish_tile(layer, round_.row_tiles[task], round_.scratch[worker]);
  });
}

// Output matrix, residual and FFN of a tile of rows.
void CpuEngine::finish_tile(const Layer& layer, const RowTile& tile, float* scratch) const {
  const std::size_t hidden = model_.dims.hidden;
  const std::size_t ffn = model_.dims.ffn;
  const std::size_t stride = round_.x_stride;
  const std::size_t wide = layer.ffn_in.row_stride();
  const std::size_t act_stride = round_up(ffn, kLanes);
  float* delta = scratch;
  float* normed = delta + kRowTile * stride;
  float* gates = normed + kRowTile * stride;
  float* activated = gates + kRowTile * wide;
  float* x = round_.x + tile.first * stride;
  const auto add_normed = [&](const Vector& norm) {
    for (std::size_t r = 0; r < tile.count; ++r) {
      kernels_.rms_norm(delta + r * stride, norm.data(), delta + r * stride, hidden);
      kernels_.add(x + r * stride, delta + r * stride, hidden);
    }
  };
  const std::size_t mixed_stride = layer.mixer->mixed_stride();
  kernels_.matmul(round_.mixed + tile.first * mixed_stride, mixed_stride, tile.count, layer.mixer->out().view(), delta,
                  stride);
  add_normed(layer.mixer_post_norm);
  for (std::size_t r = 0; r < tile.count; ++r) {
    kernels_.rms_norm(x + r * stride, layer.ffn_norm.data(), normed + r * stride, hidden);
  }
  kernels_.matmul(normed, stride, tile.count, layer.ffn_in.view(), gates, wide);
  for (std::size_t r = 0; r < tile.count; ++r) {
    kernels_.silu_mul(gates + r * wide, gates + r * wide + ffn, activated + r * act_stride, ffn);
  }
  kernels_.matmul(activated, act_stride, tile.count, layer.ffn_out.view(), delta, stride);
  add_normed(layer.ffn_post_norm);
}

void CpuEngine::read_head(const Head& head, std::vector<float> StepResult::*logits, std::vector<StepResult>& results) {
  for (const Segment& segment : round_.segments) {
    if (!segment.ends_step || segment.failed) continue;
    float* normed = round_.scratch[0];
    float* out = normed + round_.x_stride;
    const std::size_t row = segment.first_row + segment.count - 1;
    kernels_.rms_norm(round_.x + row * round_.x_stride, head.norm.data(), normed, model_.dims.hidden);
    kernels_.matmul(normed, round_.x_stride, 1, head.out.view(), out, head.out.row_stride());
    (results[segment.index].*logits).assign(out, out + model_.vocab_size);
  }
}

}  // namespace

Result<std::unique_ptr<ReferenceEngine>> create_engine(const ModelSpec& model, DevicePools& pools,
                                                       std::uint32_t threads, const Kernels& kernels) {
  if (threads < 1 || threads > kMostThreads) {
    return invalid_argument("threads is " + std::to_string(threads) + ": it must be 1 to " +
                            std::to_string(kMostThreads));
  }
  if (model.pools != pools.model().pools || model.layers != pools.model().layers ||
      !(model.dims == pools.model().dims)) {
    return invalid_argument("the device pools were made for another model than " + model.id);
  }
  LARDER_RETURN_IF_ERROR(ReferenceEngine::check(model));
  return std::unique_ptr<ReferenceEngine>(std::make_unique<CpuEngine>(model, pools, threads, kernels));
}

}  // namespace reference

Status ReferenceEngine::check(const ModelSpec& model) {
  LARDER_RETURN_IF_ERROR(reference::check_computable(model));
  // Layers take their shapes from pools: a slot of each component is enough.
  ComponentCounts slots{};
  for (const ComponentKind c : kAllComponents) slots[index_of(c)] = model.has(c) ? 1 : 0;
  LARDER_ASSIGN_OR_RETURN(const std::unique_ptr<DevicePools> pools,
                          DevicePools::create(model, slots, host_memory_source()));
  reference::Round throw_away;
  const std::uint64_t parameters = reference::build_weights(*pools, throw_away, true).parameters;
  if (parameters <= reference::kMaxParameters) return Status::ok();
  return invalid_argument("model " + model.id + " has " + std::to_string(parameters) +
                          " parameters; the reference engine's limit is " + std::to_string(reference::kMaxParameters) +
                          ": use a -tiny model");
}

Result<std::unique_ptr<ReferenceEngine>> ReferenceEngine::create(const ModelSpec& model, DevicePools& pools,
                                                                 std::uint32_t threads) {
  return reference::create_engine(model, pools, threads, reference::best_kernels());
}

}  // namespace larder
