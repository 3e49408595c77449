// SPDX-License-Identifier: Apache-2.0
// The parts of `larder bench storage` that do no measuring, and one small run on the memory backend.
#include "bench/bench_storage.h"

#include <gtest/gtest.h>

#include "base/file_system.h"
#include "tests/support/command_run.h"

namespace larder {
namespace {

constexpr const char* kFioJson = R"(note: both iodepth >= 1 and synchronous I/O engine are selected
{"fio version": "fio-3.33", "jobs": [{"jobname": "larder", "error": 0, "job_runtime": 2000, "usr_cpu": 10.0,
 "sys_cpu": 15.0, "read": {"io_bytes": 0, "bw_bytes": 0}, "write": {"io_bytes": 1048576, "bw_bytes": 524288}}]})";

TEST(BenchStorage, ReadsFio) {
  const Result<StorageRun> run = parse_fio(kFioJson, true, 65536);
  ASSERT_TRUE(run.is_ok()) << run.status().to_string();
  EXPECT_EQ(run->bytes_per_second, 524288);
  EXPECT_EQ(run->pages, 16u);
  EXPECT_DOUBLE_EQ(run->cpu_us_per_page, 0.25 * 2e6 / 16);
  EXPECT_EQ(parse_fio("fio: no", true, 65536).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(parse_fio("{\"jobs\": [{\"error\": 5}]}", true, 65536).status().code(), StatusCode::kUnavailable);
}

TEST(BenchStorage, AsksFioForTheSameThing) {
  const auto has = [](const std::vector<std::string>& arguments, const std::string& wanted) {
    return std::find(arguments.begin(), arguments.end(), wanted) != arguments.end();
  };
  const auto write = fio_arguments({"/d/f", true, 65536, 1 << 20, 16, 1.5, true});
  for (const char* wanted : {"--rw=write", "--bs=65536", "--size=1048576", "--iodepth=16", "--runtime=1500ms",
                             "--direct=1", "--ioengine=io_uring", "--end_fsync=1", "--filename=/d/f"}) {
    EXPECT_TRUE(has(write, wanted)) << wanted;
  }
  EXPECT_TRUE(has(write, "--fixedbufs=1"));
  const auto read = fio_arguments({"/d/f", false, 65536, 1 << 20, 16, 1.5, false});
  EXPECT_FALSE(has(read, "--fixedbufs=1"));
  EXPECT_TRUE(has(read, "--rw=randread"));
  EXPECT_FALSE(has(read, "--end_fsync=1"));
}

TEST(BenchStorage, MediansRatiosAndTheTable) {
  EXPECT_EQ(spread_of({3, 1, 2}).median, 2);
  EXPECT_EQ(spread_of({4, 1, 2, 3}).median, 2.5);
  EXPECT_EQ(spread_of({}).median, 0);
  StorageCell cell{"set",
                   65536,
                   4,
                   {{100e6, 5, 10}, {80e6, 7, 10}, {120e6, 6, 10}},
                   {{100e6, 1, 10}, {100e6, 1, 10}, {100e6, 1, 10}}};
  EXPECT_DOUBLE_EQ(ratio_of(cell).median, 1.0);
  EXPECT_DOUBLE_EQ(ratio_of(cell).low, 0.8);
  EXPECT_DOUBLE_EQ(best_ratio(cell), 1.2);
  EXPECT_NE(storage_table({cell}, "fio").find("1.000 [0.800..1.200]"), std::string::npos)
      << storage_table({cell}, "fio");
  cell.other.clear();
  EXPECT_EQ(ratio_of(cell).median, 0);
  const auto json = storage_json({}, {}, "", {cell}, nullptr);
  EXPECT_FALSE(json.at("cells").at(0).contains("ratio"));
  EXPECT_EQ(json.at("cells").at(0).at("own").size(), 3u);
}

TEST(BenchStorage, ThroughputIsTheBestDepthsOfEach) {
  const auto runs = [](double speed) { return std::vector<StorageRun>{{speed, 1, 1}}; };
  const std::vector<StorageCell> cells = {{"set", 65536, 1, runs(10e6), runs(40e6)},
                                          {"set", 65536, 16, runs(90e6), runs(30e6)},
                                          {"get", 65536, 1, runs(7e6), {}}};
  const std::vector<Throughput> found = throughput_of(cells);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].own, 90e6);
  EXPECT_EQ(found[0].own_depth, 16u);
  EXPECT_EQ(found[0].other, 40e6);
  EXPECT_EQ(found[0].other_depth, 1u);
  EXPECT_EQ(found[1].operation, "get");
  EXPECT_EQ(found[1].other, 0);
  EXPECT_EQ(throughput_table({cells[2]}, "fio").find("fio"), std::string::npos) << "nothing to compare with";
  EXPECT_EQ(storage_table({cells[2]}, "fio").find("best/best"), std::string::npos);
  EXPECT_NE(throughput_table(cells, "file").find("2.250"), std::string::npos) << throughput_table(cells, "file");
}

