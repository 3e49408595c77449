// SPDX-License-Identifier: Apache-2.0
// Storage comes, goes and falls ill under load: nobody is told anything wrong, and nobody notices but by the clock.
// tests/attach_slow has the long loops.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/attach/attach_rig.h"
#include "tests/attach/moody_backend.h"
#include "tests/attach/rounds.h"
#include "tests/support/rest.h"
#include "tests/support/temporary_directory.h"

namespace larder::attach {
namespace {

constexpr std::size_t kRounds = 24;

TEST(AttachRounds, HealthyBackendsComeAndGoWithStates) { run_rounds({"gdn-tiny", kRounds, test_seed(), false}); }
TEST(AttachRounds, HealthyBackendsComeAndGoWithWindows) { run_rounds({"swa-tiny", kRounds, test_seed(), false}); }
TEST(AttachRounds, SickBackendsComeAndGoWithStates) { run_rounds({"gdn-tiny", kRounds, test_seed(), true}); }
TEST(AttachRounds, SickBackendsComeAndGoWithWindows) { run_rounds({"swa-tiny", kRounds, test_seed(), true}); }

// One stage without a crowd, for what a loop would only meet by chance.
class AttachTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<Truth> truth = make_truth("gdn-tiny", test_seed());
    ASSERT_TRUE(truth.is_ok()) << truth.status().to_string();
    truth_ = std::move(truth).value();
    Result<std::unique_ptr<Stage>> stage =
        Stage::create(attach_options("gdn-tiny"), [this](BackendFactory& factory) { return ward_.add_to(factory); });
    ASSERT_TRUE(stage.is_ok()) << stage.status().to_string();
    stage_ = std::move(stage).value();
  }
  void TearDown() override {
    (void)ward_.let_all_go();
    if (stage_) {
      const Status empty = stage_->check_empty();
      EXPECT_TRUE(empty.is_ok()) << empty.to_string();
    }
    stage_.reset();
    EXPECT_EQ(ward_.tally().died_busy, 0u);
    if (HasFailure()) printf("replay with LARDER_TEST_SEED=%llu\n", static_cast<unsigned long long>(test_seed()));
  }

  Scheduler& scheduler() { return stage_->scheduler(); }
  Status attach(const char* backend, const char* store, const char* prefetch = "timeout", bool replace = false) {
    AttachRequest request{backend, std::string(R"({"store": ")") + store + "\"}", prefetch, "write_through"};
    request.replace = replace;
    return scheduler().attach_storage(request, kPatience);
  }
  // Answers as it must; what it took from the cache.
  CachedTokens talk(const Turn& turn) {
    const Result<Answer> got = ask(scheduler(), turn.request);
    EXPECT_EQ(compare(turn, got), "");
    return got.is_ok() ? got->last.cached : CachedTokens{};
  }
  // Waits until `is_so`, asking again and again; each question is a call into the scheduler's thread.
  template <class Condition>
  [[nodiscard]] bool wait_until(const Condition& is_so) {
    const TimePoint deadline = real_clock().now() + kPatience;
    while (!is_so()) {
      if (real_clock().now() > deadline) return false;
      rest();
    }
    return true;
  }
  std::uint64_t stored_pages() {
    const SchedulerStats stats = scheduler().stats();
    return stats.storage ? stats.storage->pages : 0;
  }

  Ward ward_{test_seed()};
  Truth truth_;
  std::unique_ptr<Stage> stage_;
};

TEST_F(AttachTest, AnotherBackendIsRefusedUnlessItReplaces) {
  ASSERT_TRUE(attach("kept", "a").is_ok());
  EXPECT_EQ(attach("other", "b").code(), StatusCode::kConflict);
  EXPECT_EQ(scheduler().storage().backend, "kept");
  EXPECT_TRUE(attach("other", "b", "timeout", true).is_ok());
  EXPECT_EQ(scheduler().storage().backend, "other");
  EXPECT_TRUE(wait_until([&] { return ward_.living() == 1; }));
}

TEST_F(AttachTest, WhatWasCachedBeforeIsBackedUpToEachNewBackend) {
  for (const Turn& probe : truth_.probes) (void)talk(probe);
  for (const char* store : {"a", "b", "c"}) {
    ASSERT_TRUE(attach("kept", store, "wait_complete", true).is_ok());
    ASSERT_TRUE(scheduler().quiesce(kPatience).is_ok());
    ASSERT_TRUE(scheduler().flush(kPatience).is_ok());
    for (const Turn& probe : truth_.probes) EXPECT_EQ(talk(probe).storage, 96u) << store;
  }
}

