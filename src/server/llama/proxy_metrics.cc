// SPDX-License-Identifier: Apache-2.0
#include "server/llama/proxy_metrics.h"

#include <string>

namespace larder::llama {
namespace {

constexpr std::array<std::string_view, kSaveOutcomeCount> kSaveNames = {"saved",      "known",   "no_room",
                                                                        "other_slot", "refused", "dropped"};

}  // namespace

ProxyMetrics::ProxyMetrics(MetricsRegistry& registry)
    : registry_(registry),
      cached(registry.counter("larder_proxy_requests_total", "Requests that use a slot, by what became of them.",
                              {{"how", "cached"}})),
      failed(registry.counter("larder_proxy_failed_requests_total",
                              "Requests that llama-server did not answer, or whose stream it ended with an error.")),
      prompt_tokens(registry.counter("larder_proxy_prompt_tokens_total", "Tokens of prompts that were looked at.")),
      slot_tokens(registry.counter("larder_proxy_reused_tokens_total", "Prompt tokens that were not computed anew.",
                                   {{"from", "slot"}})),
      host_tokens(registry.counter("larder_proxy_reused_tokens_total", "Prompt tokens that were not computed anew.",
                                   {{"from", "host"}})),
      storage_tokens(registry.counter("larder_proxy_reused_tokens_total", "Prompt tokens that were not computed anew.",
                                      {{"from", "storage"}})),
      restores(registry.counter("larder_proxy_restores_total", "Slots that were given a prefix.")),
      restores_failed(registry.counter("larder_proxy_failed_restores_total", "Prefixes that could not be given.")),
      restores_ignored(
          registry.counter("larder_proxy_ignored_restores_total", "Prefixes that llama-server did not use.")),
      lookups_failed(registry.counter("larder_proxy_failed_lookups_total", "Prompts that could not be looked up.")),
      other_prompts(registry.counter("larder_proxy_prompt_mismatches_total",
                                     "Requests whose prompt had another number of tokens than the proxy thought.")),
      other_slots(registry.counter("larder_proxy_other_slots_total",
                                   "Requests that llama-server did not compute in the slot that had their prompt.")),
      restarts(registry.counter("larder_proxy_server_losses_total", "Times that llama-server was lost.")),
      misses(registry),
      restore_seconds(registry.histogram("larder_proxy_restore_seconds",
                                         "Time from the found prefix to the restored slot.", latency_bounds_seconds())),
      save_seconds(registry.histogram("larder_proxy_save_seconds", "Time of llama-server to write a slot.",
                                      latency_bounds_seconds())) {
  for (std::size_t i = 0; i < kPlainReasonCount; ++i) {
    plain_[i] = &registry.counter("larder_proxy_requests_total", "Requests that use a slot, by what became of them.",
                                  {{"how", std::string(plain_reason_name(static_cast<PlainReason>(i)))}});
  }
  for (std::size_t i = 0; i < kSaveOutcomeCount; ++i) {
    saves_[i] = &registry.counter("larder_proxy_saves_total", "Slots that were written, by what became of them.",
                                  {{"outcome", std::string(kSaveNames[i])}});
  }
}

}  // namespace larder::llama
