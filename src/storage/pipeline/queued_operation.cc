// SPDX-License-Identifier: Apache-2.0
#include "storage/pipeline/queued_operation.h"

#include <string>
#include <utility>

#include "base/probe.h"

namespace larder {

bool is_backend_failure(StatusCode code) {
  return code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded || code == StatusCode::kInternal;
}

void StatusTally::add(const Status& status) {
  ++total_;
  if (is_backend_failure(status.code())) {
    if (failed_ == 0) first_failure_ = status;
    ++failed_;
    return;
  }
  switch (status.code()) {
    case StatusCode::kOk:
    case StatusCode::kUnsupported: ++served_; return;  // declined is an answer, too
    case StatusCode::kNotFound: ++served_, ++missing_; return;
    case StatusCode::kCorrupt: ++served_, ++corrupt_; return;
    case StatusCode::kCancelled: ++cancelled_; return;
    default: ++errors_; return;
  }
}

OperationVerdict StatusTally::verdict() const {
  OperationVerdict out;
  if (failed_ > 0 && 2 * failed_ >= total_) {
    out.outcome = CircuitBreaker::Outcome::kFailed;
    out.cause = first_failure_;
  } else if (served_ > 0) {
    out.outcome = CircuitBreaker::Outcome::kServed;
  } else if (errors_ > 0) {
    out.outcome = CircuitBreaker::Outcome::kAnswered;
  }
  if (failed_ + errors_ > 0) {
    out.result = OperationResult::kError;
  } else if (cancelled_ > 0) {
    out.result = OperationResult::kCancelled;
  } else if (corrupt_ > 0) {
    out.result = OperationResult::kCorrupt;
  } else if (missing_ > 0) {
    out.result = OperationResult::kMiss;
  }
  return out;
}

namespace {

// One page of a request, kept while the backend has the request itself.
struct PageRef {
  PoolName pool;
  PageKey key;
  std::uint64_t bytes = 0;
};

template <class Request, class ResultType>
class TypedOperation : public QueuedOperation {
 public:
  using Done = std::function<void(ResultType)>;
  TypedOperation(Lane operation_lane, OperationTerms operation_terms, std::uint64_t payload, TimePoint now,
                 Request&& request, Done done)  // &&: its terms are still there for the argument beside it
      : QueuedOperation(operation_lane, std::move(operation_terms), payload, now),
        request_(std::move(request)),
        done_(std::move(done)) {}

  void deliver() override {
    const Done done = std::exchange(done_, nullptr);
    try {
      done(std::move(result_));
    } catch (...) {  // NOLINT: a callback that throws is the caller's bug; it must not take a worker down
    }
  }

 protected:
  // The callback to give to the backend.
  auto completion(std::shared_ptr<CompletionToken> token) {
    return [this, token = std::move(token)](ResultType result) {
      if (!token->claim()) return;
      result_ = std::move(result);
      token->finish();
    };
  }

  Request request_;  // the backend's from begin() on
  ResultType result_;
  Done done_;
};

// Gives `statuses` the length that the port promises; what a backend left out did not work.
void mend_length(std::vector<Status>& statuses, std::size_t wanted) {
  if (statuses.size() == wanted) return;
  const Status lie = internal_error("the storage backend answered with " + std::to_string(statuses.size()) +
                                    " statuses for " + std::to_string(wanted) + " items; this is a defect of it");
  statuses.assign(wanted, lie);  // which status belongs to which item is anyone's guess
}

class QueuedExists final : public TypedOperation<ExistsRequest, ExistsResult> {
 public:
  QueuedExists(ExistsRequest request, StorageBackend::ExistsDone done, bool keeps_keys, TimePoint now)
      : TypedOperation(Lane::kExists, request.terms, 0, now, std::move(request), std::move(done)),
        keeps_keys_(keeps_keys) {}

  Status begin(StorageBackend& inner, const OperationServices&, std::shared_ptr<CompletionToken> token) override {
    scope_ = request_.scope;
    pools_ = request_.pools.size();
    if (keeps_keys_) keys_ = request_.keys;
    return inner.submit_exists(std::move(request_), completion(std::move(token)));
  }
  void fill(const Status& status) override { result_ = {status, {}}; }
  OperationVerdict examine(const OperationServices& services, TimePoint now) override {
    if (result_.status.is_ok() && result_.presence.size() != pools_) {
      fill(internal_error("the storage backend answered for " + std::to_string(result_.presence.size()) + " of " +
                          std::to_string(pools_) + " pools; this is a defect of it"));
    }
    if (result_.status.is_ok() && keeps_keys_) {
      const std::uint64_t known = services.negative.mask(*scope_, keys_, result_.presence, now);
      if (known > 0) probe(Probe::kNegativeHit);
      services.metrics.negative_hits(known);
    }
    StatusTally tally;
    tally.add(result_.status);
    return tally.verdict();
  }

 private:
  const bool keeps_keys_;
  std::shared_ptr<const StoreScope> scope_;
  std::vector<PageKey> keys_;
  std::size_t pools_ = 0;
};

std::uint64_t bytes_of(const ReadRequest& request) {
  std::uint64_t bytes = 0;
  for (const ReadItem& item : request.items) bytes += payload_bytes(item.payload);
  return bytes;
}

std::uint64_t bytes_of(const WriteRequest& request) {
  std::uint64_t bytes = 0;
  for (const PageGroup& group : request.groups) {
    for (const WriteItem& item : group.items) bytes += payload_bytes(item.payload);
  }
  return bytes;
}

class QueuedRead final : public TypedOperation<ReadRequest, ReadResult> {
 public:
  QueuedRead(ReadRequest request, StorageBackend::ReadDone done, TimePoint now)
      : TypedOperation(Lane::kRead, request.terms, bytes_of(request), now, std::move(request), std::move(done)) {
    pages_.reserve(request_.items.size());
    for (const ReadItem& item : request_.items) pages_.push_back({item.pool, item.key, payload_bytes(item.payload)});
  }

