// SPDX-License-Identifier: Apache-2.0
// The prefetcher over a real tree, host and pipeline, without a cache: what slow storage costs, and what it still
// gives. Sizes are a thousandth of the field's (KiB for MiB, KB/s for MB/s), so that no test fills gigabytes; times are
// not.
#include "controller/prefetcher.h"

#include <gtest/gtest.h>

#include <deque>

#include "storage/pipeline/storage_pipeline.h"
#include "tests/cache/patient_backend.h"

namespace larder {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kPage = 4 * kKiB;  // of full
constexpr std::uint32_t kPageTokens = 4;
constexpr std::uint64_t kPrompt = 2048 * kKiB / kPage;  // pages

// Pages of 4 KiB; with a state of 4.5 KiB.
ModelSpec model_of(bool has_state) {
  ModelSpec m;
  m.id = "slow-storage";
  m.page_size = kPageTokens;
  m.vocab_size = 64;
  m.dims.hidden = 8;
  m.dims.ffn = 8;
  m.dims.q_heads = 8;
  m.dims.kv_heads = 8;
  m.dims.head_dim = 16;
  m.layers = {LayerKind::kAttention};
  if (has_state) {
    m.layers.push_back(LayerKind::kGatedDeltaNet);
    m.dims.ssm_heads = 4;
    m.dims.ssm_key_heads = 2;
    m.dims.ssm_head_dim = 16;
    m.dims.ssm_state_dim = 16;
    m.dims.conv_kernel = 2;
  }
  EXPECT_TRUE(finalize_model(m).is_ok());
  return m;
}

// Has every page, and a state at each `state_every` pages. Reads one after another, so many bytes a second; moves none.
class SlowBackend final : public support::StubBackend {
 public:
  SlowBackend(sim::SimClock& clock, double bytes_per_second, std::uint64_t state_every)
      : clock_(clock), rate_(bytes_per_second), state_every_(state_every) {}

  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    ExistsResult result;
    for (const PoolName pool : request.pools) {
      Presence present(request.keys.size(), true);
      for (std::size_t i = 0; pool == PoolName::kMamba && i < present.size(); ++i) {
        present[i] = (i + 1) % state_every_ == 0;
      }
      result.presence.push_back({pool, std::move(present)});
    }
    done(std::move(result));
    return Status::ok();
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    std::uint64_t bytes = 0;
    for (const ReadItem& item : request.items) bytes += payload_bytes(item.payload);
    waiting_.push_back({request.items.size(), bytes, std::move(done)});
    if (waiting_.size() == 1) begin();
    return Status::ok();
  }
  // Ends what it has, for the end of a test.
  void hurry() {
    while (!waiting_.empty()) end();
  }
  std::uint64_t bytes_read = 0;

 private:
  struct Read {
    std::size_t items;
    std::uint64_t bytes;
    ReadDone done;
  };
  void begin() {
    if (rate_ <= 0) return;  // it hangs
    const auto took = std::chrono::duration<double>(static_cast<double>(waiting_.front().bytes) / rate_);
    clock_.after(std::chrono::duration_cast<Nanos>(took), [this] {
      if (!waiting_.empty()) end();
    });
  }
  void end() {
    Read read = std::move(waiting_.front());
    waiting_.pop_front();
    bytes_read += read.bytes;
    if (!waiting_.empty()) begin();
    read.done(ReadResult{std::vector<Status>(read.items, Status::ok())});
  }
  sim::SimClock& clock_;
  const double rate_;
  const std::uint64_t state_every_;
  std::deque<Read> waiting_;
};

