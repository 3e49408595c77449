// SPDX-License-Identifier: Apache-2.0
#include "server/masked_config.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

TEST(MaskedConfig, HidesSecretsAndShowsTheRestInItsOrder) {
  EXPECT_EQ(masked_config(R"({"numjobs": 2, "metadata_api_key": "hush", "file_size": "1Ti", "entries": 64,
                              "prefetch_timeout_per_ki_token": 0.25})"),
            R"({"numjobs":2,"metadata_api_key":"***","file_size":"1Ti","entries":64,)"
            R"("prefetch_timeout_per_ki_token":0.25})");
  EXPECT_EQ(
      masked_config(R"({"Admin-API-Key": "hush", "redisPassword": 1234, "hf_token": ["hush"], "clientSecret": true,
                              "tokens": 5, "secret_path": "/a"})"),
      R"({"Admin-API-Key":"***","redisPassword":"***","hf_token":"***","clientSecret":"***",)"
      R"("tokens":5,"secret_path":"/a"})");
  EXPECT_EQ(masked_config(R"({"metadata_api_key": "", "password": null})"),
            R"({"metadata_api_key":null,"password":null})")
      << "not set";
  EXPECT_EQ(masked_config(R"({"password": "hush", "password": ""})").find("hush"), std::string::npos) << "twice";
}

TEST(MaskedConfig, HidesWhoAUrlIsAskedAs) {
  const auto shown = [](const std::string& url) {
    return Json::parse(masked_config(R"({"url": ")" + url + "\"}")).at("url");
  };
  EXPECT_EQ(shown("redis://:hush@host:7000/2"), "redis://***@host:7000/2");
  EXPECT_EQ(shown("http://larder:hush@[::1]:18000"), "http://***@[::1]:18000");
  EXPECT_EQ(shown("redis://:hu/s@h?h@host"), "redis://***@host") << "what should have been escaped and was not";
  EXPECT_EQ(shown("redis://:hush@a,redis://:hush@b"), "redis://***@b");
  EXPECT_EQ(shown("http://host:18000"), "http://host:18000");
  EXPECT_EQ(shown("/mount/pages@node1"), "/mount/pages@node1") << "no URL";
  EXPECT_EQ(shown("mail@host://x"), "mail@host://x");
}

TEST(MaskedConfig, LooksIntoWhatIsNested) {
  EXPECT_EQ(masked_config(R"({"a": {"b": [{"api_key": "hush", "rank": 3}, "redis://:hush@host"]}})"),
            R"({"a":{"b":[{"api_key":"***","rank":3},"redis://***@host"]}})");
}

TEST(MaskedConfig, AFileIsNamedAndNotRead) {
  EXPECT_EQ(masked_config("@/etc/larder/hf3fs.toml"), "@/etc/larder/hf3fs.toml");
  EXPECT_EQ(masked_config("@x://:hush@y"), "@x://***@y");
  EXPECT_EQ(masked_config(""), "");
}

TEST(MaskedConfig, NothingIsShownOfWhatIsNoJsonObject) {
  const std::string nested = std::string(100'000, '[') + "\"hush\"";
  for (const std::string& text :
       {std::string(R"({"metadata_api_key": "hush")"), std::string("metadata_api_key = 'hush'\nrank = 1\n"),
        std::string("metadata_api_key: hush"), std::string("\"hush\""), std::string("[\"hush\"]"), std::string(" "),
        std::string("{\"a\": \"hush\"}\0", 14), nested}) {
    EXPECT_EQ(masked_config(text), "***") << text.substr(0, 100);
  }
}

}  // namespace
}  // namespace larder
