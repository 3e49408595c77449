// SPDX-License-Identifier: Apache-2.0
#include "metadata/redis_address.h"

#include <gtest/gtest.h>

namespace larder::metadata {
namespace {

TEST(RedisAddressTest, Parts) {
  const auto whole = parse_redis_url("redis://:p%40ss:w@cache.example:7000/12");
  ASSERT_TRUE(whole.is_ok()) << whole.status().to_string();
  EXPECT_EQ(whole->host, "cache.example");
  EXPECT_EQ(whole->port, 7000);
  EXPECT_EQ(whole->password, "p@ss:w");
  EXPECT_EQ(whole->database, 12u);
  EXPECT_EQ(whole->text(), "cache.example:7000/12") << "without the password";
  const auto least = parse_redis_url("redis://127.0.0.1");
  ASSERT_TRUE(least.is_ok());
  EXPECT_EQ(least->text(), "127.0.0.1:6379/0");
  EXPECT_EQ(parse_redis_url("redis://[::1]:7000/")->text(), "[::1]:7000/0");
  EXPECT_EQ(parse_redis_url("redis://[::1]/2")->text(), "[::1]:6379/2");
  EXPECT_EQ(whole->trust, nullptr);
  const auto secure = parse_redis_url("rediss://:p@cache.example/1");
  ASSERT_TRUE(secure.is_ok()) << secure.status().to_string();
  EXPECT_EQ(secure->text(), "cache.example:6379/1");
  EXPECT_NE(secure->trust, nullptr);
  EXPECT_FALSE(parse_redis_url("redis://x", "ca.pem").is_ok()) << "whoever names authorities means TLS";
  EXPECT_FALSE(parse_redis_url("rediss://x", "/absent/ca.pem").is_ok());
}

TEST(RedisAddressTest, WhatIsWrongIsInvalidAndTellsNoPassword) {
  for (const char* const url : {"",
                                "redis:/x",
                                "http://x",
                                "rediss://",
                                "redisss://x",
                                "redis://",
                                "redis://:1",
                                "redis://x:",
                                "redis://x:0",
                                "redis://x:65536",
                                "redis://x:7 ",
                                "redis://x/a",
                                "redis://x/-1",
                                "redis://x/1/2",
                                "redis://user:secret@x",
                                "redis://:secret%4@x",
                                "redis://:secret%zz@x",
                                "redis://[::1",
                                "redis://[::1]7",
                                "redis://@x"}) {
    const auto address = parse_redis_url(url);
    EXPECT_EQ(address.status().code(), StatusCode::kInvalidArgument) << url;
    EXPECT_EQ(address.status().message().find("secret"), std::string::npos) << url;
  }
}

}  // namespace
}  // namespace larder::metadata
