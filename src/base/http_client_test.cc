#include "base/http_client.h"

#include <gtest/gtest.h>

#include <utility>

namespace larder {
namespace {

TEST(HttpUrl, Parts) {
  const auto whole = parse_http_url("http://[::1]:30000/v0/");
  ASSERT_TRUE(whole.is_ok()) << whole.status().to_string();
  EXPECT_EQ(whole->host, "::1");
  EXPECT_EQ(whole->port, 30000);
  EXPECT_EQ(whole->base, "/v0");
  EXPECT_EQ(parse_http_url("localhost")->port, 80);
  EXPECT_EQ(parse_http_url("http://x/mail@y")->base, "/mail@y") << "behind the host an '@' is as good as any";
}

TEST(HttpUrl, WhatIsWrongIsNamedAndNoKeyIsShown) {
  const std::pair<const char*, const char*> cases[] = {
      {"http://larder:hush@host:18000", "'host:18000': a host has no '@'"},
      {"hush@host", "'host': a host has no '@'"},
      {"http://larder:hu@sh@[::1]:1/v0", "no '@'"},
      {"https://larder:hush@host", "'host': https"},
      {"http://larder:hush/x@host", "'host': the port"},
      {"http://:7", "'http://:7': no host"},
      {"http://x:0", "'http://x:0': the port"}};
  for (const auto& [url, problem] : cases) {
    const auto parsed = parse_http_url(url);
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << url;
    EXPECT_NE(parsed.status().message().find(problem), std::string::npos) << parsed.status().message();
    EXPECT_EQ(parsed.status().message().find("hush"), std::string::npos) << url;
  }
}

}  // namespace
}  // namespace larder
