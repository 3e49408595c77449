// SPDX-License-Identifier: Apache-2.0
// PayloadReader: a window over one file at a time.
#include <algorithm>
#include <string>
#include <utility>

#include "storage/file/store_inspect.h"

namespace larder::file_store {
namespace {

constexpr std::size_t kWindowBytes = std::size_t{4} << 20;

}  // namespace

PayloadReader::PayloadReader(FileSystem& files) : files_(files), buffer_(kWindowBytes) {}

Status PayloadReader::open(const std::string& path) {
  if (file_ && path_ == path) return Status::ok();
  file_.reset();
  window_bytes_ = 0;
  is_direct_ = true;
  Result<std::unique_ptr<File>> file = files_.open(path, {.direct = true});
  if (!file.is_ok() && file.status().code() != StatusCode::kNotFound) {
    is_direct_ = false;  // a file system without direct I/O
    file = files_.open(path, {});
  }
  if (!file.is_ok()) return file.status();
  file_ = std::move(file).value();
  path_ = path;
  return Status::ok();
}

// Reads ahead from the block of `at`. A disk that fails there is asked again for what is wanted only: one bad sector
// must not cost its neighbours.
Status PayloadReader::fill(std::uint64_t at, std::uint64_t end) {
  window_start_ = at / kDirectAlignment * kDirectAlignment;
  window_bytes_ = 0;
  const std::span<std::byte> all(buffer_.data(), buffer_.size());
  Result<std::size_t> got = file_->read_at(all, window_start_);
  if (!got.is_ok() && is_direct_ && got.status().code() == StatusCode::kInvalidArgument) {
    is_direct_ = false;  // opened, but refused: some network file systems
    Result<std::unique_ptr<File>> again = files_.open(path_, {});
    if (!again.is_ok()) return again.status();
    file_ = std::move(again).value();
    got = file_->read_at(all, window_start_);
  }
  if (!got.is_ok()) {
    const std::uint64_t wanted = align_up(end - window_start_, kDirectAlignment);
    got =
        file_->read_at(all.first(static_cast<std::size_t>(std::min<std::uint64_t>(wanted, all.size()))), window_start_);
  }
  if (!got.is_ok()) return got.status();
  window_bytes_ = *got;
  if (window_start_ + window_bytes_ > at) return Status::ok();
  return corrupt(path_ + ": the file ends at byte " + std::to_string(window_start_ + window_bytes_) + ", before byte " +
                 std::to_string(end));
}

Status PayloadReader::read(const std::string& path, std::uint64_t offset, std::uint64_t length,
                           const std::function<void(std::span<const std::byte>)>& sink) {
  LARDER_RETURN_IF_ERROR(open(path));
  const std::uint64_t end = offset + length;
  for (std::uint64_t at = offset; at < end;) {
    if (at < window_start_ || at >= window_start_ + window_bytes_) LARDER_RETURN_IF_ERROR(fill(at, end));
    const std::uint64_t count = std::min(end, window_start_ + window_bytes_) - at;
    sink({buffer_.data() + (at - window_start_), static_cast<std::size_t>(count)});
    at += count;
  }
  return Status::ok();
}

Status PayloadReader::read_page(const std::string& path, const PageLocation& location, std::vector<std::byte>* into) {
  PayloadHasher hasher;
  if (into != nullptr) into->clear();
  LARDER_RETURN_IF_ERROR(read(path, location.offset, location.payload_bytes, [&](std::span<const std::byte> bytes) {
    hasher.update(bytes);
    if (into != nullptr) into->insert(into->end(), bytes.begin(), bytes.end());
  }));
  if (hasher.finish() == location.checksum) return Status::ok();
  return corrupt(path + ": the payload checksum at byte " + std::to_string(location.offset) + " (" +
                 std::to_string(location.payload_bytes) + " bytes) differs");
}

}  // namespace larder::file_store
