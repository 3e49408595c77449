// SPDX-License-Identifier: Apache-2.0
#include "engine/mirrored_engine.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace larder {
namespace {

// As long as a load may take before its sequence fails.
constexpr auto kLoadLimit = std::chrono::seconds(30);

class MirroredEngine final : public ReferenceEngine {
 public:
  MirroredEngine(const ModelSpec& model, Device& device, DevicePools& pools, std::unique_ptr<DevicePools> images,
                 std::unique_ptr<ReferenceEngine> engine)
      : model_(model), device_(device), pools_(pools), images_(std::move(images)), engine_(std::move(engine)) {}

  std::vector<StepResult> step(std::span<const SequenceStep> steps) override {
    std::vector<StepResult> results(steps.size());
    std::vector<SequenceStep> ready;  // of the images: without a gate
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      results[i].status = read(steps[i]);
      if (!results[i].status.is_ok()) continue;
      ready.push_back(steps[i]);
      ready.back().gate = nullptr;
      indices.push_back(i);
    }
    std::vector<StepResult> computed = engine_->step(ready);
    for (std::size_t k = 0; k < ready.size(); ++k) {
      StepResult& result = computed[k];
      if (result.status.is_ok()) result.status = write(ready[k]);
      if (!result.status.is_ok()) result = StepResult{result.status, {}, {}};
      results[indices[k]] = std::move(result);
    }
    return results;
  }

 private:
  enum class Way : unsigned char { kToImage, kToDevice };

  Status read(const SequenceStep& step) {
    if (step.gate != nullptr) LARDER_RETURN_IF_ERROR(step.gate->wait(model_.layer_count() - 1, kLoadLimit));
    if (step.pages == nullptr) return Status::ok();  // the engine says what is wrong with it
    return copy_pages(step, 0, Way::kToImage);
  }

  // Pages from the one before the first new token on: a sidecar's last entry may be completed by the next page.
  Status write(const SequenceStep& step) {
    const std::uint64_t first = step.start / model_.page_size;
    LARDER_RETURN_IF_ERROR(copy_pages(step, first > 0 ? first - 1 : 0, Way::kToDevice));
    if (!model_.has(ComponentKind::kMamba)) return Status::ok();
    for (const StateSnapshot& snapshot : step.snapshots) {
      LARDER_RETURN_IF_ERROR(copy(ComponentKind::kMamba, snapshot.slot, Way::kToDevice));
    }
    return Status::ok();
  }

  Status copy_pages(const SequenceStep& step, std::uint64_t first, Way way) {
    const std::uint64_t end = (step.start + step.tokens.size() + model_.page_size - 1) / model_.page_size;
    for (const auto& [c, slots] :
         {std::pair{ComponentKind::kFull, &step.pages->full}, std::pair{ComponentKind::kSwa, &step.pages->swa}}) {
      for (std::uint64_t page = first; page < std::min<std::uint64_t>(end, slots->size()); ++page) {
        LARDER_RETURN_IF_ERROR(copy(c, (*slots)[static_cast<std::size_t>(page)], way));
      }
    }
    return copy(ComponentKind::kMamba, step.pages->state, way);
  }

  Status copy(ComponentKind c, DeviceSlot slot, Way way) {
    if (!slot.valid() || !model_.has(c)) return Status::ok();  // left its window
    for (const PoolSpec* pool : model_.pools_of(c)) {
      for (std::size_t layer = 0; layer < pool->layers.size(); ++layer) {
        for (std::size_t plane = 0; plane < pool->planes.size(); ++plane) {
          std::byte* const on_device = pools_.page(pool->name, layer, plane, slot);
          std::byte* const image = images_->page(pool->name, layer, plane, slot);
          const std::size_t bytes = pool->planes[plane].layer_bytes();
          LARDER_RETURN_IF_ERROR(way == Way::kToImage ? device_.copy_now(image, on_device, bytes)
                                                      : device_.copy_now(on_device, image, bytes));
        }
      }
    }
    return Status::ok();
  }

  const ModelSpec model_;
  Device& device_;
  DevicePools& pools_;
  const std::unique_ptr<DevicePools> images_;  // slot by slot those of pools_
  const std::unique_ptr<ReferenceEngine> engine_;
};

}  // namespace

Result<std::unique_ptr<ReferenceEngine>> make_mirrored_engine(const ModelSpec& model, Device& device,
                                                              DevicePools& pools, std::uint32_t threads) {
  ComponentCounts slots{};
  for (const ComponentKind c : kAllComponents) slots[index_of(c)] = pools.slots(c).size();
  Result<std::unique_ptr<DevicePools>> images = DevicePools::create(model, slots, host_memory_source());
  if (!images.is_ok()) {
    return Status(images.status().code(), "host images of the device pages: " + images.status().message());
  }
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<ReferenceEngine> engine, ReferenceEngine::create(model, **images, threads));
  return std::unique_ptr<ReferenceEngine>(
      std::make_unique<MirroredEngine>(model, device, pools, std::move(images).value(), std::move(engine)));
}

}  // namespace larder
