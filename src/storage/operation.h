// SPDX-License-Identifier: Apache-2.0
// What every backend needs around an operation: a bounded count of those in flight, and a completion that runs exactly
// once, whatever becomes of the task.
//
// Threads: any. Lifetime: a Ticket may outlive its OperationGate.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/executor.h"
#include "base/ranked_mutex.h"
#include "base/status.h"
#include "storage/backend.h"

namespace larder {

// Counts operations from submit to `done`, refuses new ones when full or closed, and lets close() wait.
class OperationGate {
  struct State;

 public:
  // One operation in flight; ends with the object. Movable; empty after that.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&&) noexcept = default;
    Ticket& operator=(Ticket&&) = delete;
    ~Ticket();

   private:
    friend class OperationGate;
    explicit Ticket(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
  };

  OperationGate(std::string owner, std::size_t limit);
  // kOverloaded: `limit` are in flight. kUnavailable: closed.
  [[nodiscard]] Result<Ticket> enter();
  // For an operation that ends inside submit: counted, never overloaded. kUnavailable: closed.
  [[nodiscard]] Result<Ticket> enter_inline();
  // For the backend's own work that close() must wait for: never refused.
  [[nodiscard]] Ticket hold();
  // From now on enter() refuses.
  void close();
  // close(), and waits for those in flight. kDeadlineExceeded: some still are after `limit` (below 0: not at all).
  [[nodiscard]] Status close_within(std::chrono::nanoseconds limit);
  // close(), and waits without end.
  void drain();
  [[nodiscard]] bool is_closed() const;
  // False: some are still in flight after `limit` (real time; negative: without end).
  [[nodiscard]] bool wait_idle(std::chrono::nanoseconds limit);
  [[nodiscard]] std::uint64_t in_flight() const;

 private:
  struct State {
    explicit State(std::size_t most) : limit(most) {}
    const std::size_t limit;
    mutable RankedMutex mutex{LockRank::kStorage};
    RankedCondition changed;
    std::size_t entered LARDER_GUARDED_BY(mutex) = 0;
    bool closed LARDER_GUARDED_BY(mutex) = false;
  };

  [[nodiscard]] Result<Ticket> enter_below(std::size_t limit);

  const std::string owner_;
  const std::shared_ptr<State> state_;
};

// One submitted operation: request, result and callback. `done(result)` runs when the last reference goes, so it runs
// exactly once also when an executor drops the task; preset `result` to what that should mean (kCancelled).
// disarm() before that makes it silent: the operation was refused at submit.
template <class Request, class ResultType>
struct Operation {
  using Done = std::function<void(ResultType)>;
  Operation(Request r, Done d, OperationGate::Ticket t)
      : ticket(std::move(t)), request(std::move(r)), done(std::move(d)) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation() {
    if (!done) return;
    try {
      done(std::move(result));
    } catch (...) {  // NOLINT: a callback that throws is the caller's bug; it must not take a worker down
    }
  }
  void disarm() { done = nullptr; }

  OperationGate::Ticket ticket;  // first, so that it goes last: close() waits for `done`
  Request request;
  ResultType result;
  Done done;
};

using ReadOperation = Operation<ReadRequest, ReadResult>;
using WriteOperation = Operation<WriteRequest, WriteResult>;
using ExistsOperation = Operation<ExistsRequest, ExistsResult>;
using ClearOperation = Operation<std::shared_ptr<const StoreScope>, Status>;

// Results that say "cancelled" until the backend says more.
void preset_cancelled(ReadOperation& op);
void preset_cancelled(WriteOperation& op);
void preset_cancelled(ExistsOperation& op);
void preset_cancelled(ClearOperation& op);

// kInvalidArgument: no scope (but to clear all), or no callback.
template <class Request, class Done>
[[nodiscard]] Status check_request(const Request& request, const Done& done) {
  if constexpr (requires { request.scope; }) {
    if (!request.scope) return invalid_argument("storage request without a scope");
  }
  if (!done) return invalid_argument("storage request without a callback");
  return Status::ok();
}

// The request is right and in the gate; its result says "cancelled". An error: refused, and `done` is never called.
template <class Op, class Request, class Done>
[[nodiscard]] Result<std::shared_ptr<Op>> begin_operation(OperationGate& gate, Request request, Done done) {
  LARDER_RETURN_IF_ERROR(check_request(request, done));
  LARDER_ASSIGN_OR_RETURN(OperationGate::Ticket ticket, gate.enter());
  auto op = std::make_shared<Op>(std::move(request), std::move(done), std::move(ticket));
  preset_cancelled(*op);
  return op;
}

// Has the executor do run(op). An error: as above.
template <class Op, class Run>
[[nodiscard]] Status post_operation(Executor& executor, const std::shared_ptr<Op>& op, Run run) {
  const Status posted = executor.post([run = std::move(run), op] { run(op); });
  if (!posted.is_ok()) op->disarm();
  return posted;
}

// Both. Runs here instead if is_here(request).
template <class Op, class Request, class Done, class Run, class IsHere>
[[nodiscard]] Status submit_operation(OperationGate& gate, Executor& executor, Request request, Done done, Run run,
                                      const IsHere& is_here) {
  LARDER_ASSIGN_OR_RETURN(const std::shared_ptr<Op> op, begin_operation<Op>(gate, std::move(request), std::move(done)));
  if (!is_here(op->request)) return post_operation(executor, op, std::move(run));
  run(op);
  return Status::ok();
}
template <class Op, class Request, class Done, class Run>
[[nodiscard]] Status submit_operation(OperationGate& gate, Executor& executor, Request request, Done done, Run run) {
  const auto never = [](const Request&) { return false; };
  return submit_operation<Op>(gate, executor, std::move(request), std::move(done), std::move(run), never);
}

// Counts a page that was to be read, by what became of it.
void count_read(BackendStats& stats, const Status& status);

// A write item that no backend can take: a pool the model has not, more than 4 GiB. kInvalidArgument.
[[nodiscard]] Status check_group(const StoreScope& scope, const PageGroup& group);

}  // namespace larder
