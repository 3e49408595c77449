// SPDX-License-Identifier: Apache-2.0
#include "server/http_message.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

TEST(WebPage, OfAnotherSiteIsKnownByWhatItsBrowserSends) {
  const auto from_page = [](std::vector<HttpField> fields) { return is_from_web_page(fields); };
  for (const char* host : {"localhost", "LocalHost:8080", "127.0.0.1", "127.0.0.1:30000", "[::1]:8080", "[::1]",
                           "ui.localhost:80", "192.168.0.4:80"}) {
    EXPECT_FALSE(from_page({{"Host", host}})) << host;
    EXPECT_FALSE(from_page({{"Host", host}, {"Origin", std::string("http://") + host}})) << host;
    EXPECT_FALSE(from_page({{"host", host}, {"Sec-Fetch-Site", "same-origin"}})) << host;
    EXPECT_FALSE(from_page({{"Host", host}, {"Sec-Fetch-Site", "none"}})) << host;
    EXPECT_TRUE(from_page({{"Host", host}, {"sec-fetch-site", "cross-site"}})) << host;
    EXPECT_TRUE(from_page({{"Host", host}, {"Sec-Fetch-Site", "same-site"}})) << host;
    for (const char* origin : {"http://evil.example", "null", "", "http://localhost:1",
                               "https://127.0.0.1.evil.example", "file://", "chrome-extension://abc"}) {
      EXPECT_TRUE(from_page({{"Host", host}, {"Origin", origin}})) << host << ", " << origin;
    }
  }
  // A name that may be anybody's: what DNS says of it may change while the page is open.
  for (const char* host :
       {"evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "notlocalhost", "",
        ":80", "127.0.0.1x", "0.0.0.0", "0.0.0.0:80", "0", "[::]", "[::]:80", "[0:0:0:0:0:0:0:0]"}) {
    EXPECT_TRUE(from_page({{"Host", host}})) << host;
    EXPECT_TRUE(from_page({{"Host", host}, {"Origin", std::string("http://") + host}})) << host;
  }
  EXPECT_FALSE(from_page({})) << "HTTP/1.0 without any field";
  EXPECT_TRUE(from_page({{"Origin", "http://localhost"}}));
}

TEST(RequestTarget, IsAPathAndAQuery) {
  HttpRequest request;
  ASSERT_TRUE(parse_target("/v1/%63ompletions?x=%20&y", request).is_ok());
  EXPECT_EQ(request.path, "/v1/completions");
  EXPECT_EQ(request.query, (std::map<std::string, std::string>{{"x", " "}, {"y", ""}}));
  for (const char* wrong : {"", "v1", "http://localhost/v1", "*", "/%", "/%u0041", "/v1#", "/v1?x=1#y"}) {
    EXPECT_EQ(parse_target(wrong, request).code(), StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(RequestTarget, OfAProxysClientLosesSchemeAndHost) {
  const std::pair<const char*, const char*> targets[] = {{"http://localhost:8080/v1/models?x=1", "/v1/models?x=1"},
                                                         {"HTTPS://x/a%20b", "/a%20b"},
                                                         {"http://x", "/"},
                                                         {"http://x?y", "/?y"},
                                                         {"http:///a", "/a"},
                                                         {"/http://x/a", "/http://x/a"},
                                                         {"*", "*"},
                                                         {"", ""},
                                                         {"http:/a", "http:/a"}};
  for (const auto& [sent, expected] : targets) EXPECT_EQ(origin_form(sent), expected) << sent;
}

}  // namespace
}  // namespace larder
