// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/mirrored_engine.h"
#include "engine/scheduler_impl.h"
#include "engine/tokenizer.h"

namespace larder {
namespace {

// Admin calls waiting for the loop. Each is a person or a probe; more means that nobody answers them.
constexpr std::size_t kMaxCommands = 256;
// How long a stopping scheduler waits for backups under way: they are worth having, but a stop must end.
constexpr Nanos kShutdownLimit = std::chrono::seconds(10);
constexpr Nanos kPublishInterval = std::chrono::milliseconds(250);

std::uint32_t compute_threads(const Options& options) {
  if (options.threads > 0) return options.threads;
  constexpr std::uint32_t kMost = 64;  // a step of a small model has no work for more
  return std::clamp(std::thread::hardware_concurrency(), 1u, kMost);
}

}  // namespace

Result<std::unique_ptr<Scheduler>> Scheduler::create(const Options& options, FileSystem& files, Clock& clock,
                                                     MetricsRegistry& metrics, const MoreBackends& more,
                                                     const OpenDevice& open) {
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<Composition> parts,
                          Composition::create(options, files, clock, metrics, more, open));
  LARDER_RETURN_IF_ERROR(check_tokenizer(parts->model));
  Composition& p = *parts;
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<ReferenceEngine> engine,
                          p.device->is_host_memory()
                              ? ReferenceEngine::create(p.model, *p.device_pools, compute_threads(options))
                              : make_mirrored_engine(p.model, *p.device, *p.device_pools, compute_threads(options)));
  auto scheduler = std::make_unique<SchedulerImpl>(std::move(parts), std::move(engine), clock, metrics);
  LARDER_RETURN_IF_ERROR(scheduler->start_thread());
  return std::unique_ptr<Scheduler>(std::move(scheduler));
}

SchedulerImpl::SchedulerImpl(std::unique_ptr<Composition> parts, std::unique_ptr<ReferenceEngine> engine, Clock& clock,
                             MetricsRegistry& metrics)
    : clock_(clock),
      device_pages_(parts->device_pools->slots(ComponentKind::kFull).capacity()),
      parts_(std::move(parts)),
      engine_(std::move(engine)),
      metrics_(metrics,
               parts_->options.served_model_name.empty() ? parts_->model.id : parts_->options.served_model_name),
      loop_(LoopLimits{parts_->options.max_running_requests, parts_->options.chunked_prefill_size, parts_->options.seed,
                       parts_->config.prefetch_threshold},
            LoopParts{parts_->cache.get(), engine_.get(), &parts_->model, &clock_, &metrics_}),
      configured_backend_(parts_->options.hicache_storage_backend),
      extra_config_(parts_->options.hicache_storage_backend_extra_config),
      storage_options_(parts_->storage_options),
      prefetch_policy_(parts_->config.prefetch_policy),
      write_policy_(parts_->config.write_policy),
      next_publish_(clock.now()) {
  metrics_.set_storage(parts_->options.hicache_storage_backend);
  (void)view_storage();
}

Status SchedulerImpl::start_thread() {
  thread_ = std::make_unique<ThreadPoolExecutor>("scheduler", 1, 1);
  return thread_->post([this] { run(); });
}

SchedulerImpl::~SchedulerImpl() {
  {
    LockGuard guard(mutex_);
    is_stopping_ = true;
  }
  parts_->cache->wake();
  thread_.reset();  // joins
}

