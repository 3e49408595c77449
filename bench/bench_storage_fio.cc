// SPDX-License-Identifier: Apache-2.0
// fio as the measure: the same directory, block size and depth.
#include <fmt/format.h>

#include <cmath>

#include "bench/bench_storage.h"

namespace larder {

std::vector<std::string> fio_arguments(const FioRun& run) {
  std::vector<std::string> arguments = {"fio",
                                        "--name=larder",
                                        "--filename=" + run.file,
                                        run.is_write ? "--rw=write" : "--rw=randread",
                                        fmt::format("--bs={}", run.block_bytes),
                                        fmt::format("--size={}", run.bytes),
                                        fmt::format("--iodepth={}", run.depth),
                                        fmt::format("--runtime={}ms", std::llround(run.seconds * 1000)),
                                        "--ioengine=io_uring",
                                        "--direct=1",
                                        "--thread",
                                        "--output-format=json"};
  if (run.is_tuned) {
    arguments.emplace_back("--fixedbufs=1");
    arguments.emplace_back("--registerfiles=1");
  }
  if (run.is_write) arguments.emplace_back("--end_fsync=1");
  return arguments;
}

Result<StorageRun> parse_fio(const std::string& text, bool is_write, std::uint64_t block_bytes) {
  const std::size_t begin = text.find('{');  // warnings may stand before it
  const nlohmann::json document =
      nlohmann::json::parse(begin == std::string::npos ? "" : text.substr(begin), nullptr, false);
  try {
    const nlohmann::json& job = document.at("jobs").at(0);
    if (job.value("error", 0) != 0) return unavailable(fmt::format("fio reports error {}", job.at("error").dump()));
    const nlohmann::json& side = job.at(is_write ? "write" : "read");
    StorageRun run;
    run.bytes_per_second = side.at("bw_bytes").get<double>();
    run.pages = side.at("io_bytes").get<std::uint64_t>() / block_bytes;
    const double cpu_percent = job.at("usr_cpu").get<double>() + job.at("sys_cpu").get<double>();
    const double cpu_us = cpu_percent / 100 * job.at("job_runtime").get<double>() * 1000;
    if (run.pages > 0) run.cpu_us_per_page = cpu_us / static_cast<double>(run.pages);
    return run;
  } catch (const nlohmann::json::exception& error) {
    return corrupt(fmt::format("fio's output is not what was expected: {}", error.what()));
  }
}

Result<StorageRun> run_fio(const FioRun& run) {
  std::vector<std::string> environment;
  if (run.is_tuned) environment.emplace_back("GLIBC_TUNABLES=glibc.malloc.hugetlb=1");  // fio has no option for it
  const Result<ProcessOutput> output = run_process(fio_arguments(run), environment);
  if (!output.is_ok()) return output.status();
  if (output->exit_code != 0) {
    return unavailable(fmt::format("fio ended with {}: {}", output->exit_code,
                                   (output->error.empty() ? output->out : output->error).substr(0, 500)));
  }
  return parse_fio(output->out, run.is_write, run.block_bytes);
}

}  // namespace larder