// One request, for `kPrompt` pages that storage alone has.
class SlowStorage final : HostRig {
 public:
  SlowStorage(bool has_state, double bytes_per_second, PrefetchPolicy policy, std::uint64_t state_every = 32)
      : HostRig(model_of(has_state), 8192 * kKiB) {
    EXPECT_EQ(model_.anchor(ComponentKind::kFull).page_bytes(), kPage);
    config_.prefetch_policy = policy;
    config_.prefetch_timeout_base = seconds(3);
    config_.prefetch_timeout_per_ki_token = Nanos{0};
    config_.prefetch_batch_bytes = 8 * kKiB;
    config_.prefetch_capacity = 1;
    auto slow = std::make_unique<SlowBackend>(clock_, bytes_per_second, state_every);
    backend_ = slow.get();
    pipeline_ = make_pipeline(std::move(slow), PipelineOptions{}, clock_, nullptr, 1);
    backlog_.attach_storage(*pipeline_);
    prefetcher_.attach_storage(*pipeline_);
    tokens_.resize(kPrompt * kPageTokens);
    for (std::size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<TokenId>(i % 61);
    prefetcher_.enter(kId, space_, tokens_);
  }
  ~SlowStorage() override {
    prefetcher_.leave(kId);
    backend_->hurry();
    pass(milliseconds(10));
    backend_->hurry();
    pass(milliseconds(10));
    EXPECT_TRUE(tree_.check_invariants().is_ok()) << tree_.check_invariants().to_string();
    tree_.flush();
    EXPECT_EQ(host_->counts(ComponentKind::kFull).live, 0u);
    EXPECT_EQ(host_->counts(ComponentKind::kMamba).live, 0u);
    EXPECT_EQ(prefetcher_.slots_held(), (std::array<std::uint64_t, kComponentCount>{}));
  }

  void pass(Nanos time) {
    for (const TimePoint end = clock_.now() + time; clock_.now() < end;) {
      clock_.advance(milliseconds(1));
      poll();
    }
  }
  // Until the request waits no more, or `most`.
  Nanos wait(Nanos most) {
    const TimePoint begun = clock_.now();
    while (prefetcher_.waits_for(kId) == Prefetcher::WaitsFor::kStorage && clock_.now() - begun < most)
      pass(milliseconds(1));
    return clock_.now() - begun;
  }
  // Of the joint restore point that the host has now.
  [[nodiscard]] std::uint64_t kib_restorable() const {
    return tree_.match(space_, tokens_).any.at.pages * kPage / kKiB;
  }
  [[nodiscard]] CircuitBreaker::State breaker() const { return pipeline_->health().breakers[0].state; }
  [[nodiscard]] std::uint64_t breaker_opened() const { return pipeline_->health().breakers[0].opens; }
  [[nodiscard]] std::uint64_t kib_read() const { return backend_->bytes_read / kKiB; }

 private:
  static constexpr RequestId kId{1};
  [[nodiscard]] OutcomeBits outcome_of(Op& op) override {
    return op.kind == OpKind::kTimer ? OutcomeBits{1} : prefetcher_.outcome_of(op);
  }
  void poll() {
    pipeline_->tick();
    (void)ops_.collect(Nanos{0});
    for (const AgreedEvent& event : ops_.take_ended()) {
      Op* const op = ops_.find(event.op);
      if (op == nullptr) continue;
      if (op->kind == OpKind::kExists) prefetcher_.exists_done(*op, event.bits);
      if (op->kind == OpKind::kRead) prefetcher_.read_done(*op, event.bits);
      if (op->kind == OpKind::kTimer) prefetcher_.timer_done(*op);
      ops_.erase(event.op);
    }
    prefetcher_.pump();
  }

  std::vector<TokenId> tokens_;
  LossLog losses_{clock_};
  SlowBackend* backend_ = nullptr;
  std::unique_ptr<StoragePipeline> pipeline_;
  Prefetcher prefetcher_{config_,
                         {model_, host_.get(), tree_, ops_, spaces_, clock_, backlog_, counters_, metrics_, room_,
                          losses_, [] { return false; }}};
};

// 2 GiB at 200 MB/s take ten seconds; the request waits for three.
TEST(PrefetcherSlowStorage, WhatCameIsServedAtTheLimit) {
  for (const bool has_state : {false, true}) {
    SlowStorage s(has_state, 200e3, PrefetchPolicy::kTimeout);
    const Nanos waited = s.wait(seconds(60));
    EXPECT_GE(waited, seconds(3));
    EXPECT_LE(waited, seconds(3) + milliseconds(2));
    EXPECT_GE(s.kib_restorable(), has_state ? 450u : 500u) << "with states: " << has_state;
    EXPECT_LT(s.kib_restorable(), 600u);
    EXPECT_EQ(s.breaker(), CircuitBreaker::State::kClosed);
    EXPECT_EQ(s.breaker_opened(), 0u);
    // What was under way goes on, and no more than that.
    const std::uint64_t read = s.kib_read();
    s.pass(seconds(20));
    EXPECT_LE(s.kib_read() - read, 32u * 8 + 64);
    EXPECT_EQ(s.breaker_opened(), 0u);
  }
}

TEST(PrefetcherSlowStorage, FastEnoughStorageGivesAllOfIt) {
  for (const bool has_state : {false, true}) {
    SlowStorage s(has_state, 1000e3, PrefetchPolicy::kTimeout);
    EXPECT_LT(s.wait(seconds(60)), milliseconds(2600));
    EXPECT_EQ(s.kib_restorable(), 2048u);
  }
}

// At 1 MB/s the oldest of the reads under way is older than the pipeline's limit for a slow one: but they end, one
// after another.
TEST(PrefetcherSlowStorage, ABreakerLooksAtProgress) {
  SlowStorage s(false, 1e3, PrefetchPolicy::kTimeout);
  EXPECT_LE(s.wait(seconds(60)), seconds(3) + milliseconds(2));
  s.pass(seconds(300));
  EXPECT_EQ(s.breaker_opened(), 0u);
  EXPECT_EQ(s.breaker(), CircuitBreaker::State::kClosed);
  EXPECT_GE(s.kib_restorable(), 100u) << "what came late is there for the next request";
}

TEST(PrefetcherSlowStorage, StorageThatHangsCostsTheLimit) {
  SlowStorage s(true, 0, PrefetchPolicy::kTimeout);
  const Nanos waited = s.wait(seconds(60));
  EXPECT_LE(waited, seconds(3) + milliseconds(2));
  s.pass(seconds(20));
  EXPECT_EQ(s.kib_restorable(), 0u);
  EXPECT_EQ(s.breaker(), CircuitBreaker::State::kOpen) << "no progress at all";
}

TEST(PrefetcherSlowStorage, WaitCompleteWaitsForAllOfIt) {
  SlowStorage s(true, 200e3, PrefetchPolicy::kWaitComplete);
  const Nanos waited = s.wait(seconds(60));
  EXPECT_GT(waited, seconds(10));
  EXPECT_LT(waited, seconds(12));
  EXPECT_EQ(s.kib_restorable(), 2048u);
}

}  // namespace
}  // namespace larder
