// SPDX-License-Identifier: Apache-2.0
// The whole stack on real threads: options in, tokens out. Small models, short prompts.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>

#include "base/ranked_mutex.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "engine/tokenizer.h"
#include "sim/sim_file_system.h"
#include "tests/support/scheduler_client.h"

namespace larder {
namespace {

using support::Answer;
using support::Collector;
using support::random_prompt;
using support::request_of;

constexpr Nanos kLimit = std::chrono::seconds(60);

Options small_options(const std::string& model) {
  Options options = support::tiny_options(model);
  options.max_total_tokens = 4096;
  options.max_mamba_cache_size = 24;
  options.max_running_requests = 4;
  return options;
}

// The real one, until it breaks.
class BreakingEngine final : public ReferenceEngine {
 public:
  BreakingEngine(std::unique_ptr<ReferenceEngine> real, const std::atomic<bool>& is_broken)
      : real_(std::move(real)), is_broken_(is_broken) {}
  std::vector<StepResult> step(std::span<const SequenceStep> steps) override {
    if (is_broken_.load()) throw std::runtime_error("the engine broke");
    return real_->step(steps);
  }

 private:
  const std::unique_ptr<ReferenceEngine> real_;
  const std::atomic<bool>& is_broken_;
};

class SchedulerTest : public ::testing::Test {
 protected:
  void start(const Options& options) {
    scheduler_.reset();
    Result<std::unique_ptr<Scheduler>> made = Scheduler::create(options, files_, real_clock(), metrics_);
    ASSERT_TRUE(made.is_ok()) << made.status().to_string();
    scheduler_ = std::move(made).value();
  }
  // With an engine that throws once `is_broken`.
  void start_breaking(const Options& options, const std::atomic<bool>& is_broken) {
    auto made = support::wrapped_scheduler(options, files_, metrics_, [&](std::unique_ptr<ReferenceEngine> real) {
      return std::make_unique<BreakingEngine>(std::move(real), is_broken);
    });
    ASSERT_TRUE(made.is_ok()) << made.status().to_string();
    scheduler_ = std::move(made).value();
  }
  Answer generate(std::vector<TokenId> prompt, std::uint64_t max_new_tokens) {
    return generate(request_of(std::move(prompt), max_new_tokens));
  }
  Answer generate(GenerateRequest request) { return support::generate(*scheduler_, std::move(request)); }

