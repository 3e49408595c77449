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
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ranked_mutex.h"
#include "storage/backend.h"
#include "storage/factory.h"
#include "storage/hf3fs/metadata_service.h"
#include "storage/hf3fs/page_slots.h"
#include "storage/hf3fs/page_store.h"
#include "storage/hf3fs/service_counts.h"
#include "storage/operation.h"

namespace larder::hf3fs {

struct Hf3fsOptions {
  std::string file_path_prefix;                      // required; on the mount
  std::uint64_t file_size = std::uint64_t{1} << 40;  // of one namespace's files together, bytes (sparse)
  std::uint32_t files = 1;                           // per namespace
  std::uint64_t chunk_bytes = 0;
  std::int64_t rank = 0;
  std::size_t queue_limit = 1024;
  Nanos client_timeout = std::chrono::seconds(5);  // of one transfer
};

// How long a write's reservation lasts: enough for its transfer and its confirmation. Who is slower has lost the page.
[[nodiscard]] constexpr Nanos time_to_confirm(Nanos client_timeout) {
  return 4 * client_timeout + std::chrono::seconds(5);
}

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
  // A namespace that this process has met. Never removed.
  struct Space {
    MetadataNamespace name;
    SlotGeometry slots;
    std::uint64_t payload_bytes = 0;
    PoolName pool = PoolName::kKv;
    std::string base;  // path of its files
    // Met in a request, not only at the service.
    mutable std::atomic<bool> is_used{false};
  };
  using SpacePtr = std::shared_ptr<const Space>;
  using PageName = std::pair<const Space*, std::array<char, 64>>;
  struct ReadJob;
  struct WriteJob;

  // Few pages, and nothing that blocks before their transfers: the service answers from this process's memory (a write:
  // and keeps no journal), namespaces and files are known.
  [[nodiscard]] bool is_quick(const ReadRequest& request) const;
  [[nodiscard]] bool is_quick(const WriteRequest& request) const;
  [[nodiscard]] bool is_known(const StoreScope& scope, PoolName pool, std::uint64_t payload_bytes,
                              PageTransfer::Kind purpose) const LARDER_EXCLUDES(mutex_);
  void run_exists(const std::shared_ptr<ExistsOperation>& op);
  void run_read(const std::shared_ptr<ReadOperation>& op);
  void run_write(const std::shared_ptr<WriteOperation>& op);
  void run_clear(const std::shared_ptr<ClearOperation>& op);

  // hf3fs_spaces.cc
  [[nodiscard]] Result<SpacePtr> space_for(const StoreScope& scope, PoolName pool, std::uint64_t payload_bytes)
      LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::shared_ptr<Space> make_space(const MetadataNamespace& name, PoolName pool,
                                                  const NamedGeometry& geometry) const;
  [[nodiscard]] MetadataNamespace space_name(const StoreScope& scope, PoolName pool,
                                             const NamedGeometry& geometry) const;
  // An error: it is not known whether there are any.
  [[nodiscard]] Result<std::vector<SpacePtr>> spaces_of(const StoreScope& scope, PoolName pool) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::vector<SpacePtr> spaces_from(const MetadataNamespace& first) const LARDER_REQUIRES(mutex_);
  // Those that hold pages of this rank's.
  [[nodiscard]] std::vector<SpacePtr> all_spaces() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status look_for_spaces() LARDER_EXCLUDES(mutex_);
  void learn_space(const MetadataNamespace& name) LARDER_REQUIRES(mutex_);  // unless it is known, or is not readable
  // All namespaces that hold pages of this rank's, of any geometry: one that this process cannot read now is read again
  // when its options are back. An error: there may be others than those that `out` has then.
  [[nodiscard]] Status names_to_clear(std::set<MetadataNamespace>& out) LARDER_EXCLUDES(mutex_);
  // The namespace is this rank's, or a shared one of a kind that this process has met in a request.
  [[nodiscard]] bool is_own(const MetadataNamespace& name) const LARDER_REQUIRES(mutex_);
  // Of this process's rank, or shared, and of its geometry: what others keep there, this process can read.
  [[nodiscard]] std::optional<NamedGeometry> readable(const MetadataNamespace& name) const;
  // The ranks have one array of the pool's pages, and divide the writing between them.
  [[nodiscard]] bool is_shared(const StoreScope& scope, PoolName pool) const;
  // Under which rank the pool's namespaces are kept: kSharedRank if the ranks share them.
  [[nodiscard]] std::int64_t rank_of(const StoreScope& scope, PoolName pool) const;
  [[nodiscard]] Status initialize_again() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Result<std::shared_ptr<PageFiles>> files_of(const Space& space, PageTransfer::Kind purpose);
  // Calls the service; if it has lost its namespaces, makes them anew and calls once more.
  template <class Call>
  [[nodiscard]] auto call_service(const Call& call) -> decltype(call());

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
  void remove_other_lengths(const WriteJob& job) LARDER_EXCLUDES(mutex_);

  // hf3fs_read.cc
  [[nodiscard]] Status find_pages(ReadJob& job);
  void start_read(const std::shared_ptr<ReadJob>& job, std::size_t item);
  // The last transfer has ended. Finishes the job here, unless the service is to be told: that may take long.
  void end_read(const std::shared_ptr<ReadJob>& job);
  void finish_read(ReadJob& job);

  [[nodiscard]] bool is_counted(const MetadataNamespace& name) const LARDER_EXCLUDES(mutex_);

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
  mutable RankedMutex mutex_{LockRank::kStorage};
  std::map<MetadataNamespace, SpacePtr> spaces_ LARDER_GUARDED_BY(mutex_);
  TimePoint next_look_ LARDER_GUARDED_BY(mutex_){};  // spaces of others: not before this
  Status last_look_ LARDER_GUARDED_BY(mutex_);       // how it ended
  bool is_looking_ LARDER_GUARDED_BY(mutex_) = false;
  bool has_looked_ LARDER_GUARDED_BY(mutex_) = false;  // at least once, with success
  RankedCondition looked_;
  std::set<PageName> being_written_ LARDER_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<WriteOperation>> put_off_ LARDER_GUARDED_BY(mutex_);  // bounded by the gate
  BackendStats stats_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::hf3fs
