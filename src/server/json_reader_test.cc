// SPDX-License-Identifier: Apache-2.0
#include "server/json_reader.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

// Found by fuzzing: to the parser below, a NUL is the end of the text, and what follows it was not looked at.
TEST(ParseJsonObject, ANulIsNoJson) {
  for (const std::string_view behind : {std::string_view("\0", 1), std::string_view("\0{", 2)}) {
    const auto object = parse_json_object("{\"a\": 1}\n" + std::string(behind));
    EXPECT_EQ(object.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(object.status().message().find("malformed JSON at byte 9 (line 2, column 1)"), std::string::npos)
        << object.status().message();
  }
  const auto escaped = parse_json_object("{\"a\": \"\\u0000\"}");
  ASSERT_TRUE(escaped.is_ok()) << escaped.status().to_string();
  EXPECT_EQ((*escaped)["a"], std::string(1, '\0'));
}

TEST(ParseJsonObject, AnErrorShowsTheBeginningOfALongToken) {
  std::string token;
  for (int i = 0; i < 10'000; ++i) token += "\u00fc";
  for (const std::string& text :
       {"\"" + token, "{\"" + token + "\xff\": 1}", "{\"a\": " + std::string(10'000, '1') + "}"}) {
    const std::string message = parse_json_object(text).status().message();
    EXPECT_TRUE(message.starts_with("malformed JSON")) << message;
    EXPECT_TRUE(message.ends_with("...")) << message;
    EXPECT_LT(message.size(), 300u);
    EXPECT_EQ(nlohmann::json::parse(nlohmann::json(message).dump()), message) << "no character is cut";
  }
}

// A file of another kind has more brackets open than JSON may have, and what is wrong with it is something else.
TEST(ParseJsonObject, WhatIsNoJsonIsMalformedHoweverDeep) {
  const std::string deep(100, '[');
  const auto message = [](const std::string& text) { return parse_json_object(text).status().message(); };
  EXPECT_TRUE(message("\x7f"
                      "ELF" +
                      deep)
                  .starts_with("malformed JSON at byte 0 (line 1, column 1)"))
      << message(
             "\x7f"
             "ELF" +
             deep);
  EXPECT_TRUE(message("\x7f"
                      "ELF" +
                      std::string(1, '\0') + deep)
                  .starts_with("malformed JSON at byte 4"));
  EXPECT_TRUE(message("{\"a\": 1," + deep).starts_with("malformed JSON at byte 8"));
  EXPECT_EQ(message("{\"a\": " + deep), "JSON nested deeper than 64 levels");
  EXPECT_EQ(message(deep), "JSON nested deeper than 64 levels");
}

}  // namespace
}  // namespace larder
