// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_storage.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>

#include "base/file_system.h"
#include "base/log.h"
#include "server/command_line.h"
#include "server/json_reader.h"
#include "server/text_table.h"
#include "storage/option_text.h"

namespace larder {
namespace {

constexpr const char* kBenchFolder = "larder-bench-storage";  // under --directory; made and removed here
constexpr std::uint64_t kLeastPage = 4096, kMostPage = std::uint64_t{1} << 30;
constexpr std::uint32_t kMostDepth = 1024, kMostPages = 1024;  // in flight; in a request
constexpr std::uint64_t kLeastBytes = 1 << 20;

constexpr const char* kFio = "fio";
constexpr const char* kNone = "none";

struct Places {
  std::string folder, store, other_store, fio_file;
};

// What a cell's own runs are measured beside.
class Beside {
 public:
  virtual ~Beside() = default;
  [[nodiscard]] virtual Result<StorageRun> set(std::uint64_t page_bytes, std::uint32_t depth) = 0;
  [[nodiscard]] virtual Result<StorageRun> get(std::uint64_t page_bytes, std::uint32_t depth) = 0;
};

// Its own, as --backend's do not say so.
Status of_beside(const Status& status) {
  return status.is_ok() ? status : Status(status.code(), "--beside: " + status.message());
}

class BesideBackend final : public Beside {
 public:
  explicit BesideBackend(std::unique_ptr<StorageRunner> runner) : runner_(std::move(runner)) {}
  Result<StorageRun> set(std::uint64_t page_bytes, std::uint32_t depth) override {
    return named(runner_->set(page_bytes, depth));
  }
  Result<StorageRun> get(std::uint64_t page_bytes, std::uint32_t depth) override {
    return named(runner_->get(page_bytes, depth));
  }

 private:
  static Result<StorageRun> named(Result<StorageRun> run) {
    if (!run.is_ok()) return of_beside(run.status());
    return run;
  }
  const std::unique_ptr<StorageRunner> runner_;
};

class BesideFio final : public Beside {
 public:
  BesideFio(const StorageBenchOptions& options, const Places& places, bool is_tuned)
      : options_(options), places_(places), is_tuned_(is_tuned) {}
  Result<StorageRun> set(std::uint64_t page_bytes, std::uint32_t depth) override {
    (void)real_file_system().remove(places_.fio_file);  // an old file would be written faster than a new one
    const std::uint64_t bytes = options_.bytes / page_bytes * page_bytes;
    Result<StorageRun> run = run_fio({places_.fio_file, true, page_bytes, bytes, depth, options_.seconds, is_tuned_});
    // What is behind the written bytes was reserved and reads as zeros, without the disk.
    written_ = run.is_ok() ? run->pages * page_bytes : 0;
    return run;
  }
  Result<StorageRun> get(std::uint64_t page_bytes, std::uint32_t depth) override {
    LARDER_RETURN_IF_ERROR(drop_page_cache(places_.folder));
    return run_fio({places_.fio_file, false, page_bytes, written_, depth, options_.seconds, is_tuned_});
  }

