// SPDX-License-Identifier: Apache-2.0
#include "server/llama/server_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/log.h"

namespace larder::llama {
namespace {

bool is_same_start(const UpstreamFacts& now, const UpstreamFacts& known) {
  return now.instance == known.instance && now.model_path == known.model_path && now.build == known.build &&
         now.slots == known.slots && now.slot_context == known.slot_context;
}

bool has_two_sets(const GgufFile& model) {
  return std::ranges::any_of(model.tensors, [](const GgufTensor& tensor) {
    return tensor.name.find("rope_factors_long") != std::string::npos;
  });
}

}  // namespace

std::string context_identity(const GgufFile& model, std::uint32_t context_tokens) {
  return has_two_sets(model) ? fmt::format("; context {}", context_tokens) : std::string();
}

std::string environment_identity() {
  const char* const variable = std::getenv("LLAMA_ATTN_ROT_DISABLE");
  return variable != nullptr && std::atoi(variable) != 0 ? "; rows as they are" : std::string();
}

bool hides_context(const GgufFile& model, std::uint32_t slot_tokens, bool is_capped) {
  if (!has_two_sets(model)) return false;
  const std::string name = model.text("general.architecture").value_or("");
  const auto trained = model.number(name + ".context_length");
  const auto original = model.number(name + ".rope.scaling.original_context_length");
  const bool is_long = slot_tokens > original.value_or(trained.value_or(slot_tokens));  // whatever is behind it
  return !is_long && (is_capped || slot_tokens >= trained.value_or(std::uint64_t{slot_tokens} + 1));
}

ServerIdentity::ServerIdentity(UpstreamFacts facts, SlotTable& slots, Nanos slots_limit, ProxyMetrics& metrics,
                               Starts starts, Prove prove)
    : slots_(slots),
      slots_limit_(slots_limit),
      metrics_(metrics),
      starts_(std::move(starts)),
      prove_(std::move(prove)),
      facts_(std::move(facts)) {}

Result<UpstreamFacts> ServerIdentity::ask(LlamaUpstream& upstream, const Starts& starts) {
  Result<UpstreamFacts> facts = upstream.facts();
  // Counted after the answer: whoever gave it was started by then.
  if (facts.is_ok() && starts) facts->instance += fmt::format("; start {}", starts());
  return facts;
}

Result<std::uint64_t> ServerIdentity::check(LlamaUpstream& client, LlamaUpstream& own) {
  const Result<UpstreamFacts> now = ask(client, starts_);
  if (!now.is_ok()) return now.status();
  {
    LockGuard guard(mutex_);
    if (!refused_.is_ok()) return refused_;
    if (changing_ > 0) return unavailable("its adapters are being changed");
    if (is_known(*now)) return version_;
  }
  return prove_again(own);
}

void ServerIdentity::look(LlamaUpstream& client) {
  const Result<UpstreamFacts> now = ask(client, starts_);
  if (!now.is_ok() || !now->is_sleeping) return;
  LockGuard guard(mutex_);
  is_proven_ = false;
}

bool ServerIdentity::is_known(const UpstreamFacts& now) const {
  return is_proven_ && !now.is_sleeping && is_same_start(now, facts_);
}

bool ServerIdentity::is_current(std::uint64_t checked) const {
  LockGuard guard(mutex_);
  return changing_ == 0 && version_ == checked;
}

bool ServerIdentity::is_still(std::uint64_t checked, LlamaUpstream& client) const {
  const Result<UpstreamFacts> now = ask(client, starts_);
  LockGuard guard(mutex_);
  return now.is_ok() && changing_ == 0 && version_ == checked && is_known(*now);
}

void ServerIdentity::begin_change() {
  LockGuard guard(mutex_);
  ++changing_;
}

void ServerIdentity::end_change(bool is_changed) {
  LockGuard guard(mutex_);
  --changing_;
  if (!is_changed) return;
  ++version_;
  is_proven_ = false;
}

Result<std::uint64_t> ServerIdentity::prove_again(LlamaUpstream& upstream) {
  const Result<SlotTable::Hold> all = slots_.acquire({.count = slots_.size(), .limit = slots_limit_});
  if (!all.is_ok()) {
    log_info("proxy", "llama-server is not proven again yet, and requests go on without prefixes, until all of its " +
                          std::string("slots are free for a moment: ") + all.status().message());
    return all.status();
  }
  const Result<UpstreamFacts> now = ask(upstream, starts_);
  if (!now.is_ok()) return now.status();
  std::uint64_t version = 0;
  bool is_same = false;
  {
    LockGuard guard(mutex_);  // somebody else was first, perhaps
    if (!refused_.is_ok()) return refused_;
    if (is_known(*now)) return version_;
    version = version_;
    is_same = is_same_start(*now, facts_);
  }
  if (!is_same) metrics_.restarts.increment();
  slots_.forget_all();
  log_info("proxy", fmt::format("llama-server {}: it is proven again",
                                is_same ? "has slept, or its adapters were changed" : "was started anew"));
  Status proven = now->slots == slots_.size()
                      ? prove_(upstream, *now)
                      : unsupported(fmt::format("it has {} slots, and had {}", now->slots, slots_.size()));
  LockGuard guard(mutex_);
  if (changing_ > 0 || version != version_) return unavailable("its adapters were changed while it was proven");
  if (proven.is_ok()) {
    facts_ = *now;
    is_proven_ = true;
    return version_;
  }
  ++version_;  // whoever waits for a slot asked who is there before
  if (proven.code() == StatusCode::kUnsupported || proven.code() == StatusCode::kConflict) {
    proven = conflict("llama-server is another one than before, so it is given no prefixes; start the proxy anew: " +
                      proven.message());
    refused_ = proven;
    log_error("proxy", proven.message());
  }
  return proven;
}

}  // namespace larder::llama
