// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of transfer/: a model's device and host pools with pages of random bytes.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <vector>

#include "pool/pool_test_util.h"
#include "transfer/transfer.h"

namespace larder::transfer_test {

using Pairs = std::array<std::vector<SlotPair>, kComponentCount>;

inline void fill_random(Rng& rng, std::byte* data, std::size_t size) {
  for (std::size_t done = 0; done < size; done += sizeof(std::uint64_t)) {
    const std::uint64_t word = rng.next_u64();
    std::memcpy(data + done, &word, std::min(sizeof(word), size - done));
  }
}

// Pools and two sets of device slots (`device` of pair i, and `source`) and one of host slots.
class PagePairs {
 public:
  // Pairs whose device slots are the second set.
  [[nodiscard]] Pairs swapped() const {
    Pairs out = pairs;
    for (auto& list : out) {
      for (SlotPair& pair : list) std::swap(pair.device, pair.source);
    }
    return out;
  }

  void drop(const TransferDone& done) {
    for (const LeasedSlot& l : done.device_leases) {
      EXPECT_TRUE(device->drop_lease(l.component, DeviceSlot(l.slot), l.generation).is_ok());
    }
    for (const LeasedSlot& l : done.host_leases) {
      EXPECT_TRUE(host->drop_lease(l.component, HostSlot(l.slot), l.generation).is_ok());
    }
  }
  [[nodiscard]] std::uint32_t leases() const {
    std::uint32_t count = 0;
    for (const ComponentKind c : kAllComponents) count += device->slots(c).counts().leases + host->counts(c).leases;
    return count;
  }
  template <class F>
  void for_each_plane(F&& f) const {
    for (const PoolSpec& pool : device->model().pools) {
      for (const SlotPair& pair : pairs[index_of(pool.component)]) {
        for (std::size_t layer = 0; layer < pool.layers.size(); ++layer) {
          for (std::size_t plane = 0; plane < pool.planes.size(); ++plane) f(pool, layer, plane, pair);
        }
      }
    }
  }

  std::unique_ptr<DevicePools> device;
  std::unique_ptr<HostPools> host;
  Pairs pairs;

 protected:
  // `want` pages of each, in random order on both sides.
  void reserve_pairs(const ComponentCounts& want, Rng& rng) {
    pool_test::scatter(*host, rng);
    std::array<std::vector<DeviceSlot>, kComponentCount> first, second;
    std::array<std::vector<HostSlot>, kComponentCount> on_host;
    if (!device->reserve(want, first) || !device->reserve(want, second) || !host->reserve(want, on_host)) {
      throw std::runtime_error("the pools of the test are too small");
    }
    for (std::size_t c = 0; c < kComponentCount; ++c) {
      rng.shuffle(std::span(first[c]));
      for (std::size_t i = 0; i < first[c].size(); ++i) pairs[c].push_back({first[c][i], on_host[c][i], second[c][i]});
    }
  }
};

// In host memory, `pages` for each component.
class Fixture : public PagePairs {
 public:
  // lending: the device pages are in memory of the engine; its first slot is its own.
  Fixture(const ModelSpec& model, HostLayout layout, std::uint32_t pages, Rng& rng,
          std::optional<pool_test::Lending> lending = {}) {
    ComponentCounts device_slots{}, want{};
    for (const ComponentKind c : kAllComponents) {
      if (!model.has(c)) continue;
      device_slots[index_of(c)] = 2 * pages;
      want[index_of(c)] = pages;
    }
    if (lending) {
      ReservedSlots reserved;
      for (const ComponentKind c : kAllComponents) {
        if (!model.has(c)) continue;
        ++device_slots[index_of(c)];
        reserved[index_of(c)] = {DeviceSlot(0)};
      }
      lent = std::make_unique<pool_test::LentBytes>(model, device_slots, *lending);
      device = pool_test::take(DevicePools::create(model, device_slots, lent->planes, reserved));
    } else {
      device = pool_test::take(DevicePools::create(model, device_slots, host_memory_source()));
    }
    host = pool_test::take(HostPools::create(
        model, layout, (kComponentCount * pages + 1) * pool_test::smallest_budget(model), host_memory_source()));
    reserve_pairs(want, rng);
  }

