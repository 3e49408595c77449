// SPDX-License-Identifier: Apache-2.0
#include "server/llama/server_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace larder::llama {
namespace {

bool is_same_start(const UpstreamFacts& a, const UpstreamFacts& b) {
  return a.instance == b.instance && a.model_path == b.model_path && a.build == b.build && a.slots == b.slots &&
         a.slot_context == b.slot_context;
}

}  // namespace

std::string context_identity(const GgufFile& model, std::uint32_t context_tokens) {
  const bool has_two = std::ranges::any_of(model.tensors, [](const GgufTensor& tensor) {
    return tensor.name.find("rope_factors_long") != std::string::npos;
  });
  return has_two ? fmt::format("; context {}", context_tokens) : std::string();
}

ServerIdentity::ServerIdentity(UpstreamFacts facts, SlotTable& slots, ProxyMetrics& metrics, Prove prove)
    : slots_(slots), metrics_(metrics), prove_(std::move(prove)), facts_(std::move(facts)) {}

Result<std::uint64_t> ServerIdentity::check(LlamaUpstream& client, LlamaUpstream& own) {
  const Result<UpstreamFacts> now = client.facts();
  if (!now.is_ok()) return now.status();
  {
    LockGuard guard(mutex_);
    if (!refused_.is_ok()) return refused_;
    if (changing_ > 0) return unavailable("its adapters are being changed");
    if (is_same_start(*now, facts_)) return version_;
  }
  return prove_again(own, *now);
}

bool ServerIdentity::is_current(std::uint64_t checked) const {
  LockGuard guard(mutex_);
  return changing_ == 0 && version_ == checked;
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
  facts_ = UpstreamFacts{};
}

Result<std::uint64_t> ServerIdentity::prove_again(LlamaUpstream& upstream, const UpstreamFacts& facts) {
  const Result<SlotTable::Hold> all = slots_.acquire({.count = slots_.size()});
  if (!all.is_ok()) return all.status();
  std::uint64_t version = 0;
  {
    LockGuard guard(mutex_);  // somebody else was first, perhaps
    if (!refused_.is_ok()) return refused_;
    if (is_same_start(facts, facts_)) return version_;
    version = version_;
  }
  metrics_.restarts.increment();
  slots_.forget_all();
  log_info("proxy", "llama-server was started anew: it is proven again");
  Status proven = facts.slots == slots_.size()
                      ? prove_(upstream, facts)
                      : unsupported(fmt::format("it has {} slots, and had {}", facts.slots, slots_.size()));
  LockGuard guard(mutex_);
  if (changing_ > 0 || version != version_) return unavailable("its adapters were changed while it was proven");
  if (proven.is_ok()) {
    facts_ = facts;
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
