// SPDX-License-Identifier: Apache-2.0
// Storage backend "hf3fs": pages in large shared files on 3FS, found through the page-index service.
//
//   write   reserve pages ──► transfer each ──► confirm whole groups, release what failed       (blocking calls of the
//   read    find with a lease ──► transfer each, verified ──► drop what was wrong                 service run on the
//   exists  find                                                                                  executor's threads)
//
// One namespace of the service, and one set of files, per (rank, pool, layout fingerprint, slot geometry); scopes
// (models, adapters, tenants) share them, since the service's keys are namespace digest + page key. Pools that are the
// same on all ranks (MLA's KV) have one for all of them, if the ranks have one service: each page is written by the
// rank whose turn it is by its key, and the others take it as written. A group is visible when the service has
// confirmed it, in one step for all its pools; what a page then holds is proven by its envelope and the generation in
// it, whatever the service says (rule 1).
//
// Threads: any (storage/backend.h). Locks: one for the tables here; never during I/O or a call of the service.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/ranked_mutex.h"
#include "storage/backend.h"
#include "storage/factory.h"
#include "storage/hf3fs/hf3fs_spaces.h"
#include "storage/hf3fs/metadata_service.h"
#include "storage/hf3fs/page_store.h"
#include "storage/hf3fs/service_counts.h"
#include "storage/hf3fs/wrong_share.h"
#include "storage/operation.h"

namespace larder::hf3fs {

class Hf3fsBackend final : public StorageBackend {
 public:
  // All but the options are kept. `seed`: random bits, for the sessions of this process.
  Hf3fsBackend(const Hf3fsOptions& options, std::shared_ptr<MetadataService> service, std::unique_ptr<PageStore> store,
               Executor& executor, Clock& clock, std::array<std::uint64_t, 2> seed);
  ~Hf3fsBackend() override;

  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override;
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override;
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override;
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override;
  [[nodiscard]] BackendStats stats() const override LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override;

 private:
  using PageName = std::pair<const Space*, std::array<char, 64>>;
  struct ReadJob;
  struct WriteJob;

  // Few pages, and nothing that blocks before their transfers: the service answers from this process's memory (a write:
  // and keeps no journal), namespaces and files are known.
  [[nodiscard]] bool is_quick(const ReadRequest& request) const;
  [[nodiscard]] bool is_quick(const WriteRequest& request) const;
  [[nodiscard]] bool is_known(const StoreScope& scope, PoolName pool, std::uint64_t payload_bytes,
                              PageTransfer::Kind purpose) const;
  void run_exists(const std::shared_ptr<ExistsOperation>& op);
  void run_read(const std::shared_ptr<ReadOperation>& op);
  void run_write(const std::shared_ptr<WriteOperation>& op);
  void run_clear(const std::shared_ptr<ClearOperation>& op);

  [[nodiscard]] Result<std::shared_ptr<PageFiles>> files_of(const Space& space, PageTransfer::Kind purpose);

  // hf3fs_write.cc
  // False: another write of this process has one of the pages in hand; the operation is put off until that has ended.
  [[nodiscard]] bool claim_pages(const WriteJob& job) LARDER_EXCLUDES(mutex_);
  void end_write(WriteJob& job) LARDER_EXCLUDES(mutex_);
  void plan_write(WriteJob& job);
  [[nodiscard]] Status reserve_pages(WriteJob& job);
  // Do its reservations last long enough to begin a transfer now?
  [[nodiscard]] Status check_age(const WriteJob& job) const;
  void judge_group(WriteJob& job, std::size_t group);
  void start_transfers(const std::shared_ptr<WriteJob>& job);
  void start_transfer(const std::shared_ptr<WriteJob>& job, std::size_t item);
  void finish_write(WriteJob& job);
  void confirm(WriteJob& job, const ConfirmRequest& request, const std::vector<std::size_t>& groups);
  static void take_status_of_twins(WriteJob& job, std::size_t group);
  void remove_other_lengths(const WriteJob& job);

  // hf3fs_read.cc
  [[nodiscard]] Status find_pages(ReadJob& job);
  void start_read(const std::shared_ptr<ReadJob>& job, std::size_t item);
  // The last transfer has ended. Finishes the job here, unless the service is to be told: that may take long.
  void end_read(const std::shared_ptr<ReadJob>& job);
  void finish_read(ReadJob& job);

  // Runs on an executor thread, or here if the executor is full: what finishes must not be lost.
  void post_finish(std::function<void()> task);

  // constant after construction
  const Hf3fsOptions options_;
  const std::shared_ptr<MetadataService> service_;
  const std::unique_ptr<PageStore> store_;
  Executor& executor_;
  Clock& clock_;
  const std::array<std::uint64_t, 2> process_;
  BackendInfo info_;

  std::atomic<std::uint64_t> next_operation_{1};
  OperationGate gate_;            // synchronises itself
  mutable ServiceCounts counts_;  // the same
  Spaces spaces_;                 // the same
  mutable RankedMutex mutex_{LockRank::kStorage};
  std::set<PageName> being_written_ LARDER_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<WriteOperation>> put_off_ LARDER_GUARDED_BY(mutex_);  // bounded by the gate
  BackendStats stats_ LARDER_GUARDED_BY(mutex_);
  WrongShare wrong_share_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::hf3fs
