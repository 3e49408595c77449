// SPDX-License-Identifier: Apache-2.0
// `larder bench storage`: a backend beside fio or another backend, in the same directory and the same run.
//
// For each page size and queue depth, `repeat` times, by turns so that noise hits both (the other goes first every
// second time):
//   set    pages of new content through the storage port into a fresh store, up to its close() and a sync of its files
//   fio    sequential write of as many bytes to a fresh file, direct, io_uring, ended by an fsync
//   get    the store opened again; each page once, in random order, into other memory
//   fio    random reads of the file it wrote
// or, beside another backend, its set and get in the places of fio's.
// A run ends after its bytes or after `seconds`, whichever comes first. One page is one group and one request; the
// queue depth is the number of requests in flight. Memory is page aligned and touched before, as a host pool's is.
// Reads are cold: the files are taken out of the page cache before (and a backend with direct I/O does not use it).
// Every page read is verified by the backend; the last ones of a run are compared byte by byte here, too.
//
// Then existence: `exists_pages` pages of 64 bytes; queries of `exists_keys` keys, hits and misses mixed.
//
// Restart (with_restart, instead of all that): a file store of `restart_pages` pages whose payloads are holes, opened
// cold `repeat` times; what it answers right after that is checked.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/real_storage_machine.h"
#include "pool/memory.h"
#include "storage/factory.h"

namespace larder {

struct StorageBenchOptions {
  std::string backend = "file";
  std::vector<std::string> extra;         // KEY=VALUE; not where the store lies: that is `directory`
  std::string beside = "fio";             // or a backend's name, or "none"
  std::vector<std::string> beside_extra;  // of that backend
  std::string directory = ".";
  std::vector<std::uint64_t> page_sizes = {64u << 10, 512u << 10, 2u << 20};
  std::vector<std::uint32_t> depths = {1, 4, 16, 64};
  std::uint32_t pages_per_request = 1;
  std::uint64_t bytes = std::uint64_t{1} << 30;  // of a run
  double seconds = 5;                            // of a run
  std::uint32_t repeat = 3;
  std::uint64_t exists_pages = 1'000'000;
  std::uint32_t exists_keys = 128, exists_queries = 20'000;
  std::uint64_t seed = 1;
  bool with_cells = true, as_json = false;
  bool with_restart = false;
  std::uint64_t restart_pages = 6'553'600, restart_page_bytes = 16u << 10;  // 100 GiB
};
// kInvalidArgument: names the option.
[[nodiscard]] Status check_options(const StorageBenchOptions& options);

struct StorageRun {
  double bytes_per_second = 0;
  double cpu_us_per_page = 0;  // user and system
  std::uint64_t pages = 0;
};
struct StorageCell {
  std::string operation;  // "set", "get"
  std::uint64_t page_bytes = 0;
  std::uint32_t depth = 0;
  std::vector<StorageRun> own, other;  // other: what it is measured beside; empty if there is nothing
};
struct Spread {
  double low = 0, median = 0, high = 0;
};
[[nodiscard]] Spread spread_of(std::vector<double> values);
[[nodiscard]] nlohmann::ordered_json spread_json(const Spread& spread);
// Of own run i to the other's run i; all zero if there is none.
[[nodiscard]] Spread ratio_of(const StorageCell& cell);
// The best own run to the other's best.
[[nodiscard]] double best_ratio(const StorageCell& cell);

// The throughput of a page size: the median at the depth that is best for it.
struct Throughput {
  std::string operation;
  std::uint64_t page_bytes = 0;
  double own = 0, other = 0;  // bytes per second
  std::uint32_t own_depth = 0, other_depth = 0;
};
// In the order of the cells.
[[nodiscard]] std::vector<Throughput> throughput_of(const std::vector<StorageCell>& cells);

struct ExistsFigures {
  std::uint64_t pages = 0, queries = 0;
  std::uint32_t keys = 0;
  double p50_us = 0, p99_us = 0, max_us = 0;
  double writes_per_second = 0;  // while the pages were stored
};

struct RestartFigures {
  std::uint64_t pages = 0, page_bytes = 0, segments = 0;
  std::uint64_t index_bytes = 0;             // of footers and trailers, on disk
  std::vector<double> seconds, cpu_seconds;  // of each opening
  std::uint64_t memory_bytes = 0;            // by which the process had grown when it was open: the most
  std::uint64_t exists_checked = 0, holes_checked = 0;
};

// --- the backend's runs (bench_storage_run.cc)

// Threads: confined. Lifetime: the backends it opens end inside the calls.
class StorageRunner {
 public:
  // kInvalidArgument: unknown backend or option. kOverloaded: no memory.
  [[nodiscard]] static Result<std::unique_ptr<StorageRunner>> create(const StorageBenchOptions& options,
                                                                     const std::string& store_directory);
  ~StorageRunner();
  // Into a fresh store. Afterwards the pages are there for get().
  [[nodiscard]] Result<StorageRun> set(std::uint64_t page_bytes, std::uint32_t depth);
  // kCorrupt: wrong bytes came back.
  [[nodiscard]] Result<StorageRun> get(std::uint64_t page_bytes, std::uint32_t depth);
  [[nodiscard]] Result<ExistsFigures> exists();

 private:
  struct Parts;
  explicit StorageRunner(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// --- restart (bench_storage_restart.cc)

// Makes the store in `directory`, and opens it. kCorrupt: it gave a wrong answer. kInvalidArgument: another backend
// than `file`, or a wrong option.
[[nodiscard]] Result<RestartFigures> measure_restart(const StorageBenchOptions& options, const std::string& directory);
[[nodiscard]] std::string restart_text(const RestartFigures& figures);
[[nodiscard]] nlohmann::ordered_json restart_json(const RestartFigures& figures);

// --- fio (bench_storage_fio.cc)

struct FioRun {
  std::string file;
  bool is_write = false;
  std::uint64_t block_bytes = 0, bytes = 0;
  std::uint32_t depth = 0;
  double seconds = 0;
  // Registered buffers and file, and huge pages: what the store's memory has, and a good deal faster with large blocks.
  // Registering may be forbidden (ulimit -l).
  bool is_tuned = true;
};
[[nodiscard]] std::vector<std::string> fio_arguments(const FioRun& run);
// From fio's JSON. kUnavailable: fio reports an error; kCorrupt: not its JSON.
[[nodiscard]] Result<StorageRun> parse_fio(const std::string& text, bool is_write, std::uint64_t block_bytes);
// kNotFound: fio is not installed.
[[nodiscard]] Result<StorageRun> run_fio(const FioRun& run);

// --- report (bench_storage_report.cc)

// `other`: what it is measured beside and how that runs, in words.
[[nodiscard]] std::string storage_header(const StorageBenchOptions& options, const MachineInfo& machine,
                                         const std::string& other);
// `other`: its name, for the heads of columns.
[[nodiscard]] std::string storage_table(const std::vector<StorageCell>& cells, const std::string& other);
[[nodiscard]] std::string throughput_table(const std::vector<StorageCell>& cells, const std::string& other);
[[nodiscard]] std::string exists_text(const ExistsFigures& figures);
[[nodiscard]] nlohmann::ordered_json storage_json(const StorageBenchOptions& options, const MachineInfo& machine,
                                                  const std::string& other, const std::vector<StorageCell>& cells,
                                                  const ExistsFigures* exists);

// argv[0] is the command's name. 0: done; 1: failed; 2: usage.
int bench_storage(int argc, char** argv);

}  // namespace larder
