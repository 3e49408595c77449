// SPDX-License-Identifier: Apache-2.0
#include "storage/pipeline/probe.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/executor.h"
#include "storage/memory/memory_backend.h"
#include "storage/pipeline/storage_pipeline.h"

namespace larder {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

enum class Lie : std::uint8_t {
  kNone,
  kFlipsAByte,
  kDropsAPage,
  kDropsSilently,  // exists says it is there
  kIgnoresSize,
  kInventsPages,
  kClaimsTooMuch,
  kKeepsOnClear,
  kWritesBeside,
  kShortAnswer,
  kDeclinesOnce,
  kDeclinesAlways,
  kFailsWrites,
  kRefuses,
  kHoldsReads,
  kHoldsWrites,
};

// A memory backend that is not what it says it is.
class LyingBackend final : public StorageBackend {
 public:
  explicit LyingBackend(Lie lie) : lie_(lie) {
    BackendFactory factory;
    EXPECT_TRUE(register_memory_backend(factory).is_ok());
    auto made = factory.create("memory", {}, {nullptr, nullptr, &executor_});
    inner_ = std::move(made).value();
  }
  ~LyingBackend() override { release(); }
  // Does what was held back.
  void release() {
    std::vector<std::function<void()>> now;
    now.swap(held_);
    for (const auto& task : now) task();
  }
  [[nodiscard]] std::uint64_t pages() const { return inner_->stats().pages; }
  [[nodiscard]] std::size_t held() const { return held_.size(); }

  [[nodiscard]] const BackendInfo& info() const override { return inner_->info(); }
  [[nodiscard]] BackendStats stats() const override { return inner_->stats(); }
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override { return inner_->close(limit); }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    const bool claims = lie_ == Lie::kClaimsTooMuch || (lie_ == Lie::kDropsSilently && is_written_);
    return inner_->submit_exists(std::move(request), [claims, done = std::move(done)](ExistsResult result) {
      for (PoolPresence& pool : result.presence) {
        if (claims) pool.present.assign(pool.present.size(), true);
      }
      done(std::move(result));
    });
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    if (lie_ == Lie::kHoldsReads) {
      held_.emplace_back([this, request, done] { EXPECT_TRUE(inner_->submit_read(request, done).is_ok()); });
      return Status::ok();
    }
    std::vector<ReadItem> items = request.items;
    return inner_->submit_read(std::move(request), [this, items, done = std::move(done)](ReadResult result) {
      for (std::size_t i = 0; i < items.size(); ++i) spoil(items[i], result.items[i]);
      if (lie_ == Lie::kShortAnswer) result.items.pop_back();
      done(std::move(result));
    });
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    is_written_ = true;
    const std::size_t count = request.groups.size();
    const auto all = [&done, count](const Status& status) {
      done({std::vector<Status>(count, status)});
      return Status::ok();
    };
    switch (lie_) {
      case Lie::kHoldsWrites:
        held_.emplace_back([this, request, done] { EXPECT_TRUE(inner_->submit_write(request, done).is_ok()); });
        return Status::ok();
      case Lie::kRefuses: return unavailable("not mounted");
      case Lie::kFailsWrites: return all(unavailable("read-only file system"));
      case Lie::kDeclinesAlways: return all(unsupported("not seen often enough"));
      case Lie::kDeclinesOnce:
        if (++writes_ == 1) return all(unsupported("seen for the first time"));
        break;
      case Lie::kDropsAPage:
      case Lie::kDropsSilently: request.groups[1].items.pop_back(); break;
      default: break;
    }
    return inner_->submit_write(std::move(request), std::move(done));
  }
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override {
    if (lie_ != Lie::kKeepsOnClear) return inner_->submit_clear(std::move(scope), std::move(done));
    done(Status::ok());
    return Status::ok();
  }

