// SPDX-License-Identifier: Apache-2.0
// Pages in an engine's own memory: where they are, and whether what a caller gives is exactly what a copy needs.
//
// The bytes of a page are those of its host layout (model/pool_spec.h): an engine whose tensors lie otherwise gives one
// segment for each piece, in the order of the layout. With `layer_first`, a page of KV in 40 layers of separate tensors
// is 80 segments: k and v of layer 0, k and v of layer 1, and so on.
//
// A page of full or of the window is named by its index from the start of the prompt. A state is named by the last page
// it has seen: the state at restore point p is page p - 1.
//
// Threads: values. Cost of checking: O(places and their segments).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/model_spec.h"
#include "pool/host_pools.h"

namespace larder {

struct PagePlace {
  PoolName pool = PoolName::kKv;
  std::uint64_t page = 0;
  std::span<const Segment> segments{};  // in the order of the bytes; sizes add up to the pool's page_bytes()
};

using ConstBytes = std::span<const std::byte>;
// Instead of places: takes the bytes of one page, or fills them. Not ok ends the copy with that status. What it throws
// ends it as kInternal. Good until it returns.
using PageWriter = std::function<Status(PoolName pool, std::uint64_t page, std::span<const ConstBytes> bytes)>;
using PageReader = std::function<Status(PoolName pool, std::uint64_t page, std::span<const Segment> bytes)>;

// What a copy is about. Pages [full_from, end) of full, [window_from, end) of the window, and states.
struct PageNeeds {
  std::uint64_t full_from = 0, window_from = 0, end = 0;
  std::vector<std::uint64_t> states;  // restore points, ascending
};

// One place for each page that `needs` names, of each pool that has bytes.
class PlaceTable {
 public:
  // kInvalidArgument names the pool and the page: one that is missing, given twice, not needed, or of another size.
  [[nodiscard]] static Result<PlaceTable> create(const ModelSpec& model, const PageNeeds& needs,
                                                 std::span<const PagePlace> places);
  // Precondition: needed, and the pool has bytes.
  [[nodiscard]] std::span<const Segment> at(const PoolSpec& pool, std::uint64_t page) const;

 private:
  struct Row {                      // of one pool
    std::uint64_t from = 0;         // full, window: the first page
    std::vector<std::uint64_t> of;  // states: the pages
    std::vector<const PagePlace*> places;
    [[nodiscard]] std::size_t index_of(std::uint64_t page) const;  // places.size(): not needed
  };
  std::vector<Row> rows_ = std::vector<Row>(kPoolNameCount);
};

}  // namespace larder