TEST(BenchStorage, NamesTheWrongOption) {
  const auto message = [](auto change) {
    StorageBenchOptions options;
    change(options);
    return check_options(options).message();
  };
  EXPECT_EQ(message([](auto&) {}), "");
  EXPECT_NE(message([](auto& o) { o.page_sizes = {5000}; }).find("--page-sizes"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.page_sizes.clear(); }).find("--page-sizes"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.depths = {0}; }).find("--depths"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.pages_per_request = 0; }).find("--pages"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.pages_per_request = 2; }).find("fio"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.bytes = 1000; }).find("--bytes"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.seconds = 0; }).find("--seconds"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.seconds = 1e-9; }).find("--seconds"), std::string::npos);
  EXPECT_EQ(message([](auto& o) { o.seconds = 0.01; }), "");
  EXPECT_NE(message([](auto& o) { o.repeat = 0; }).find("--repeat"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.beside_extra = {"io_depth=8"}; }).find("--beside-extra"), std::string::npos);
  EXPECT_EQ(message([](auto& o) {
              o.beside = "file";
              o.beside_extra = {"io_depth=8"};
            }),
            "");
}

TEST(BenchStorage, WhereTheStoreLiesIsSaidOnce) {
  StorageBenchOptions options;
  options.extra = {"io_depth=8", "directory=/elsewhere"};
  EXPECT_EQ(check_options(options).message(), "--extra: directory: use --directory");
  options.extra = {"directories=2"};
  EXPECT_TRUE(check_options(options).is_ok());
  options.backend = options.beside = "hf3fs";
  options.beside_extra = {"file_path_prefix=/elsewhere/pages"};
  EXPECT_EQ(check_options(options).message(), "--beside-extra: file_path_prefix: use --directory");
  options.beside_extra.clear();
  options.directory = "/a:/b";
  EXPECT_NE(check_options(options).message().find("--directory: '/a:/b': one directory"), std::string::npos);
}

// bench_storage() with the backend `memory` and little work.
support::CommandRun run_little(const std::string& directory, std::vector<std::string> more) {
  std::vector<std::string> words = {"storage",  "--directory", directory,      "--backend", "memory",
                                    "--beside", "none",        "--page-sizes", "64Ki",      "--depths",
                                    "1",        "--bytes",     "1Mi",          "--repeat",  "1"};
  words.insert(words.end(), more.begin(), more.end());
  return support::run_command(bench_storage, std::move(words));
}

TEST(BenchStorage, AFailureAtTheEndLeavesWhatWasMeasured) {
  const std::string directory = testing::TempDir() + "larder-bench-storage-late";
  // The backend evicts what existence is asked of.
  const std::vector<std::string> words = {"--extra", "max_size=4Mi", "--exists-pages", "200000"};
  const support::CommandRun text = run_little(directory, words);
  EXPECT_EQ(text.code, 1);
  EXPECT_NE(text.out.find("throughput of each page size"), std::string::npos) << text.out;
  EXPECT_NE(text.errors.find("exists gave a wrong answer"), std::string::npos) << text.errors;
  std::vector<std::string> as_json = words;
  as_json.emplace_back("--json");
  const support::CommandRun json = run_little(directory, as_json);
  EXPECT_EQ(json.code, 1);
  const nlohmann::json report = nlohmann::json::parse(json.out, nullptr, false);
  ASSERT_TRUE(report.is_object()) << json.out;
  EXPECT_EQ(report.at("cells").size(), 2u);
  EXPECT_EQ(report.at("error"), "exists gave a wrong answer");
  EXPECT_FALSE(report.contains("exists"));
}

