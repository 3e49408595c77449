// SPDX-License-Identifier: Apache-2.0
#include "storage/hf3fs/hf3fs_spaces.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace larder::hf3fs {
namespace {

// How often the service is asked whether others have made namespaces that this process knows not.
constexpr auto kLookEvery = std::chrono::seconds(1);
// As the reference has it: its replicated ranks all use the table and the file of rank 0.
constexpr std::int64_t kSharedRank = 0;

}  // namespace

MetadataNamespace Spaces::space_name(const StoreScope& scope, PoolName pool, const NamedGeometry& geometry) const {
  return {rank_of(scope, pool), namespace_name(pool, scope.fingerprint(pool), geometry)};
}

SpacePtr Spaces::known(const StoreScope& scope, PoolName pool, std::uint64_t payload_bytes) const {
  const SlotGeometry slots = make_slot_geometry(payload_bytes, options_.chunk_bytes, options_.files);
  const MetadataNamespace name = space_name(scope, pool, {payload_bytes, slots});
  LockGuard guard(mutex_);
  const auto found = spaces_.find(name);
  return found == spaces_.end() ? nullptr : found->second;
}

std::shared_ptr<Space> Spaces::make_space(const MetadataNamespace& name, PoolName pool, const NamedGeometry& geometry,
                                          std::uint64_t pages) const {
  auto space = std::make_shared<Space>();
  space->name = name;
  space->slots = geometry.slots;
  space->payload_bytes = geometry.payload_bytes;
  space->pool = pool;
  space->pages = pages;
  space->base = options_.file_path_prefix + '.' + std::to_string(name.rank) + '.' + name.name;
  return space;
}

Result<SpacePtr> Spaces::space_for(const StoreScope& scope, PoolName pool, std::uint64_t payload_bytes) {
  if (SpacePtr space = known(scope, pool, payload_bytes)) {
    use(*space);
    return space;
  }
  const SlotGeometry slots = make_slot_geometry(payload_bytes, options_.chunk_bytes, options_.files);
  const MetadataNamespace name = space_name(scope, pool, {payload_bytes, slots});
  const std::uint64_t pages = pages_wanted(slots);
  if (pages == 0) {
    return invalid_argument("hf3fs: a page of " + std::to_string(slots.slot_bytes) +
                            " bytes does not fit option "
                            "'file_size' (" +
                            std::to_string(options_.file_size) + " bytes in " + std::to_string(slots.files) +
                            " files)");
  }
  const Result<std::uint64_t> made = service_.initialize(name, pages);
  if (!made.is_ok()) return service_failure(made.status());
  SpacePtr space = make_space(name, pool, {payload_bytes, slots}, *made);
  {
    LockGuard guard(mutex_);
    space = spaces_.emplace(name, std::move(space)).first->second;
  }
  use(*space);
  return space;
}

void Spaces::use(const Space& space) const {
  if (space.is_used.load() || space.is_used.exchange(true)) return;
  const std::uint64_t wanted = pages_wanted(space.slots);
  if (space.pages == wanted) return;
  log_warning("storage/hf3fs", "option 'file_size' asks for " + std::to_string(wanted) + " pages of '" +
                                   space.name.text() + "'; the metadata service has " + std::to_string(space.pages) +
                                   " and keeps them: the first number that it was asked for counts, up to its own "
                                   "limit");
}

std::uint64_t Spaces::pages_wanted(const SlotGeometry& slots) const {
  return std::min(slots.pages_in(options_.file_size), kMaxNamespacePages);
}

Result<std::vector<SpacePtr>> Spaces::spaces_of(const StoreScope& scope, PoolName pool) {
  if (scope.fingerprint(pool).is_zero()) return std::vector<SpacePtr>();  // the model has no such pool
  const MetadataNamespace first{rank_of(scope, pool), namespace_prefix(pool, scope.fingerprint(pool))};
  std::vector<SpacePtr> out;
  bool has_looked = false;
  {
    LockGuard guard(mutex_);
    out = spaces_from(first);
    has_looked = has_looked_;
  }
  // What is known at first are those that this process has read or written itself, perhaps not all of them.
  if (out.empty() || !has_looked) {
    const Status looked = look_for_spaces();
    if (out.empty()) LARDER_RETURN_IF_ERROR(looked);
    LockGuard guard(mutex_);
    out = spaces_from(first);
  }
  for (const SpacePtr& space : out) use(*space);
  return out;
}

// Those of its rank whose names begin with its name.
std::vector<SpacePtr> Spaces::spaces_from(const MetadataNamespace& first) const {
  std::vector<SpacePtr> out;
  for (auto at = spaces_.lower_bound(first);
       at != spaces_.end() && at->first.rank == first.rank && at->first.name.starts_with(first.name); ++at) {
    out.push_back(at->second);
  }
  return out;
}

