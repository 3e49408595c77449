// SPDX-License-Identifier: Apache-2.0
// A storage backend that is late, out of order, partly failing or stuck, by a seed: a decorator around a real one.
//
// Purpose: tests of those who *use* the storage port. It keeps the port's contract, and is as strict as that allows:
//  - An operation that is held has not happened: it reaches the inner backend when it is released, in random order.
//    A caller that frees its buffers early, or trusts them before `done`, is found out.
//  - The payload buffers of a read are filled with garbage at submit, and again for each item that fails.
//  - An operation that hangs stays away until release_hung() or the destructor, which cancels it.
//
// Fates, drawn at submit: refused (kOverloaded) | hung | failed (every item kUnavailable) | partial (some items fail:
// kUnavailable, kCorrupt or kNotFound, the others are done) | done. Percentages of FaultPlan, in that order.
//
//   submit -> [held] --release--> inner.submit -> done        is_holding: else released inside submit
//          -> [hung] --release_hung--> [held]
//
// Threads: as the port: any. With is_holding, callbacks run inside release_*() if the inner executor runs inline.
// Limits: none on held operations; use refuse_percent or the inner queue limit.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/rng.h"
#include "storage/backend.h"

namespace larder::sim {

enum class StorageFault : unsigned char { kRefused, kHung, kFailed, kPartial };

struct FaultPlan {
  unsigned refuse_percent = 0;
  unsigned hang_percent = 0;
  unsigned fail_percent = 0;
  unsigned partial_percent = 0;
  bool is_holding = false;  // operations wait for release_one() / release_all()
};

class FaultyBackend final : public StorageBackend {
 public:
  FaultyBackend(std::unique_ptr<StorageBackend> inner, std::uint64_t seed, FaultPlan plan = {});
  // Cancels (kCancelled, callbacks run) what is held or hung, then ends the inner backend.
  ~FaultyBackend() override;

  void set_plan(const FaultPlan& plan);
  // The n-th operation from now (1: the next) has this fate, whatever the plan says; then `fired` runs. 0: none has.
  void fail_nth(std::uint64_t n, StorageFault fault, std::function<void()> fired = nullptr);
  // Lets one held operation go, chosen by the seed; false if none is held.
  bool release_one();
  // Until none is held, those submitted meanwhile by callbacks included. The number let go.
  std::size_t release_all();
  // Hung operations become held ones. How many.
  std::size_t release_hung();
  [[nodiscard]] std::size_t held() const;
  [[nodiscard]] std::size_t hung() const;

  struct Injected {
    std::uint64_t refused = 0, hung = 0, failed = 0, partial = 0, failed_items = 0;
  };
  [[nodiscard]] Injected injected() const;
  [[nodiscard]] StorageBackend& inner() { return *inner_; }

  [[nodiscard]] const BackendInfo& info() const override { return inner_->info(); }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override;
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override;
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override;
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override;
  [[nodiscard]] BackendStats stats() const override { return inner_->stats(); }
  [[nodiscard]] ClearMark clear_mark() const override { return inner_->clear_mark(); }
  [[nodiscard]] ClearMark emptied_mark() const override { return inner_->emptied_mark(); }
  [[nodiscard]] Status register_memory(std::span<const Segment> regions) override {
    return inner_->register_memory(regions);
  }
  // kDeadlineExceeded while operations are held or hung: nobody would release them during the wait.
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override;

 private:
  // run(true): do it now; run(false): complete it as cancelled.
  using Held = std::function<void(bool is_released)>;
  enum class Fate : unsigned char { kRefused, kHung, kFailed, kPartial, kDone };

  [[nodiscard]] Fate draw_fate() LARDER_EXCLUDES(mutex_);
  // `fired`: what is to be called, without the lock, because of it.
  [[nodiscard]] Fate draw_fate(std::function<void()>& fired) LARDER_EXCLUDES(mutex_);
  // For each of `count` items: ok, or the failure to inject. Never all ok.
  [[nodiscard]] std::vector<Status> draw_item_failures(std::size_t count) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::vector<Status> failures_of(Fate fate, std::size_t count) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status take(Fate fate, Held held) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status check_open() const LARDER_EXCLUDES(mutex_);
  void scribble(const std::vector<ReadItem>& items) LARDER_EXCLUDES(mutex_);

  const std::unique_ptr<StorageBackend> inner_;
  mutable RankedMutex mutex_{LockRank::kStorage};  // never held over a call
  Rng rng_ LARDER_GUARDED_BY(mutex_);
  FaultPlan plan_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t until_fault_ LARDER_GUARDED_BY(mutex_) = 0;
  StorageFault fault_ LARDER_GUARDED_BY(mutex_) = StorageFault::kRefused;
  std::function<void()> fired_ LARDER_GUARDED_BY(mutex_);
  std::vector<Held> held_ LARDER_GUARDED_BY(mutex_), hung_ LARDER_GUARDED_BY(mutex_);
  Injected injected_ LARDER_GUARDED_BY(mutex_);
  bool is_closed_ LARDER_GUARDED_BY(mutex_) = false;
};

}  // namespace larder::sim
