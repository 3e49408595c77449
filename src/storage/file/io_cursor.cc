// SPDX-License-Identifier: Apache-2.0
#include "storage/file/io_cursor.h"

#include <algorithm>
#include <utility>

namespace larder::file_store {

Status check_operations(std::span<const IoOperation> operations, bool needs_handle) {
  for (const IoOperation& operation : operations) {
    if (!operation.file) return invalid_argument("I/O operation without a file");
    if (!operation.done) return invalid_argument("I/O operation without a callback");
    if (needs_handle && operation.file->native_handle() < 0) {
      return invalid_argument("I/O operation on " + operation.file->path() + ": not a file of the system");
    }
  }
  return Status::ok();
}

void finish_operation(IoOperation operation, const Status& status) {
  operation.file.reset();
  operation.buffers.clear();
  const std::function<void(Status)> done = std::move(operation.done);
  try {
    done(status);
  } catch (...) {  // NOLINT: the callback broke its contract; nobody here could mend it
  }
}

IoCursor::IoCursor(IoOperation& operation)
    : operation_(operation), offset_(operation.offset), aligned_(operation.offset % kDirectAlignment == 0) {
  std::erase_if(operation_.buffers, [](const Segment& buffer) { return buffer.size == 0; });
  for (const Segment& buffer : operation_.buffers) left_ += buffer.size;
}

std::span<Segment> IoCursor::next_buffers() const {
  const std::span<Segment> rest = std::span(operation_.buffers).subspan(first_);
  return rest.first(std::min(rest.size(), kMaxBuffersPerCall));
}

void IoCursor::advance(std::size_t bytes) {
  left_ -= bytes;
  offset_ += bytes;
  while (bytes > 0) {
    Segment& buffer = operation_.buffers[first_];
    const std::size_t part = std::min(bytes, buffer.size);
    buffer.data += part;
    buffer.size -= part;
    bytes -= part;
    if (buffer.size == 0) ++first_;
  }
}

bool IoCursor::take(std::size_t bytes, Status& status) {
  bytes = std::min(bytes, left_);
  if (bytes == 0 && left_ > 0) {
    status = ended_early();
    return false;
  }
  const std::size_t moved = aligned_ && bytes < left_ ? bytes - bytes % kDirectAlignment : bytes;
  advance(moved);
  if (left_ == 0) {
    status = Status::ok();
    return false;
  }
  if (moved > 0) {
    stalls_ = 0;
    return true;
  }
  const Result<std::uint64_t> size = operation_.file->size_bytes();
  const bool at_end = operation_.kind == IoOperation::Kind::kRead && size.is_ok() && *size < offset_ + left_;
  if (!at_end && may_stall()) return true;
  status = ended_early();
  return false;
}

Status IoCursor::ended_early() const {
  const std::string place = operation_.file->path() + ": ";
  if (operation_.kind == IoOperation::Kind::kRead) {
    return corrupt("read " + place + "the file ends before offset " + std::to_string(offset_ + left_));
  }
  return overloaded("write " + place + "the disk takes no more at offset " + std::to_string(offset_));
}

}  // namespace larder::file_store