TEST(BenchStorage, OneRunInADirectoryAtATime) {
  FileSystem& files = real_file_system();
  const std::string directory = testing::TempDir() + "larder-bench-storage-twice";
  const std::string folder = directory + "/larder-bench-storage";
  ASSERT_TRUE(files.make_dirs(folder).is_ok());
  {
    const auto lock = files.lock(folder + ".lock");  // as a run that goes on
    ASSERT_TRUE(lock.is_ok()) << lock.status().to_string();
    for (const char* const flag : {"--only-exists", "--restart"}) {
      const support::CommandRun refused = run_little(directory, {"--exists-pages", "0", flag});
      EXPECT_EQ(refused.code, 1);
      EXPECT_EQ(refused.out, "");
      EXPECT_NE(refused.errors.find("another run works in " + folder), std::string::npos) << refused.errors;
    }
    EXPECT_TRUE(files.stat(folder).is_ok()) << "the first run's store is gone";
  }
  const support::CommandRun next = run_little(directory, {"--exists-pages", "0"});
  EXPECT_EQ(next.code, 0) << next.errors;
  EXPECT_FALSE(files.stat(folder).is_ok());
  EXPECT_FALSE(files.stat(folder + ".lock").is_ok());
  remove_bench_directory(directory);
}

TEST(BenchStorage, SeveralPagesInEachRequest) {
  StorageBenchOptions options;
  options.backend = "memory";
  options.page_sizes = {65536};
  options.depths = {2};
  options.pages_per_request = 5;
  options.bytes = 4 << 20;
  auto runner = StorageRunner::create(options, testing::TempDir() + "larder-bench-storage-several");
  ASSERT_TRUE(runner.is_ok()) << runner.status().to_string();
  const auto set = (*runner)->set(65536, 2);
  ASSERT_TRUE(set.is_ok()) << set.status().to_string();
  EXPECT_EQ(set->pages, 64u) << "12 requests of 5 pages, and one of 4";
  const auto get = (*runner)->get(65536, 2);
  ASSERT_TRUE(get.is_ok()) << get.status().to_string();
  EXPECT_EQ(get->pages, 64u);
}

TEST(BenchStorage, ASmallRunOnTheMemoryBackend) {
  StorageBenchOptions options;
  options.backend = "memory";
  options.page_sizes = {65536};
  options.depths = {4};
  options.bytes = 4 << 20;
  options.exists_pages = 5000;
  options.exists_queries = 50;
  const std::string nowhere = testing::TempDir() + "larder-bench-storage-none";
  auto runner = StorageRunner::create(options, nowhere);
  ASSERT_TRUE(runner.is_ok()) << runner.status().to_string();
  const auto set = (*runner)->set(65536, 4);
  ASSERT_TRUE(set.is_ok()) << set.status().to_string();
  EXPECT_EQ(set->pages, 64u);
  EXPECT_GT(set->bytes_per_second, 0);
  const auto get = (*runner)->get(65536, 4);
  ASSERT_TRUE(get.is_ok()) << get.status().to_string();
  EXPECT_EQ(get->pages, 64u);
  const auto exists = (*runner)->exists();
  ASSERT_TRUE(exists.is_ok()) << exists.status().to_string();
  EXPECT_EQ(exists->queries, 50u);
  EXPECT_LE(exists->p50_us, exists->p99_us);
  options.backend = "memorie";
  EXPECT_EQ(StorageRunner::create(options, nowhere).status().code(), StatusCode::kInvalidArgument);
  options.backend = "memory";
  options.extra = {"no_such_option=1"};
  EXPECT_EQ(StorageRunner::create(options, nowhere).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace larder
