#include "server/llama/prefix_explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/json_reader.h"

namespace larder::llama {
namespace {

using Json = nlohmann::ordered_json;

Result<std::vector<TokenId>> prompt_of(const nlohmann::json& question, LlamaUpstream& upstream, std::string_view body) {
  if (question.contains("input_ids")) {
    std::vector<TokenId> tokens;
    JsonReader reader(question);
    reader.read_tokens("input_ids", tokens, std::uint32_t{1} << 31);
    if (!reader.is_ok()) return reader.status();
    return tokens;
  }
  std::string text;
  if (question.contains("messages")) {
    const Result<std::string> made = upstream.apply_template(body);
    if (!made.is_ok()) return made.status();
    text = *made;
  } else {
    JsonReader reader(question);
    reader.read("text", text);
    if (!reader.is_ok()) return reader.status();
    if (text.empty()) return invalid_argument("give \"text\", \"input_ids\" or \"messages\"");
  }
  return upstream.tokenize(text);
}

std::string words(StopReason reason, ComponentKind component) {
  return fmt::format("{} of {}", stop_reason_name(reason), component_name(component));
}

}  // namespace

Result<std::string> explain_prefix(const ExplainParts& parts, LlamaUpstream& upstream, std::string_view body) {
  const Result<nlohmann::json> question = parse_json_object(body);
  if (!question.is_ok()) return question.status();
  const auto tokens = prompt_of(*question, upstream, body);
  if (!tokens.is_ok()) return tokens.status();
  if (tokens->empty()) return invalid_argument("the prompt has no tokens");
  const std::string salt = question->value("cache_salt", std::string());
  const auto [in_slot, slot] = parts.slots.best(*tokens, salt);
  const auto found = parts.store.find(*tokens, salt, false);
  if (!found.is_ok()) return found.status();

  const std::uint32_t page = parts.format.page_size();
  const std::uint64_t best = std::max(in_slot, found->tokens());
  const auto point = [&](std::uint64_t at, std::string why) {
    return Json{{"pages", at / page}, {"tokens", at}, {"reason", std::move(why)}};
  };
  const std::string host_why = best + page > tokens->size() ? "" : words(found->reason(), found->component());
  Json out = {{"page_size", page},
              {"prompt_tokens", tokens->size()},
              {"prompt_pages", tokens->size() / page},
              {"slot", slot},
              {"restore",
               {{"device", point(in_slot, in_slot == 0 ? "no slot holds its beginning" : "")},
                {"host", point(best, host_why)},
                {"storage", point(best, "storage is asked when a request comes")}}},
              {"pools", Json::array()}};
  for (const PoolDescription& pool : parts.format.pools.space.pools) {
    const bool is_full = pool.policy == HitPolicy::kAllPages;
    out["pools"].push_back({{"pool", pool.name},
                            {"component", is_full ? "full" : pool.name},
                            {"device_pages", in_slot / page},
                            {"host_pages", (is_full ? found->known() : found->tokens()) / page},
                            {"storage_pages", 0},
                            {"restore_pages", (is_full ? found->known() : found->tokens()) / page}});
  }
  out["why"] = best == 0 ? "nothing of this prompt would be reused"
                         : fmt::format("{} tokens would be reused, from {}", best,
                                       in_slot >= found->tokens() ? fmt::format("slot {}", slot) : "host memory");
  out["storage_status"] = "ok";
  return dump_json(out);
}

}  // namespace larder::llama
