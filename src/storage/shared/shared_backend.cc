// SPDX-License-Identifier: Apache-2.0
#include "storage/shared/shared_backend.h"

#include <mutex>
#include <utility>

#include "storage/operation.h"
#include "storage/shared/real_share_driver.h"
#include "storage/shared/share_state.h"

namespace larder {
namespace {

using share::ClientOperation;
using share::HostedStore;

constexpr std::size_t kLeastArenaBytes = std::size_t{64} << 10;
constexpr Nanos kStatsAge = std::chrono::milliseconds(100);
// What the end of a client waits for a host that does not answer, before it drops the connection.
constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::hours kWithoutEnd{24 * 365};

class SharedBackendImpl final : public SharedBackend {
 public:
  SharedBackendImpl(const SharedStoreOptions& options, OpenInner open_inner, Executor& executor, Clock& clock,
                    std::unique_ptr<share::EventWaker> waker)
      : arena_bytes_(options.arena_bytes),
        arena_option_(options.arena_option),
        clock_(clock),
        gate_("shared", options.queue_limit),
        waker_(*waker),
        state_(std::make_shared<share::ShareState>(std::move(waker), options.directory)),
        driver_(options, std::move(open_inner), executor, clock, state_, waker_, gate_) {}
  ~SharedBackendImpl() override {
    gate_.close();
    state_->post_end_clears();
    // A client's buffers are its own: the host knows the arena only. So a host that is stuck does not hold them up.
    // As long as operations end, it is not.
    std::uint64_t left = 0, before = ~std::uint64_t{0};
    for (; (left = gate_.in_flight()) > 0 && left < before; before = left) (void)gate_.wait_idle(kPatience);
    if (left > 0 && !state_->hosted()) shut_down();
    gate_.drain();
    shut_down();
  }

  // Once, before all others.
  [[nodiscard]] Status open(std::chrono::nanoseconds limit) {
    driver_.start();
    LARDER_RETURN_IF_ERROR(state_->wait_settled(limit));
    info_ = state_->info();
    info_.name = "shared(" + info_.name + ")";
    return Status::ok();
  }

  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] SharedRole role() const override { return state_->role(); }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    return submit<ExistsOperation>(std::move(request), std::move(done), &StorageBackend::submit_exists);
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    LARDER_RETURN_IF_ERROR(share::check_fits(request, arena_bytes_, arena_option_));
    return submit<ReadOperation>(std::move(request), std::move(done), &StorageBackend::submit_read);
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    LARDER_RETURN_IF_ERROR(share::check_fits(request, arena_bytes_, arena_option_));
    if (request.as_of.is_none()) request.as_of = clear_mark();  // it may wait here before its host hears of it
    return submit<WriteOperation>(std::move(request), std::move(done), &StorageBackend::submit_write);
  }
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override {
    return submit<ClearOperation>(std::move(scope), std::move(done), &StorageBackend::submit_clear);
  }
  [[nodiscard]] BackendStats stats() const override {
    if (const std::shared_ptr<HostedStore> hosted = state_->hosted()) return hosted->inner->stats();
    BackendStats out = state_->stats(clock_.now(), kStatsAge);
    out.queued = gate_.in_flight();
    return out;
  }
  [[nodiscard]] ClearMark clear_mark() const override {
    if (const std::shared_ptr<HostedStore> hosted = state_->hosted()) return hosted->inner->clear_mark();
    return state_->clear_mark();
  }
  [[nodiscard]] ClearMark emptied_mark() const override {
    if (const std::shared_ptr<HostedStore> hosted = state_->hosted()) return hosted->inner->emptied_mark();
    return state_->emptied_mark();
  }
  // A client's payloads go through its arena.
  [[nodiscard]] Status register_memory(std::span<const Segment> regions) override {
    if (const std::shared_ptr<HostedStore> hosted = state_->hosted()) return hosted->inner->register_memory(regions);
    return unsupported("storage backend '" + info_.name + "': the process that hosts the store does its transfers");
  }
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override {
    gate_.close();
    state_->post_end_clears();
    LARDER_RETURN_IF_ERROR(gate_.close_within(limit));
    if (const std::shared_ptr<HostedStore> hosted = state_->hosted()) {
      LARDER_RETURN_IF_ERROR(hosted->inner->close(limit));
    }
    shut_down();
    return Status::ok();
  }

