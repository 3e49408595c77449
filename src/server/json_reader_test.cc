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

}  // namespace
}  // namespace larder
