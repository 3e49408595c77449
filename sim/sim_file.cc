// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_file.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace larder::sim {
namespace {

template <class Buffers>
std::size_t total_bytes(const Buffers& buffers) {
  std::size_t total = 0;
  for (const auto& buffer : buffers) total += buffer.size();
  return total;
}

}  // namespace

SimFile::SimFile(SimFileSystem& files, std::shared_ptr<SimFileSystem::Node> node, std::string path,
                 const OpenOptions& options, std::uint64_t epoch)
    : files_(files), node_(std::move(node)), path_(std::move(path)), options_(options), epoch_(epoch) {}

Status SimFile::admit(const char* operation, bool writes, bool& faulted) {
  if (files_.epoch_ != epoch_) return unavailable(std::string(operation) + " " + path_ + ": opened before the crash");
  if (writes && !options_.write) return status_from_errno(EBADF, operation, path_);
  faulted = files_.counts_and_fails();
  return Status::ok();
}

Status SimFile::check_direct(const void* address, std::size_t length, std::uint64_t offset) const {
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  if (options_.direct && (place | length | offset) % kDirectAlignment != 0) {
    return status_from_errno(EINVAL, "direct access to", path_);
  }
  return Status::ok();
}

Result<std::size_t> SimFile::read_at(std::span<std::byte> into, std::uint64_t offset) {
  return readv_at(std::span(&into, 1), offset);
}

Result<std::size_t> SimFile::readv_at(std::span<const std::span<std::byte>> into, std::uint64_t offset) {
  for (const auto& buffer : into) LARDER_RETURN_IF_ERROR(check_direct(buffer.data(), buffer.size(), offset));
  LockGuard guard(files_.mutex_);
  bool faulted = false;
  LARDER_RETURN_IF_ERROR(admit("read", false, faulted));
  if (faulted && files_.fault_ != FileFault::kShort) return files_.fault_status("read", path_);
  const std::uint64_t size = node_->current.size();
  std::size_t left = offset >= size ? 0 : static_cast<std::size_t>(size - offset);
  left = std::min(left, total_bytes(into));
  if (faulted) left /= 2;
  std::size_t done = 0;
  for (const auto& buffer : into) {
    const std::size_t length = std::min(buffer.size(), left - done);
    node_->current.read(offset + done, buffer.first(length));
    done += length;
  }
  return done;
}

Result<std::size_t> SimFile::write_at(std::span<const std::byte> from, std::uint64_t offset) {
  return writev_at(std::span(&from, 1), offset);
}

Result<std::size_t> SimFile::writev_at(std::span<const std::span<const std::byte>> from, std::uint64_t offset) {
  for (const auto& buffer : from) LARDER_RETURN_IF_ERROR(check_direct(buffer.data(), buffer.size(), offset));
  std::vector<std::byte> bytes;
  bytes.reserve(total_bytes(from));
  for (const auto& buffer : from) bytes.insert(bytes.end(), buffer.begin(), buffer.end());

  LockGuard guard(files_.mutex_);
  bool faulted = false;
  LARDER_RETURN_IF_ERROR(admit("write", true, faulted));
  const bool moves_half = files_.fault_ == FileFault::kShort || files_.fault_ == FileFault::kWriteTorn;
  if (faulted && !moves_half) return files_.fault_status("write", path_);
  if (faulted) bytes.resize(bytes.size() / 2);
  const std::uint64_t size = node_->current.size();
  const std::uint64_t room = files_.capacity_bytes_ - std::min(files_.capacity_bytes_, files_.used_bytes_locked());
  std::uint64_t end = size + room;
  if (options_.direct) end = end / kDirectAlignment * kDirectAlignment;  // or nobody could write the rest
  if (offset + bytes.size() > std::max(size, end)) {
    if (offset >= end) return status_from_errno(ENOSPC, "write", path_);
    bytes.resize(static_cast<std::size_t>(end - offset));
  }
  const std::size_t count = bytes.size();
  if (count > 0) {
    node_->current.write(offset, bytes);
    node_->pending.push_back({offset, std::move(bytes), false});
  }
  if (faulted && files_.fault_ == FileFault::kWriteTorn) return files_.fault_status("write", path_);
  return count;
}

Status SimFile::sync_data() {
  LockGuard guard(files_.mutex_);
  bool faulted = false;
  LARDER_RETURN_IF_ERROR(admit("fsync", false, faulted));
  if (faulted && files_.fault_ == FileFault::kSyncLost) {
    std::erase_if(node_->pending, [](const SimFileSystem::PendingWrite& write) { return !write.is_resize; });
  }
  if (faulted) return files_.fault_status("fsync", path_);
  for (const SimFileSystem::PendingWrite& write : node_->pending) {  // costs what was written, not the file's size
    if (write.is_resize) {
      node_->durable.resize(write.offset);
    } else {
      node_->durable.write(write.offset, write.bytes);
    }
  }
  node_->pending.clear();
  return Status::ok();
}

Status SimFile::truncate(std::uint64_t size_bytes) {
  LockGuard guard(files_.mutex_);
  bool faulted = false;
  LARDER_RETURN_IF_ERROR(admit("truncate", true, faulted));
  if (faulted) return files_.fault_status("truncate", path_);
  if (size_bytes > files_.capacity_bytes_) return status_from_errno(EFBIG, "truncate", path_);
  files_.resize(*node_, size_bytes);
  return Status::ok();
}

Status SimFile::allocate(std::uint64_t offset, std::uint64_t length_bytes) {
  LockGuard guard(files_.mutex_);
  bool faulted = false;
  LARDER_RETURN_IF_ERROR(admit("allocate", true, faulted));
  if (faulted) return files_.fault_status("allocate", path_);
  const std::uint64_t size = node_->current.size();
  const std::uint64_t end = offset + length_bytes;
  if (end <= size) return Status::ok();
  if (files_.used_bytes_locked() + (end - size) > files_.capacity_bytes_) {
    return status_from_errno(ENOSPC, "allocate", path_);
  }
  files_.resize(*node_, end);
  return Status::ok();
}

Result<std::uint64_t> SimFile::size_bytes() const {
  LockGuard guard(files_.mutex_);
  if (files_.epoch_ != epoch_) return unavailable("stat " + path_ + ": opened before the crash");
  return node_->current.size();
}

}  // namespace larder::sim