Status SchedulerImpl::check_prompt(const std::vector<TokenId>& tokens, std::uint64_t max_new_tokens) const {
  const ModelSpec& model = parts_->model;
  if (tokens.empty()) return invalid_argument("the prompt is empty; send at least one token");
  const auto out_of_range =
      std::find_if(tokens.begin(), tokens.end(), [&](TokenId token) { return token >= model.vocab_size; });
  if (out_of_range != tokens.end()) {
    return invalid_argument("token id " + std::to_string(*out_of_range) + " at position " +
                            std::to_string(out_of_range - tokens.begin()) + " is not below the vocabulary size " +
                            std::to_string(model.vocab_size));
  }
  const std::uint64_t context = model.context_length;
  if (tokens.size() > context || max_new_tokens > context - tokens.size()) {
    return invalid_argument("prompt of " + std::to_string(tokens.size()) + " + " + std::to_string(max_new_tokens) +
                            " new tokens is longer than the context of " + std::to_string(context) + " tokens");
  }
  const std::uint64_t fed = tokens.size() + (max_new_tokens > 0 ? max_new_tokens - 1 : 0);
  const std::uint64_t pages = (fed + model.page_size - 1) / model.page_size;
  if (pages > device_pages_) {
    return invalid_argument("prompt of " + std::to_string(tokens.size()) + " + " + std::to_string(max_new_tokens) +
                            " new tokens needs " + std::to_string(pages) + " device pages; there are " +
                            std::to_string(device_pages_) + " (raise --max-total-tokens)");
  }
  return Status::ok();
}

namespace {

Status check_sampling(const GenerateRequest& r) {
  if (!(r.temperature >= 0 && std::isfinite(r.temperature))) {
    return invalid_argument("temperature must be a number of at least 0");
  }
  if (!(r.top_p > 0 && r.top_p <= 1)) return invalid_argument("top_p must be above 0 and at most 1");
  return Status::ok();
}

}  // namespace

Result<Scheduler::Ticket> SchedulerImpl::submit(GenerateRequest request, Update update) {
  LARDER_RETURN_IF_ERROR(check_prompt(request.tokens, request.max_new_tokens));
  LARDER_RETURN_IF_ERROR(check_sampling(request));
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = std::move(request.tokens);
  sequence->prompt = sequence->tokens.size();
  sequence->cached.prompt = sequence->prompt;
  sequence->request = std::move(request);
  sequence->submitted = clock_.now();
  Ticket ticket = 0;
  {
    LockGuard guard(mutex_);
    if (is_stopping_) return why_stopped();
    if (submitted_.size() + waiting_ >= parts_->options.max_queued_requests) {
      return overloaded(std::to_string(submitted_.size() + waiting_) +
                        " requests are waiting, which is the limit (--max-queued-requests)");
    }
    ticket = sequence->ticket = next_ticket_++;
    submitted_.push_back(std::move(sequence));
    submitted_.back()->update = std::move(update);  // now that it is taken: from here on it is told its end
  }
  parts_->cache->wake();
  return ticket;
}

void SchedulerImpl::cancel(Ticket ticket) { leave({ticket, false}); }
void SchedulerImpl::finish(Ticket ticket) { leave({ticket, true}); }

void SchedulerImpl::leave(Leaving one) {
  {
    LockGuard guard(mutex_);
    if (is_stopping_) return;
    leaving_.push_back(one);
  }
  parts_->cache->wake();
}

Status SchedulerImpl::post(Command command) {
  {
    LockGuard guard(mutex_);
    if (is_stopping_) return why_stopped();
    if (commands_.size() >= kMaxCommands) return overloaded("too many administrative calls are waiting");
    commands_.push_back(std::move(command));
  }
  parts_->cache->wake();
  return Status::ok();
}

Status SchedulerImpl::why_stopped() const {
  return failure_.is_ok() ? cancelled("the scheduler is stopping") : failure_;
}

Status SchedulerImpl::health() const {
  LockGuard guard(mutex_);
  return failure_;
}

std::string exception_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of a type that nobody knows";
  }
}

void SchedulerImpl::run() {
  try {
    while (take_mail()) {
      const bool has_moved = loop_.start_those_that_wait();
      {
        LockGuard guard(mutex_);  // a step may be long, and those that have started wait no more
        waiting_ = loop_.waiting();
      }
      const bool moved = loop_.go_on(has_moved);
      check_waiters();
      end_clears();
      publish(!moved);
      if (!moved) (void)parts_->cache->poll(wait_time());
    }
    shut_down();
  } catch (...) {
    fail();
  }
}

