// SPDX-License-Identifier: Apache-2.0
#include "server/api_info.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

TEST(ServerInfo, ShowsOptionsButNoSecrets) {
  Options options;
  options.api_key = "hush";
  options.api_key_file = "/etc/larder/key";
  options.hicache_storage_backend = "file";
  SchedulerStats stats;
  stats.storage_in_force.backend = "hf3fs";  // attached since the start
  stats.storage_in_force.extra_config =
      R"({"metadata_server_url": "redis://:hush@host:7000", "metadata_api_key": "hush", "rank": 1})";
  stats.storage_health.emplace().breakers[0].last_error = "cannot reach redis://:hush@host:7000";
  const Json info = server_info_json(options, ModelSpec{}, stats);
  EXPECT_EQ(info.dump().find("hush"), std::string::npos) << info.dump(2);
  EXPECT_EQ(info["api_key"], "***");
  EXPECT_TRUE(info["admin_api_key"].is_null());
  EXPECT_EQ(info["hicache_storage_backend"], "hf3fs");
  EXPECT_EQ(info["hicache_storage_backend_extra_config"],
            R"({"metadata_server_url":"redis://***@host:7000","metadata_api_key":"***","rank":1})");
  EXPECT_EQ(info["max_total_tokens"], options.max_total_tokens);
  EXPECT_EQ(info["api_key_file"], "/etc/larder/key");
  EXPECT_TRUE(info["internal_states"][0]["cached_tokens"].is_object());
  stats.storage_in_force.backend = "plugin";
  stats.storage_in_force.extra_config = R"({"library": "/lib/mine.so", "door": "hush"})";
  EXPECT_EQ(server_info_json(options, ModelSpec{}, stats)["hicache_storage_backend_extra_config"],
            R"({"library":"/lib/mine.so","door":"***"})");
  EXPECT_EQ(server_info_json({}, ModelSpec{}, {})["hicache_storage_backend_extra_config"], "");
}

TEST(Explain, TheReasonIsOfTheLastTierThatWasAsked) {
  Explanation e;
  e.prompt_tokens = 330;
  e.prompt_pages = 20;
  e.device_restore_pages = e.host_restore_pages = e.storage_restore_pages = 15;
  e.device_reason = "the cached path ends at token 240 on the device";
  e.host_reason = "the cached path ends at token 240 on device or host";
  e.storage_reason = "no storage backend is attached";
  const std::string start =
      "240 of 330 prompt tokens can be reused: 240 from the device, 0 more from the host, 0 more from storage.";
  EXPECT_EQ(explain_sentence(e, 16), start + " It ends there because the cached path ends at token 240 on device or " +
                                         "host; no storage backend is attached.");
  e.storage_reason = "storage did not answer: unavailable: gone.";
  EXPECT_TRUE(explain_sentence(e, 16).ends_with(" on device or host; storage did not answer: unavailable: gone."));
  e.has_storage_answer = true;
  e.storage_reason = "attention pages beyond token 240 are not in any tier";
  EXPECT_EQ(explain_sentence(e, 16),
            start + " It ends there because attention pages beyond token 240 are not in any tier.");
  e.prompt_pages = 15;
  EXPECT_EQ(explain_sentence(e, 16), start);
}

}  // namespace
}  // namespace larder
