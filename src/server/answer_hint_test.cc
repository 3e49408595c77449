// SPDX-License-Identifier: Apache-2.0
#include "server/answer_hint.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

TEST(AnswerHint, WhereNobodyListensTheOptionIsNamed) {
  const Status refused = unavailable("cannot connect to 127.0.0.1:30000: Connection refused");
  const Status told = with_url_hint(refused, "larder proxy: http://127.0.0.1:8080");
  EXPECT_EQ(told.code(), StatusCode::kUnavailable);
  EXPECT_EQ(told.message(),
            "cannot connect to 127.0.0.1:30000: Connection refused; another server: --url (larder proxy: "
            "http://127.0.0.1:8080)");
  EXPECT_TRUE(with_url_hint(refused, "").message().ends_with("refused; another server: --url"));
  for (const Status& other : {Status::ok(), unavailable("GET /server_info: HTTP 503: busy"),
                              deadline_exceeded("cannot connect to 127.0.0.1:30000: it does not answer")}) {
    EXPECT_EQ(with_url_hint(other, "x").to_string(), other.to_string());
  }
}

}  // namespace
}  // namespace larder