// A detach ends in its time whatever hangs, and who waits for "all of it" does not wait for a backend that is gone.
TEST_F(AttachTest, DetachOfAHangingBackendFreesThoseWhoWaitForIt) {
  ASSERT_TRUE(attach("kept", "a", "wait_complete").is_ok());
  ward_.last()->set_mood(Mood::kHangs);
  std::vector<std::future<bool>> answers;
  ThreadPoolExecutor clients("client", 3, 3);
  for (std::size_t i = 0; i < 3; ++i) {
    auto done = std::make_shared<std::promise<bool>>();
    answers.push_back(done->get_future());
    const Turn* turn = &truth_.probes[i];
    ASSERT_TRUE(
        clients.post([this, turn, done] { done->set_value(compare(*turn, ask(scheduler(), turn->request)).empty()); })
            .is_ok());
  }
  ASSERT_TRUE(wait_until([&] { return ward_.last()->hung() >= 3; }));
  EXPECT_TRUE(scheduler().detach_storage(std::chrono::milliseconds(5)).is_ok());
  EXPECT_EQ(scheduler().storage().backend, "");
  for (std::future<bool>& answer : answers) {
    ASSERT_EQ(answer.wait_for(std::chrono::seconds(20)), std::future_status::ready)
        << "a request waits for a backend that was detached";
    EXPECT_TRUE(answer.get());
  }
}

// Operations of detached backends hang by the dozen. The next backend is used as if they were not there.
TEST_F(AttachTest, ANewBackendWorksWhileOldOnesHang) {
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(attach("kept", "a").is_ok());
    ward_.last()->set_mood(Mood::kHangs);
    for (const Turn& turn : truth_.conversations[static_cast<std::size_t>(i)]) (void)talk(turn);
    ASSERT_TRUE(wait_until([&] { return ward_.last()->hung() > 0; })) << "backend " << i << " was asked nothing";
    ASSERT_TRUE(scheduler().detach_storage(Nanos(0)).is_ok());
  }
  EXPECT_GT(scheduler().storage().retired, 0u);
  ASSERT_TRUE(attach("kept", "b", "wait_complete").is_ok());
  for (const Turn& probe : truth_.probes) (void)talk(probe);
  // The probes' pages, and what was cached before the attach.
  EXPECT_TRUE(wait_until([&] { return stored_pages() >= truth_.probes.size() * 6; })) << stored_pages();
  EXPECT_GT(scheduler().storage().retired, 0u) << "the old ones were to hang all the while";
}

// A switch lets go of what it replaces: who switches back finds the directory free.
TEST_F(AttachTest, AStoreThatWasReplacedCanBeAttachedAgain) {
  const support::TemporaryDirectory directory;
  Crowd crowd(scheduler(), truth_, 4, test_seed());
  AttachRequest file{"file", std::string(R"({"segment_size": "1Mi", "directory": ")") + directory.path() + "/store\"}",
                     "timeout", "write_through"};
  file.replace = true;
  for (int i = 0; i < 25; ++i) {
    // Writes that were under way end first; a busy disk takes seconds for them.
    EXPECT_TRUE(wait_until([&] { return scheduler().storage().retired == 0; })) << "switch " << i;
    const Status attached = scheduler().attach_storage(file, kPatience);
    EXPECT_TRUE(attached.is_ok()) << "switch " << i << ": " << attached.to_string() << "; "
                                  << scheduler().storage().retired << " wait to be closed";
    EXPECT_TRUE(crowd.wait_answers(2)) << crowd.failure();
    EXPECT_TRUE(attach("kept", "a", "timeout", true).is_ok());
  }
  crowd.stop();
  EXPECT_EQ(crowd.failure(), "");
  ASSERT_TRUE(scheduler().detach_storage(kPatience).is_ok());
}

// Two operators at once: each call ends, with an answer of its kind.
TEST_F(AttachTest, OperatorsRace) {
  Crowd crowd(scheduler(), truth_, 2, test_seed());
  const auto operate = [this](Rng rng) {
    for (int i = 0; i < 40; ++i) {
      const bool attaches = rng.chance(2, 3);
      const Status status = attaches ? attach(rng.chance(1, 2) ? "kept" : "other", rng.chance(1, 2) ? "a" : "b",
                                              "timeout", rng.chance(1, 2))
                                     : scheduler().detach_storage(rng.chance(1, 2) ? kPatience : Nanos(0));
      EXPECT_TRUE(status.is_ok() || (attaches && status.code() == StatusCode::kConflict)) << status.to_string();
    }
  };
  {
    ThreadPoolExecutor operators("operator", 3, 3);
    Rng rng(test_seed());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(operators.post([&operate, own = rng.fork()] { operate(own); }).is_ok());
  }
  EXPECT_TRUE(crowd.wait_answers(4));
  EXPECT_EQ(crowd.failure(), "");
  crowd.stop();
  ASSERT_TRUE(scheduler().detach_storage(kPatience).is_ok());
  EXPECT_TRUE(wait_until([&] { return ward_.living() == 0; })) << ward_.living();
}

}  // namespace
}  // namespace larder::attach
