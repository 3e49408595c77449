// SPDX-License-Identifier: Apache-2.0
// The store door: pages at rest for engines that own their device and host memory (DESIGN: doors). What
// include/larder/larder.h exports, in C++.
//
//   engine's pages -> calls (exists_call, get_call, put_call) -> staging arena -> pipeline -> clear order -> backend
//                                       put_call -> write_retry -^
//   connectors -> backend() -----------------------------------^
//
// Clears. What was put, or written by a connector, before a clear is not there after it, however it failed and was kept
// (storage/clear_order.h). With share_directory the order is the host's, and counts for all processes.
//
// Threads: all methods but close() from any thread, several at once. Calls block, at most until their deadline.
// Lifetime: closing waits for what is in flight; spaces are values and may outlive the store.
// Cost of open(): the backend's, and the staging arena is touched (0.1 s per GiB).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "door/exists_call.h"
#include "door/page_space.h"
#include "door/store_core.h"
#include "storage/factory.h"

namespace larder {

class Ticker;

struct StoreOptions {
  std::string backend;          // a name of register_backends()
  std::string config;           // JSON (store_config.h), or empty
  std::vector<Segment> memory;  // where payloads mostly lie; outlives the store
};

class PageStore {
 public:
  static constexpr std::size_t kMostKeys = 65'536, kMostPages = 65'536;  // per call

  // `factory`: outlives the store; null: the backends of this build.
  [[nodiscard]] static Result<std::unique_ptr<PageStore>> open(const StoreOptions& options,
                                                               const BackendFactory* factory = nullptr);
  ~PageStore();
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  // exists_call.h. kInvalidArgument: more than kMostKeys keys, or a need of no pool of the space.
  [[nodiscard]] Status exists(const PageSpace& space, std::vector<PageKey> keys, std::span<const PoolNeed> needs,
                              const CallTerms& terms, std::span<std::uint64_t> restorable,
                              std::span<std::uint64_t> present);
  // Every page gets its status; kInvalidArgument for segments that are not the pool's page_bytes.
  void get(const PageSpace& space, std::span<CallPage> pages, const CallTerms& terms);
  void put(const PageSpace& space, std::span<CallPage> pages, const CallTerms& terms);
  // Drops all pages of the space, or of the store (null). kDeadlineExceeded, kCancelled: it may still be done later.
  [[nodiscard]] Status clear(const PageSpace* space, const CallTerms& terms);

  // StoreOptions::memory, later: the engine's memory may come into being after the store. Any thread.
  // StorageBackend::register_memory().
  [[nodiscard]] Status add_memory(std::span<const Segment> regions);

  // What a connector attaches to. Ends with the store.
  [[nodiscard]] StorageBackend& backend() { return *core_.pipeline; }
  // StorageBackend::emptied_mark(), of clears by other processes, too.
  [[nodiscard]] ClearMark emptied_mark() const { return core_.pipeline->emptied_mark(); }
  [[nodiscard]] std::string stats_json() const;
  [[nodiscard]] std::string metrics_text() const;
  // Refuses new calls, ends what waits, and waits for what the backend works on. kDeadlineExceeded: some still runs;
  // close() may be called again. Not beside other methods.
  [[nodiscard]] Status close(Nanos limit);

 private:
  PageStore() = default;
  // Pages that no operation can take get their status here; the others go on to `run`.
  template <class Call>
  void run(const PageSpace& space, std::span<CallPage> pages, const CallTerms& terms);

  StoreCore core_;
  std::unique_ptr<Ticker> ticker_;  // last: it uses the core
};

// Names of this build's backends, separated by commas; the options of one (null: no such backend).
[[nodiscard]] std::string store_backend_names();
[[nodiscard]] const std::vector<BackendOptionHelp>* store_backend_options(std::string_view name);

}  // namespace larder