 private:
  template <class Op, class Request, class Done>
  Status submit(Request request, Done done, Status (StorageBackend::*at_host)(Request, Done)) {
    if (state_->role() == SharedRole::kHost) {
      // Held until the inner backend has it: close() comes after.
      LARDER_ASSIGN_OR_RETURN(const OperationGate::Ticket ticket, gate_.enter_inline());
      const std::shared_ptr<HostedStore> hosted = state_->hosted();
      if (!hosted) return unavailable("the shared store is closed");
      return ((*hosted->inner).*at_host)(std::move(request), std::move(done));
    }
    LARDER_ASSIGN_OR_RETURN(const std::shared_ptr<Op> op,
                            begin_operation<Op>(gate_, std::move(request), std::move(done)));
    const Status posted = state_->post(op);
    if (!posted.is_ok()) op->disarm();
    return posted;
  }

  // Ends the I/O thread, then the inner backend, then the lock.
  void shut_down() {
    std::call_once(is_shut_down_, [this] {
      if (const std::shared_ptr<HostedStore> hosted = state_->hosted()) (void)hosted->inner->close(kWithoutEnd);
      driver_.stop();
      const std::shared_ptr<HostedStore> hosted = state_->take_hosted();
      if (!hosted) return;
      (void)hosted->inner->close(kWithoutEnd);  // it may have been opened just now
      state_->set_stats(hosted->inner->stats(), clock_.now());
      state_->set_marks(hosted->inner->clear_mark(), hosted->inner->emptied_mark());
    });
  }

  // constant after open()
  const std::uint64_t arena_bytes_;
  const std::string arena_option_;
  Clock& clock_;
  BackendInfo info_;

  OperationGate gate_;  // synchronises itself
  share::EventWaker& waker_;
  const std::shared_ptr<share::ShareState> state_;  // likewise
  share::ShareDriver driver_;                       // likewise
  std::once_flag is_shut_down_;
};

Status check_options(const SharedStoreOptions& options) {
  if (options.arena_bytes < kLeastArenaBytes) {
    return invalid_argument("a shared store's arena has at least " + std::to_string(kLeastArenaBytes) + " bytes");
  }
  if (options.max_clients < 1 || options.max_clients > 4096) {
    return invalid_argument("a shared store takes 1 to 4096 clients, not " + std::to_string(options.max_clients));
  }
  if (options.queue_limit < 1) return invalid_argument("a shared store's queue takes at least one operation");
  return Status::ok();
}

}  // namespace

std::string_view shared_role_name(SharedRole role) {
  switch (role) {
    case SharedRole::kSeeking: return "seeking";
    case SharedRole::kHost: return "host";
    case SharedRole::kClient: return "client";
  }
  return "?";
}

Result<std::unique_ptr<SharedBackend>> open_shared_store(const SharedStoreOptions& options, OpenInner open_inner,
                                                         Executor& executor, Clock& clock) {
  LARDER_RETURN_IF_ERROR(check_options(options));
  if (!open_inner) return invalid_argument("a shared store needs a way to open the inner store");
  auto waker = std::make_unique<share::EventWaker>();
  if (waker->descriptor() < 0) return unavailable("shared store: no eventfd: too many open files?");
  auto backend = std::make_unique<SharedBackendImpl>(options, std::move(open_inner), executor, clock, std::move(waker));
  LARDER_RETURN_IF_ERROR(backend->open(options.open_limit));
  return std::unique_ptr<SharedBackend>(std::move(backend));
}

}  // namespace larder
