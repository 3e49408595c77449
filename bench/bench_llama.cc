// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_llama.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/file_system.h"
#include "bench/bench_llama_server.h"
#include "server/real_child_process.h"

namespace larder {
namespace {

bool is_executable(const std::string& path) {
  std::error_code failed;
  return std::filesystem::is_regular_file(path, failed) && ::access(path.c_str(), X_OK) == 0;
}

// Goes with everything in it when this does.
class Folder {
 public:
  ~Folder() {
    if (!path_.empty()) remove_directory_tree(path_);
  }
  Folder() = default;
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] Status make(const std::string& parent) {
    Result<std::string> made = make_temporary_directory("larder-bench-llama-", parent);
    if (!made.is_ok()) return made.status();
    path_ = std::move(*made);
    return Status::ok();
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// One set-up, all rows, once.
class LlamaRun {
 public:
  LlamaRun(const LlamaBenchOptions& options, const std::string& model, const LlamaRowChoice& choice)
      : options_(options), model_(model), choice_(choice), prompts_(options.seed) {}

  [[nodiscard]] Status run(LlamaSetup setup, LlamaModelResult& result) const {
    Folder files, slots;
    LARDER_RETURN_IF_ERROR(files.make({}));
    LARDER_RETURN_IF_ERROR(slots.make(real_file_system().stat("/dev/shm").is_ok() ? "/dev/shm" : ""));
    LlamaBenchServer server(options_, model_, setup, {files.path(), slots.path()});
    LARDER_RETURN_IF_ERROR(server.start());
    for (std::size_t row = 0; row < kLlamaRows; ++row) {
      if (!choice_.is_run[row]) continue;
      if (llama_rows()[row].comes_after_restart) LARDER_RETURN_IF_ERROR(server.restart());
      const Result<LlamaSample> sample = server.ask(prompts_.of_row(row));
      if (!sample.is_ok()) return sample.status();
      add(row, setup, *sample, result);
    }
    if (setup != LlamaSetup::kPlain) describe(server.summary(), result);
    return server.stop();
  }

 private:
  // As LlamaProxy and LlamaService write it.
  static void describe(const std::string& summary, LlamaModelResult& result) {
    result.summary = summary;
    result.has_checkpoints =
        summary.find(", windows of ") != std::string::npos || summary.find(", states of ") != std::string::npos;
  }
  void add(std::size_t row, LlamaSetup setup, const LlamaSample& sample, LlamaModelResult& result) const {
    for (LlamaCell& cell : result.cells) {
      if (cell.row == row) cell.of(setup).push_back(sample);
    }
  }

  const LlamaBenchOptions& options_;
  const std::string& model_;
  const LlamaRowChoice& choice_;
  const LlamaPrompts prompts_;
};

}  // namespace

std::string_view llama_setup_name(LlamaSetup setup) {
  constexpr std::array<std::string_view, kLlamaSetups> kNames = {"llama-server", "proxy", "serve"};
  return kNames[static_cast<std::size_t>(setup)];
}

std::vector<LlamaSetup> llama_fronts() {
#ifdef LARDER_HAS_LLAMA
  return {LlamaSetup::kProxy, LlamaSetup::kServe};
#else
  return {LlamaSetup::kProxy};
#endif
}

Result<std::string> find_llama_server() {
  const Result<std::string> own = own_executable_path();
  if (own.is_ok()) {  // build/PRESET/larder
    const std::string beside = join_path(parent_path(parent_path(*own)), "llama/build/bin/llama-server");
    if (is_executable(beside)) return beside;
  }
  const char* path = std::getenv("PATH");
  std::string_view left = path == nullptr ? "" : path;
  while (!left.empty()) {
    const std::string_view directory = left.substr(0, left.find(':'));
    left.remove_prefix(std::min(left.size(), directory.size() + 1));
    const std::string candidate = join_path(directory.empty() ? "." : directory, "llama-server");
    if (is_executable(candidate)) return candidate;
  }
  return not_found(
      "no llama-server in build/llama, none in PATH: build it with tools/llama_env.sh, or give its path "
      "with --llama-server");
}

Result<LlamaModelResult> run_llama_model(const LlamaBenchOptions& options, const std::string& model) {
  if (!is_executable(options.llama_server)) {
    return invalid_argument(options.llama_server + " is no executable: build llama-server with tools/llama_env.sh");
  }
  if (!real_file_system().stat(model).is_ok()) return invalid_argument("--model: there is no file " + model);
  LlamaModelResult result;
  result.model = std::filesystem::path(model).filename().string();
  const LlamaRowChoice choice = choose_llama_rows(options.rows);
  for (std::size_t row = 0; row < kLlamaRows; ++row) {
    if (choice.is_run[row]) result.cells.push_back({row, {}});
  }
  const LlamaRun run(options, model, choice);
  std::vector<LlamaSetup> setups = {LlamaSetup::kPlain};
  setups.insert(setups.end(), options.fronts.begin(), options.fronts.end());
  for (std::uint32_t repeat = 0; repeat < options.repeats; ++repeat) {
    if (repeat > 0) std::ranges::reverse(setups);
    for (const LlamaSetup setup : setups) {
      if (options.shows_progress) {
        std::fprintf(stderr, "%s: %s, %u of %u\n", result.model.c_str(), std::string(llama_setup_name(setup)).c_str(),
                     repeat + 1, options.repeats);
      }
      const Status status = run.run(setup, result);
      if (LlamaBenchStop::is_asked()) return cancelled("stopped by a signal");
      if (!status.is_ok()) return status;
    }
  }
  return result;
}

}  // namespace larder
