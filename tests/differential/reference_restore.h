// SPDX-License-Identifier: Apache-2.0
// How the reference system finds out how much of a prefix storage can give, fetches it, and takes it over.
//
// An independent, plain implementation of its published rules: existence of pages of several pools, agreement of ranks,
// what is read, what becomes visible, and where a fork's checkpoint is planned. It knows pools by name only and shares
// no code with src/. Its faults are part of it.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace larder::differential {

// Pages of each pool, by index; what lies beyond a vector's end is absent.
using ReferencePages = std::map<std::string, std::vector<bool>>;
[[nodiscard]] bool has_page(const ReferencePages& pages, const std::string& pool, std::size_t page);

// One pool beside KV in a query.
struct ReferenceTransfer {
  std::string pool;
  bool trailing = false;  // the pages before the boundary; else all pages up to it
  std::size_t keys = 1;   // trailing: how many
};

struct ReferenceModel {
  std::size_t page_size = 1;                 // tokens
  std::size_t window_tokens = 0;             // 0: no window pool
  bool has_state = false;                    // pool "mamba"
  std::vector<std::string> kv_sidecars;      // take the indices of KV, all pages
  std::vector<std::string> window_sidecars;  // take the indices of the window, trailing pages

  [[nodiscard]] std::size_t window_pages() const { return (window_tokens + page_size - 1) / page_size; }
  // The query's transfers for a request of so many pages; a window is asked for only by requests that fill one.
  [[nodiscard]] std::vector<ReferenceTransfer> transfers(std::size_t pages) const;
};

// Leading pages of KV, at most `keys`.
[[nodiscard]] std::size_t kv_prefix(const ReferencePages& pages, std::size_t keys);
// A pool's own best boundary, given how far KV goes.
[[nodiscard]] std::size_t own_boundary(const ReferencePages& pages, const ReferenceTransfer& transfer,
                                       std::size_t kv_pages);
// The answer to an existence query.
[[nodiscard]] std::size_t existing_pages(const ReferencePages& pages, const std::vector<ReferenceTransfer>& transfers,
                                         std::size_t keys);
// Would the pool alone accept a boundary at exactly p?
[[nodiscard]] bool accepts(const ReferencePages& pages, const ReferenceTransfer& transfer, std::size_t p);

// What a request that starts with nothing has after a fetch.
struct ReferenceFetch {
  std::size_t hit = 0;         // what all ranks agreed to read
  std::size_t resume = 0;      // where the request goes on after what arrived became visible
  bool reads_garbage = false;  // a sidecar page below `resume` never arrived on some rank
};
// stored[rank]: what storage has; readable[rank]: what a read of it gives.
[[nodiscard]] ReferenceFetch fetch(const ReferenceModel& model, const std::vector<ReferencePages>& stored,
                                   const std::vector<ReferencePages>& readable, std::size_t pages);

// Where a checkpoint is planned for a request that shares `matched` tokens of a path whose state ends at `resume`
// tokens. 0: nowhere.
[[nodiscard]] std::size_t branching_position(std::size_t matched, std::size_t resume, std::size_t chunk,
                                             bool has_host_tier);

}  // namespace larder::differential