  sim::SimFileSystem files_{1};
  MetricsRegistry metrics_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, AnswersAndHitsWhatAConversationLeft) {
  for (const char* model : {"gqa-tiny", "gdn-tiny", "swa-tiny", "dsv4-tiny"}) {
    SCOPED_TRACE(model);
    start(small_options(model));
    const std::uint64_t page = scheduler_->model().page_size;
    std::vector<TokenId> conversation = random_prompt(1, 150);
    std::uint64_t reachable = 0;
    for (int turn = 0; turn < 3; ++turn) {
      const Answer answer = generate(conversation, 40);
      ASSERT_TRUE(answer.last.status.is_ok()) << answer.last.status.to_string();
      EXPECT_EQ(answer.tokens.size(), 40u);
      EXPECT_EQ(answer.last.completion_tokens, 40u);
      EXPECT_EQ(answer.last.finish, FinishReason::kLength);
      EXPECT_EQ(answer.last.cached.cached(), reachable);
      EXPECT_EQ(answer.last.cached.prompt, conversation.size());
      EXPECT_GT(answer.last.ttft_seconds, 0);
      conversation.insert(conversation.end(), answer.tokens.begin(), answer.tokens.end());
      // The last token was never fed: prompt + output - 1 tokens are in pages.
      reachable = (conversation.size() - 1) / page * page;
      const std::vector<TokenId> question = random_prompt(2 + static_cast<std::uint64_t>(turn), 30);
      conversation.insert(conversation.end(), question.begin(), question.end());
    }
  }
}

// A device that holds what the requests bring, and not what they say: they make room for each other, again and again.
TEST_F(SchedulerTest, SameTokensWhenRunningRequestsAreRetracted) {
  const std::vector<std::pair<std::string, std::uint64_t>> cases = {
      {"gqa-tiny", 1024}, {"swa-tiny", 896}, {"gdn-tiny", 1024}, {"gdn-tiny+draft", 1024}};
  for (const auto& [model, few_tokens] : cases) {
    std::vector<std::vector<TokenId>> expected;
    for (const std::uint64_t tokens : {std::uint64_t{8192}, few_tokens}) {
      SCOPED_TRACE(model + " on " + std::to_string(tokens) + " tokens");
      Options options = small_options(model);
      options.max_total_tokens = tokens;
      options.swa_full_tokens_ratio = 1;
      options.chunked_prefill_size = 64;
      options.num_reserved_decode_tokens = 16;
      options.max_running_requests = 8;
      start(options);
      std::vector<Collector> collectors(7);
      for (std::size_t i = 0; i < collectors.size(); ++i) {
        GenerateRequest request = request_of(random_prompt(i, 50 + 13 * i), 400 + 11 * i);
        request.temperature = 0.8;
        request.seed = 7 + i;
        ASSERT_TRUE(scheduler_->submit(std::move(request), collectors[i].update()).is_ok());
      }
      std::vector<std::vector<TokenId>> outputs;
      for (Collector& collector : collectors) {
        const Answer answer = collector.wait();
        EXPECT_TRUE(answer.last.status.is_ok()) << answer.last.status.to_string();
        EXPECT_EQ(answer.last.cached.cached(), 0u) << "what the client sees is the first start";
        outputs.push_back(answer.tokens);
      }
      const std::uint64_t retracted = scheduler_->stats().cache.retracted;
      if (expected.empty()) {
        EXPECT_EQ(retracted, 0u);
        expected = outputs;
      } else {
        EXPECT_GT(retracted, 0u);
        EXPECT_EQ(outputs, expected);
      }
    }
  }
}

TEST_F(SchedulerTest, SameTokensWithAndWithoutTheCacheAlsoUnderLoad) {
  std::vector<std::vector<TokenId>> prompts;
  for (std::uint64_t i = 0; i < 10; ++i) {
    prompts.push_back(random_prompt(i % 3, 100 + 37 * (i % 4)));
    const std::vector<TokenId> tail = random_prompt(100 + i, i);
    prompts.back().insert(prompts.back().end(), tail.begin(), tail.end());
  }
  for (const char* model : {"gdn-tiny+draft", "swa-tiny"}) {
    std::vector<std::vector<TokenId>> expected;
    for (const bool disabled : {true, false}) {
      SCOPED_TRACE(std::string(model) + (disabled ? " without the cache" : " with it"));
      Options options = small_options(model);
      options.disable_radix_cache = disabled;
      options.chunked_prefill_size = disabled ? 512 : 128;
      start(options);
      std::vector<Collector> collectors(prompts.size());
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        GenerateRequest request = request_of(prompts[i], 12);
        request.temperature = 0.8;
        request.seed = 7 + i;
        ASSERT_TRUE(scheduler_->submit(std::move(request), collectors[i].update()).is_ok());
      }
      std::uint64_t cached = 0;
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        const Answer answer = collectors[i].wait();
        ASSERT_TRUE(answer.last.status.is_ok()) << answer.last.status.to_string();
        cached += answer.last.cached.cached();
        if (disabled) {
          expected.push_back(answer.tokens);
        } else {
          EXPECT_EQ(answer.tokens, expected[i]) << "request " << i;
        }
      }
      EXPECT_EQ(cached > 0, !disabled);
    }
  }
}

