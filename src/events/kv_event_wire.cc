// SPDX-License-Identifier: Apache-2.0
#include "events/kv_event_wire.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

std::string_view medium_of(Tier tier) { return tier == Tier::kDevice ? "GPU" : "CPU_PINNED"; }

std::string_view kind_of(ComponentKind c) {
  switch (c) {
    case ComponentKind::kFull: return "full_attention";
    case ComponentKind::kSwa: return "sliding_window";
    case ComponentKind::kMamba: return "mamba";
  }
  return "";
}

Json name_json(const std::string& name) { return name.empty() ? Json() : Json(name); }

// Name and value. Null: missing.
using Fields = std::vector<std::pair<std::string_view, Json>>;

Fields fields_of(const KvEventShape& shape, const KvEvent& event) {
  if (event.kind == KvEventKind::kCleared) return {{"type", "AllBlocksCleared"}};
  const bool has_group = shape.all_components;
  const Json group = has_group ? Json(index_of(event.component)) : Json();
  if (event.kind == KvEventKind::kRemoved) {
    return {{"type", "BlockRemoved"},
            {"block_hashes", event.blocks},
            {"medium", medium_of(event.tier)},
            {"group_idx", group}};
  }
  const bool is_window = event.component == ComponentKind::kSwa;
  return {{"type", "BlockStored"},
          {"block_hashes", event.blocks},
          {"parent_block_hash", event.parent ? Json(*event.parent) : Json()},
          {"token_ids", event.tokens},
          {"block_size", shape.page_size},
          {"lora_id", Json()},
          {"medium", medium_of(event.tier)},
          {"lora_name", name_json(event.names ? event.names->adapter : "")},
          {"extra_keys", Json()},
          {"group_idx", group},
          {"kv_cache_spec_kind", has_group ? Json(kind_of(event.component)) : Json()},
          {"kv_cache_spec_sliding_window", has_group && is_window ? Json(shape.window_tokens) : Json()},
          {"cache_salt", name_json(event.names ? event.names->salt : "")}};
}

bool is_wanted(std::string_view name) {
  return name == "parent_block_hash" || name == "lora_id" || name == "medium" || name == "lora_name";
}

Json event_json(const KvEventShape& shape, const KvEvent& event) {
  Fields fields = fields_of(shape, event);
  if (shape.form == KvEventForm::kArrays) {
    Json out = Json::array();
    if (fields.back().first == "cache_salt") fields.pop_back();  // younger than this form
    while (fields.back().second.is_null() && !is_wanted(fields.back().first)) fields.pop_back();
    for (auto& field : fields) out.push_back(std::move(field.second));
    return out;
  }
  Json out = Json::object();
  for (auto& [name, value] : fields) {
    if (!value.is_null() || is_wanted(name)) out[std::string(name)] = std::move(value);
  }
  return out;
}

}  // namespace

std::vector<std::uint8_t> encode_kv_events(const KvEventShape& shape, std::span<const KvEvent> events,
                                           double unix_seconds) {
  Json all = Json::array();
  for (const KvEvent& event : events) all.push_back(event_json(shape, event));
  return Json::to_msgpack(Json::array({unix_seconds, std::move(all), shape.data_parallel_rank}));
}

}  // namespace larder
