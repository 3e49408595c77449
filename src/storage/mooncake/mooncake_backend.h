// SPDX-License-Identifier: Apache-2.0
// Storage backend "mooncake": pages as objects of Mooncake Store, moved by a helper process (helper_link.h).
//
//   write   batch of groups ─► copied and hashed into staging ─► one call: begun, moved, made visible group by group
//   read    batch of pages  ─► one call moves them into staging ─► verified, copied out; what is wrong is removed
//   exists  one call
//
// A group becomes visible in one call of the master, its anchor first, or leaves nothing (mooncake_helper.py, put). The
// objects of one group are one group for the master, too: it evicts them together. What an object holds is proven by
// its envelope, whatever the store says (rule 1).
//
// Buffers of a caller are read before its write is sent and written after its read has come: a helper that hangs has
// none of them in its hands. So a caller has its answer when a call is late (helper_link.h); its batch, with its
// staging memory and its names, ends when the call does. Threads: any (storage/backend.h). Locks: one for the tables
// here; never during a call or a copy.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/ranked_mutex.h"
#include "storage/backend.h"
#include "storage/mooncake/batch_line.h"
#include "storage/mooncake/helper_calls.h"
#include "storage/operation.h"

namespace larder::mooncake {

struct BackendLimits {
  std::size_t queue_limit = 1024;      // operations in flight
  std::uint64_t read_bytes = 8 << 20;  // about so many of one batch of a read, of pages that are smaller
  JoinLimits join;                     // of a batch, too; a group has as many pages as it has
};

class MooncakeBackend final : public StorageBackend {
 public:
  // is_persistent: this process lends the store no memory, so pages do not go with it. `executor` outlives it.
  MooncakeBackend(std::unique_ptr<HelperLink> link, const BackendLimits& limits, bool is_persistent,
                  Executor& executor);
  ~MooncakeBackend() override;

  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override;
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override;
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override;
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override;
  [[nodiscard]] BackendStats stats() const override LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override;

 private:
  using Codes = HelperCalls::Codes;
  using Where = HelperCalls::Where;
  struct ReadBatch;
  struct WriteJob;

  void run_exists(const std::shared_ptr<ExistsOperation>& op);
  void run_read(const std::shared_ptr<ReadOperation>& op);
  void run_write(const std::shared_ptr<WriteOperation>& op);
  void run_clear(const std::shared_ptr<ClearOperation>& op);

  // Begins what may begin.
  void push(Batch batch) LARDER_EXCLUDES(mutex_);
  // may_begin_here: on this thread, which is not the link's.
  void pump(bool may_begin_here) LARDER_EXCLUDES(mutex_);
  void end_batch(std::uint64_t batch, bool may_begin_here) LARDER_EXCLUDES(mutex_);
  void set_late(std::uint64_t batch) LARDER_EXCLUDES(mutex_);

  // reads
  void add_read_batch(const std::shared_ptr<ReadOperation>& op, std::vector<std::size_t> items, std::uint64_t bytes);
  void finish_read(const std::shared_ptr<ReadBatch>& batch, const Codes& codes) LARDER_EXCLUDES(mutex_);
  // Answers for a batch that is refused or late.
  void fail_read(ReadBatch& batch, const Status& why) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool has_met_clear(const ReadBatch& batch) const LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status take_page(const ReadBatch& batch, std::size_t at, std::int64_t code);

  // writes, mooncake_write.cc
  void next_write_batch(const std::shared_ptr<WriteJob>& job);
  void fill_and_send(const std::shared_ptr<WriteJob>& job);
  void finish_write_batch(const std::shared_ptr<WriteJob>& job, const Codes& codes) LARDER_EXCLUDES(mutex_);
  // Answers for its batch, which is refused or late, and for all groups after it.
  void fail_write(WriteJob& job, const Status& why) LARDER_EXCLUDES(mutex_);

  // constant after construction
  const std::unique_ptr<HelperLink> link_;
  const BackendLimits limits_;
  Executor& executor_;
  BackendInfo info_;

  std::atomic<std::uint64_t> next_generation_{1};
  HelperCalls calls_;   // synchronises itself
  OperationGate gate_;  // synchronises itself
  mutable RankedMutex mutex_{LockRank::kStorage};
  BatchLine line_ LARDER_GUARDED_BY(mutex_);
  BackendStats stats_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::mooncake
