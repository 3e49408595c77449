// SPDX-License-Identifier: Apache-2.0
#include "server/refusal_log.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/log.h"

namespace larder {
namespace {

TEST(RefusalLog, WhoHoldsNoKeyWritesOneLineASecond) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view, std::string_view message) { lines.emplace_back(message); });
  ManualClock clock;
  std::optional<RefusalLog> log(clock);
  HttpRequest request;
  request.method = "POST";
  request.path = "/flush_cache";
  request.peer = "192.0.2.7";
  request.id = "id";
  const std::string line = "POST /flush_cache from 192.0.2.7: 401 (Unauthorized), request id";
  for (int i = 0; i < 1000; ++i) log->add(request, 401);
  EXPECT_EQ(lines, std::vector{line});
  log->add(request, 405);
  ASSERT_EQ(lines.size(), 2u) << "another kind";
  clock.advance(std::chrono::seconds(1));
  log->add(request, 401);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[2], line + "; 999 more before it have no line");
  log->add(request, 401);
  clock.advance(std::chrono::seconds(1));
  log->add(request, 405);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[3].find("more"), std::string::npos) << lines[3];
  log.reset();
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[4], "401 (Unauthorized): 1 more have no line");
  set_log_sink({});
}

}  // namespace
}  // namespace larder
