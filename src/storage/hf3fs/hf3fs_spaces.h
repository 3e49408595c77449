// SPDX-License-Identifier: Apache-2.0
// Which namespaces of the page-index service there are: of this process's own making, and of others that work on the
// same files. They are never forgotten: a service that has lost its memory gets them anew.
//
// Threads: any. What asks the service blocks; the mutex here is never held meanwhile.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "storage/backend.h"
#include "storage/hf3fs/metadata_service.h"
#include "storage/hf3fs/page_slots.h"

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

// Of a page, kUnsupported would say that it was declined: a mount that is read-only has declined none.
[[nodiscard]] inline Status not_declined(const Status& status) {
  return status.code() == StatusCode::kUnsupported ? unavailable(status.message()) : status;
}

// ... and kCorrupt that it is damaged. What does not speak the service's language has said nothing about pages.
[[nodiscard]] inline Status service_failure(const Status& status) {
  return status.code() == StatusCode::kCorrupt ? unavailable(status.message()) : not_declined(status);
}

// A namespace that this process has met. Never removed.
struct Space {
  MetadataNamespace name;
  SlotGeometry slots;
  std::uint64_t payload_bytes = 0;
  PoolName pool = PoolName::kKv;
  std::string base;  // path of its files
  // What the service has for it; not always what `file_size` asks for.
  std::uint64_t pages = 0;
  // Met in a request, not only at the service.
  mutable std::atomic<bool> is_used{false};
};
using SpacePtr = std::shared_ptr<const Space>;

class Spaces {
 public:
  // All outlive it.
  Spaces(const Hf3fsOptions& options, MetadataService& service, Clock& clock)
      : options_(options), service_(service), clock_(clock) {}

  // Null: this process has not met it. Does not block.
  [[nodiscard]] SpacePtr known(const StoreScope& scope, PoolName pool, std::uint64_t payload_bytes) const
      LARDER_EXCLUDES(mutex_);
  // The one for such pages; it is made if it is new.
  [[nodiscard]] Result<SpacePtr> space_for(const StoreScope& scope, PoolName pool, std::uint64_t payload_bytes)
      LARDER_EXCLUDES(mutex_);
  // All that hold pages of the pool, of any length. An error: it is not known whether there are any.
  [[nodiscard]] Result<std::vector<SpacePtr>> spaces_of(const StoreScope& scope, PoolName pool) LARDER_EXCLUDES(mutex_);
  // Those of them that this process has met, but for `space`. Does not block.
  [[nodiscard]] std::vector<SpacePtr> others_like(const Space& space, const Digest256& fingerprint) const
      LARDER_EXCLUDES(mutex_);
  // All namespaces that hold pages of this rank's, of any geometry: one that this process cannot read now is read again
  // when its options are back. An error: there may be others than those that `out` has then.
  [[nodiscard]] Status names_to_clear(std::set<MetadataNamespace>& out) LARDER_EXCLUDES(mutex_);
  // Calls the service; if it has lost its namespaces, makes them anew and calls once more.
  template <class Call>
  [[nodiscard]] auto call_service(const Call& call) -> decltype(call());

  // Do this backend's numbers count it?
  [[nodiscard]] bool is_counted(const MetadataNamespace& name) const LARDER_EXCLUDES(mutex_);
  // Of this process's rank, or shared, and of its geometry: what others keep there, this process can read.
  [[nodiscard]] std::optional<NamedGeometry> readable(const MetadataNamespace& name) const;
  // The ranks have one array of the pool's pages, and divide the writing between them.
  [[nodiscard]] bool is_shared(const StoreScope& scope, PoolName pool) const;

 private:
  [[nodiscard]] std::shared_ptr<Space> make_space(const MetadataNamespace& name, PoolName pool,
                                                  const NamedGeometry& geometry, std::uint64_t pages) const;
  [[nodiscard]] MetadataNamespace space_name(const StoreScope& scope, PoolName pool,
                                             const NamedGeometry& geometry) const;
  [[nodiscard]] std::vector<SpacePtr> spaces_from(const MetadataNamespace& first) const LARDER_REQUIRES(mutex_);
  // Those that hold pages of this rank's.
  [[nodiscard]] std::vector<SpacePtr> all_spaces() const LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status look_for_spaces() LARDER_EXCLUDES(mutex_);
  // Unless it is known, or is not readable.
  void learn_space(const MetadataNamespace& name, std::uint64_t pages) LARDER_REQUIRES(mutex_);
  // The namespace is this rank's, or a shared one of a kind that this process has met in a request.
  [[nodiscard]] bool is_own(const MetadataNamespace& name) const LARDER_REQUIRES(mutex_);
  // Under which rank the pool's namespaces are kept: kSharedRank if the ranks share them.
  [[nodiscard]] std::int64_t rank_of(const StoreScope& scope, PoolName pool) const;
  [[nodiscard]] std::uint64_t pages_wanted(const SlotGeometry& slots) const;
  // From its first request on it is one of this process's own.
  void use(const Space& space) const;
  [[nodiscard]] Status initialize_again() LARDER_EXCLUDES(mutex_);

  const Hf3fsOptions& options_;
  MetadataService& service_;
  Clock& clock_;
  mutable RankedMutex mutex_{LockRank::kStorage};
  std::map<MetadataNamespace, SpacePtr> spaces_ LARDER_GUARDED_BY(mutex_);
  TimePoint next_look_ LARDER_GUARDED_BY(mutex_){};  // spaces of others: not before this
  Status last_look_ LARDER_GUARDED_BY(mutex_);       // how it ended
  bool is_looking_ LARDER_GUARDED_BY(mutex_) = false;
  bool has_looked_ LARDER_GUARDED_BY(mutex_) = false;  // at least once, with success
  RankedCondition looked_;
};

template <class Call>
auto Spaces::call_service(const Call& call) -> decltype(call()) {
  auto answer = call();
  if (answer.status().code() == StatusCode::kNotFound) {
    const Status again = initialize_again();
    if (!again.is_ok()) return again;
    answer = call();
  }
  if (!answer.is_ok()) return service_failure(answer.status());
  return answer;
}

}  // namespace larder::hf3fs
