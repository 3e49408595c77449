// SPDX-License-Identifier: Apache-2.0
// An independent client, in another language, plays the reference's call sequence (reference_client.py).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/metadata_http/http_harness.h"

namespace larder::conformance {
namespace {

TEST(ReferenceClientTest, ItsCallSequenceWorks) {
  if (std::system("python3 -c 'import http.client' 2>/dev/null") != 0) GTEST_SKIP() << "there is no python3";
  HttpServerUnderTest server;
  const std::string command = "python3 " + std::string(LARDER_SOURCE_DIR) +
                              "/tests/metadata_http/reference_client.py " + server.url() + " 2>&1";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char piece[512];
  while (std::fgets(piece, sizeof piece, pipe) != nullptr) output += piece;
  EXPECT_EQ(::pclose(pipe), 0) << output;
  EXPECT_EQ(output, "ok\n");
  EXPECT_TRUE(server.service().check().is_ok());
}

}  // namespace
}  // namespace larder::conformance
