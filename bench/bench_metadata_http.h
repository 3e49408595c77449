// SPDX-License-Identifier: Apache-2.0
// `larder bench metadata --http`: the metadata server through sockets of this machine, beside its floor.
//
// The floor is GET /health of the same server: the same listener, connections and client, and an answer that never
// changes. Each run of a call is paired with one of the floor just before it (or after, by turns), so that noise hits
// both; the ratio is that of the pair's requests per second.
// Calls: exists and get (with a lease) as JSON, as the reference's client asks, and as binary messages, as ours does;
// store, which is reserve and then confirm, two requests. Server and clients share this process and its cores.
// The namespace is full: each reservation evicts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace larder {

struct MetadataHttpBenchOptions {
  std::vector<std::uint32_t> connections = {1, 8, 32};
  std::vector<std::uint32_t> keys = {1, 64, 128};
  std::uint64_t stored = 1'000'000;
  double seconds = 0.5;  // of one run
  std::uint32_t repeat = 3;
  std::uint32_t io_threads = 2;
  std::uint64_t seed = 1;
  bool as_json = false;
};

struct MetadataHttpRun {
  double requests_per_second = 0, floor_per_second = 0;
  double p50_us = 0, p99_us = 0;  // of a request
};
struct MetadataHttpCell {
  std::string call, form;  // "exists", "json"
  std::uint32_t connections = 0, keys = 0;
  std::vector<MetadataHttpRun> runs;
};

// kInvalidArgument names an option.
[[nodiscard]] Result<std::vector<MetadataHttpCell>> run_metadata_http_bench(const MetadataHttpBenchOptions& options);

// Options: --help lists them; `--http` itself is one that says nothing. Prints a table, or one JSON object.
// Returns 0; 2 on wrong arguments, 1 if it cannot run.
int bench_metadata_http(int argc, char** argv);

}  // namespace larder
