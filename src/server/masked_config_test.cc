// SPDX-License-Identifier: Apache-2.0
#include "server/masked_config.h"

#include <gtest/gtest.h>

#include "storage/factory.h"
#include "storage/file/file_backend.h"
#include "storage/hf3fs/hf3fs_factory.h"
#include "storage/memory/memory_backend.h"
#include "storage/mooncake/mooncake_factory.h"
#include "storage/plugin/plugin_backend.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

std::string shown(std::string_view text) { return masked_config("hf3fs", text); }

TEST(MaskedConfig, HidesSecretsAndShowsTheRestInItsOrder) {
  EXPECT_EQ(shown(R"({"numjobs": 2, "metadata_api_key": "hush", "file_size": "1Ti", "entries": 64,
                              "prefetch_timeout_per_ki_token": 0.25})"),
            R"({"numjobs":2,"metadata_api_key":"***","file_size":"1Ti","entries":64,)"
            R"("prefetch_timeout_per_ki_token":0.25})");
  EXPECT_EQ(shown(R"({"Admin-API-Key": "hush", "redisPassword": 1234, "hf_token": ["hush"], "clientSecret": true,
                              "tokens": 5, "secret_path": "/a"})"),
            R"({"Admin-API-Key":"***","redisPassword":"***","hf_token":"***","clientSecret":"***",)"
            R"("tokens":5,"secret_path":"/a"})");
  EXPECT_EQ(shown(R"({"metadata_api_key": "", "password": null})"), R"({"metadata_api_key":null,"password":null})")
      << "not set";
  EXPECT_EQ(shown(R"({"password": "hush", "password": ""})").find("hush"), std::string::npos) << "twice";
}

// {NAME: VALUE} as it is shown.
std::string shown_as(const std::string& name, const std::string& value) {
  const std::string text = shown("{\"" + name + "\":" + value + "}");
  return text.substr(name.size() + 4, text.size() - name.size() - 5);
}

TEST(MaskedConfig, ASecretsNameMayStandAnywhereInAKey) {
  for (const char* name : {"secret",
                           "client_secret_2",
                           "secretKey",
                           "password_of_redis",
                           "db-passwd",
                           "PASSWORD",
                           "pass_word",
                           "passphrase",
                           "pass-phrase-of-key",
                           "credentials",
                           "aws_credential_text",
                           "authorization",
                           "Proxy-Authorization",
                           "authorization_header",
                           "private_key",
                           "privateKeyPem",
                           "access_key",
                           "aws_access_key_id",
                           "accessKeySecret",
                           "api_key",
                           "api-keys",
                           "apikey2",
                           "metadata_api_key",
                           "token",
                           "token_of_hub",
                           "hf-token",
                           "bearerToken",
                           "auth_tokens",
                           "tokens",
                           "tokenizer_access_token",
                           "bypass_write_password"}) {
    EXPECT_EQ(shown_as(name, "\"hush\""), "\"***\"") << name;
    EXPECT_EQ(shown_as(name, "[{\"x\":\"hush\"}]"), "\"***\"") << name;
    EXPECT_EQ(shown_as(name, "\"\""), "null") << name;
  }
  for (const char* name : {"token", "password", "api_key", "client_secret"}) {
    EXPECT_EQ(shown_as(name, "1234"), "\"***\"") << name << ": there are secrets of digits alone";
  }
}

TEST(MaskedConfig, WhatIsPlainlyNoSecretIsShown) {
  for (const char* name :
       {"max_total_tokens", "tokens", "num_reserved_decode_tokens", "swa_full_tokens_ratio", "tokens_per_page"}) {
    EXPECT_EQ(shown_as(name, "5"), "5") << name;
    EXPECT_EQ(shown_as(name, "null"), "null") << name;
    EXPECT_EQ(shown_as(name, "{\"device\":1,\"more\":[2,0.5]}"), "{\"device\":1,\"more\":[2,0.5]}") << name;
  }
  EXPECT_EQ(shown_as("prefetch_timeout_per_ki_token", "0.25"), "0.25");
  for (const char* name : {"tokenizer", "tokenizer_path", "skip-tokenizer-init", "api_key_file", "private_key_path",
                           "bypass_write", "hicache_storage_pass_prefix_keys", "keyfile", "compass", "key"}) {
    EXPECT_EQ(shown_as(name, "\"word\""), "\"word\"") << name;
  }
}

