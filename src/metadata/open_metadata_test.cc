// SPDX-License-Identifier: Apache-2.0
#include "metadata/open_metadata.h"

#include <gtest/gtest.h>

#include "metadata/real_redis_connection.h"

namespace larder {
namespace {

TEST(OpenMetadataTest, OtherUrlsAreRefusedWithoutTheirPassword) {
  MetadataOptions options;
  options.url = "ftp://me:secret@host";
  const auto opened = open_metadata(options, real_clock());
  EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(opened.status().message().find("secret"), std::string::npos);
}

TEST(OpenMetadataTest, OverTlsThereIsSomebodyToBelieve) {
  for (const char* const url : {"https://127.0.0.1:1", "rediss://127.0.0.1:1"}) {  // is not connected to here
    MetadataOptions options;
    options.url = url;
    const StatusCode built = url[0] == 'r' ? metadata::RedisConnection::built().code() : StatusCode::kOk;
    EXPECT_EQ(open_metadata(options, real_clock()).status().code(), built) << url;
    if (built != StatusCode::kOk) continue;
    options.ca_file = "/absent/ca.pem";
    const Status status = open_metadata(options, real_clock()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << url;
    EXPECT_NE(status.message().find("/absent/ca.pem"), std::string::npos) << status.message();
  }
}

// What the build lacks is named with the option that brings it. With both libraries there this asks for nothing.
TEST(OpenMetadataTest, WhatTheBuildLacksIsNamed) {
  MetadataOptions redis;
  redis.url = "redis://127.0.0.1:1";  // is not connected to here
  const auto service = open_metadata(redis, real_clock());
  EXPECT_EQ(service.status().code(), metadata::RedisConnection::built().code());
  EXPECT_TRUE(service.is_ok() || service.status().message().find("LARDER_REDIS") != std::string::npos);

  MetadataOptions journal;
  journal.directory = "/proc/none/journal";  // nobody can make that
  const auto embedded = open_metadata(journal, real_clock());
  if (embedded.status().code() != StatusCode::kNotFound) {
    EXPECT_EQ(embedded.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(embedded.status().message().find("LARDER_ROCKSDB"), std::string::npos);
  }
}

}  // namespace
}  // namespace larder
