// SPDX-License-Identifier: Apache-2.0
// Benchmark of the page-index service: `larder bench metadata`.
//
// In this process: keys per second and latency of exists (find without lease), get (find with lease), get of absent
// keys and reserve+confirm, by keys per request, stored pages and journal. Keys are 64 bytes, in chains of 128. The
// namespace is full throughout, so that each reservation evicts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/bench_storage.h"

namespace larder {

struct MetadataBenchOptions {
  std::string directory = ".";  // of the RocksDB journal; a folder is made there and removed
  std::vector<std::uint64_t> stored = {10'000, 100'000, 1'000'000};
  std::vector<std::uint32_t> keys = {1, 64, 128};
  std::vector<std::string> journals = {"none", "rocksdb"};
  double seconds = 0.5;  // of one run
  std::uint32_t repeat = 3;
  std::uint64_t seed = 1;
  bool as_json = false;
};

struct MetadataCell {
  std::string journal, operation;
  std::uint64_t stored = 0;
  std::uint32_t keys = 0;               // per request
  std::vector<double> keys_per_second;  // of each run
  std::vector<double> p50_us, p99_us;   // of a request
};
struct MetadataRecovery {
  std::string journal;
  std::uint64_t stored = 0;
  double seconds = 0;  // to open the service with that many stored pages
};
struct MetadataFigures {
  std::vector<MetadataCell> cells;
  std::vector<MetadataRecovery> recoveries;
};

// The in-process part.
[[nodiscard]] Result<MetadataFigures> run_metadata_bench(const MetadataBenchOptions& options);

// Options: --help lists them. Prints a table, or one JSON object. Returns 0; 2 on wrong arguments, 1 if it cannot run.
int bench_metadata(int argc, char** argv);

}  // namespace larder