std::vector<SpacePtr> Spaces::others_like(const Space& space, const Digest256& fingerprint) const {
  LockGuard guard(mutex_);
  std::vector<SpacePtr> out = spaces_from({space.name.rank, namespace_prefix(space.pool, fingerprint)});
  std::erase_if(out, [&](const SpacePtr& other) { return other.get() == &space; });
  return out;
}

bool Spaces::is_counted(const MetadataNamespace& name) const {
  if (name.rank == options_.rank) return true;
  LockGuard guard(mutex_);
  const auto known = spaces_.find(name);
  return known != spaces_.end() && known->second->is_used;
}

std::vector<SpacePtr> Spaces::all_spaces() const {
  LockGuard guard(mutex_);
  std::vector<SpacePtr> out;
  for (const auto& [name, space] : spaces_) {  // those that only other ranks use are theirs
    if (name.rank == options_.rank || space->is_used) out.push_back(space);
  }
  return out;
}

void Spaces::learn_space(const MetadataNamespace& name, std::uint64_t pages) {
  const auto geometry = readable(name);
  const auto pool = parse_pool_number(std::string_view(name.name).substr(0, name.name.find('-')));
  if (geometry && pool && !spaces_.contains(name)) spaces_.emplace(name, make_space(name, *pool, *geometry, pages));
}

Status Spaces::look_for_spaces() {
  {
    LockGuard guard(mutex_);
    while (is_looking_) {  // that answer is this caller's, too
      if (looked_.wait_for(mutex_, 2 * options_.client_timeout)) continue;
      return deadline_exceeded("hf3fs: the metadata service does not say which namespaces it has");
    }
    if (clock_.now() < next_look_) return last_look_;
    next_look_ = clock_.now() + kLookEvery;
    is_looking_ = true;
  }
  const auto found = service_.stats();
  LockGuard guard(mutex_);
  is_looking_ = false;
  looked_.notify_all();
  last_look_ = service_failure(found.status());
  has_looked_ = has_looked_ || found.is_ok();
  if (!found.is_ok()) return last_look_;
  for (const auto& [name, numbers] : *found) learn_space(name, numbers.pages);
  return Status::ok();
}

// The service is asked anew: what it said last, or is about to say to others, may be of before a namespace was made and
// filled whose pages the caller of the clear knows of.
Status Spaces::names_to_clear(std::set<MetadataNamespace>& out) {
  const auto found = call_service([&] { return service_.stats(); });
  for (const SpacePtr& space : all_spaces()) out.insert(space->name);
  if (!found.is_ok()) {
    return {found.status().code(),
            "hf3fs: it is not known which namespaces there are to clear: " + found.status().message()};
  }
  LockGuard guard(mutex_);
  for (const auto& [name, numbers] : *found) {
    if (is_own(name)) out.insert(name);
  }
  return Status::ok();
}

bool Spaces::is_own(const MetadataNamespace& name) const {
  if (!parse_namespace_name(name.name).is_ok()) return false;  // somebody else's
  if (name.rank == options_.rank) return true;
  const std::vector<SpacePtr> kin = spaces_from({name.rank, std::string(namespace_prefix_of(name.name))});
  return std::any_of(kin.begin(), kin.end(), [](const SpacePtr& space) { return space->is_used.load(); });
}

// Others may have chosen other chunks or another number of files: their pages lie where this process does not look.
std::optional<NamedGeometry> Spaces::readable(const MetadataNamespace& name) const {
  const Result<NamedGeometry> geometry = parse_namespace_name(name.name);
  if ((name.rank != options_.rank && name.rank != kSharedRank) || !geometry.is_ok()) return std::nullopt;
  const bool is_ours = geometry->slots.chunk_bytes == options_.chunk_bytes && geometry->slots.files == options_.files;
  return is_ours ? std::optional(*geometry) : std::nullopt;
}

// A service in this process knows of no other rank: two of them over the same files would overwrite each other's pages.
bool Spaces::is_shared(const StoreScope& scope, PoolName pool) const {
  return service_.is_remote() && scope.is_replicated(pool);
}

std::int64_t Spaces::rank_of(const StoreScope& scope, PoolName pool) const {
  return is_shared(scope, pool) ? kSharedRank : options_.rank;
}

// The service has lost its memory: to it, nothing is stored any more, which is true as soon as it says so.
Status Spaces::initialize_again() {
  for (const SpacePtr& space : all_spaces()) {
    const Result<std::uint64_t> made = service_.initialize(space->name, pages_wanted(space->slots));
    if (!made.is_ok()) return service_failure(made.status());
  }
  return Status::ok();
}

}  // namespace larder::hf3fs
