// SPDX-License-Identifier: Apache-2.0
#include "server/llama/server_identity.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"

namespace larder::llama {
namespace {

bool is_same_start(const UpstreamFacts& a, const UpstreamFacts& b) {
  return a.instance == b.instance && a.model_path == b.model_path && a.build == b.build && a.slots == b.slots &&
         a.slot_context == b.slot_context;
}

}  // namespace

ServerIdentity::ServerIdentity(UpstreamFacts facts, SlotTable& slots, ProxyMetrics& metrics, Prove prove)
    : slots_(slots), metrics_(metrics), prove_(std::move(prove)), facts_(std::move(facts)) {}

Status ServerIdentity::check(LlamaUpstream& upstream) {
  const Result<UpstreamFacts> now = upstream.facts();
  if (!now.is_ok()) return now.status();
  {
    LockGuard guard(mutex_);
    if (!refused_.is_ok()) return refused_;
    if (is_same_start(*now, facts_)) return Status::ok();
  }
  return prove_again(upstream, *now);
}

void ServerIdentity::doubt() {
  LockGuard guard(mutex_);
  facts_ = UpstreamFacts{};
}

Status ServerIdentity::prove_again(LlamaUpstream& upstream, const UpstreamFacts& facts) {
  const Result<SlotTable::Hold> all = slots_.acquire({.count = slots_.size()});
  if (!all.is_ok()) return all.status();
  {
    LockGuard guard(mutex_);  // somebody else was first, perhaps
    if (!refused_.is_ok()) return refused_;
    if (is_same_start(facts, facts_)) return Status::ok();
  }
  metrics_.restarts.increment();
  slots_.forget_all();
  log_info("proxy", "llama-server was started anew: it is proven again");
  Status proven = facts.slots == slots_.size()
                      ? prove_(upstream, facts)
                      : unsupported(fmt::format("it has {} slots, and had {}", facts.slots, slots_.size()));
  LockGuard guard(mutex_);
  if (proven.is_ok()) {
    facts_ = facts;
  } else if (proven.code() == StatusCode::kUnsupported || proven.code() == StatusCode::kConflict) {
    proven = conflict("llama-server is another one than before, so it is given no prefixes; start the proxy anew: " +
                      proven.message());
    refused_ = proven;
    log_error("proxy", proven.message());
  }
  return proven;
}

}  // namespace larder::llama
