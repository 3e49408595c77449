// SPDX-License-Identifier: Apache-2.0
// What the conformance checks need from whoever has a backend to check, and the pages they write.
//
// A harness owns the environment (executor, files, clock) and opens the backend in it, again and again for persistent
// ones. Threads: the checking thread; callbacks may come from elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "storage/backend.h"
#include "storage/factory.h"

namespace larder::conformance {

class StorageHarness {
 public:
  virtual ~StorageHarness() = default;
  // Opens the store (of a persistent backend: with what earlier ones left). `extra` overrides the harness's options.
  [[nodiscard]] virtual Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra = {}) = 0;
  // Runs what was posted, if the harness's executor must be told to. With threads: nothing.
  virtual void drain() = 0;
  // Does drain() decide when tasks run? Then checks can look at the state in between.
  [[nodiscard]] virtual bool is_manual() const = 0;
  // Does nobody else use the store, and is nothing in it worth keeping? Then checks may clear all of it, make it small,
  // and count its pages.
  [[nodiscard]] virtual bool is_own_store() const { return true; }
  // Does the store take max_size, and evict to keep it?
  [[nodiscard]] virtual bool is_bounded() const { return true; }
  // Does a group that is evicted leave as a whole? Not if its pools have budgets of their own.
  [[nodiscard]] virtual bool evicts_whole_groups() const { return true; }
  // How long an operation may take before the backend counts as stuck. Real time.
  [[nodiscard]] virtual std::chrono::seconds answer_limit() const { return std::chrono::seconds(60); }
  // Flips bits in stored bytes; returns how many. 0: there is nothing that it could flip bits in.
  virtual std::size_t flip_stored_bits(Rng& rng, std::size_t flips) {
    (void)rng, (void)flips;
    return 0;
  }
};

// A page's content, cut into odd pieces; the bytes follow from (key, pool, salt), so a mix-up shows.
class PageBuffer {
 public:
  PageBuffer(std::size_t bytes, std::size_t pieces, Rng& rng);
  [[nodiscard]] const std::vector<Segment>& segments() const { return segments_; }
  void fill(const PageKey& key, PoolName pool, std::uint64_t salt = 0);
  [[nodiscard]] bool holds(const PageKey& key, PoolName pool, std::uint64_t salt = 0) const;

 private:
  std::vector<std::vector<std::byte>> pieces_;
  std::vector<Segment> segments_;
};

// Keys and scopes of checks follow from `base` (a run's seed and a check's name) and a number. A scope has the pools
// kv, swa, mamba, indexer and deepseek_v4_c4. Scopes of one base differ in their namespace only, so that a backend that
// tells pages apart by their layout alone is found out.
[[nodiscard]] PageKey check_key(std::uint64_t base, std::uint64_t number);
[[nodiscard]] std::shared_ptr<const StoreScope> check_scope(std::uint64_t base, std::uint64_t number);

}  // namespace larder::conformance
