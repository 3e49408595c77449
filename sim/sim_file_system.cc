// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_file_system.h"

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "sim/sim_file.h"

namespace larder::sim {

SimFileSystem::SimFileSystem(std::uint64_t seed, std::uint64_t capacity_bytes)
    : capacity_bytes_(capacity_bytes), rng_(seed) {
  LockGuard guard(mutex_);
  for (const char* root : {"/", "."}) {
    auto node = std::make_shared<Node>();
    node->is_directory = true;
    names_[root] = node;
    durable_names_[root] = node;
  }
}

SimFileSystem::~SimFileSystem() = default;

void SimFileSystem::apply(Names& names, const NameChange& change) {
  for (const auto& [path, node] : change) {
    if (node) {
      names[path] = node;
    } else {
      names.erase(path);
    }
  }
}

bool SimFileSystem::touches(const NameChange& change, const std::string& directory) {
  return std::any_of(change.begin(), change.end(),
                     [&](const auto& entry) { return parent_path(entry.first) == directory; });
}

void SimFileSystem::add_disk(const std::string& path) {
  LockGuard guard(mutex_);
  auto node = std::make_shared<Node>();
  node->is_directory = true;
  names_[path] = node;
  durable_names_[path] = node;
  disks_.push_back(path);
}

std::size_t SimFileSystem::disk_of(const std::string& path) const {
  for (std::size_t i = disks_.size(); i > 0; --i) {
    const std::string& disk = disks_[i - 1];
    if (path == disk || path.starts_with(disk + "/")) return i;
  }
  return 0;
}

void SimFileSystem::change_names(std::size_t disk, NameChange change) {
  apply(names_, change);
  pending_names_.push_back({disk, std::move(change)});
}

SimFileSystem::NodePtr SimFileSystem::find(const std::string& path) const {
  const auto found = names_.find(path);
  return found == names_.end() ? nullptr : found->second;
}

Status SimFileSystem::check_parent(const std::string& path) const {
  const std::string directory = parent_path(path);
  const NodePtr parent = find(directory);
  if (!parent) return status_from_errno(ENOENT, "open directory", directory);
  if (!parent->is_directory) return status_from_errno(ENOTDIR, "open directory", directory);
  return Status::ok();
}

bool SimFileSystem::has_children(const std::string& directory) const {
  return std::any_of(names_.begin(), names_.end(), [&](const auto& entry) {
    return entry.first != "/" && entry.first != "." && parent_path(entry.first) == directory;
  });
}

std::uint64_t SimFileSystem::used_bytes_locked() const {
  std::uint64_t total = 0;
  for (const auto& [path, node] : names_) total += node->current.size();
  return total;
}

std::uint64_t SimFileSystem::used_bytes() const {
  LockGuard guard(mutex_);
  return used_bytes_locked();
}

bool SimFileSystem::counts_and_fails() {
  ++operations_;
  if (operations_ < fail_from_ || operations_ >= fail_until_) return false;
  fault_fired_ = true;
  return true;
}

Status SimFileSystem::fault_status(const char* operation, const std::string& path) const {
  return status_from_errno(fault_ == FileFault::kNoSpace ? ENOSPC : EIO, operation, path + " (injected)");
}

void SimFileSystem::fail_nth(std::uint64_t n, FileFault fault, std::uint64_t count) {
  LockGuard guard(mutex_);
  fail_from_ = operations_ + n;
  fail_until_ = fail_from_ + count;
  fault_ = fault;
  fault_fired_ = false;
}

void SimFileSystem::clear_fault() {
  LockGuard guard(mutex_);
  fail_from_ = 0;
  fail_until_ = 0;
  fault_fired_ = false;
}

bool SimFileSystem::fault_fired() const {
  LockGuard guard(mutex_);
  return fault_fired_;
}

std::uint64_t SimFileSystem::operations() const {
  LockGuard guard(mutex_);
  return operations_;
}

void SimFileSystem::resize(Node& node, std::uint64_t size_bytes) {
  node.current.resize(size_bytes);
  node.pending.push_back({size_bytes, {}, true});
}

Result<std::unique_ptr<File>> SimFileSystem::open(const std::string& path, const OpenOptions& options) {
  LockGuard guard(mutex_);
  if (counts_and_fails()) return fault_status("open", path);
  NodePtr node = find(path);
  if (node && node->is_directory) return status_from_errno(EISDIR, "open", path);
  if (node && options.create && options.exclusive) return status_from_errno(EEXIST, "open", path);
  if (!node) {
    if (!options.create) return status_from_errno(ENOENT, "open", path);
    LARDER_RETURN_IF_ERROR(check_parent(path));
    node = std::make_shared<Node>();
    change_names(disk_of(path), {{path, node}});
  }
  if (options.write && options.truncate) resize(*node, 0);
  return std::unique_ptr<File>(std::make_unique<SimFile>(*this, std::move(node), path, options, epoch_));
}

Status SimFileSystem::rename(const std::string& from, const std::string& to) {
  LockGuard guard(mutex_);
  if (counts_and_fails()) return fault_status("rename", from);
  const NodePtr node = find(from);
  if (!node) return status_from_errno(ENOENT, "rename", from);
  LARDER_RETURN_IF_ERROR(check_parent(to));
  if (from == to) return Status::ok();
  if (disk_of(from) != disk_of(to)) return status_from_errno(EXDEV, "rename", from);
  const NodePtr target = find(to);
  if (target && target->is_directory != node->is_directory) {
    return status_from_errno(target->is_directory ? EISDIR : ENOTDIR, "rename", to);
  }
  if (target && target->is_directory && has_children(to)) return status_from_errno(ENOTEMPTY, "rename", to);
  NameChange change{{from, nullptr}, {to, node}};
  const std::string prefix = from + "/";
  for (const auto& [path, child] : names_) {  // a directory takes its contents along
    if (!path.starts_with(prefix)) continue;
    change.emplace_back(path, nullptr);
    change.emplace_back(to + "/" + path.substr(prefix.size()), child);
  }
  change_names(disk_of(from), std::move(change));
  return Status::ok();
}

Status SimFileSystem::remove(const std::string& path) {
  LockGuard guard(mutex_);
  if (counts_and_fails()) return fault_status("remove", path);
  const NodePtr node = find(path);
  if (!node) return status_from_errno(ENOENT, "remove", path);
  if (node->is_directory && has_children(path)) return status_from_errno(ENOTEMPTY, "remove", path);
  change_names(disk_of(path), {{path, nullptr}});
  return Status::ok();
}

Result<std::vector<std::string>> SimFileSystem::list(const std::string& directory) {
  LockGuard guard(mutex_);
  if (counts_and_fails()) return fault_status("list", directory);
  const NodePtr node = find(directory);
  if (!node) return status_from_errno(ENOENT, "list", directory);
  if (!node->is_directory) return status_from_errno(ENOTDIR, "list", directory);
  std::vector<std::string> result;
  for (const auto& [path, child] : names_) {
    if (path == "/" || path == "." || parent_path(path) != directory) continue;
    result.push_back(path.substr(path.rfind('/') + 1));
  }
  std::sort(result.begin(), result.end());
  return result;
}

Status SimFileSystem::make_dirs(const std::string& directory) {
  LockGuard guard(mutex_);
  if (counts_and_fails()) return fault_status("mkdir", directory);
  for (std::size_t end = 0; end != std::string::npos;) {
    end = directory.find('/', end + 1);
    const std::string prefix = directory.substr(0, end);
    const NodePtr known = find(prefix);
    if (known && !known->is_directory) return status_from_errno(ENOTDIR, "mkdir", prefix);
    if (known) continue;
    auto made = std::make_shared<Node>();
    made->is_directory = true;
    change_names(disk_of(prefix), {{prefix, std::move(made)}});
  }
  return Status::ok();
}

Status SimFileSystem::sync_dir(const std::string& directory) {
  LockGuard guard(mutex_);
  if (counts_and_fails()) return fault_status("fsync", directory);
  const NodePtr node = find(directory);
  if (!node || !node->is_directory) return status_from_errno(node ? ENOTDIR : ENOENT, "fsync", directory);
  const std::size_t disk = disk_of(directory);
  std::size_t synced = 0;  // a journal: everything on the disk before the last change in this directory goes along
  for (std::size_t i = 0; i < pending_names_.size(); ++i) {
    if (pending_names_[i].disk == disk && touches(pending_names_[i].change, directory)) synced = i + 1;
  }
  std::vector<PendingNames> left;
  for (std::size_t i = 0; i < pending_names_.size(); ++i) {
    if (i < synced && pending_names_[i].disk == disk) {
      apply(durable_names_, pending_names_[i].change);
    } else {
      left.push_back(std::move(pending_names_[i]));
    }
  }
  pending_names_ = std::move(left);
  return Status::ok();
}

Result<FileInfo> SimFileSystem::stat(const std::string& path) {
  LockGuard guard(mutex_);
  const NodePtr node = find(path);
  if (!node) return status_from_errno(ENOENT, "stat", path);
  return FileInfo{node->current.size(), node->is_directory, 1 + disk_of(path)};
}

Result<SpaceInfo> SimFileSystem::space(const std::string& path) {
  LockGuard guard(mutex_);
  if (counts_and_fails()) return fault_status("statvfs", path);
  if (!find(path)) return status_from_errno(ENOENT, "statvfs", path);
  const std::uint64_t used = used_bytes_locked();
  return SpaceInfo{capacity_bytes_, capacity_bytes_ - std::min(used, capacity_bytes_)};
}

Result<std::unique_ptr<FileLock>> SimFileSystem::lock(const std::string& path) {
  LockGuard guard(mutex_);
  if (counts_and_fails()) return fault_status("lock", path);
  LARDER_RETURN_IF_ERROR(check_parent(path));
  if (!find(path)) change_names(disk_of(path), {{path, std::make_shared<Node>()}});
  if (!locks_.insert(path).second) return conflict("lock " + path + ": held by another process or backend");
  return std::unique_ptr<FileLock>(std::make_unique<SimFileLock>(*this, path, epoch_));
}

// What is left of one file: the durable contents, plus some of the pending writes, whole or in sectors.
void SimFileSystem::crash_file(Node& node, Rng& rng) {
  SparseBytes& contents = node.durable;
  for (const PendingWrite& write : node.pending) {
    if (write.is_resize) {
      if (rng.chance(1, 2)) contents.resize(write.offset);
      continue;
    }
    const std::uint64_t fate = rng.below(3);  // 0 dropped, 1 kept, 2 torn
    if (fate == 0) continue;
    for (std::size_t done = 0; done < write.bytes.size();) {
      const std::uint64_t start = write.offset + done;
      const auto in_sector = static_cast<std::size_t>(start % kSectorBytes);
      const std::size_t length = std::min(kSectorBytes - in_sector, write.bytes.size() - done);
      if (fate == 1 || rng.chance(1, 2)) contents.write(start, std::span(write.bytes).subspan(done, length));
      done += length;
    }
  }
  node.current = contents;
  node.pending.clear();
}

void SimFileSystem::crash() {
  LockGuard guard(mutex_);
  ++epoch_;
  locks_.clear();
  for (std::size_t disk = 0; disk <= disks_.size(); ++disk) {
    std::vector<const NameChange*> changes;
    for (const PendingNames& pending : pending_names_) {
      if (pending.disk == disk) changes.push_back(&pending.change);
    }
    const std::uint64_t kept = rng_.below(changes.size() + 1);
    for (std::size_t i = 0; i < kept; ++i) apply(durable_names_, *changes[i]);
  }
  pending_names_.clear();
  names_ = durable_names_;
  for (auto& [path, node] : names_) {
    if (!node->is_directory) crash_file(*node, rng_);
  }
}

Status SimFileSystem::corrupt_byte(const std::string& path, std::uint64_t offset, std::uint8_t mask) {
  LockGuard guard(mutex_);
  const NodePtr node = find(path);
  if (!node || node->is_directory) return status_from_errno(ENOENT, "corrupt", path);
  if (offset >= node->current.size()) return invalid_argument("corrupt " + path + ": behind the end");
  std::byte value{};
  node->current.read(offset, std::span(&value, 1));
  value ^= std::byte{mask};
  node->current.write(offset, std::span(&value, 1));
  if (offset < node->durable.size()) node->durable.write(offset, std::span(&value, 1));
  return Status::ok();
}

}  // namespace larder::sim
