// SPDX-License-Identifier: Apache-2.0
#include "tests/cache/harness.h"

#include <utility>

#include "base/file_system.h"
#include "sim/world/pattern.h"
#include "sim/world/small_models.h"
#include "storage/file/file_backend.h"
#include "storage/memory/memory_backend.h"

namespace larder::test {

ModelSpec small_model(Shape shape) { return sim::simulated_model(shape_name(shape)).value(); }

std::string shape_name(Shape shape) {
  switch (shape) {
    case Shape::kFull: return "full";
    case Shape::kFullSwa: return "full_swa";
    case Shape::kFullMamba: return "full_mamba";
    case Shape::kAll: return "full_swa_mamba";
    case Shape::kFullSidecar: return "full_sidecar";
  }
  return "";
}

std::vector<TokenId> prompt_of(std::size_t n, TokenId first) {
  std::vector<TokenId> tokens(n);
  for (std::size_t i = 0; i < n; ++i) tokens[i] = static_cast<TokenId>((first + i * 7 + i / 5) % 64);
  return tokens;
}

HarnessOptions eager_options(Shape shape) {
  HarnessOptions o;
  o.shape = shape;
  o.config.prefetch_policy = PrefetchPolicy::kTimeout;
  o.config.prefetch_threshold = 4;
  o.config.load_back_threshold = 0;
  o.config.chunked_prefill_tokens = 16;
  return o;
}

Harness::Harness(const HarnessOptions& o) : model(small_model(o.shape)), options(o), executor(1 << 20, o.seed) {
  ComponentCounts slots = o.device;
  for (const ComponentKind c : kAllComponents) {
    if (!model.has(c)) slots[index_of(c)] = 0;
  }
  device_api = std::make_unique<ScriptedDevice>(make_cpu_device(executor));
  device = std::move(DevicePools::create(model, slots, device_api->memory())).value();
  if (o.host_slots > 0) {
    const std::size_t bytes = o.host_slots * std::max<std::size_t>(64, model.slot_bytes(ComponentKind::kFull));
    host = std::move(HostPools::create(model, o.layout, bytes, host_memory_source())).value();
    transfer = std::move(TransferEngine::create(*device_api, *device, host.get(), o.config.max_operations)).value();
  }
  CacheParts parts;
  parts.model = &model;
  parts.device = device.get();
  parts.host = host.get();
  parts.transfer = transfer.get();
  parts.clock = &clock;
  parts.ranks = o.ranks;
  parts.events = o.events;
  parts.scope.layout = o.layout;
  Result<std::unique_ptr<Cache>> made = Cache::create(o.config, parts);
  if (!made.is_ok()) {
    failure = made.status().to_string();
    return;
  }
  cache = std::move(made).value();
  if (o.storage && host) {
    if (!register_memory_backend(factory).is_ok() || !register_file_backend(factory).is_ok())
      failure = "register_backends";
    const BackendEnvironment env{&real_file_system(), &clock, &executor};
    Result<std::unique_ptr<StorageBackend>> b = factory.create(o.backend, o.backend_options, env);
    if (!b.is_ok()) {
      failure = b.status().to_string();
      return;
    }
    std::unique_ptr<StorageBackend> inner = std::move(b).value();
    if (o.wrap_backend) inner = o.wrap_backend(std::move(inner));
    backend = std::make_unique<ScriptedBackend>(std::move(inner));
    if (const Status s = cache->attach_storage(*backend); !s.is_ok()) failure = s.to_string();
  }
}

Harness::~Harness() {
  if (cache) settle();
  cache.reset();
}

Harness::Job Harness::begin(std::vector<TokenId> prompt, std::uint64_t new_tokens, std::string salt) {
  Job job;
  job.prompt = std::move(prompt);
  job.new_tokens = new_tokens;
  job.salt = std::move(salt);
  job.tokens = job.prompt;
  BeginRequest request;
  request.tokens = job.prompt;
  request.max_new_tokens = new_tokens;
  request.salt = job.salt;
  const Result<RequestId> id = cache->begin(request);
  if (!id.is_ok()) {
    failure = "begin: " + id.status().to_string();
  } else {
    job.id = *id;
  }
  return job;
}

void Harness::cancel_open(Job& job) {
  for (const StepToken step : std::exchange(job.open, {})) {
    if (const Status s = cache->cancel_step(step); !s.is_ok()) failure = "cancel_step: " + s.to_string();
  }
}

void Harness::retract(Job& job) {
  if (const Status s = cache->retract(job.id); !s.is_ok()) failure = "retract: " + s.to_string();
  ++job.retracts;
  job.started = false;
}

bool Harness::wait_for_gate(const StepGrant& grant) {
  if (!grant.gate) return true;
  for (int i = 0; i < 1'000'000 && !grant.gate->finished(); ++i) {
    if (!executor.run_one()) break;
  }
  for (std::uint32_t layer = 0; layer < model.layer_count(); ++layer) {
    if (!grant.gate->wait(layer, std::chrono::nanoseconds(1)).is_ok()) return false;
  }
  return true;
}

void Harness::update_tables(Job& job, const StepGrant& grant) {
  job.table.update(*grant.pages);
  std::string wrong = job.table.difference(*grant.pages);
  if (grant.token.number % 3 == 0) {
    job.late_table.update(*grant.pages);
    if (wrong.empty()) wrong = job.late_table.difference(*grant.pages);
  }
  if (failure.empty()) failure = wrong;
}

bool Harness::advance(Job& job, std::uint64_t chunk, StepHabit habit) {
  if (!job.started) {
    refusal = "prefetching";
    if (cache->phase(job.id) == RequestPhase::kPrefetching) return false;
    const Result<CachedTokens> cached = cache->start(job.id);
    if (!cached.is_ok()) {
      refusal = cached.status().message();
      if (cached.status().code() != StatusCode::kOverloaded) failure = "start: " + cached.status().to_string();
      return false;
    }
    job.cached = *cached;
    job.started = true;
    job.spoilt = {};
    job.computed = cache->computed_tokens(job.id);
    job.resumed = job.computed;
    if (job.retracts == 0 && job.computed != job.cached.cached()) failure = "computed and cached tokens differ";
    return true;
  }
  const std::uint64_t prompt = job.prompt.size();
  std::uint64_t until = std::min(job.tokens.size(), job.computed + chunk);
  const Result<StepGrant> grant = cache->prepare_step(job.id, until);
  if (!grant.is_ok()) {
    refusal = grant.status().message();
    if (grant.status().code() != StatusCode::kOverloaded) failure = "prepare_step: " + grant.status().to_string();
    return false;
  }
  until = grant->until;
  update_tables(job, *grant);
  if (!wait_for_gate(*grant)) {
    if (!cache->cancel_step(grant->token).is_ok()) failure = "cancel_step";
    if (!cache->restart(job.id).is_ok()) failure = "restart";
    if (++job.restarts > 10) failure = "a request restarts for ever";
    job.started = false;
    if (job.retracts == 0) job.tokens = job.prompt;
    return true;
  }
  if (take_back(job) || job.computed == job.resumed) check_restored(job, *grant);
  until -= std::min(habit.leave, until - job.computed - 1);
  const std::uint32_t ps = model.page_size;
  for (std::uint64_t page = job.computed / ps; page * ps < until; ++page) {
    write_page(job, ComponentKind::kFull, page, grant->pages->full[page]);
    if (model.has(ComponentKind::kSwa)) write_page(job, ComponentKind::kSwa, page, grant->pages->swa[page]);
  }
  if (model.has(ComponentKind::kMamba)) {
    for (const CheckpointSlot& s : grant->checkpoints) {
      if (s.position <= until) write_state(job, s.position, s.slot);
    }
    write_state(job, until, grant->pages->state);
  }
  if (!habit.completes) {
    job.open.push_back(grant->token);
    job.spoilt = grant->pages->state;
    return true;
  }
  job.computed = until;
  const Status completed = cache->complete_step(grant->token, std::span<const TokenId>(job.tokens).first(until));
  if (!completed.is_ok()) failure = "complete_step: " + completed.to_string();
  if (job.computed >= prompt && job.tokens.size() == job.computed) {
    job.tokens.push_back(sim::next_token(job.tokens, model.vocab_size));
  }
  return true;
}

void Harness::fill(const Job& job, ComponentKind c, std::uint64_t tokens, DeviceSlot slot, bool check) {
  const sim::Pattern pattern(model, *device);
  if (!check) return pattern.write(c, job.tokens, tokens, job.salt, slot);
  const std::string wrong = pattern.check(c, job.tokens, tokens, job.salt, slot);
  if (failure.empty()) failure = wrong;
}

void Harness::write_page(const Job& job, ComponentKind c, std::uint64_t page, DeviceSlot slot) {
  if (!slot.valid()) {
    failure = "the page table has no slot of " + std::string(component_name(c)) + " for page " + std::to_string(page);
    return;
  }
  fill(job, c, (page + 1) * model.page_size, slot, false);
}

void Harness::write_state(const Job& job, std::uint64_t position, DeviceSlot slot) {
  fill(job, ComponentKind::kMamba, position, slot, false);
}

// A step that was cancelled has changed the working state, and the cache has no copy of what that was: the engine goes
// back. As late as can be, so that whoever takes that state for the request's meanwhile is seen; and where the step had
// it, so that it is seen if the request has been given another.
bool Harness::take_back(Job& job) {
  if (!job.spoilt.valid() || !job.open.empty()) return false;
  write_state(job, job.computed, std::exchange(job.spoilt, {}));
  return true;
}

void Harness::check_restored(const Job& job, const StepGrant& grant) {
  const std::uint64_t pages = job.computed / model.page_size;
  for (std::uint64_t i = 0; i < pages; ++i) {
    fill(job, ComponentKind::kFull, (i + 1) * model.page_size, grant.pages->full[i], true);
  }
  if (pages == 0) return;
  if (model.has(ComponentKind::kSwa)) {
    for (std::uint64_t i = pages - model.window_pages_at(pages); i < pages; ++i) {
      if (!grant.pages->swa[i].valid()) {
        failure = "window page " + std::to_string(i) + " is missing";
        return;
      }
      fill(job, ComponentKind::kSwa, (i + 1) * model.page_size, grant.pages->swa[i], true);
    }
  }
  if (model.has(ComponentKind::kMamba)) fill(job, ComponentKind::kMamba, job.computed, grant.pages->state, true);
}

bool Harness::run_background(std::size_t tasks) {
  bool any = false;
  for (std::size_t i = 0; i < tasks && executor.run_one(); ++i) any = true;
  return cache->poll(Nanos::zero()) || any;
}

void Harness::settle() {
  for (int i = 0; i < 100'000; ++i) {
    const bool ran = executor.run_all() > 0;
    const bool polled = cache->poll(Nanos::zero());
    if (!ran && !polled) {
      if (cache->operations_in_flight() == 0) return;
      clock.advance(std::chrono::milliseconds(50));  // timers and retries
    }
  }
  failure = "settle: " + std::to_string(cache->operations_in_flight()) + " operations never end";
}

std::string Harness::check_clean() {
  if (!failure.empty()) return failure;
  if (const Status s = cache->check_invariants(); !s.is_ok()) return s.to_string();
  (void)cache->flush();
  for (const ComponentKind c : kAllComponents) {
    const SlotTable::Counts device_slots = device->slots(c).counts();
    const SlotTable::Counts host_slots = host && model.has(c) ? host->counts(c) : SlotTable::Counts{};
    if (device_slots.live + device_slots.quarantined + device_slots.leases != 0) {
      return "device slots leaked after flush: " + std::string(component_name(c));
    }
    if (host_slots.live + host_slots.quarantined + host_slots.leases != 0) {
      return "host slots leaked after flush: " + std::string(component_name(c));
    }
  }
  return "";
}

CachedTokens Harness::run(std::vector<TokenId> prompt, std::uint64_t new_tokens, std::string salt,
                          std::uint64_t chunk) {
  Job job = begin(std::move(prompt), new_tokens, std::move(salt));
  for (int stuck = 0; !done(job) && failure.empty();) {
    if (advance(job, chunk)) {
      stuck = 0;
      continue;
    }
    run_background(1000);
    if (++stuck > 10'000) failure = "a request never makes progress";
    if (stuck > 10) clock.advance(std::chrono::milliseconds(10));
  }
  finish(job);
  return job.cached;
}

}  // namespace larder::test
