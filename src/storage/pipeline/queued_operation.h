// SPDX-License-Identifier: Apache-2.0
// One operation on its way through a pipeline (internal to storage/pipeline/).
//
//   waiting --begin()--> in the backend --claim(), examine(), deliver()--> gone
//      |                     '--(refused, or `done` dropped) fill(), deliver()--> gone
//      '--(expired, cancelled, breaker open, closed) fill(), deliver()--> gone
//
// Threads: confined to whoever holds it: the queue, then the backend, then the completion. claim() and `stage` decide
// between the backend's callback, its second callback, and the death of its callback.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "storage/backend.h"
#include "storage/pipeline/breaker.h"
#include "storage/pipeline/lane.h"
#include "storage/pipeline/negative_cache.h"
#include "storage/pipeline/pipeline_metrics.h"

namespace larder {

// What came of an operation.
struct OperationVerdict {
  OperationResult result = OperationResult::kOk;
  CircuitBreaker::Outcome outcome = CircuitBreaker::Outcome::kNoVerdict;
  Status cause;  // the first failure, if the operation failed as a whole
};

// Sums up the statuses of an operation's items.
class StatusTally {
 public:
  void add(const Status& status);
  [[nodiscard]] OperationVerdict verdict() const;

 private:
  std::size_t total_ = 0, served_ = 0, failed_ = 0, missing_ = 0, corrupt_ = 0, cancelled_ = 0, errors_ = 0;
  Status first_failure_;
};
// Says something about the backend's health: kUnavailable, kDeadlineExceeded, kInternal.
[[nodiscard]] bool is_backend_failure(StatusCode code);

struct OperationServices {
  NegativeCache& negative;
  PipelineMetrics& metrics;
};

class CompletionToken;

class QueuedOperation {
 public:
  enum class Stage : std::uint8_t { kSubmitting, kAccepted, kDropped };

  QueuedOperation(Lane operation_lane, OperationTerms operation_terms, std::uint64_t payload, TimePoint now)
      : lane(operation_lane), terms(std::move(operation_terms)), bytes(payload), queued_at(now) {}
  virtual ~QueuedOperation() = default;
  QueuedOperation(const QueuedOperation&) = delete;
  QueuedOperation& operator=(const QueuedOperation&) = delete;

  // Gives the request to the backend. The callback holds the token, and the token holds this.
  [[nodiscard]] virtual Status begin(StorageBackend& inner, const OperationServices& services,
                                     std::shared_ptr<CompletionToken> token) = 0;
  // Sets the status of every item.
  virtual void fill(const Status& status) = 0;
  // Reads the backend's result: mends what breaks the contract, counts pages, feeds the negative cache.
  [[nodiscard]] virtual OperationVerdict examine(const OperationServices& services, TimePoint now) = 0;
  // Runs `done`. Once.
  virtual void deliver() = 0;

  // True for the first caller.
  [[nodiscard]] bool claim() { return !is_claimed_.exchange(true, std::memory_order_acq_rel); }
  [[nodiscard]] bool is_cancelled() const { return terms.cancel && terms.cancel->load(std::memory_order_acquire); }

  const Lane lane;
  const OperationTerms terms;
  const std::uint64_t bytes;  // of payload
  const TimePoint queued_at;
  std::atomic<Stage> stage{Stage::kSubmitting};

  // Guarded by the core's lock.
  struct Flight {
    TimePoint begun;
    CircuitBreaker::Pass pass;
    bool is_slow = false;  // stayed too long, and was counted for that
    std::list<std::shared_ptr<QueuedOperation>>::iterator place;
  } flight;

 private:
  std::atomic<bool> is_claimed_{false};
};

// Null requests and callbacks are the caller's to refuse. `keeps_keys`: the negative cache is on.
[[nodiscard]] std::shared_ptr<QueuedOperation> queue_exists(ExistsRequest request, StorageBackend::ExistsDone done,
                                                            bool keeps_keys, TimePoint now);
[[nodiscard]] std::shared_ptr<QueuedOperation> queue_read(ReadRequest request, StorageBackend::ReadDone done,
                                                          TimePoint now);
[[nodiscard]] std::shared_ptr<QueuedOperation> queue_write(WriteRequest request, StorageBackend::WriteDone done,
                                                           TimePoint now);
[[nodiscard]] std::shared_ptr<QueuedOperation> queue_clear(std::shared_ptr<const StoreScope> scope,
                                                           StorageBackend::ClearDone done, TimePoint now);

// What the backend's callback holds. If it dies without having run, the operation still ends.
class PipelineCore;
class CompletionToken {
 public:
  CompletionToken(std::shared_ptr<PipelineCore> core, std::shared_ptr<QueuedOperation> operation)
      : core_(std::move(core)), operation_(std::move(operation)) {}
  ~CompletionToken();
  CompletionToken(const CompletionToken&) = delete;
  CompletionToken& operator=(const CompletionToken&) = delete;
  // False: the operation has ended already, the result is to be dropped.
  [[nodiscard]] bool claim() { return operation_->claim(); }
  // The result is in the operation. After a claim() that said true.
  void finish();

 private:
  const std::shared_ptr<PipelineCore> core_;
  const std::shared_ptr<QueuedOperation> operation_;
};

}  // namespace larder
