// SPDX-License-Identifier: Apache-2.0
// What the parts of `larder store` share (internal to cli/). Each command is a client of storage/file/store_*.h.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "server/command_line.h"
#include "storage/backend.h"
#include "storage/file/store_inspect.h"

namespace larder {

// Exit codes of every store command.
inline constexpr int kStoreDone = 0;     // and nothing is wrong
inline constexpr int kStoreDamage = 1;   // damage was found, or not everything could be done
inline constexpr int kStoreUsage = 2;    // wrong arguments
inline constexpr int kStoreRefused = 3;  // no store there, in use by another process, or the disk failed

// argv[0] is the command's name; the answer is the exit code.
int store_ls(int argc, char** argv);
int store_stat(int argc, char** argv);
int store_verify(int argc, char** argv);
int store_fsck(int argc, char** argv);
int store_export(int argc, char** argv);
int store_import(int argc, char** argv);
int store_clear(int argc, char** argv);
int store_forget(int argc, char** argv);

// Options as they were typed.
struct StoreArguments {
  std::vector<std::string> directories;
  std::string space;                     // --namespace
  std::vector<std::string> pools, keys;  // --pool, --key
  bool as_json = false;
};
inline constexpr const char* kBesideServer =
    "May run beside a server that has the store open: what it reads may change meanwhile, and segments that\n"
    "grow or go away are not errors.";
inline constexpr const char* kNeedsStore =
    "Takes the store for itself (LOCK) and refuses while a server has it open: a store has one process.";
// The directories, --json, and a footer with `about` and the exit codes.
void add_store_arguments(CLI::App& app, StoreArguments& arguments, const char* about);
void add_selection(CLI::App& app, StoreArguments& arguments, bool with_keys);
// kInvalidArgument names the option.
[[nodiscard]] Result<file_store::PageSelection> selection_of(const StoreArguments& arguments);

// Reads the store; volumes that do not belong together, or are none, are an error.
[[nodiscard]] Result<file_store::StoreReport> read_store(const StoreArguments& arguments);

// Segments that cannot be read, or not all of them: what they hold besides is not in the report. JSON: file and problem
// of each. print_problems() prints them on standard error; false: there are none.
[[nodiscard]] nlohmann::ordered_json problems_json(const file_store::StoreReport& report);
[[nodiscard]] bool print_problems(const char* command, const file_store::StoreReport& report);

// Prints "larder store COMMAND: message"; the exit code.
int store_failure(const char* command, const Status& status);

// A bar on standard error if that is a terminal. Threads: confined.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();  // wipes it
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void show(std::uint64_t done, std::uint64_t total);
  [[nodiscard]] file_store::ProgressSink sink() {
    return [this](std::uint64_t done, std::uint64_t total) { show(done, total); };
  }

 private:
  const std::string label_;
  const bool is_shown_;
  bool is_drawn_ = false;
  TimePoint last_{};
};

// A file store opened through the storage port, and what it needs. Closed by the destructor.
class OpenedBackend {
 public:
  // `extra`: "KEY=VALUE" of the backend. Without a max_size it evicts nothing: a full disk refuses. kConflict: in use.
  [[nodiscard]] static Result<std::unique_ptr<OpenedBackend>> open(const std::vector<std::string>& directories,
                                                                   const std::vector<std::string>& extra);
  ~OpenedBackend();
  [[nodiscard]] StorageBackend& backend() { return *backend_; }
  // Everything is on disk. May be called once.
  [[nodiscard]] Status close();

 private:
  OpenedBackend() = default;
  std::unique_ptr<ThreadPoolExecutor> threads_;
  std::unique_ptr<StorageBackend> backend_;
};

// The first digits of a digest, for tables.
[[nodiscard]] std::string short_hex(const Digest256& digest);
[[nodiscard]] nlohmann::ordered_json page_json(const file_store::StoreReport& report,
                                               const file_store::InspectedPage& page);
void print_json(const nlohmann::ordered_json& document);

}  // namespace larder
