// SPDX-License-Identifier: Apache-2.0
// Tests of a scheduler on real threads: small options, requests of random tokens, and answers that are waited for.
//
// Threads: the test's; updates come from the scheduler's. Header only.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "engine/scheduler_impl.h"

namespace larder::support {

[[nodiscard]] inline Options tiny_options(const std::string& model = "gqa-tiny") {
  Options options;
  options.model = model;
  options.max_total_tokens = 2048;
  options.chunked_prefill_size = 256;
  options.max_running_requests = 2;
  options.threads = 1;
  return options;
}

[[nodiscard]] inline std::vector<TokenId> random_tokens(Rng& rng, std::size_t count) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng.below(256));
  return tokens;
}
[[nodiscard]] inline std::vector<TokenId> random_prompt(std::uint64_t seed, std::size_t count) {
  Rng rng(seed);
  return random_tokens(rng, count);
}

[[nodiscard]] inline GenerateRequest request_of(std::vector<TokenId> prompt, std::uint64_t max_new_tokens) {
  GenerateRequest request;
  request.tokens = std::move(prompt);
  request.max_new_tokens = max_new_tokens;
  request.ignore_eos = true;
  return request;
}

struct Answer {
  std::vector<TokenId> tokens;
  GenerateUpdate last;
  std::size_t updates = 0;
};

// Collects the updates of a request, which may outlive it.
class Collector {
 public:
  [[nodiscard]] Scheduler::Update update() const {
    return [state = state_](const GenerateUpdate& u) {
      state->answer.tokens.insert(state->answer.tokens.end(), u.new_tokens.begin(), u.new_tokens.end());
      ++state->answer.updates;
      if (u.finish == FinishReason::kRunning) return;
      state->answer.last = u;
      state->done.set_value(state->answer);
    };
  }
  // Once. Fails the test instead of hanging it.
  Answer wait() {
    std::future<Answer> future = state_->done.get_future();
    if (future.wait_for(std::chrono::seconds(60)) == std::future_status::ready) return future.get();
    ADD_FAILURE() << "the request never ended";
    return failed(deadline_exceeded("the request never ended"));
  }
  [[nodiscard]] static Answer failed(const Status& status) {
    Answer answer;
    answer.last.status = status;
    return answer;
  }

 private:
  struct State {
    Answer answer;
    std::promise<Answer> done;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// From submit to the last update.
inline Answer generate(Scheduler& scheduler, GenerateRequest request) {
  Collector collector;
  const Result<Scheduler::Ticket> ticket = scheduler.submit(std::move(request), collector.update());
  EXPECT_TRUE(ticket.is_ok()) << ticket.status().to_string();
  return ticket.is_ok() ? collector.wait() : Collector::failed(ticket.status());
}

// A scheduler whose engine is what `wrap` makes of the real one.
template <class Wrap>
Result<std::unique_ptr<Scheduler>> wrapped_scheduler(const Options& options, FileSystem& files,
                                                     MetricsRegistry& metrics, const Wrap& wrap) {
  LARDER_ASSIGN_OR_RETURN(auto parts, Composition::create(options, files, real_clock(), metrics));
  LARDER_ASSIGN_OR_RETURN(auto engine, ReferenceEngine::create(parts->model, *parts->device_pools, options.threads));
  auto made = std::make_unique<SchedulerImpl>(std::move(parts), wrap(std::move(engine)), real_clock(), metrics);
  LARDER_RETURN_IF_ERROR(made->start_thread());
  return std::unique_ptr<Scheduler>(std::move(made));
}

}  // namespace larder::support