bool SchedulerImpl::take_mail() {
  std::vector<std::unique_ptr<Sequence>> submitted;
  std::vector<Leaving> leaving;
  {
    LockGuard guard(mutex_);
    if (is_stopping_) return false;
    submitted.swap(submitted_);
    leaving.swap(leaving_);
    taken_.swap(commands_);
    waiting_ = loop_.waiting() + submitted.size();
  }
  for (std::unique_ptr<Sequence>& sequence : submitted) loop_.add(std::move(sequence));
  for (const Leaving& one : leaving) {
    if (one.is_finished) {
      loop_.finish(one.ticket);
    } else {
      loop_.cancel(one.ticket);
    }
  }
  for (const Command& command : taken_) command();
  taken_.clear();
  return true;
}

void SchedulerImpl::check_waiters() {
  const TimePoint now = clock_.now();
  std::erase_if(waiters_, [&](const Waiter& waiter) {
    if (waiter.try_now()) return true;
    if (now < waiter.deadline) return false;
    waiter.expire();
    return true;
  });
}

Nanos SchedulerImpl::wait_time() const {
  Nanos wait = loop_.wait_hint();
  const TimePoint now = clock_.now();
  for (const Waiter& waiter : waiters_) wait = std::min(wait, std::max(waiter.deadline - now, Nanos{0}));
  // Storage has no timers of its own: what waits there is looked at by publish().
  const bool waits_for_storage = !parts_->retired.empty() || !clears_.empty();
  if (parts_->cache->operations_in_flight() > 0 || waits_for_storage) wait = std::min(wait, kPublishInterval);
  return std::max(wait, Nanos(std::chrono::microseconds(100)));
}

// Often enough for a dashboard while busy, and once more with the last numbers when work ends.
void SchedulerImpl::publish(bool is_at_rest) {
  const bool just_stopped = is_at_rest && !was_at_rest_;
  was_at_rest_ = is_at_rest;
  if (!just_stopped && clock_.now() < next_publish_) return;
  next_publish_ = clock_.now() + kPublishInterval;
  if (parts_->storage) parts_->storage->tick();
  parts_->close_retired();
  metrics_.publish(snapshot(), parts_->model.page_size);
}

// Ends the waits of callers, and gives the loop every request that is to be told its end.
void SchedulerImpl::drop_mail() {
  std::vector<std::unique_ptr<Sequence>> submitted;
  std::vector<Command> dropped;
  {
    LockGuard guard(mutex_);
    submitted.swap(submitted_);
    dropped.swap(commands_);
  }
  dropped.clear();  // outside the lock: each ends a caller's wait
  taken_.clear();
  waiters_.clear();
  for (std::unique_ptr<Sequence>& sequence : submitted) loop_.add(std::move(sequence));
}

void SchedulerImpl::shut_down() {
  drop_mail();
  loop_.abort_all(cancelled("the server is shutting down"));
  const TimePoint give_up = clock_.now() + kShutdownLimit;
  (void)parts_->cache->poll(Nanos{0});
  while (parts_->cache->operations_in_flight() > 0 && clock_.now() < give_up) {
    (void)parts_->cache->poll(std::chrono::milliseconds(20));
  }
  metrics_.publish(snapshot(), parts_->model.page_size);
}

// noexcept: better no server than one that cannot even say that it serves nobody.
void SchedulerImpl::fail() noexcept {
  const Status failure =
      internal_error("the scheduler has failed, and the server must be started again: " + exception_text());
  {
    LockGuard guard(mutex_);
    is_stopping_ = true;
    failure_ = failure;
  }
  log_error("engine/scheduler", failure.message());
  drop_mail();
  try {  // first: who is told its end sees no request run any more
    SchedulerStats last;
    {
      LockGuard guard(mutex_);
      last_stats_.running = last_stats_.queued = 0;
      last = last_stats_;
    }
    metrics_.publish(last, parts_->model.page_size);
  } catch (...) {  // no memory: the numbers stay what they were
  }
  loop_.fail_all(failure);
}

}  // namespace larder