 private:
  const StorageBenchOptions& options_;
  const Places& places_;
  const bool is_tuned_;
  std::uint64_t written_ = 0;
};

struct BesidePlan {
  std::unique_ptr<Beside> other;  // may be nullptr
  std::string text;               // for the header
};

BesidePlan plan_fio(const StorageBenchOptions& options, const Places& places) {
  const std::uint64_t page = *std::max_element(options.page_sizes.begin(), options.page_sizes.end());
  const std::uint32_t depth = *std::max_element(options.depths.begin(), options.depths.end());
  FioRun trial{places.fio_file, true, page, page, depth, 1, true};  // with as much memory as any run will have
  Result<StorageRun> run = run_fio(trial);
  if (run.is_ok()) {
    return {std::make_unique<BesideFio>(options, places, true),
            "fio: io_uring, direct, registered buffers and file, huge pages"};
  }
  trial.is_tuned = false;
  if (run.status().code() != StatusCode::kNotFound) run = run_fio(trial);
  if (run.is_ok()) {
    return {std::make_unique<BesideFio>(options, places, false),
            "fio: io_uring, direct; plain buffers, because registering them failed (ulimit -l): not its best"};
  }
  const bool is_absent = run.status().code() == StatusCode::kNotFound;
  return {nullptr, is_absent ? "fio is not installed (apt-get install fio): no ratios"
                             : "no ratios: fio: " + run.status().message()};
}

Result<BesidePlan> plan_beside(const StorageBenchOptions& options, const Places& places) {
  if (options.beside == kNone || !options.with_cells) return BesidePlan{nullptr, "nothing"};
  if (options.beside == kFio) return plan_fio(options, places);
  StorageBenchOptions own = options;
  own.backend = options.beside;
  own.extra = options.beside_extra;
  Result<std::unique_ptr<StorageRunner>> runner = StorageRunner::create(own, places.other_store);
  if (!runner.is_ok()) return of_beside(runner.status());
  std::string text = "backend " + options.beside;
  for (const std::string& extra : options.beside_extra) text += " " + extra;
  return BesidePlan{std::make_unique<BesideBackend>(std::move(runner).value()), text};
}

// One cell's runs, own and the other's by turns.
class CellBench {
 public:
  // `other` may be nullptr.
  CellBench(const StorageBenchOptions& options, StorageRunner& runner, Beside* other)
      : options_(options), runner_(runner), other_(other) {}

  [[nodiscard]] Status run(std::uint64_t page_bytes, std::uint32_t depth, std::vector<StorageCell>& cells) {
    StorageCell set{"set", page_bytes, depth, {}, {}};
    StorageCell get{"get", page_bytes, depth, {}, {}};
    for (std::uint32_t i = 0; i < options_.repeat; ++i) {
      note(fmt::format("{} pages, depth {}, run {} of {}", bytes_text(page_bytes), depth, i + 1, options_.repeat));
      const bool is_own_first = i % 2 == 0;  // who goes first may find the disk in another state
      for (const bool is_own : {is_own_first, !is_own_first}) LARDER_RETURN_IF_ERROR(run_set(set, is_own));
      for (const bool is_own : {is_own_first, !is_own_first}) LARDER_RETURN_IF_ERROR(run_get(get, is_own));
    }
    note("");
    cells.push_back(std::move(set));
    cells.push_back(std::move(get));
    return Status::ok();
  }

  static void note(const std::string& text) {
    if (::isatty(STDERR_FILENO) == 1) std::fprintf(stderr, "\r%s\x1b[K", text.c_str());
  }

 private:
  static Status keep(const Result<StorageRun>& run, std::vector<StorageRun>& runs) {
    if (run.is_ok()) runs.push_back(*run);
    return run.status();
  }
  [[nodiscard]] Status run_set(StorageCell& cell, bool is_own) {
    if (is_own) return keep(runner_.set(cell.page_bytes, cell.depth), cell.own);
    return other_ == nullptr ? Status::ok() : keep(other_->set(cell.page_bytes, cell.depth), cell.other);
  }
  [[nodiscard]] Status run_get(StorageCell& cell, bool is_own) {
    if (is_own) return keep(runner_.get(cell.page_bytes, cell.depth), cell.own);
    return other_ == nullptr ? Status::ok() : keep(other_->get(cell.page_bytes, cell.depth), cell.other);
  }

