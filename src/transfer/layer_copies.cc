// SPDX-License-Identifier: Apache-2.0
// append_layer_copies(): from slot pairs to strided copies.
#include <algorithm>
#include <cassert>
#include <cstddef>
#include <span>
#include <vector>

#include "base/defect.h"
#include "transfer/transfer.h"

namespace larder {
namespace {

// What one plane of one layer looks like on both sides of a copy, for each page alike: `runs` groups of `rows` pieces.
// page_head has one group per head; the other layouts keep the heads of a row together and have one group.
struct PlaneRuns {
  std::size_t width = 0;  // bytes of a piece
  std::size_t rows = 0;
  std::size_t host_offset = 0;  // of the first piece, inside the page
  std::size_t host_pitch = 0;   // between pieces of a group
  std::size_t device_pitch = 0;
  std::size_t runs = 1;
  std::size_t host_run_pitch = 0;  // between groups
  std::size_t device_run_pitch = 0;
};

PlaneRuns plane_runs(const PoolSpec& pool, HostLayout layout, std::size_t plane, std::size_t layer_index) {
  const PlaneSpec& shape = pool.planes[plane];
  const std::size_t layers = pool.layers.size();
  PlaneRuns r;
  r.host_offset = chunk_offset(pool, layout, plane, layer_index, 0, 0);
  switch (layout) {
    case HostLayout::kLayerFirst:
    case HostLayout::kPageFirstDirect:
      r.width = shape.layer_bytes();
      r.rows = 1;
      break;
    case HostLayout::kPageFirst:
      r.width = shape.row_bytes();
      r.rows = shape.rows;
      r.host_pitch = layers * shape.row_bytes();
      break;
    case HostLayout::kPageHead:
      r.width = shape.head_bytes();
      r.rows = shape.rows;
      r.host_pitch = layers * shape.head_bytes();
      r.device_pitch = shape.row_bytes();
      r.runs = shape.heads;
      r.host_run_pitch = shape.rows * r.host_pitch;
      r.device_run_pitch = shape.head_bytes();
      break;
  }
  if (r.rows <= 1) r.host_pitch = r.device_pitch = r.width;
  if (r.device_pitch == 0) r.device_pitch = r.width;
  if (r.host_pitch == r.width && r.device_pitch == r.width) {  // one piece on both sides
    r.width *= r.rows;
    r.rows = 1;
    r.host_pitch = r.device_pitch = r.width;
  }
  return r;
}

// Takes host and device sides and orders them by direction; joins a copy with the one before it where both are
// contiguous.
class OpList {
 public:
  OpList(CopyDirection direction, std::vector<CopyOp>& out) : direction_(direction), out_(out), first_(out.size()) {}

  void add(std::byte* host, std::byte* device, std::size_t width, std::size_t rows, std::size_t host_pitch,
           std::size_t device_pitch) {
    if (direction_ == CopyDirection::kDeviceToHost) {
      push({host, device, width, rows, host_pitch, device_pitch});
    } else {
      push({device, host, width, rows, device_pitch, host_pitch});
    }
  }

  void push(const CopyOp& op) {
    if (op.rows == 1 && out_.size() > first_) {
      CopyOp& last = out_.back();
      if (last.rows == 1 && last.dst + last.width == op.dst && last.src + last.width == op.src) {
        last.width += op.width;
        last.dst_pitch = last.src_pitch = last.width;
        return;
      }
    }
    out_.push_back(op);
  }

