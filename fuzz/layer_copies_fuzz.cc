// SPDX-License-Identifier: Apache-2.0
// The plan of copies between device and host (transfer/transfer.h: append_layer_copies).
//
// Fed: pools of odd shapes (layers, planes, rows, heads, sizes), a host layout, how slots are scattered, how many
// pages. Checked: the copies of all layers together move every byte of every page exactly once: down to where
// chunk_offset() says, up again into other slots, and from device to device; copies of one direction alone touch what
// belongs to the given slots.
#include "fuzz/expectations.h"
#include "fuzz/fuzz_input.h"
#include "transfer/transfer_test_util.h"

namespace larder::fuzz {
namespace {

using transfer_test::Fixture;
using transfer_test::Pairs;

PoolSpec make_pool(PoolName name, ComponentKind component, bool is_anchor, std::uint32_t layers, FuzzInput& input) {
  std::vector<std::uint32_t> owned;
  const std::uint64_t mask = input.number<std::uint8_t>();
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    if ((mask >> layer & 1) == 0) owned.push_back(layer);
  }
  if (owned.empty()) owned.push_back(layers - 1);
  std::vector<PlaneSpec> planes(static_cast<std::size_t>(1 + input.below(3)));
  for (PlaneSpec& plane : planes) {
    plane.name = "p";
    plane.dtype = input.flag() ? Dtype::kU8 : Dtype::kBf16;
    plane.rows = static_cast<std::uint32_t>(1 + input.below(7));
    plane.heads = static_cast<std::uint32_t>(1 + input.below(4));
    plane.head_dim = static_cast<std::uint32_t>(1 + input.below(40));
  }
  return pool_test::pool_of(name, component, is_anchor, owned, planes);
}

ModelSpec make_model(FuzzInput& input) {
  const auto layers = static_cast<std::uint32_t>(1 + input.below(5));
  std::vector<PoolSpec> pools;
  if (input.flag()) pools.push_back(make_pool(PoolName::kIndexer, ComponentKind::kFull, false, layers, input));
  pools.push_back(make_pool(PoolName::kKv, ComponentKind::kFull, true, layers, input));
  if (input.flag()) pools.push_back(make_pool(PoolName::kSwa, ComponentKind::kSwa, true, layers, input));
  if (input.flag()) pools.push_back(make_pool(PoolName::kMamba, ComponentKind::kMamba, true, layers, input));
  return pool_test::model_of(layers, std::move(pools));
}

std::vector<CopyOp> all_copies(const Fixture& f, const Pairs& pairs, CopyDirection direction) {
  std::vector<CopyOp> ops;
  for (std::uint32_t layer = 0; layer < f.device->model().layer_count(); ++layer) {
    for (const ComponentKind c : kAllComponents) {
      append_layer_copies(*f.device, f.host.get(), c, pairs[index_of(c)], direction, layer, ops);
    }
  }
  return ops;
}

// Runs the copies. Each byte of every target is written once: `bytes` in all, and no two in one place.
void run_copies(const std::vector<CopyOp>& ops, std::size_t bytes) {
  std::vector<std::pair<const std::byte*, std::size_t>> written;
  std::size_t moved = 0;
  for (const CopyOp& op : ops) {
    fuzz_check(op.width > 0 && op.rows > 0, "a copy of nothing");
    for (std::size_t row = 0; row < op.rows; ++row) {
      std::byte* const to = op.dst + row * op.dst_pitch;
      std::memcpy(to, op.src + row * op.src_pitch, op.width);
      written.emplace_back(to, op.width);
      moved += op.width;
    }
  }
  fuzz_check(moved == bytes, "not every byte is moved, or some twice");
  std::sort(written.begin(), written.end());
  for (std::size_t i = 1; i < written.size(); ++i) {
    fuzz_check(written[i - 1].first + written[i - 1].second <= written[i].first, "two copies write to one place");
  }
}

void run(FuzzInput input) {
  end_at_failed_expectations();
  const ModelSpec model = make_model(input);
  const HostLayout layout = kAllHostLayouts[static_cast<std::size_t>(input.below(kAllHostLayouts.size()))];
  const auto pages = static_cast<std::uint32_t>(1 + input.below(3));
  Rng rng(input.number<std::uint16_t>());
  Fixture f(model, layout, pages, rng);
  f.fill_device(rng, &SlotPair::device);
  f.fill_device(rng, &SlotPair::source);
  f.fill_host(rng);
  std::size_t bytes = 0;
  for (const ComponentKind c : kAllComponents) bytes += model.slot_bytes(c) * f.pairs[index_of(c)].size();

  run_copies(all_copies(f, f.pairs, CopyDirection::kDeviceToHost), bytes);
  const std::string down = f.difference_to_host(&SlotPair::device);
  if (!down.empty()) fuzz_check(false, "down: " + down);
  run_copies(all_copies(f, f.swapped(), CopyDirection::kHostToDevice), bytes);
  fuzz_check(f.device_sets_are_equal(), "up: other bytes");
  const std::string up = f.difference_to_host(&SlotPair::source);
  if (!up.empty()) fuzz_check(false, "up: " + up);
  f.fill_device(rng, &SlotPair::source);
  run_copies(all_copies(f, f.pairs, CopyDirection::kDeviceToDevice), bytes);
  fuzz_check(f.device_sets_are_equal(), "across: other bytes");
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