  const StorageBenchOptions& options_;
  StorageRunner& runner_;
  Beside* const other_;
};

// Fewer bytes where the disk has no room for them: the store and the other's, and as much again.
Status fit_to_disk(StorageBenchOptions& options) {
  const Result<SpaceInfo> space = real_file_system().space(options.directory);
  if (!space.is_ok()) return space.status();
  const std::uint64_t most = space->free_bytes / 4;
  if (most < kLeastBytes) return overloaded(options.directory + ": the disk is full");
  if (options.bytes > most) {
    std::fprintf(stderr, "larder bench storage: runs of %s instead of %s: the disk has no more room\n",
                 bytes_text(most).c_str(), bytes_text(options.bytes).c_str());
    options.bytes = most;
  }
  return Status::ok();
}

// The folder of one run, empty at first; it goes with all that is in it. Declared before what writes into it. Its lock
// lies beside it: the folder of a run that was killed is there, too, and nobody's.
class Folder {
 public:
  // kConflict: a run that goes on has it.
  [[nodiscard]] static Result<std::unique_ptr<Folder>> make(const std::string& directory) {
    FileSystem& files = real_file_system();
    const std::string path = join_path(directory, kBenchFolder);
    LARDER_RETURN_IF_ERROR(files.make_dirs(directory));
    Result<std::unique_ptr<FileLock>> lock = files.lock(path + ".lock");
    if (lock.status().code() == StatusCode::kConflict) {
      return conflict("--directory: another run works in " + path + ": wait for its end, or name another directory");
    }
    if (!lock.is_ok()) return lock.status();
    std::unique_ptr<Folder> folder(new Folder(path, std::move(*lock)));
    remove_bench_directory(path);
    LARDER_RETURN_IF_ERROR(files.make_dirs(path));
    return folder;
  }
  ~Folder() {
    remove_bench_directory(path_);
    (void)real_file_system().remove(path_ + ".lock");
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

 private:
  Folder(std::string path, std::unique_ptr<FileLock> lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  const std::string path_;
  const std::unique_ptr<FileLock> lock_;
};

Status run_restart(const StorageBenchOptions& options) {
  Places places;
  places.folder = join_path(options.directory, kBenchFolder);
  LARDER_ASSIGN_OR_RETURN(const std::unique_ptr<Folder> folder, Folder::make(options.directory));
  const MachineInfo machine = machine_info(options.directory);
  CellBench::note("restart");
  const Result<RestartFigures> figures = measure_restart(options, join_path(places.folder, "store"));
  CellBench::note("");
  if (!figures.is_ok()) return figures.status();
  if (options.as_json) {
    nlohmann::ordered_json out = storage_json(options, machine, "", {}, nullptr);
    out["restart"] = restart_json(*figures);
    std::printf("%s\n", dump_json(out, 2).c_str());
  } else {
    std::printf("%s\n%s", storage_header(options, machine, "nothing").c_str(), restart_text(*figures).c_str());
  }
  return Status::ok();
}

// What was measured before `status` ended it.
struct Measured {
  std::vector<StorageCell> cells;
  std::optional<ExistsFigures> exists;
  Status status;
};

Status measure_cells(const StorageBenchOptions& options, CellBench& bench, std::vector<StorageCell>& cells) {
  for (const std::uint64_t page_bytes : options.page_sizes) {
    for (const std::uint32_t depth : options.depths) LARDER_RETURN_IF_ERROR(bench.run(page_bytes, depth, cells));
  }
  return Status::ok();
}

Measured measure_cells(const StorageBenchOptions& options, StorageRunner& runner, Beside* other) {
  CellBench bench(options, runner, other);
  Measured found;
  if (options.with_cells) found.status = measure_cells(options, bench, found.cells);
  std::ranges::stable_sort(found.cells, std::greater<>(), &StorageCell::operation);  // set before get
  if (!options.as_json && !found.cells.empty()) {
    std::printf("%s\n%s\n", storage_table(found.cells, options.beside).c_str(),
                throughput_table(found.cells, options.beside).c_str());
    std::fflush(stdout);
  }
  if (!found.status.is_ok() || options.exists_pages == 0) return found;
  CellBench::note("existence");
  const Result<ExistsFigures> exists = runner.exists();
  CellBench::note("");
  found.status = exists.status();
  if (exists.is_ok()) found.exists = *exists;
  return found;
}

// After something was measured no argument is to be mended, whatever the backend calls it.
Status late(const Status& status) { return failure_exit_code(status) == 2 ? unavailable(status.message()) : status; }

Status run_bench(StorageBenchOptions options) {
  LARDER_RETURN_IF_ERROR(real_file_system().make_dirs(options.directory));
  LARDER_RETURN_IF_ERROR(fit_to_disk(options));
  Places places;
  places.folder = join_path(options.directory, kBenchFolder);
  places.store = join_path(places.folder, "store");
  places.other_store = join_path(places.folder, "other");
  places.fio_file = join_path(places.folder, "fio.data");
  LARDER_ASSIGN_OR_RETURN(const std::unique_ptr<Folder> folder, Folder::make(options.directory));
  const MachineInfo machine = machine_info(options.directory);
  Result<std::unique_ptr<StorageRunner>> runner = StorageRunner::create(options, places.store);
  if (!runner.is_ok()) return Status(runner.status().code(), "--backend, --extra: " + runner.status().message());
  LARDER_ASSIGN_OR_RETURN(const BesidePlan beside, plan_beside(options, places));
  if (!options.as_json) std::printf("%s\n", storage_header(options, machine, beside.text).c_str());
  std::fflush(stdout);
  const Measured found = measure_cells(options, **runner, beside.other.get());
  if (!found.status.is_ok() && found.cells.empty()) return found.status;
  if (options.as_json) {
    const ExistsFigures* exists = found.exists ? &*found.exists : nullptr;
    nlohmann::ordered_json out = storage_json(options, machine, beside.text, found.cells, exists);
    if (!found.status.is_ok()) out["error"] = found.status.message();
    std::printf("%s\n", dump_json(out, 2).c_str());
  } else if (found.exists) {
    std::printf("%s", exists_text(*found.exists).c_str());
  }
  return late(found.status);
}

// "64Ki", "2MiB", "1G".
std::string read_size(const std::string& text, std::uint64_t& out) {
  const Result<std::uint64_t> size = parse_size_bytes(text);
  if (size.is_ok()) out = *size;
  return size.status().message();
}

struct Typed {
  std::vector<std::string> page_sizes;
  std::string bytes, restart_page;
  bool quick = false, only_exists = false;
};

void add_options(CLI::App& app, StorageBenchOptions& o, Typed& typed) {
  app.add_option("--directory", o.directory, "where to write; a folder is made there and removed")
      ->type_name("PATH")
      ->capture_default_str();
  app.add_option("--backend", o.backend, "backend to measure")->type_name("NAME")->capture_default_str();
  app.add_option("--extra", o.extra, "option of the backend, as io_depth=128 (may be given again)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--page-sizes", typed.page_sizes, "bytes per page, as 64Ki,512Ki,2Mi (these are the default)")
      ->type_name("SIZES")
      ->delimiter(',');
  app.add_option("--depths", o.depths, "requests in flight")
      ->type_name("NUMBERS")
      ->check(whole_number())
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--pages", o.pages_per_request, "pages in each request")
      ->type_name("NUMBER")
      ->check(whole_number())
      ->capture_default_str();
  app.add_option("--bytes", typed.bytes, "of one run, as 4Gi; default 1Gi, less on a small disk")->type_name("SIZE");
  app.add_option("--seconds", o.seconds, "most of one run")->type_name("SECONDS")->capture_default_str();
  app.add_option("--repeat", o.repeat, "runs of each kind")
      ->type_name("TIMES")
      ->check(whole_number())
      ->capture_default_str();
  app.add_option("--exists-pages", o.exists_pages, "stored pages of the existence test; 0: leave it out")
      ->type_name("PAGES")
      ->check(whole_number())
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of contents and order")
      ->type_name("NUMBER")
      ->check(whole_number())
      ->capture_default_str();
  app.add_flag("--quick", typed.quick, "depths 1 and 16, 128Mi, one run each, 100,000 pages for existence");
  app.add_flag("--only-exists", typed.only_exists, "only the existence test");
  app.add_flag("--restart", o.with_restart, "only: open a store of many pages (its payloads are holes), cold");
  app.add_option("--restart-pages", o.restart_pages, "its pages")
      ->type_name("PAGES")
      ->check(whole_number())
      ->capture_default_str();
  app.add_option("--restart-page-size", typed.restart_page, "bytes of each (default 16Ki)")->type_name("SIZE");
  app.add_option("--beside", o.beside, "what to compare with, run by turns: fio, a backend, or none")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--beside-extra", o.beside_extra, "option of that backend (may be given again)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_flag("--json", o.as_json, "print JSON");
}

Status settle(StorageBenchOptions& o, const Typed& typed) {
  if (typed.quick) {
    o.depths = {1, 16};
    o.bytes = std::uint64_t{128} << 20;
    o.repeat = 1;
    o.exists_pages = std::min<std::uint64_t>(o.exists_pages, 100'000);
  }
  if (!typed.bytes.empty()) {
    const std::string problem = read_size(typed.bytes, o.bytes);
    if (!problem.empty()) return invalid_argument("--bytes: " + problem);
  }
  if (!typed.restart_page.empty()) {
    const std::string problem = read_size(typed.restart_page, o.restart_page_bytes);
    if (!problem.empty()) return invalid_argument("--restart-page-size: " + problem);
  }
  if (!typed.page_sizes.empty()) o.page_sizes.clear();
  for (const std::string& text : typed.page_sizes) {
    const std::string problem = read_size(text, o.page_sizes.emplace_back());
    if (!problem.empty()) return invalid_argument("--page-sizes: " + problem);
  }
  o.with_cells = !typed.only_exists;
  return check_options(o);
}

// The report names --directory's disk and file system, and reads are cold there only.
Status check_places(const StorageBenchOptions& o) {
  if (o.directory.find(':') != std::string::npos) {
    return invalid_argument("--directory: '" + o.directory + "': one directory, without ':'");
  }
  for (const auto& [option, texts] : {std::pair("--extra", &o.extra), std::pair("--beside-extra", &o.beside_extra)}) {
    for (const std::string& text : *texts) {
      const std::string key = text.substr(0, text.find('='));
      if (key != "directory" && key != "file_path_prefix") continue;
      return invalid_argument(fmt::format("{}: {}: use --directory", option, key));
    }
  }
  return Status::ok();
}

}  // namespace

Status check_options(const StorageBenchOptions& o) {
  LARDER_RETURN_IF_ERROR(check_places(o));
  if (o.page_sizes.empty() || o.depths.empty()) return invalid_argument("--page-sizes, --depths: one at least");
  for (const std::uint64_t size : o.page_sizes) {
    if (size < kLeastPage || size > kMostPage || size % kLeastPage != 0) {
      return invalid_argument(fmt::format("--page-sizes: {} is not a multiple of 4096 from 4Ki to 1Gi", size));
    }
    if (size > o.bytes) return invalid_argument(fmt::format("--bytes: less than one page of {} bytes", size));
  }
  for (const std::uint32_t depth : o.depths) {
    if (depth == 0 || depth > kMostDepth) return invalid_argument(fmt::format("--depths: {} is not in 1..1024", depth));
  }
  if (o.pages_per_request == 0 || o.pages_per_request > kMostPages) {
    return invalid_argument(fmt::format("--pages: {} is not in 1..{}", o.pages_per_request, kMostPages));
  }
  if (o.pages_per_request > 1 && o.beside == kFio) {
    return invalid_argument("--pages: fio has one block in each request; use --beside none, or a backend");
  }
  if (!o.beside_extra.empty() && (o.beside == kFio || o.beside == kNone)) {
    return invalid_argument("--beside-extra: needs --beside with the name of a backend");
  }
  if (o.bytes < kLeastBytes) return invalid_argument("--bytes: the least is 1Mi");
  // In less not even the first request of a run may begin.
  if (!(o.seconds >= 0.01 && o.seconds <= 3600)) return invalid_argument("--seconds: from 0.01 to 3600");
  if (o.repeat == 0 || o.repeat > 1000) return invalid_argument("--repeat: from 1 to 1000");
  if (o.restart_pages == 0 || o.restart_pages > 1'000'000'000) {
    return invalid_argument("--restart-pages: from 1 to 1,000,000,000");
  }
  if (o.restart_page_bytes < kLeastPage || o.restart_page_bytes > kMostPage || o.restart_page_bytes % kLeastPage != 0) {
    return invalid_argument("--restart-page-size: a multiple of 4096 from 4Ki to 1Gi");
  }
  if (o.exists_pages > 1'000'000'000) return invalid_argument("--exists-pages: at most 1,000,000,000");
  return Status::ok();
}

int bench_storage(int argc, char** argv) {
  CLI::App app(
      "Speed of a storage backend beside fio or another backend in the same directory, and of its existence queries.",
      "larder bench storage");
  app.get_formatter()->column_width(34);
  StorageBenchOptions options;
  Typed typed;
  add_options(app, options, typed);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  set_log_level(LogLevel::kWarning);  // a backend tells of each opening, into the middle of the report
  Status status = settle(options, typed);
  if (status.is_ok()) status = options.with_restart ? run_restart(options) : run_bench(options);
  return status.is_ok() ? 0 : fail_command("larder bench storage", status);
}

}  // namespace larder
