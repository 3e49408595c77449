// SPDX-License-Identifier: Apache-2.0
#include "door/store_config.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

TEST(StoreConfigTest, OwnKeysStayAndOthersGoToTheBackend) {
  const StoreConfig config = parse_store_config(R"({"directory": "/x", "io_depth": 8, "direct": false,
      "timeout_seconds": 0.25, "staging_bytes": "2Mi", "zero_copy": true, "retry_bytes": 0, "retry_seconds": 5})")
                                 .value();
  EXPECT_EQ(config.backend, (BackendOptions{{"directory", "/x"}, {"io_depth", "8"}, {"direct", "false"}}));
  EXPECT_EQ(config.limits.timeout, std::chrono::milliseconds(250));
  EXPECT_EQ(config.limits.staging_bytes, std::size_t{2} << 20);
  EXPECT_TRUE(config.limits.is_zero_copy);
  EXPECT_EQ(config.limits.retry.most_bytes, 0u);
  EXPECT_EQ(config.limits.retry.oldest, std::chrono::seconds(5));
}

TEST(StoreConfigTest, DefaultsAreThoseOfTheHelp) {
  const StoreConfig config = parse_store_config("").value();
  std::string text = "{";
  for (const BackendOptionHelp& option : store_option_help()) {
    text += (text.size() > 1 ? ", \"" : "\"") + option.key + "\": \"" + option.default_text + "\"";
  }
  const StoreConfig helped = parse_store_config(text + "}").value();
  EXPECT_EQ(config.limits.timeout, helped.limits.timeout);
  EXPECT_EQ(config.limits.staging_bytes, helped.limits.staging_bytes);
  EXPECT_EQ(config.limits.is_zero_copy, helped.limits.is_zero_copy);
  EXPECT_EQ(config.limits.retry.most_bytes, helped.limits.retry.most_bytes);
  EXPECT_EQ(config.limits.retry.oldest, helped.limits.retry.oldest);
  EXPECT_EQ(config.share_directory, helped.share_directory);
}

TEST(StoreConfigTest, WrongTextsAreRefusedInWords) {
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"{", "store configuration:1:"},
      {"[1]", "a JSON object is expected"},
      {R"({"max_size": []})", "'max_size' is a list"},
      {R"({"directory": 3})", "'directory' is a path: text in quotes is expected"},
      {R"({"share_directory": true})", "'share_directory' is a path"},
      {R"({"directory": null})", "'directory' is a path"},
      {R"({"metadata_api_key": 71})", "'metadata_api_key': text in quotes is expected"},
      {R"({"device_name": true})", "'device_name': text in quotes is expected"},
      {R"({"directory": "/x\u0000y"})", "'directory' holds a zero character"},
      {R"({"timeout_seconds": -1})", "option 'timeout_seconds': '-1' is no number from 0.001"},
      {R"({"timeout_seconds": "soon"})", "option 'timeout_seconds': 'soon'"},
      {R"({"staging_bytes": 5})", "from 1Mi to 64Gi"},
      {R"({"zero_copy": "maybe"})", "'maybe' is none of true, false"},
  };
  for (const auto& [text, words] : wrong) {
    const Result<StoreConfig> config = parse_store_config(text);
    ASSERT_FALSE(config.is_ok()) << text;
    EXPECT_NE(config.status().message().find(words), std::string::npos) << config.status().message();
  }
}

}  // namespace
}  // namespace larder
