// SPDX-License-Identifier: Apache-2.0
#include "events/kv_event_wire.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

namespace larder {
namespace {

using Json = nlohmann::json;

KvEvent stored() { return {KvEventKind::kStored, ComponentKind::kFull, Tier::kDevice, {-5, 7}, 3, {1, 2, 3, 4}, {}}; }
KvEvent removed() { return {KvEventKind::kRemoved, ComponentKind::kSwa, Tier::kHost, {-5}, {}, {}, {}}; }

Json decoded(const KvEventShape& shape, const std::vector<KvEvent>& events) {
  return Json::from_msgpack(encode_kv_events(shape, events, 12.5));
}

TEST(KvEventWire, AsSglangAndVllmPublish) {
  const KvEventShape shape{.page_size = 2, .data_parallel_rank = 1};
  EXPECT_EQ(decoded(shape, {stored(), removed(), {}}), Json::parse(R"([12.5, [
      {"type": "BlockStored", "block_hashes": [-5, 7], "parent_block_hash": 3, "token_ids": [1, 2, 3, 4],
       "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null},
      {"type": "BlockRemoved", "block_hashes": [-5], "medium": "CPU_PINNED"},
      {"type": "AllBlocksCleared"}], 1])"));
  KvEvent first = stored();
  first.parent.reset();
  first.names = std::make_shared<const KvEventNames>(KvEventNames{"lora", "tenant"});
  const Json event = decoded(shape, {first})[1][0];
  EXPECT_TRUE(event.at("parent_block_hash").is_null());
  EXPECT_EQ(event.at("lora_name"), "lora");
  EXPECT_EQ(event.at("cache_salt"), "tenant");
}

TEST(KvEventWire, GroupsSayWhichComponentItIs) {
  const KvEventShape shape{.all_components = true, .page_size = 2, .window_tokens = 96};
  KvEvent window = stored(), state = stored();
  window.component = ComponentKind::kSwa;
  state.component = ComponentKind::kMamba;
  const Json events = decoded(shape, {stored(), window, state, removed()})[1];
  EXPECT_EQ(events[0].at("group_idx"), 0);
  EXPECT_EQ(events[0].at("kv_cache_spec_kind"), "full_attention");
  EXPECT_FALSE(events[0].contains("kv_cache_spec_sliding_window"));
  EXPECT_EQ(events[1].at("group_idx"), 1);
  EXPECT_EQ(events[1].at("kv_cache_spec_kind"), "sliding_window");
  EXPECT_EQ(events[1].at("kv_cache_spec_sliding_window"), 96);
  EXPECT_EQ(events[2].at("group_idx"), 2);
  EXPECT_EQ(events[2].at("kv_cache_spec_kind"), "mamba");
  EXPECT_EQ(events[3].at("group_idx"), 1);
}

TEST(KvEventWire, AsBothDidBefore) {
  const KvEventShape shape{.form = KvEventForm::kArrays, .page_size = 2};
  EXPECT_EQ(decoded(shape, {stored(), removed(), {}}), Json::parse(R"([12.5, [
      ["BlockStored", [-5, 7], 3, [1, 2, 3, 4], 2, null, "GPU", null],
      ["BlockRemoved", [-5], "CPU_PINNED"],
      ["AllBlocksCleared"]], 0])"));
  KvEvent state = stored();
  state.component = ComponentKind::kMamba;
  state.names = std::make_shared<const KvEventNames>(KvEventNames{"lora", "tenant"});
  EXPECT_EQ(decoded({KvEventForm::kArrays, true, 2, 0, 0}, {state})[1][0],
            Json::parse(R"(["BlockStored",[-5,7],3,[1,2,3,4],2,null,"GPU","lora",null,2,"mamba"])"));
}

}  // namespace
}  // namespace larder