TEST_F(SchedulerTest, StorageSurvivesFlushAndServesAgain) {
  for (const char* backend : {"memory", "file"}) {
    SCOPED_TRACE(backend);
    Options options = small_options("gdn-tiny");
    options.hicache_storage_backend = backend;
    options.hicache_storage_prefetch_policy = "wait_complete";
    options.hicache_storage_backend_extra_config =
        std::string(R"({"prefetch_threshold": 64)") +
        (backend == std::string("file") ? R"(, "directory": "/store"})" : "}");
    start(options);
    const std::vector<TokenId> prompt = random_prompt(5, 400);
    const Answer first = generate(prompt, 5);
    ASSERT_TRUE(scheduler_->quiesce(kLimit));
    ASSERT_TRUE(scheduler_->flush(kLimit));
    const Result<Explanation> why = scheduler_->explain(request_of(prompt, 0), kLimit);
    ASSERT_TRUE(why.is_ok());
    EXPECT_EQ(why->host_restore_pages, 0u);
    EXPECT_EQ(why->storage_restore_pages, 6u);
    const Answer second = generate(prompt, 5);
    EXPECT_EQ(second.tokens, first.tokens);
    EXPECT_EQ(second.last.cached.storage, 384u) << second.last.status.to_string();
    const SchedulerStats stats = scheduler_->stats();
    ASSERT_TRUE(stats.storage.has_value());
    EXPECT_GT(stats.storage->pages, 0u);
    EXPECT_NE(metrics_.render().find("sglang:cached_tokens_total{cache_source=\"storage_" +
                                     std::string(backend == std::string("file") ? "HiCacheFile" : "memory") + "\""),
              std::string::npos);
    for (const char* name : {"prefetch_pgs", "backup_pgs", "prefetch_bandwidth", "backup_bandwidth",
                             "eviction_duration_seconds", "load_back_duration_seconds"}) {
      EXPECT_NE(metrics_.render().find("sglang:" + std::string(name) + "_bucket{"), std::string::npos) << name;
    }
    EXPECT_NE(metrics_.render().find("sglang:prefetch_pgs_count{storage_backend=\"" + std::string(backend) + "\"} 1"),
              std::string::npos);
    ASSERT_TRUE(scheduler_->clear_storage(kLimit));
    // What the host has goes there again.
    ASSERT_TRUE(scheduler_->quiesce(kLimit));
    ASSERT_TRUE(scheduler_->flush(kLimit));
    const Answer third = generate(prompt, 5);
    EXPECT_EQ(third.tokens, first.tokens);
    EXPECT_EQ(third.last.cached.storage, 384u) << third.last.status.to_string();
  }
}