 private:
  const CopyDirection direction_;
  std::vector<CopyOp>& out_;
  const std::size_t first_;  // ops before it are the caller's and are left alone
};

// One group of pieces of one page. Where the host page leaves its block, the piece that straddles is cut.
void add_run(const HostPools& host, PoolName pool, HostSlot slot, const PlaneRuns& r, std::size_t host_offset,
             std::byte* device, OpList& ops) {
  std::size_t rows = r.rows;
  while (rows > 0) {
    const Segment segment = host.segment_at(pool, slot, host_offset, (rows - 1) * r.host_pitch + r.width);
    std::size_t done = 0;
    if (segment.size >= r.width) {
      done = (segment.size - r.width) / r.host_pitch + 1;
      ops.add(segment.data, device, r.width, done, done == 1 ? r.width : r.host_pitch,
              done == 1 ? r.width : r.device_pitch);
    } else {
      std::size_t copied = segment.size;
      ops.add(segment.data, device, copied, 1, copied, copied);
      while (copied < r.width) {
        const Segment rest = host.segment_at(pool, slot, host_offset + copied, r.width - copied);
        ops.add(rest.data, device + copied, rest.size, 1, rest.size, rest.size);
        copied += rest.size;
      }
      done = 1;
    }
    rows -= done;
    host_offset += done * r.host_pitch;
    device += done * r.device_pitch;
  }
}

void add_host_copies(const DevicePools& device, const HostPools& host, const PoolSpec& pool, std::size_t plane,
                     std::size_t layer_index, std::span<const SlotPair> pairs, OpList& ops) {
  const PlaneRuns r = plane_runs(pool, host.layout(), plane, layer_index);
  const DevicePools::PlanePages pages = device.pages_of(pool.name, layer_index, plane);
  const auto one_block = host.part_in_one_block(
      pool.name, r.host_offset, (r.runs - 1) * r.host_run_pitch + (r.rows - 1) * r.host_pitch + r.width);
  for (const SlotPair& pair : pairs) {
    std::byte* page = pages.at(pair.device);
    std::byte* const on_host = one_block ? one_block->at(pair.host) : nullptr;
    for (std::size_t run = 0; run < r.runs; ++run, page += r.device_run_pitch) {
      if (on_host != nullptr) {
        ops.add(on_host + run * r.host_run_pitch, page, r.width, r.rows, r.host_pitch, r.device_pitch);
      } else {
        add_run(host, pool.name, pair.host, r, r.host_offset + run * r.host_run_pitch, page, ops);
      }
    }
  }
}

void add_image_copies(const DevicePools& device, const HostPools& host, const PoolSpec& pool, std::size_t plane,
                      std::size_t layer_index, std::span<const SlotPair> pairs, const SlotImage& image,
                      std::byte* images, OpList& ops) {
  const PlaneRuns r = plane_runs(pool, host.layout(), plane, layer_index);
  const DevicePools::PlanePages pages = device.pages_of(pool.name, layer_index, plane);
  const std::size_t in_slot = host.page_offset(pool.name) + r.host_offset;
  const auto part = std::find_if(image.parts.begin(), image.parts.end(), [&](const SlotImage::Part& p) {
    return in_slot >= p.slot_offset && in_slot < p.slot_offset + p.size;
  });
  assert(part != image.parts.end());
  std::byte* at = images + part->image_offset + (in_slot - part->slot_offset);
  for (const SlotPair& pair : pairs) {
    std::byte* page = pages.at(pair.device);
    for (std::size_t run = 0; run < r.runs; ++run, page += r.device_run_pitch) {
      ops.add(at + run * r.host_run_pitch, page, r.width, r.rows, r.host_pitch, r.device_pitch);
    }
    at += image.bytes;
  }
}

}  // namespace

void append_image_copies(const DevicePools& device, const HostPools& host, ComponentKind component,
                         std::span<const SlotPair> pairs, CopyDirection direction, LayerRange layers,
                         const SlotImage& image, std::byte* images, std::vector<CopyOp>& out) {
  OpList ops(direction, out);
  for (const PoolSpec& pool : device.model().pools) {
    if (pool.component != component) continue;
    if (defect(Defect::kSidecarNotCopied) && !pool.is_anchor) continue;
    for (std::size_t layer = 0; layer < pool.layers.size(); ++layer) {
      if (pool.layers[layer] < layers.first || pool.layers[layer] >= layers.end) continue;
      for (std::size_t plane = 0; plane < pool.planes.size(); ++plane) {
        if (pool.planes[plane].layer_bytes() == 0) continue;
        add_image_copies(device, host, pool, plane, layer, pairs, image, images, ops);
      }
    }
  }
}

void append_layer_copies(const DevicePools& device, const HostPools* host, ComponentKind component,
                         std::span<const SlotPair> pairs, CopyDirection direction, std::uint32_t model_layer,
                         std::vector<CopyOp>& out) {
  OpList ops(direction, out);
  for (const PoolSpec& pool : device.model().pools) {
    if (pool.component != component) continue;
    if (defect(Defect::kSidecarNotCopied) && !pool.is_anchor && direction != CopyDirection::kDeviceToDevice) continue;
    const auto found = std::lower_bound(pool.layers.begin(), pool.layers.end(), model_layer);
    if (found == pool.layers.end() || *found != model_layer) continue;
    const auto layer_index = static_cast<std::size_t>(found - pool.layers.begin());
    for (std::size_t plane = 0; plane < pool.planes.size(); ++plane) {
      const std::size_t bytes = pool.planes[plane].layer_bytes();
      if (bytes == 0) continue;
      if (direction != CopyDirection::kDeviceToDevice) {
        assert(host != nullptr);
        add_host_copies(device, *host, pool, plane, layer_index, pairs, ops);
        continue;
      }
      const DevicePools::PlanePages pages = device.pages_of(pool.name, layer_index, plane);
      for (const SlotPair& pair : pairs) {
        ops.push({pages.at(pair.device), pages.at(pair.source), bytes, 1, bytes, bytes});
      }
    }
  }
}

}  // namespace larder