  Status begin(StorageBackend& inner, const OperationServices& services,
               std::shared_ptr<CompletionToken> token) override {
    scope_ = request_.scope;
    stamp_ = services.negative.stamp();
    request_.terms.caller_waits = false;  // this thread is not the caller's
    return inner.submit_read(std::move(request_), completion(std::move(token)));
  }
  void fill(const Status& status) override { result_.items.assign(pages_.size(), status); }
  OperationVerdict examine(const OperationServices& services, TimePoint now) override {
    mend_length(result_.items, pages_.size());
    StatusTally tally;
    for (std::size_t i = 0; i < pages_.size(); ++i) {
      const StatusCode code = result_.items[i].code();
      tally.add(result_.items[i]);
      ReadPage page = ReadPage::kError;
      if (code == StatusCode::kOk) page = ReadPage::kHit;
      if (code == StatusCode::kNotFound) page = ReadPage::kMiss;
      if (code == StatusCode::kCorrupt) page = ReadPage::kCorrupt;
      services.metrics.page_read(pages_[i].pool, page, pages_[i].bytes);
      if (page == ReadPage::kMiss || page == ReadPage::kCorrupt || is_backend_failure(code)) {
        services.negative.add(*scope_, pages_[i].pool, pages_[i].key, stamp_, now, is_backend_failure(code));
      }
    }
    return tally.verdict();
  }

 private:
  std::vector<PageRef> pages_;  // one per item
  std::shared_ptr<const StoreScope> scope_;
  std::uint64_t stamp_ = 0;
};

class QueuedWrite final : public TypedOperation<WriteRequest, WriteResult> {
 public:
  QueuedWrite(WriteRequest request, StorageBackend::WriteDone done, TimePoint now)
      : TypedOperation(Lane::kWrite, request.terms, bytes_of(request), now, std::move(request), std::move(done)) {
    for (const PageGroup& group : request_.groups) {
      for (const WriteItem& item : group.items) {
        pages_.push_back({item.pool, item.key, payload_bytes(item.payload)});
      }
      ends_.push_back(pages_.size());
    }
  }

  Status begin(StorageBackend& inner, const OperationServices&, std::shared_ptr<CompletionToken> token) override {
    scope_ = request_.scope;
    request_.terms.caller_waits = false;  // this thread is not the caller's
    return inner.submit_write(std::move(request_), completion(std::move(token)));
  }
  void fill(const Status& status) override { result_.groups.assign(ends_.size(), status); }
  OperationVerdict examine(const OperationServices& services, TimePoint now) override {
    mend_length(result_.groups, ends_.size());
    StatusTally tally;
    std::size_t at = 0;
    for (std::size_t group = 0; group < ends_.size(); ++group) {
      const StatusCode code = result_.groups[group].code();
      tally.add(result_.groups[group]);
      WritePage page = WritePage::kError;
      if (code == StatusCode::kOk) page = WritePage::kStored;
      if (code == StatusCode::kUnsupported) page = WritePage::kDeclined;
      for (; at < ends_[group]; ++at) {
        services.metrics.page_written(pages_[at].pool, page, pages_[at].bytes);
        if (page == WritePage::kStored) services.negative.remove(*scope_, pages_[at].pool, pages_[at].key, now);
      }
    }
    return tally.verdict();
  }

 private:
  std::vector<PageRef> pages_;     // of all groups
  std::vector<std::size_t> ends_;  // one per group: where its pages end
  std::shared_ptr<const StoreScope> scope_;
};

class QueuedClear final : public TypedOperation<std::shared_ptr<const StoreScope>, Status> {
 public:
  QueuedClear(std::shared_ptr<const StoreScope> scope, StorageBackend::ClearDone done, TimePoint now)
      : TypedOperation(Lane::kClear, {}, 0, now, std::move(scope), std::move(done)) {}

  Status begin(StorageBackend& inner, const OperationServices&, std::shared_ptr<CompletionToken> token) override {
    return inner.submit_clear(request_, completion(std::move(token)));
  }
  void fill(const Status& status) override { result_ = status; }
  OperationVerdict examine(const OperationServices& services, TimePoint) override {
    if (result_.is_ok()) services.negative.clear(request_.get());
    StatusTally tally;
    tally.add(result_);
    return tally.verdict();
  }
};

}  // namespace

std::shared_ptr<QueuedOperation> queue_exists(ExistsRequest request, StorageBackend::ExistsDone done, bool keeps_keys,
                                              TimePoint now) {
  return std::make_shared<QueuedExists>(std::move(request), std::move(done), keeps_keys, now);
}
std::shared_ptr<QueuedOperation> queue_read(ReadRequest request, StorageBackend::ReadDone done, TimePoint now) {
  return std::make_shared<QueuedRead>(std::move(request), std::move(done), now);
}
std::shared_ptr<QueuedOperation> queue_write(WriteRequest request, StorageBackend::WriteDone done, TimePoint now) {
  return std::make_shared<QueuedWrite>(std::move(request), std::move(done), now);
}
std::shared_ptr<QueuedOperation> queue_clear(std::shared_ptr<const StoreScope> scope, StorageBackend::ClearDone done,
                                             TimePoint now) {
  return std::make_shared<QueuedClear>(std::move(scope), std::move(done), now);
}

}  // namespace larder