TEST_F(SchedulerTest, StorageIsAttachedAndDetachedWhileItRuns) {
  start(small_options("gdn-tiny"));
  EXPECT_EQ(scheduler_->storage().backend, "");
  const std::vector<TokenId> prompt = random_prompt(5, 400);
  (void)generate(prompt, 2);  // cached before the attach
  AttachRequest attach{"memory", "", "", ""};
  attach.prefetch_policy = "never";
  EXPECT_EQ(scheduler_->attach_storage(attach, kLimit).code(), StatusCode::kInvalidArgument);
  attach.prefetch_policy = "best_effort";
  attach.extra_config = R"({"no_such": 1})";
  EXPECT_EQ(scheduler_->attach_storage(attach, kLimit).code(), StatusCode::kInvalidArgument);
  attach.extra_config = R"({"prefetch_threshold": 1})";
  EXPECT_EQ(scheduler_->attach_storage(attach, kLimit).code(), StatusCode::kUnsupported);
  attach.extra_config = R"({"max_size": "1G", "prefetch_threshold": 256, "prefetch_timeout_base": 1})";
  EXPECT_EQ(scheduler_->storage().prefetch_policy, "timeout") << "a failed attach changes nothing";
  ASSERT_TRUE(scheduler_->attach_storage(attach, kLimit));
  EXPECT_EQ(scheduler_->storage().backend, "memory");
  EXPECT_EQ(scheduler_->storage().extra_config, attach.extra_config);
  EXPECT_EQ(scheduler_->storage().prefetch_policy, "best_effort");
  EXPECT_EQ(scheduler_->storage().write_policy, "write_through");
  attach.prefetch_policy = "wait_complete";
  attach.write_policy = "write_through_selective";
  EXPECT_TRUE(scheduler_->attach_storage(attach, kLimit));  // the same again, with other policies
  EXPECT_EQ(scheduler_->storage().prefetch_policy, "wait_complete");
  EXPECT_EQ(scheduler_->storage().write_policy, "write_through_selective");
  attach.extra_config.clear();
  EXPECT_TRUE(scheduler_->attach_storage(attach, kLimit)) << "nothing is said about its options";
  attach.extra_config = R"({"max_size": "2G"})";
  EXPECT_EQ(scheduler_->attach_storage(attach, kLimit).code(), StatusCode::kConflict)
      << "other options would need another store";
  attach.backend = "file";
  EXPECT_EQ(scheduler_->attach_storage(attach, kLimit).code(), StatusCode::kConflict);
  ASSERT_TRUE(scheduler_->quiesce(kLimit));
  EXPECT_GT(scheduler_->stats().storage->pages, 0u);  // what was cached before is there now
  // Detach in the middle of requests.
  std::vector<Collector> collectors(6);
  for (std::size_t i = 0; i < collectors.size(); ++i) {
    ASSERT_TRUE(scheduler_->submit(request_of(random_prompt(50 + i, 300), 8), collectors[i].update()).is_ok());
  }
  ASSERT_TRUE(scheduler_->detach_storage(kLimit));
  EXPECT_EQ(scheduler_->storage().backend, "");
  for (Collector& collector : collectors) EXPECT_TRUE(collector.wait().last.status.is_ok());
  EXPECT_TRUE(scheduler_->detach_storage(kLimit));
  EXPECT_EQ(scheduler_->clear_storage(kLimit).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(scheduler_->stats().storage.has_value());
}

// What the file said when it was attached counts, not what it says now.
TEST_F(SchedulerTest, AnEditedFileIsAnotherConfiguration) {
  const auto write = [&](const std::string& text) {
    auto file = files_.open("/store.json", {.write = true, .create = true, .truncate = true});
    ASSERT_TRUE(file.is_ok() && write_fully(**file, std::as_bytes(std::span(text)), 0).is_ok());
  };
  AttachRequest attach{"memory", "@/store.json", "", ""};
  for (const bool is_given_at_start : {true, false}) {
    SCOPED_TRACE(is_given_at_start);
    write(R"({"max_size": "1G"})");
    Options options = small_options("gdn-tiny");
    if (is_given_at_start) {
      options.hicache_storage_backend = attach.backend;
      options.hicache_storage_backend_extra_config = attach.extra_config;
    }
    start(options);
    EXPECT_TRUE(scheduler_->attach_storage(attach, kLimit)) << "the same again";
    EXPECT_TRUE(scheduler_->attach_storage(attach, kLimit));
    write(R"({"max_size": "2G"})");
    const Status edited = scheduler_->attach_storage(attach, kLimit);
    EXPECT_EQ(edited.code(), StatusCode::kConflict);
    EXPECT_NE(edited.message().find("attached already, with another extra configuration"), std::string::npos);
    attach.replace = true;
    EXPECT_TRUE(scheduler_->attach_storage(attach, kLimit));
    attach.replace = false;
    EXPECT_TRUE(scheduler_->attach_storage(attach, kLimit)) << "it is as attached now";
  }
}

// A device that holds two requests at a time, storage that comes and goes, clients that hang up: nobody hangs, and who
// is answered is answered right.
TEST_F(SchedulerTest, TroubleOfEveryKindChangesNoAnswer) {
  Options options = small_options("gdn-tiny");
  options.disable_radix_cache = true;
  start(options);
  constexpr std::size_t kPrompts = 6;
  std::vector<std::vector<TokenId>> prompts, expected;
  for (std::uint64_t i = 0; i < kPrompts; ++i) {
    prompts.push_back(random_prompt(i % 2, 150 + 40 * i));
    const std::vector<TokenId> tail = random_prompt(70 + i, 20);
    prompts.back().insert(prompts.back().end(), tail.begin(), tail.end());
    expected.push_back(generate(prompts.back(), 10).tokens);
  }
  options = small_options("gdn-tiny");
  options.max_total_tokens = 1024;
  options.max_mamba_cache_size = 7;
  options.hicache_ratio = 1.5;
  start(options);
  Rng rng(4);
  const AttachRequest attach{"memory", R"({"max_size": "2M"})", "", ""};
  std::vector<Collector> collectors(60);
  for (std::size_t i = 0; i < collectors.size(); ++i) {
    const Result<Scheduler::Ticket> ticket =
        scheduler_->submit(request_of(prompts[i % kPrompts], 10), collectors[i].update());
    ASSERT_TRUE(ticket.is_ok());
    if (rng.chance(1, 6)) scheduler_->cancel(*ticket);
    if (i % 12 == 3) {
      EXPECT_TRUE(scheduler_->attach_storage(attach, kLimit).is_ok());
    } else if (i % 12 == 9) {
      EXPECT_TRUE(scheduler_->detach_storage(kLimit).is_ok());
    }
  }
  std::size_t answered = 0;
  for (std::size_t i = 0; i < collectors.size(); ++i) {
    const Answer answer = collectors[i].wait();
    if (answer.last.status.code() == StatusCode::kCancelled) continue;
    ASSERT_TRUE(answer.last.status.is_ok()) << answer.last.status.to_string();
    EXPECT_EQ(answer.tokens, expected[i % kPrompts]) << "request " << i;
    ++answered;
  }
  EXPECT_GT(answered, 30u);
  ASSERT_TRUE(scheduler_->flush(kLimit));
  const SchedulerStats stats = scheduler_->stats();
  EXPECT_EQ(stats.cache.internal_errors, 0u);
  for (const TierUsage& usage : stats.tiers) {
    if (usage.tier == "storage") continue;
    EXPECT_EQ(usage.slots, 0u) << usage.tier << " " << usage.component;
  }
}

TEST_F(SchedulerTest, PublishesTheReferencesMetricNames) {
  Options options = small_options("swa-tiny");
  options.served_model_name = "my-model";
  start(options);
  const std::vector<TokenId> prompt = random_prompt(1, 200);
  (void)generate(prompt, 3);
  (void)generate(prompt, 3);
  ASSERT_TRUE(scheduler_->quiesce(kLimit));
  scheduler_.reset();  // publishes once more
  const std::string text = metrics_.render();
  for (const char* line :
       {"sglang:prompt_tokens_total{model_name=\"my-model\"} 400",
        "sglang:generation_tokens_total{model_name=\"my-model\"} 6",
        "sglang:cached_tokens_total{cache_source=\"device\",model_name=\"my-model\"} 192",
        "sglang:cached_tokens_total{cache_source=\"total\",model_name=\"my-model\"} 192",
        "sglang:num_requests_total{model_name=\"my-model\"} 2",
        "sglang:time_to_first_token_seconds_count{model_name=\"my-model\"} 2",
        "sglang:inter_token_latency_seconds_count{model_name=\"my-model\"} 4",
        "sglang:num_running_reqs{model_name=\"my-model\"} 0", "sglang:hicache_host_total_tokens",
        "sglang:hicache_host_used_tokens", "sglang:prefetched_tokens_total", "sglang:backuped_tokens_total",
        "sglang:load_back_tokens_total", "sglang:cache_hit_rate", "sglang:num_used_tokens{model_name=\"my-model\"} 0\n",
        "sglang:token_usage{model_name=\"my-model\"} 0\n",
        "larder_tier_used_bytes{component=\"swa\",model_name=\"my-model\",tier=\"host\"}"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
  // What is cached fills the tier, and is no use of it.
  EXPECT_EQ(text.find("larder_tier_used_bytes{component=\"full\",model_name=\"my-model\",tier=\"device\"} 0\n"),
            std::string::npos);
}

TEST_F(SchedulerTest, RefusesWhatCannotRun) {
  start(small_options("gqa-tiny"));
  const auto refused = [&](GenerateRequest request, const std::string& part) {
    const Result<Scheduler::Ticket> ticket = scheduler_->submit(std::move(request), {});
    EXPECT_EQ(ticket.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(ticket.status().message().find(part), std::string::npos) << ticket.status().message();
  };
  refused(request_of({}, 4), "empty");
  refused(request_of({1, 2, 512}, 4), "token id 512 at position 2");
  refused(request_of({1}, 40'000), "context of 32768");
  refused(request_of({1}, ~std::uint64_t{0}), "context of 32768");
  refused(request_of({1}, 5'000), "raise --max-total-tokens");
  GenerateRequest hot = request_of({1}, 4);
  hot.temperature = -1;
  refused(hot, "temperature");
  hot.temperature = 1;
  hot.top_p = 0;
  refused(hot, "top_p");
  const auto not_explained = [&](std::vector<TokenId> prompt, const std::string& part) {
    const Result<Explanation> why = scheduler_->explain(request_of(std::move(prompt), 40'000), kLimit);
    EXPECT_EQ(why.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(why.status().message().find(part), std::string::npos) << why.status().message();
  };
  not_explained({}, "empty");
  not_explained({1, 2, 512}, "token id 512 at position 2");
  not_explained(std::vector<TokenId>(40'000, 1), "context of 32768");
  not_explained(std::vector<TokenId>(5'000, 1), "raise --max-total-tokens");
  EXPECT_TRUE(scheduler_->explain(request_of({1}, 40'000), kLimit).is_ok()) << "its output is none of the question";
  EXPECT_EQ(generate({1}, 0).updates, 1u);  // prefill only
  EXPECT_EQ(generate({1}, 1).tokens.size(), 1u);
}

TEST_F(SchedulerTest, CancelFlushAndShutdownEndEveryRequestOnce) {
  Options options = small_options("gqa-tiny");
  options.max_queued_requests = 6;
  start(options);
  std::vector<Collector> collectors(10);
  std::vector<Scheduler::Ticket> tickets;
  std::uint64_t refused = 0;
  for (std::size_t i = 0; i < collectors.size(); ++i) {
    const Result<Scheduler::Ticket> ticket =
        scheduler_->submit(request_of(random_prompt(i, 200), 500), collectors[i].update());
    if (ticket.is_ok()) {
      tickets.push_back(*ticket);
    } else {
      EXPECT_EQ(ticket.status().code(), StatusCode::kOverloaded);
      ++refused;
    }
  }
  ASSERT_GE(tickets.size(), 6u);
  EXPECT_EQ(scheduler_->flush(Nanos{0}).code(), StatusCode::kDeadlineExceeded);  // requests are there
  scheduler_->cancel(tickets[0]);
  scheduler_->cancel(tickets[5]);
  scheduler_->cancel(12345);
  const Answer cancelled_answer = collectors[0].wait();
  EXPECT_EQ(cancelled_answer.last.finish, FinishReason::kAbort);
  EXPECT_EQ(cancelled_answer.last.status.code(), StatusCode::kCancelled);
  scheduler_.reset();
  for (std::size_t i = 1; i < tickets.size(); ++i) {
    const Answer answer = collectors[i].wait();
    EXPECT_TRUE(answer.last.finish == FinishReason::kAbort || answer.last.finish == FinishReason::kLength);
  }
}

TEST_F(SchedulerTest, WhoHasAllThatItWantsIsNotAborted) {
  start(small_options("gqa-tiny"));
  Collector collector;
  const auto ticket = scheduler_->submit(request_of(random_prompt(1, 100), 3000), collector.update());
  ASSERT_TRUE(ticket.is_ok()) << ticket.status().to_string();
  scheduler_->finish(*ticket);
  const Answer answer = collector.wait();
  EXPECT_EQ(answer.last.finish, FinishReason::kStop);
  EXPECT_TRUE(answer.last.status.is_ok()) << answer.last.status.to_string();
  EXPECT_EQ(answer.last.completion_tokens, answer.tokens.size());
  EXPECT_LT(answer.tokens.size(), 3000u);
  scheduler_->finish(*ticket);  // has ended
  scheduler_->finish(12345);
  ASSERT_TRUE(scheduler_->flush(kLimit));
}

// A loop that has ended by an exception must not look like one that is busy.
TEST_F(SchedulerTest, AnExceptionEndsEveryRequestAndIsReported) {
  std::atomic<bool> is_broken = false;
  Options options = small_options("gqa-tiny");
  options.max_running_requests = 2;
  start_breaking(options, is_broken);
  ASSERT_NE(scheduler_, nullptr);
  EXPECT_EQ(generate(random_prompt(9, 100), 5).tokens.size(), 5u);
  EXPECT_TRUE(scheduler_->health().is_ok());
  std::vector<Collector> collectors(5);  // two run, the others wait
  for (std::size_t i = 0; i < collectors.size(); ++i) {
    ASSERT_TRUE(scheduler_->submit(request_of(random_prompt(i, 200), 1'500), collectors[i].update()).is_ok());
  }
  (void)scheduler_->stats();  // from now on it remembers requests
  std::promise<Status> flushed;
  ThreadPoolExecutor other("other", 1, 1);
  ASSERT_TRUE(other.post([&] { flushed.set_value(scheduler_->flush(kLimit)); }).is_ok());
  is_broken = true;
  for (Collector& collector : collectors) {
    const Answer answer = collector.wait();
    EXPECT_EQ(answer.last.finish, FinishReason::kAbort);
    EXPECT_EQ(answer.last.status.code(), StatusCode::kInternal) << answer.last.status.to_string();
  }
  EXPECT_EQ(flushed.get_future().get().code(), StatusCode::kInternal);
  EXPECT_EQ(scheduler_->health().code(), StatusCode::kInternal);
  EXPECT_NE(scheduler_->health().message().find("the engine broke"), std::string::npos);
  EXPECT_EQ(scheduler_->submit(request_of({1}, 1), {}).status().code(), StatusCode::kInternal);
  EXPECT_EQ(scheduler_->quiesce(kLimit).code(), StatusCode::kInternal);
  EXPECT_EQ(scheduler_->storage().backend, "");
  const SchedulerStats after = scheduler_->stats();
  EXPECT_EQ(after.running + after.queued, 0u);
  for (const char* line :
       {"sglang:num_running_reqs{model_name=\"gqa-tiny\"} 0\n", "sglang:num_queue_reqs{model_name=\"gqa-tiny\"} 0\n"}) {
    EXPECT_NE(metrics_.render().find(line), std::string::npos) << line;
  }
  scheduler_.reset();  // does not hang
}

TEST_F(SchedulerTest, StopsAtTheEndOfSequenceUnlessTold) {
  start(small_options("gqa-tiny"));
  const std::vector<TokenId> prompt = random_prompt(3, 80);
  const Answer free_run = generate(prompt, 20);
  GenerateRequest stopping = request_of(prompt, 20);
  stopping.stop_tokens = {free_run.tokens[7]};
  const Answer stopped = generate(stopping);
  const auto first = std::find(free_run.tokens.begin(), free_run.tokens.end(), free_run.tokens[7]);
  EXPECT_EQ(stopped.last.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.tokens.size(), static_cast<std::size_t>(first - free_run.tokens.begin()) + 1);
  EXPECT_EQ(stopped.tokens.back(), free_run.tokens[7]);
}

TEST_F(SchedulerTest, CreateRefusesWithTheOptionsName) {
  const auto refused = [&](const Options& options, const std::string& part) {
    const Result<std::unique_ptr<Scheduler>> made = Scheduler::create(options, files_, real_clock(), metrics_);
    ASSERT_FALSE(made.is_ok());
    EXPECT_NE(made.status().message().find(part), std::string::npos) << made.status().to_string();
  };
  Options o = small_options("gqa-tiny");
  o.hicache_storage_backend = "tape";
  refused(o, "file, hf3fs, memory, mooncake, plugin");
  o = small_options("nope");
  refused(o, "--model");
  o = small_options("gdn-tiny");
  o.max_mamba_cache_size = 1;
  refused(o, "max-mamba-cache-size");
  o = small_options("swa-tiny");
  o.max_total_tokens = 128;
  refused(o, "max-total-tokens");
  o = small_options("gqa-tiny");
  o.hicache_ratio = 1e-9;
  refused(o, "--hicache-ratio");
}

}  // namespace
}  // namespace larder
