// SPDX-License-Identifier: Apache-2.0
#include "server/llama/waiting_stream.h"

#include <gtest/gtest.h>

namespace larder::llama {
namespace {

TEST(ErrorEvent, HasTheServersWordsInTheFormOfTheRoute) {
  const char* const body = R"({"error":{"code":400,"message":"too
long","type":"invalid_request_error"}})";
  EXPECT_EQ(error_event(false, 400, R"({"error":{"code":400,"message":"no"}})"),
            "data: {\"error\":{\"code\":400,\"message\":\"no\"}}\n\n");
  EXPECT_EQ(error_event(true, 400, R"({"type":"error","error":{"message":"no"}})"),
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"no\"}}\n\n");
  for (const char* other : {body, "", "<html>\n\n</html>", "[1]", "\xff"}) {
    for (const bool is_messages : {false, true}) {
      const std::string event = error_event(is_messages, 502, other);
      EXPECT_EQ(event.find("\n\n"), event.size() - 2) << "one event: " << event;
      EXPECT_NE(event.find("\"error\":{\"message\":"), std::string::npos) << event;
    }
  }
}

}  // namespace
}  // namespace larder::llama
