// SPDX-License-Identifier: Apache-2.0
#include "transfer/cuda/copy_plan.h"

#include <algorithm>
#include <bit>
#include <tuple>

namespace larder {
namespace {

constexpr std::size_t kWidestRow = std::size_t{1} << 30;      // what a group's 32 bits hold, with room
constexpr std::uint64_t kMostTiles = std::uint64_t{1} << 31;  // of a launch

auto shape(const CopyOp& op) { return std::tie(op.width, op.rows, op.dst_pitch, op.src_pitch); }

std::size_t extent(const CopyOp& op, std::size_t pitch) { return (op.rows - 1) * pitch + op.width; }

// The most bytes that a lane can move at once for all pieces whose bits are joined in `bits`.
std::uint32_t vector_bytes(std::uint64_t bits) {
  return bits == 0 ? 16 : std::min(16U, 1U << std::min(std::countr_zero(bits), 4));
}

std::uint64_t bits_of(const CopyOp& op) {
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(op.dst) | reinterpret_cast<std::uintptr_t>(op.src) | op.width;
  if (op.rows > 1) bits |= op.dst_pitch | op.src_pitch;
  return bits;
}

}  // namespace

Status CopyPlan::make(CopyDirection direction, std::vector<CopyOp>& ops) {
  engine_copies_.clear();
  pieces_ = {};
  next_ = 0;
  reachable_ = {};
  const bool is_load = direction == CopyDirection::kHostToDevice;
  const std::size_t engines_from = is_load ? load_engines_from_ : store_engines_from_;
  std::size_t kept = 0;
  bool is_sorted = true;
  for (std::size_t i = 0; i < ops.size(); ++i) {  // it may grow
    const CopyOp op = ops[i];
    if (op.width == 0 || op.rows == 0) continue;
    if (direction != CopyDirection::kDeviceToDevice) {
      const std::byte* const host = is_load ? op.src : op.dst;
      LARDER_RETURN_IF_ERROR(check(host, extent(op, is_load ? op.src_pitch : op.dst_pitch)));
      if (op.rows == 1 && op.width >= engines_from) {
        add_engine_copies(host, op);
        continue;
      }
    }
    if (op.width > kWidestRow) {
      if (op.rows > 1) return unsupported("a copy of rows of more than 1 GiB");
      const std::size_t rest = op.width - kWidestRow;
      ops.push_back({op.dst, op.src, kWidestRow, 1, kWidestRow, kWidestRow});
      ops.push_back({op.dst + kWidestRow, op.src + kWidestRow, rest, 1, rest, rest});
      continue;
    }
    is_sorted = is_sorted && (kept == 0 || !(shape(op) < shape(ops[kept - 1])));
    ops[kept++] = op;
  }
  pieces_ = std::span(ops).first(kept);
  // Steps of most models have one shape, or a few that follow each other; page boundaries in blocks make more of them.
  if (!is_sorted) {
    std::stable_sort(pieces_.begin(), pieces_.end(),
                     [](const CopyOp& a, const CopyOp& b) { return shape(a) < shape(b); });
  }
  return Status::ok();
}

Status CopyPlan::check(const std::byte* host, std::size_t bytes) {
  const auto is_inside = [&] {
    return host >= reachable_.data() && host + bytes <= reachable_.data() + reachable_.size();
  };
  if (is_inside()) return Status::ok();
  reachable_ = pinned_.around(host);
  if (is_inside()) return Status::ok();
  return invalid_argument(
      "a copy touches host memory that is not registered with the CUDA device: make the host pools from "
      "Device::host_memory()");
}

void CopyPlan::add_engine_copies(const std::byte* host, const CopyOp& op) {
  for (std::size_t done = 0; done < op.width;) {
    const std::size_t size = pinned_.in_one_piece(reachable_, host + done, op.width - done);
    engine_copies_.push_back({op.dst + done, op.src + done, size});
    done += size;
  }
}

std::size_t CopyPlan::next_launch(std::span<CopyPair> room, CopyLaunch& launch) {
  launch.pairs = room.data();
  launch.group_count = launch.tile_count = 0;
  std::size_t written = 0;
  const CopyOp* last = nullptr;
  std::uint64_t bits = 0;
  for (; next_ < pieces_.size() && written < room.size(); ++next_, ++written) {
    const CopyOp& op = pieces_[next_];
    if (last == nullptr || shape(*last) != shape(op)) {
      if (launch.group_count == kMaxCopyGroups) break;
      CopyGroup& g = launch.groups[launch.group_count];
      g = {};
      g.first_tile = launch.tile_count;
      g.first_pair = static_cast<std::uint32_t>(written);
      g.width = static_cast<std::uint32_t>(op.width);
      g.rows = static_cast<std::uint32_t>(op.rows);
      g.dst_pitch = op.dst_pitch;
      g.src_pitch = op.src_pitch;
      cut_into_tiles(g);
      ++launch.group_count;
      bits = 0;
    }
    CopyGroup& g = launch.groups[launch.group_count - 1];
    if (written > 0 && std::uint64_t{launch.tile_count} + g.tiles_per_pair > kMostTiles) {
      if (g.pair_count == 0) --launch.group_count;
      break;
    }
    bits |= bits_of(op);
    g.vector = vector_bytes(bits);
    ++g.pair_count;
    launch.tile_count += g.tiles_per_pair;
    room[written] = {op.dst, op.src};
    last = &op;
  }
  return written;
}

}  // namespace larder
