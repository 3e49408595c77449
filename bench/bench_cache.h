// SPDX-License-Identifier: Apache-2.0
// What the cache itself costs: the production Cache with nothing around it that takes time.
//
// The engine computes nothing, pages are an address range that nobody may read, copies and storage are instant. What is
// left is the work of the cache's thread: begin, start, prepare_step, complete_step, finish, abort and poll. Each call
// is timed by itself.
//
// Loads: `live`: a tree of `nodes` nodes in tiers that are full, `requests` of them under way at once, each a turn of a
// conversation that ends when it has decoded a little. `long`: one prompt of `tokens` in chunks, on a device whose
// window pool is small. `fetch`: one prompt of `tokens` that storage has, until it is on the host. `abort`: `requests`
// that wait for a storage that does not answer, and are aborted.
//
// Threads: confined; run_cache_bench() starts none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/bench_storage.h"

namespace larder {

struct CacheBenchOptions {
  std::string model;                 // full, full+swa or full+mamba; empty: all
  std::string load;                  // live, long, fetch or abort; empty: all
  std::string tiers = "host";        // the lowest one: device, host or storage
  bool has_events = false;           // a router is told of pages (KvEventSink)
  std::uint64_t requests = 10'000;   // under way at once
  std::uint64_t nodes = 1'000'000;   // of the tree
  std::uint64_t tokens = 1'000'000;  // of the long prompt
  std::uint32_t page_size = 64;
  std::uint32_t repeats = 3;  // each measures as many requests as are under way
  std::uint64_t seed = 1;
  bool as_json = false;
};

// Times of one kind of call, in microseconds. `low` to `high` are those of the repeats.
struct CacheBenchRow {
  std::string model, load, call;
  std::size_t calls = 0;  // of one repeat
  Spread p50, p99, p999, most;
  // What the issue asks for: this figure ("p50", "p99.9", "total") is at most so much. 0: nothing.
  std::string bar_of;
  double bar = 0;
  [[nodiscard]] double figure() const;  // the one that the bar is for: the median of the repeats
};

struct CacheBenchResult {
  std::vector<CacheBenchRow> rows;
  std::vector<std::string> notes;  // sizes that a load came to: nodes of the tree, nodes of the long prompt's path
};

// Of durations of one repeat, ascending order not needed: adds to the row.
struct CacheBenchSamples {
  std::vector<double> us;
  [[nodiscard]] double quantile(double q);  // sorts
};

// kInvalidArgument: a size that no pools can have. kInternal: a call of the cache failed that must not.
[[nodiscard]] Result<CacheBenchResult> run_cache_bench(const CacheBenchOptions& options);

// --- report (bench_cache_report.cc)
[[nodiscard]] std::string cache_bench_header(const CacheBenchOptions& options, const MachineInfo& machine);
[[nodiscard]] std::string cache_bench_table(const CacheBenchResult& result);
[[nodiscard]] nlohmann::ordered_json cache_bench_json(const CacheBenchOptions& options, const MachineInfo& machine,
                                                      const CacheBenchResult& result);

// argv[0] is the command's name. 0: done; 1: failed; 2: usage.
int bench_cache(int argc, char** argv);

}  // namespace larder
