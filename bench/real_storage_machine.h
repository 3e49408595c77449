// SPDX-License-Identifier: Apache-2.0
// What `larder bench storage` asks of the operating system: another program's output, CPU time, the page cache, names.
//
// Threads: any; run_process() waits for the program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace larder {

struct ProcessOutput {
  int exit_code = 0;  // 128 + signal if one ended it
  std::string out, error;
};
// arguments[0] is looked up in PATH; `environment`: "NAME=value", in addition to this process's. kNotFound: no such
// program. kUnavailable: the system refuses.
[[nodiscard]] Result<ProcessOutput> run_process(const std::vector<std::string>& arguments,
                                                const std::vector<std::string>& environment);

// User and system time of this process so far, all threads.
[[nodiscard]] double process_cpu_seconds();

// Memory of this process that is resident now. 0: not known.
[[nodiscard]] std::uint64_t process_resident_bytes();

// Writes the files of a directory (not of those in it) to disk and takes them out of the page cache.
[[nodiscard]] Status drop_page_cache(const std::string& directory);

struct MachineInfo {
  std::string cpu, kernel, file_system, date;  // "ext4"; UTC, "2026-01-31 12:00"
  unsigned cores = 0;
};
// `directory`: whose file system is named. What is not known is "unknown".
[[nodiscard]] MachineInfo machine_info(const std::string& directory);

// With everything in it. Missing: nothing happens.
void remove_bench_directory(const std::string& path);

}  // namespace larder