  // Every page of the set gets other random bytes.
  void fill_device(Rng& rng, DeviceSlot SlotPair::*which) {
    for_each_plane([&](const PoolSpec& pool, std::size_t layer, std::size_t plane, const SlotPair& pair) {
      fill_random(rng, device->page(pool.name, layer, plane, pair.*which), pool.planes[plane].layer_bytes());
    });
  }
  void fill_host(Rng& rng) {
    std::vector<Segment> segments;
    for (const PoolSpec& pool : device->model().pools) {
      for (const SlotPair& pair : pairs[index_of(pool.component)]) host->append_page(pool.name, pair.host, segments);
    }
    for (const Segment& segment : segments) fill_random(rng, segment.data, segment.size);
  }

  // Chunks of device pages (`which`) that differ from the host page, by the oracle chunk_offset(); at most one is
  // named.
  [[nodiscard]] std::string difference_to_host(DeviceSlot SlotPair::*which) const {
    std::string found;
    for (const PoolSpec& pool : device->model().pools) {
      for (const SlotPair& pair : pairs[index_of(pool.component)]) {
        const std::vector<std::byte> page = host_page(pool, pair.host);
        for_each_chunk(pool, [&](std::size_t layer, std::size_t plane, std::size_t row, std::size_t head) {
          const PlaneSpec& shape = pool.planes[plane];
          const std::byte* chunk =
              device->page(pool.name, layer, plane, pair.*which) + row * shape.row_bytes() + head * shape.head_bytes();
          const std::size_t offset = chunk_offset(pool, host->layout(), plane, layer, row, head);
          if (std::memcmp(chunk, page.data() + offset, shape.head_bytes()) != 0 && found.empty()) {
            found = std::string(pool_name(pool.name)) + " plane " + std::to_string(plane) + " layer " +
                    std::to_string(layer) + " row " + std::to_string(row) + " head " + std::to_string(head);
          }
        });
      }
    }
    return found;
  }
  [[nodiscard]] bool device_sets_are_equal() const {
    bool is_equal = true;
    for_each_plane([&](const PoolSpec& pool, std::size_t layer, std::size_t plane, const SlotPair& pair) {
      is_equal = is_equal &&
                 std::memcmp(device->page(pool.name, layer, plane, pair.device),
                             device->page(pool.name, layer, plane, pair.source), pool.planes[plane].layer_bytes()) == 0;
    });
    return is_equal;
  }
  [[nodiscard]] std::vector<std::byte> host_page(const PoolSpec& pool, HostSlot slot) const {
    std::vector<Segment> segments;
    host->append_page(pool.name, slot, segments);
    std::vector<std::byte> page;
    for (const Segment& segment : segments) page.insert(page.end(), segment.data, segment.data + segment.size);
    return page;
  }

  // Bytes of the engine's own that something has written: between pages, and in its reserved slot.
  [[nodiscard]] std::size_t own_bytes_written() const {
    std::vector<std::vector<std::byte>> regions = lent->regions;
    for (const LentPlane& plane : lent->planes) {
      const PoolSpec& pool = *device->model().find_pool(plane.pool);
      for (std::size_t i = 0; i < regions.size(); ++i) {
        const std::byte* const begin = lent->regions[i].data();
        if (plane.base < begin || plane.base >= begin + regions[i].size()) continue;
        for (std::uint32_t slot = 1; slot < device->slots(pool.component).size(); ++slot) {
          std::fill_n(regions[i].begin() + (plane.base - begin) + static_cast<std::ptrdiff_t>(slot * plane.slot_stride),
                      pool.planes[plane.plane].layer_bytes(), std::byte{0xE7});
        }
      }
    }
    std::size_t written = 0;
    for (const auto& region : regions) {
      written += region.size() - static_cast<std::size_t>(std::count(region.begin(), region.end(), std::byte{0xE7}));
    }
    return written;
  }

  std::unique_ptr<pool_test::LentBytes> lent;  // null: none is lent

 private:
  template <class F>
  static void for_each_chunk(const PoolSpec& pool, F&& f) {
    for (std::size_t plane = 0; plane < pool.planes.size(); ++plane) {
      for (std::size_t layer = 0; layer < pool.layers.size(); ++layer) {
        for (std::size_t row = 0; row < pool.planes[plane].rows; ++row) {
          for (std::size_t head = 0; head < pool.planes[plane].heads; ++head) f(layer, plane, row, head);
        }
      }
    }
  }
};

}  // namespace larder::transfer_test
