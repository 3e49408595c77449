// SPDX-License-Identifier: Apache-2.0
// A CUDA driver without a GPU, stricter than NVIDIA's: what that lets pass in silence is a violation here.
//
//   memory   "device" memory is host memory of its own, poisoned; every address of every copy is looked up when the
//            copy is given and again when it runs: freed, unregistered, across two registrations. What a copy that runs
//            touches may not be freed
//   order    one thread is the GPU. It takes the next operation of any stream that may go on, by seed, and the copies
//            and tiles of an operation in shuffled order, so what streams and events do not order comes in any order.
//            Copies of one operation may not touch what another of them writes
//   lists    the pairs of a launch may not change before it has run
//   events   waiting for, or asking about, one that was never recorded (CUDA calls it complete)
//   streams  the default one (null) waits for no other, as the others are made; it takes no batches. One that was
//            destroyed answers as if the device were lost, as NVIDIA's does, and the device lives
//   threads  work is given from threads that are bound
//
// Faults: the n-th call of a kind can fail, and the n-th operation can lose the device, with everything behind it.
// Threads: any. Lifetime: violations() is read when nothing runs.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "transfer/cuda/driver.h"

namespace larder::sim {

struct SimCudaOptions {
  std::uint64_t seed = 1;
  std::size_t memory_bytes = std::size_t{1} << 30;
};

class SimCudaDriver final : public CudaDriver {
 public:
  explicit SimCudaDriver(const SimCudaOptions& options);
  SimCudaDriver(const SimCudaDriver&) = delete;
  SimCudaDriver& operator=(const SimCudaDriver&) = delete;
  ~SimCudaDriver() override;

  // Which of these was called last says what the GPU runs: nothing, all but one stream, or all.
  void hold();
  void hold(CudaStream stream);
  void go_on();
  // The n-th call from now on (1: the next) of "allocate", "register_host", "create_stream", "create_event", "record",
  // "wait", "synchronize_event", "copy" or "launch" ends with `status` and does nothing; a copy of several perhaps some
  // of them.
  void fail_call(const std::string& call, std::uint64_t n, Status status);
  // The n-th operation from now on (1: the next) is an illegal access.
  void lose_at(std::uint64_t n);
  // While asleep, calls and operations neither fail nor count: for what a test itself reads and writes.
  void let_faults_sleep(bool are_asleep);
  // From now on what `stream` is given goes into a graph that never runs, as Larder's own work must not: it is a
  // violation.
  void begin_capture(CudaStream stream);
  void end_capture(CudaStream stream);
  // For tests that break the rules on purpose: violations() stays empty.
  void expect_violations();
  [[nodiscard]] std::vector<std::string> violations() const;
  [[nodiscard]] std::uint64_t operations() const;           // run so far
  [[nodiscard]] std::uint64_t kernel_device_bytes() const;  // that kernels have moved within the device
  [[nodiscard]] std::size_t allocated_bytes() const;
  [[nodiscard]] std::size_t registered_bytes() const;
  [[nodiscard]] std::size_t streams() const;  // that were made and are there now
  [[nodiscard]] std::size_t events() const;
  [[nodiscard]] CudaStream last_copied_on() const;  // the stream that the copy engines were given work for last

  const CudaFacts& facts() const override { return facts_; }
  Status bind_thread() override;
  Result<std::byte*> allocate(std::size_t bytes) override;
  Status free(std::byte* memory) override;
  std::size_t free_bytes() override;
  Status register_host(std::byte* memory, std::size_t bytes) override;
  Status unregister_host(std::byte* memory) override;
  Result<CudaStream> create_stream() override;
  Status destroy_stream(CudaStream stream) override;
  Status synchronize(CudaStream stream) override;
  Result<bool> is_capturing(CudaStream stream) override;
  Result<CudaEventHandle> create_event() override;
  Status destroy_event(CudaEventHandle event) override;
  Status record(CudaEventHandle event, CudaStream stream) override;
  Status wait(CudaStream stream, CudaEventHandle event) override;
  Result<bool> has_completed(CudaEventHandle event) override;
  Status synchronize_event(CudaEventHandle event) override;
  Status copy(std::span<const CudaCopy> copies, CudaStream stream) override;
  Status launch(const CopyLaunch& launch, std::uint32_t blocks, CudaStream stream) override;

