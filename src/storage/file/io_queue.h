// SPDX-License-Identifier: Apache-2.0
// Many reads and writes of segment files at once: io_uring where the system has it, executor tasks where it has not.
//
// Contract
//  - submit() takes all of the batch or nothing. `done` of each operation then runs exactly once, on any thread (never
//    under a lock), also when the queue is being destroyed. It must be short and must not throw: a completion thread
//    runs it. It may call submit().
//  - An operation is whole: short transfers are continued inside. Read: kCorrupt if the file ends before the buffers
//    are full. Write: kOverloaded if the disk is full part-way. Other codes as in base/file_system.h.
//  - From submit() to `done`, file, buffers and what they point to belong to the operation (rule 3).
//  - Direct files (OpenOptions::direct): offset, addresses and sizes are multiples of kDirectAlignment.
//
// Two implementations, one conformance test (io_queue_test.cc):
//  - UringQueue (real_uring_queue.cc): one ring, a completion thread, READ_FIXED / WRITE_FIXED for buffers inside
//    registered memory. Only for files with a native_handle().
//  - ExecutorQueue: one task per operation with File::readv_at / writev_at. Works on simulated files, and replays
//  there.
//
// Threads: submit() from any thread; it does not wait for the disk. Cost: UringQueue: one system call per batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/file_system.h"
#include "base/status.h"
#include "pool/host_pools.h"

namespace larder::file_store {

struct IoOperation {
  enum class Kind : std::uint8_t { kRead, kWrite, kSyncData };  // kSyncData: fdatasync; no buffers, no offset
  Kind kind = Kind::kRead;
  std::shared_ptr<File> file;
  std::uint64_t offset = 0;
  std::vector<Segment> buffers;  // in file order; any number
  std::function<void(Status)> done;
};

class IoQueue {
 public:
  virtual ~IoQueue() = default;  // waits for every `done`
  // kOverloaded: the queue's limit; kCancelled: shutting down. On error nothing was taken and no `done` runs.
  [[nodiscard]] virtual Status submit(std::vector<IoOperation> operations) = 0;
  // StorageBackend::register_memory().
  [[nodiscard]] virtual Status register_memory(std::span<const Segment> regions) = 0;
};

// `depth`: operations at once in the kernel; more wait in a list. kUnsupported: no io_uring here (not built in,
// forbidden by the system, or its first operation failed): use the other one.
[[nodiscard]] Result<std::unique_ptr<IoQueue>> create_uring_queue(std::size_t depth);
// The executor outlives the queue.
[[nodiscard]] std::unique_ptr<IoQueue> create_executor_queue(Executor& executor);

// The operation on this thread, which waits for the disk; `done` is not called. As whole as one of a queue.
[[nodiscard]] Status run_operation(IoOperation& operation);

// Memory for direct I/O whose caller's memory is not aligned: `bytes` rounded up to kDirectAlignment, aligned so.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes);  // throws std::bad_alloc
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace larder::file_store