 private:
  void spoil(const ReadItem& item, Status& status) const {
    const std::size_t size = payload_bytes(item.payload);
    const Segment& last = item.payload.empty() ? kNothing : item.payload.back();
    if (lie_ == Lie::kFlipsAByte && size == 4095 && last.size > 0) last.data[last.size - 1] ^= std::byte{4};
    if (lie_ == Lie::kWritesBeside && size == 4095) last.data[last.size] = std::byte{0};
    if (lie_ == Lie::kIgnoresSize && size == 2) status = Status::ok();
    if (lie_ == Lie::kInventsPages && size == 1) status = Status::ok();
  }
  static constexpr Segment kNothing{};
  const Lie lie_;
  InlineExecutor executor_;
  std::unique_ptr<StorageBackend> inner_;
  std::vector<std::function<void()>> held_;
  int writes_ = 0;
  bool is_written_ = false;
};

struct Case {
  Lie lie;
  StatusCode code;
  std::string text;  // in the message
};

class ProbeTest : public testing::TestWithParam<Case> {};

TEST_P(ProbeTest, SaysWhatIsWrong) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    ManualClock clock;
    LyingBackend backend(GetParam().lie);
    const Status status = probe_backend(backend, clock, seconds(30), seed);
    EXPECT_EQ(status.code(), GetParam().code) << status.to_string();
    EXPECT_NE(status.message().find(GetParam().text), std::string::npos) << status.to_string();
    EXPECT_TRUE(status.is_ok() || status.message().find("backend 'memory', step") != std::string::npos);
    EXPECT_TRUE(backend.pages() == 0 || GetParam().lie == Lie::kKeepsOnClear) << "it leaves nothing behind";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Lies, ProbeTest,
    testing::Values(Case{Lie::kNone, StatusCode::kOk, ""},
                    Case{Lie::kFlipsAByte, StatusCode::kCorrupt, "byte 4094 is not what was written"},
                    Case{Lie::kDropsAPage, StatusCode::kInternal, "absent, which it said it had stored"},
                    Case{Lie::kDropsSilently, StatusCode::kInternal, "lost after it was stored"},
                    Case{Lie::kIgnoresSize, StatusCode::kInternal, "a page of another length"},
                    Case{Lie::kInventsPages, StatusCode::kInternal, "never written"},
                    Case{Lie::kClaimsTooMuch, StatusCode::kInternal, "that it cannot have"},
                    Case{Lie::kKeepsOnClear, StatusCode::kInternal, "exists after the clear"},
                    Case{Lie::kWritesBeside, StatusCode::kInternal, "beside the buffer"},
                    Case{Lie::kShortAnswer, StatusCode::kInternal, "did not answer for each page"},
                    Case{Lie::kDeclinesOnce, StatusCode::kOk, ""},
                    Case{Lie::kDeclinesAlways, StatusCode::kUnsupported, "admission policy"},
                    Case{Lie::kFailsWrites, StatusCode::kUnavailable, "read-only file system"},
                    Case{Lie::kRefuses, StatusCode::kUnavailable, "not mounted"}));

// The clock stands still; what ends the wait is real time.
TEST(ProbeHangTest, AHangEndsAtTheLimitAndLateAnswersFindTheirBuffers) {
  for (const Lie lie : {Lie::kHoldsReads, Lie::kHoldsWrites}) {
    ManualClock clock;
    LyingBackend backend(lie);
    const Status status = probe_backend(backend, clock, milliseconds(5), 1);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
    EXPECT_NE(status.message().find("no answer"), std::string::npos);
    EXPECT_EQ(backend.held(), 1u);
    backend.release();  // the sanitizer sees what it touches
  }
}

TEST(ProbeHangTest, NoTimeAtAll) {
  ManualClock clock;
  LyingBackend backend(Lie::kHoldsWrites);
  EXPECT_EQ(probe_backend(backend, clock, Nanos(0), 1).code(), StatusCode::kDeadlineExceeded);
}

TEST(ProbeHangTest, PassesThroughAPipeline) {
  ManualClock clock;
  auto pipeline = make_pipeline(std::make_unique<LyingBackend>(Lie::kNone), {}, clock, nullptr, 1);
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const Status status = probe_backend(*pipeline, clock, seconds(30), seed);
    EXPECT_TRUE(status.is_ok()) << status.to_string();
  }
}

}  // namespace
}  // namespace larder