 private:
  enum class Kind : unsigned char { kCopy, kLaunch, kRecord, kWait };
  struct Operation {
    Kind kind = Kind::kCopy;
    std::vector<CudaCopy> copies;
    CopyLaunch launch{};
    std::uint64_t pairs_hash = 0;
    std::uint64_t ticket = 0;  // kRecord: completes it; kWait: waits for it
  };
  struct Stream {
    std::deque<Operation> queue;
    bool is_running = false;
    bool is_captured = false;
  };
  struct Event {
    std::uint64_t ticket = 0;  // of the last record; 0: never
  };
  enum class Place : unsigned char { kNowhere, kDevice, kPinned, kCut };
  using Lock = std::unique_lock<std::mutex>;

  // All of these under mutex_.
  [[nodiscard]] Status begin(const char* call);
  void violate(std::string what) {
    if (!are_violations_expected_) violations_.push_back(std::move(what));
  }
  [[nodiscard]] Place place_of(const std::byte* at, std::size_t bytes) const;
  // All of it can be touched by a kernel, in however many ranges.
  [[nodiscard]] bool reaches(const std::byte* at, std::size_t bytes) const;
  [[nodiscard]] Status check_copy(const CudaCopy& copy) const;
  // Does the operation that runs touch any of it?
  [[nodiscard]] bool is_in_use(const std::byte* memory, std::size_t bytes) const;
  [[nodiscard]] Stream* find_stream(CudaStream stream);
  // The answer where find_stream() finds none.
  [[nodiscard]] Status no_stream(CudaStream stream) const;
  [[nodiscard]] Status give(CudaStream stream, Operation operation);
  [[nodiscard]] Stream* pick();
  void lose(const std::string& why);
  // A device that is lost has stopped when somebody is told: its memory may go.
  void wait_if_lost(Lock& lock);
  // Before memory goes that the operation may touch which runs now.
  void wait_until_free(const std::byte* memory, std::size_t bytes, Lock& lock);
  // What the operation copies; the device is lost if it may not.
  void run(const Operation& operation, Lock& lock);
  [[nodiscard]] std::vector<CudaCopy> rows_of(const Operation& operation);
  void run_gpu();

  CudaFacts facts_;
  const SimCudaOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // all guarded by mutex_
  Rng rng_;
  std::map<const std::byte*, std::size_t> allocations_;
  std::map<const std::byte*, std::size_t> registrations_;
  std::map<void*, std::unique_ptr<Stream>> streams_;
  std::set<void*> destroyed_streams_;
  std::map<void*, Event> events_;
  std::set<std::uint64_t> open_tickets_;  // recorded, not completed
  std::uint64_t next_ticket_ = 1, next_handle_ = 1, operations_ = 0, kernel_device_bytes_ = 0;
  std::set<std::thread::id> bound_;
  std::map<std::string, std::pair<std::uint64_t, Status>> faults_;  // call -> calls to go, status
  std::uint64_t lose_in_ = 0;                                       // 0: never
  std::optional<Status> loss_;
  std::vector<std::string> violations_;
  bool is_busy_ = false;           // the GPU runs an operation
  std::vector<CudaCopy> running_;  // ... which copies this
  std::optional<CudaStream> held_stream_;
  CudaStream last_copied_on_ = nullptr;
  bool is_held_ = false, is_ending_ = false, are_faults_asleep_ = false, are_violations_expected_ = false;

  ThreadPoolExecutor gpu_{"sim-gpu", 1, 1};
};

}  // namespace larder::sim