TEST(MaskedConfig, OfOurBackendsOneKeyIsASecret) {
  BackendFactory factory;
  for (const auto add : {register_memory_backend, register_file_backend, register_hf3fs_backend,
                         register_mooncake_backend, register_plugin_backend}) {
    ASSERT_TRUE(add(factory).is_ok());
  }
  for (const std::string& backend : factory.names()) {
    for (const BackendOptionHelp& option : *factory.options_of(backend)) {
      const bool is_hidden = shown_as(option.key, "\"word\"") != "\"word\"";
      EXPECT_EQ(is_hidden, option.key == "metadata_api_key") << backend << ' ' << option.key;
    }
  }
}

TEST(MaskedConfig, OfAPluginNothingIsShownThatIsItsLibrarysOwn) {
  const char* const text =
      R"({"library": "/lib/mine.so", "queue_limit": 9, "prefetch_threshold": 64, "prefetch_timeout_base": 1,)"
      R"( "prefetch_timeout_per_ki_token": 0.5, "prefetch_timeout_max": 2, "tp_lcm_size": 1,)"
      R"( "hicache_storage_pass_prefix_keys": true, "pin": 1234, "door": "hush", "open": true, "unset": "",)"
      R"( "Library": "hush"})";
  EXPECT_EQ(masked_config("plugin", text),
            R"({"library":"/lib/mine.so","queue_limit":9,"prefetch_threshold":64,"prefetch_timeout_base":1,)"
            R"("prefetch_timeout_per_ki_token":0.5,"prefetch_timeout_max":2,"tp_lcm_size":1,)"
            R"("hicache_storage_pass_prefix_keys":true,"pin":"***","door":"***","open":"***","unset":null,)"
            R"("Library":"***"})");
  EXPECT_EQ(masked_config("plugin", R"({"library": "x://u:hush@y"})"), R"({"library":"x://***@y"})");
  EXPECT_EQ(masked_config("plugin", "@/etc/larder/mine.json"), "@/etc/larder/mine.json");
  EXPECT_EQ(masked_config("plugin", "door = 'hush'"), "***");
  EXPECT_EQ(masked_config("plugin", ""), "");
  EXPECT_EQ(shown(R"({"door": "/d"})"), R"({"door":"/d"})") << "of another backend";
}

TEST(MaskedConfig, HidesWhoAUrlIsAskedAs) {
  const auto shown_url = [](const std::string& url) {
    return Json::parse(shown(R"({"url": ")" + url + "\"}")).at("url");
  };
  EXPECT_EQ(shown_url("redis://:hush@host:7000/2"), "redis://***@host:7000/2");
  EXPECT_EQ(shown_url("http://larder:hush@[::1]:18000"), "http://***@[::1]:18000");
  EXPECT_EQ(shown_url("redis://:hu/s@h?h@host"), "redis://***@host") << "what should have been escaped and was not";
  EXPECT_EQ(shown_url("redis://:hush@a,redis://:hush@b"), "redis://***@b");
  EXPECT_EQ(shown_url("http://host:18000"), "http://host:18000");
  EXPECT_EQ(shown_url("/mount/pages@node1"), "/mount/pages@node1") << "no URL";
  EXPECT_EQ(shown_url("mail@host://x"), "mail@host://x");
}

TEST(MaskedConfig, LooksIntoWhatIsNested) {
  EXPECT_EQ(shown(R"({"a": {"b": [{"api_key": "hush", "rank": 3}, "redis://:hush@host"]}})"),
            R"({"a":{"b":[{"api_key":"***","rank":3},"redis://***@host"]}})");
}

TEST(MaskedConfig, AFileIsNamedAndNotRead) {
  EXPECT_EQ(shown("@/etc/larder/hf3fs.toml"), "@/etc/larder/hf3fs.toml");
  EXPECT_EQ(shown("@x://:hush@y"), "@x://***@y");
  EXPECT_EQ(shown(""), "");
}

TEST(MaskedConfig, NothingIsShownOfWhatIsNoJsonObject) {
  const std::string nested = std::string(100'000, '[') + "\"hush\"";
  for (const std::string& text :
       {std::string(R"({"metadata_api_key": "hush")"), std::string("metadata_api_key = 'hush'\nrank = 1\n"),
        std::string("metadata_api_key: hush"), std::string("\"hush\""), std::string("[\"hush\"]"), std::string(" "),
        std::string("{\"a\": \"hush\"}\0", 14), nested}) {
    EXPECT_EQ(shown(text), "***") << text.substr(0, 100);
  }
}

}  // namespace
}  // namespace larder
