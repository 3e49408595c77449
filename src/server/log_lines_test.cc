// SPDX-License-Identifier: Apache-2.0
#include "server/log_lines.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace larder {
namespace {

constexpr std::int64_t kTime = 1'795'680'930'042;  // 2026-11-26 08:15:30.042 UTC

TEST(LogLines, SayWhenWhoAndWhat) {
  EXPECT_EQ(log_line_text(LogFormat::kText, kTime, LogLevel::kInfo, "server/audit", "POST /x: 200"),
            "2026-11-26T08:15:30.042Z info server/audit: POST /x: 200\n");
  const std::string line = log_line_text(LogFormat::kJson, kTime, LogLevel::kError, "storage/file", "say \"no\"\\");
  EXPECT_EQ(line.back(), '\n');
  const nlohmann::json parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["time"], "2026-11-26T08:15:30.042Z");
  EXPECT_EQ(parsed["level"], "error");
  EXPECT_EQ(parsed["component"], "storage/file");
  EXPECT_EQ(parsed["message"], "say \"no\"\\");
}

// A path of a request may hold a line feed, and a damaged file any bytes.
TEST(LogLines, AMessageBeginsNoLineOfItsOwn) {
  const std::string_view hostile =
      "/a\n2026-11-26T08:15:30.000Z info server/audit: forged\r\x1b[2J\x01\x7f\xc2\x9b\xff";
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    const std::string line = log_line_text(format, kTime, LogLevel::kWarning, "proxy", hostile);
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    for (const char c : std::string_view(line).substr(0, line.size() - 1)) {
      EXPECT_GE(static_cast<unsigned char>(c), 0x20) << line;
    }
    EXPECT_EQ(line.find('\x7f'), std::string::npos);
    EXPECT_EQ(line.find("\xc2\x9b"), std::string::npos);
    EXPECT_NE(line.find("forged"), std::string::npos);
  }
}

TEST(LogLines, WordsOfAnyLanguageStay) {
  EXPECT_NE(
      log_line_text(LogFormat::kText, kTime, LogLevel::kInfo, "x", "größer \xe2\x89\xa5").find("größer \xe2\x89\xa5"),
      std::string::npos);
}

}  // namespace
}  // namespace larder
