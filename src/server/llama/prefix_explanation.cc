// SPDX-License-Identifier: Apache-2.0
#include "server/llama/prefix_explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "server/json_reader.h"

namespace larder::llama {
namespace {

using Json = nlohmann::ordered_json;

Result<std::vector<TokenId>> prompt_of(const nlohmann::json& question, ExplainedServer& server, std::string_view body) {
  if (question.contains("input_ids")) {
    std::vector<TokenId> tokens;
    JsonReader reader(question);
    reader.read_tokens("input_ids", tokens, std::uint32_t{1} << 31);
    if (!reader.is_ok()) return reader.status();
    return tokens;
  }
  std::string text;
  if (question.contains("messages")) {
    LARDER_ASSIGN_OR_RETURN(text, server.apply_template(body));
  } else {
    JsonReader reader(question);
    reader.read("text", text);
    if (!reader.is_ok()) return reader.status();
    if (text.empty()) return invalid_argument("give \"text\", \"input_ids\" or \"messages\"");
  }
  return server.tokenize(text);
}

std::string words(StopReason reason, ComponentKind component) {
  return fmt::format("{} of {}", stop_reason_name(reason), component_name(component));
}

// Where a prompt could resume, in tokens, and what would be known of it.
struct Tiers {
  std::uint64_t prompt = 0;
  SlotHit slot;
  PrefixStore::Found host;
  std::optional<StoredPrefix> stored;  // nullopt: there is no storage, or it did not answer
  Status storage_status;
  std::uint64_t stored_tokens = 0;
  bool asks_storage = false;  // a request would

  [[nodiscard]] std::uint64_t memory() const { return std::max(slot.tokens, host.tokens()); }
  [[nodiscard]] std::uint64_t best() const { return std::max(memory(), asks_storage ? stored_tokens : 0); }
};

std::string storage_reason(const ExplainParts& parts, const Tiers& tiers) {
  if (!tiers.storage_status.is_ok()) return "storage did not answer: " + tiers.storage_status.message();
  if (!tiers.stored) return "there is no storage (--store)";
  const std::uint64_t page = parts.format.page_size();
  if (tiers.stored_tokens > tiers.memory() && !tiers.asks_storage) {
    return fmt::format("storage has {} tokens, and is asked for {} or more that a slot lacks", tiers.stored_tokens,
                       parts.ask_storage_tokens);
  }
  if (tiers.best() + page > tiers.prompt) return "";
  return fmt::format("{} in storage", words(tiers.stored->reason, tiers.stored->component));
}

std::string summary(const Tiers& tiers) {
  if (tiers.best() == 0) return "nothing of this prompt would be reused";
  const std::string from = tiers.best() > tiers.memory()              ? "storage"
                           : tiers.slot.tokens >= tiers.host.tokens() ? fmt::format("slot {}", tiers.slot.slot)
                                                                      : "host memory";
  return fmt::format("{} tokens would be reused, from {}", tiers.best(), from);
}

Json pools_of(const ExplainParts& parts, const Tiers& tiers) {
  const std::uint32_t page = parts.format.page_size();
  const std::vector<PoolDescription>& pools = parts.format.pools.space.pools;
  Json out = Json::array();
  for (std::size_t i = 0; i < pools.size(); ++i) {
    const bool is_full = pools[i].policy == HitPolicy::kAllPages;
    const std::uint64_t on_host = (is_full ? tiers.host.known() : tiers.host.tokens()) / page;
    const std::uint64_t stored = tiers.stored && i < tiers.stored->pool_pages.size() ? tiers.stored->pool_pages[i] : 0;
    out.push_back({{"pool", pools[i].name},
                   {"component", is_full ? "full" : pools[i].name},
                   {"device_pages", tiers.slot.tokens / page},
                   {"host_pages", on_host},
                   {"storage_pages", stored},
                   {"restore_pages", std::max(on_host, is_full ? stored : tiers.stored_tokens / page)}});
  }
  return out;
}

Json report_of(const ExplainParts& parts, const Tiers& tiers) {
  const std::uint32_t page = parts.format.page_size();
  const auto point = [&](std::uint64_t at, std::string why) {
    return Json{{"pages", at / page}, {"tokens", at}, {"reason", std::move(why)}};
  };
  const bool is_all = tiers.memory() + page > tiers.prompt;
  const std::string host_why = is_all ? "" : words(tiers.host.reason(), tiers.host.component());
  return {{"page_size", page},
          {"prompt_tokens", tiers.prompt},
          {"prompt_pages", tiers.prompt / page},
          {"slot", tiers.slot.slot},
          {"restore",
           {{"device", point(tiers.slot.tokens, tiers.slot.tokens == 0 ? "no slot holds its beginning" : "")},
            {"host", point(tiers.memory(), host_why)},
            {"storage", point(std::max(tiers.memory(), tiers.stored_tokens), storage_reason(parts, tiers))}}},
          {"pools", pools_of(parts, tiers)},
          {"why", summary(tiers)},
          {"storage_status", tiers.storage_status.is_ok() ? "ok" : tiers.storage_status.to_string()}};
}

}  // namespace

Result<std::string> explain_prefix(const ExplainParts& parts, ExplainedServer& server, std::string_view body) {
  LARDER_ASSIGN_OR_RETURN(const nlohmann::json question, parse_json_object(body));
  LARDER_ASSIGN_OR_RETURN(const auto tokens, prompt_of(question, server, body));
  if (tokens.empty()) return invalid_argument("the prompt has no tokens");
  std::string salt;
  JsonReader reader(question);
  reader.read("cache_salt", salt);
  if (!reader.is_ok()) return reader.status();
  Tiers tiers;
  tiers.prompt = tokens.size();
  tiers.slot = server.best_slot(tokens, salt);
  LARDER_ASSIGN_OR_RETURN(tiers.host, parts.store.find(tokens, salt, false));
  auto stored = parts.store.stored(tokens, salt);
  tiers.storage_status = stored.status();
  if (stored.is_ok()) tiers.stored = std::move(*stored);
  if (tiers.stored) tiers.stored_tokens = tiers.stored->pages * parts.format.page_size();
  tiers.asks_storage = tiers.prompt - tiers.slot.tokens >= parts.ask_storage_tokens;
  return dump_json(report_of(parts, tiers));
}

}  // namespace larder::llama
