// SPDX-License-Identifier: Apache-2.0
#include "tests/attach/attach_rig.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "tests/support/rest.h"

namespace larder::attach {
namespace {

constexpr std::size_t kConversations = 64;
constexpr std::size_t kTurns = 4;
constexpr std::size_t kProbes = 40;
constexpr std::size_t kProbeTokens = 97;  // six pages, and one token that is computed
constexpr std::uint64_t kAnswerTokens = 12;

using support::random_tokens;
using support::request_of;

Result<Conversation> hold_conversation(Scheduler& scheduler, Rng rng, std::size_t number) {
  Conversation conversation;
  std::vector<TokenId> said = random_tokens(rng, 40 + rng.below(50));
  for (std::size_t turn = 0; turn < kTurns; ++turn) {
    Turn next;
    next.request = request_of(said, kAnswerTokens);
    if (number % 2 == 1) {
      next.request.temperature = 0.8;
      next.request.seed = 100 + number;
    }
    if (number % 3 == 2) next.request.salt = "tenant";
    Result<Answer> answer = ask(scheduler, next.request);
    if (!answer.is_ok()) return answer.status();
    next.answer = std::move(answer->tokens);
    said.insert(said.end(), next.answer.begin(), next.answer.end());
    const std::vector<TokenId> question = random_tokens(rng, 15 + rng.below(30));
    said.insert(said.end(), question.begin(), question.end());
    conversation.push_back(std::move(next));
  }
  return conversation;
}

}  // namespace

std::uint64_t test_seed() {
  const char* const text = std::getenv("LARDER_TEST_SEED");
  return text == nullptr ? 20260611 : std::strtoull(text, nullptr, 10);
}

Options attach_options(const std::string& model) {
  Options options;
  options.model = model;
  options.page_size = 16;
  options.max_total_tokens = 1280;
  options.max_mamba_cache_size = 24;
  options.chunked_prefill_size = 64;
  options.max_running_requests = 4;
  options.threads = 1;
  options.hicache_ratio = 2.5;
  // Short waits: a storage that hangs costs a request this much. Only a process that starts with a backend takes them.
  options.hicache_storage_backend = "memory";
  options.hicache_storage_backend_extra_config =
      R"({"prefetch_threshold": 32, "prefetch_timeout_base": 0.02, "prefetch_timeout_per_ki_token": 0.01,)"
      R"( "prefetch_timeout_max": 0.05})";
  return options;
}

Result<Answer> ask(Scheduler& scheduler, const GenerateRequest& request, const std::function<void()>& at_end) {
  support::Collector collector;
  const Result<Scheduler::Ticket> ticket =
      scheduler.submit(request, [at_end, update = collector.update()](const GenerateUpdate& u) {
        if (at_end && u.finish != FinishReason::kRunning) at_end();
        update(u);
      });
  if (!ticket.is_ok()) return ticket.status();
  Answer answer = collector.wait();
  if (!answer.last.status.is_ok()) return answer.last.status;
  return answer;
}

Result<Truth> make_truth(const std::string& model, std::uint64_t seed) {
  Options options = attach_options(model);
  options.disable_radix_cache = true;
  options.hicache_storage_backend.clear();
  options.hicache_storage_backend_extra_config.clear();
  Result<std::unique_ptr<Stage>> stage = Stage::create(options, nullptr);
  if (!stage.is_ok()) return stage.status();
  Scheduler& scheduler = (*stage)->scheduler();
  Rng rng(seed);
  Truth truth;
  for (std::size_t i = 0; i < kConversations; ++i) {
    Result<Conversation> conversation = hold_conversation(scheduler, rng.fork(), i);
    if (!conversation.is_ok()) return conversation.status();
    truth.conversations.push_back(std::move(conversation).value());
  }
  for (std::size_t i = 0; i < kProbes; ++i) {
    Turn probe;
    probe.request = request_of(random_tokens(rng, kProbeTokens), 1);
    Result<Answer> answer = ask(scheduler, probe.request);
    if (!answer.is_ok()) return answer.status();
    probe.answer = std::move(answer->tokens);
    truth.probes.push_back(std::move(probe));
  }
  return truth;
}

Result<std::unique_ptr<Stage>> Stage::create(const Options& options, const MoreBackends& more) {
  std::unique_ptr<Stage> stage(new Stage());
  Result<std::unique_ptr<Composition>> parts =
      Composition::create(options, real_file_system(), real_clock(), stage->metrics_, more);
  if (!parts.is_ok()) return parts.status();
  stage->parts_ = parts->get();
  Result<std::unique_ptr<ReferenceEngine>> engine =
      ReferenceEngine::create((*parts)->model, *(*parts)->device_pools, options.threads);
  if (!engine.is_ok()) return engine.status();
  auto scheduler = std::make_unique<SchedulerImpl>(std::move(parts).value(), std::move(engine).value(), real_clock(),
                                                   stage->metrics_);
  LARDER_RETURN_IF_ERROR(scheduler->start_thread());
  stage->scheduler_ = std::move(scheduler);
  LARDER_RETURN_IF_ERROR(stage->scheduler_->detach_storage(kPatience));
  return stage;
}

Status Stage::check_invariants() {
  Status found;
  // A request of one token, for its last update: it comes on the scheduler's thread, between two calls of the cache.
  const Result<Answer> answer =
      ask(*scheduler_, request_of({7}, 0), [&] { found = parts_->cache->check_invariants(); });
  return answer.is_ok() ? found : answer.status();
}

namespace {

Status check_nothing_taken(const SchedulerStats& stats) {
  for (const TierUsage& usage : stats.tiers) {
    if (usage.tier == "storage" || usage.slots == 0) continue;
    return internal_error(std::to_string(usage.slots) + " slots of " + usage.tier + " " + usage.component +
                          " are taken after a flush: leaked");
  }
  const bool is_busy = stats.storage && stats.storage->queued > 0;
  return is_busy ? internal_error("storage has operations in flight") : Status::ok();
}

}  // namespace

Status Stage::check_empty() {
  LARDER_RETURN_IF_ERROR(scheduler_->quiesce(kPatience));
  LARDER_RETURN_IF_ERROR(check_invariants());
  LARDER_RETURN_IF_ERROR(scheduler_->flush(kPatience));
  const SchedulerStats stats = scheduler_->stats();
  if (stats.running + stats.queued > 0) return internal_error("requests are under way");
  const CacheCounters& c = stats.cache;
  if (c.internal_errors > 0) return internal_error("the cache counts internal errors");
  if (c.backed_up + c.prefetched != c.host_resident + c.host_evicted + c.host_flushed + c.host_lost) {
    return internal_error("host pages are not conserved");
  }
  // A moment may pass until the slots of a detached backend's operations are back, and until a backend, whose callback
  // the cache has seen, counts its operation as ended.
  const TimePoint deadline = real_clock().now() + kPatience;
  while (true) {
    const Status empty = check_nothing_taken(scheduler_->stats());
    if (empty.is_ok() || real_clock().now() > deadline) return empty;
    rest();
  }
}

std::string compare(const Turn& turn, const Result<Answer>& got) {
  if (!got.is_ok()) return "failed: " + got.status().to_string();
  if (got->tokens == turn.answer) return "";
  const auto differs = std::mismatch(got->tokens.begin(), got->tokens.end(), turn.answer.begin(), turn.answer.end());
  const CachedTokens& cached = got->last.cached;
  return "wrong token at " + std::to_string(differs.first - got->tokens.begin()) + " of " +
         std::to_string(turn.answer.size()) + "; of the prompt's " + std::to_string(cached.prompt) + " tokens " +
         std::to_string(cached.device) + " came from the device, " + std::to_string(cached.host) + " from the host, " +
         std::to_string(cached.storage) + " from storage";
}

Crowd::Crowd(Scheduler& scheduler, const Truth& truth, std::size_t clients, std::uint64_t seed)
    : scheduler_(scheduler), truth_(truth) {
  threads_ = std::make_unique<ThreadPoolExecutor>("client", clients, clients);
  Rng rng(seed);
  for (std::size_t i = 0; i < clients; ++i) (void)threads_->post([this, i, own = rng.fork()] { talk(i, own); });
}

Crowd::~Crowd() { stop(); }

void Crowd::talk(std::size_t client, Rng rng) {
  while (true) {
    const auto number = static_cast<std::size_t>(rng.below(truth_.conversations.size()));
    const Conversation& conversation = truth_.conversations[number];
    // Some come back to a conversation in its middle, some leave early.
    const std::size_t first = rng.chance(1, 3) ? static_cast<std::size_t>(rng.below(conversation.size())) : 0;
    for (std::size_t turn = first; turn < conversation.size() && (turn == first || !rng.chance(1, 4)); ++turn) {
      if (!may_ask()) return;
      note(client, number, turn, ask(scheduler_, conversation[turn].request));
    }
  }
}

bool Crowd::may_ask() {
  LockGuard guard(mutex_);
  while (is_paused_ && !is_stopping_) changed_.wait(mutex_);
  if (is_stopping_ || !failure_.empty()) return false;
  ++asking_;
  return true;
}

void Crowd::note(std::size_t client, std::size_t conversation, std::size_t turn, const Result<Answer>& got) {
  const Turn& expected = truth_.conversations[conversation][turn];
  const std::string wrong = compare(expected, got);
  LockGuard guard(mutex_);
  --asking_;
  ++totals_.answers;
  if (got.is_ok()) {
    totals_.prompt += got->last.cached.prompt;
    totals_.device += got->last.cached.device;
    totals_.host += got->last.cached.host;
    totals_.storage += got->last.cached.storage;
  }
  if (!wrong.empty() && failure_.empty()) {
    failure_ = "client " + std::to_string(client) + ", conversation " + std::to_string(conversation) + ", turn " +
               std::to_string(turn) + ": " + wrong;
  }
  changed_.notify_all();
}

bool Crowd::wait_answers(std::uint64_t more) {
  const TimePoint deadline = real_clock().now() + kPatience;
  LockGuard guard(mutex_);
  const std::uint64_t enough = totals_.answers + more;
  while (totals_.answers < enough && failure_.empty()) {
    const Nanos left = deadline - real_clock().now();
    if (left <= Nanos(0)) {
      failure_ = "the clients got no answer for a minute";
      break;
    }
    (void)changed_.wait_for(mutex_, left);
  }
  return failure_.empty();
}

bool Crowd::pause() {
  const TimePoint deadline = real_clock().now() + kPatience;
  LockGuard guard(mutex_);
  is_paused_ = true;
  while (asking_ > 0 && failure_.empty()) {
    const Nanos left = deadline - real_clock().now();
    if (left <= Nanos(0)) return false;
    (void)changed_.wait_for(mutex_, left);
  }
  return failure_.empty();
}

void Crowd::resume() {
  LockGuard guard(mutex_);
  is_paused_ = false;
  changed_.notify_all();
}

void Crowd::stop() {
  {
    LockGuard guard(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  threads_.reset();
}

std::string Crowd::failure() const {
  LockGuard guard(mutex_);
  return failure_;
}

Crowd::Totals Crowd::totals() const {
  LockGuard guard(mutex_);
  return totals_;
}

}  // namespace larder::attach
