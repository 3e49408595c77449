// SPDX-License-Identifier: Apache-2.0
#include "server/llama/byte_buffers.h"

#include <gtest/gtest.h>

namespace larder::llama {
namespace {

TEST(ByteBuffers, OneThatIsFreeIsUsedAgain) {
  ByteBuffers buffers(2);
  const std::byte* first = buffers.take(100)->bytes().data();
  EXPECT_EQ(buffers.kept_bytes(), 125u);
  const auto again = buffers.take(120);
  EXPECT_EQ(again->bytes().data(), first);
  EXPECT_EQ(again->bytes().size(), 120u);
  EXPECT_EQ(buffers.kept_bytes(), 0u);
}

TEST(ByteBuffers, FreeOnesAreBoundInNumberAndInBytes) {
  ByteBuffers buffers(3, 300);
  {
    const auto a = buffers.take(100), b = buffers.take(100), c = buffers.take(100);
    EXPECT_EQ(buffers.kept_bytes(), 0u) << "they are in use";
  }
  EXPECT_EQ(buffers.kept_bytes(), 250u);
  { const auto larger = buffers.take(200); }
  EXPECT_EQ(buffers.kept_bytes(), 250u) << "the larger one is worth more";
  EXPECT_EQ(buffers.take(200)->bytes().size(), 200u);
  { const auto too_large = buffers.take(1000); }
  EXPECT_EQ(buffers.kept_bytes(), 250u) << "one that is beyond all bounds goes at once, and no other for it";
  ByteBuffers few(1);
  { const auto a = few.take(100), b = few.take(100); }
  EXPECT_EQ(few.kept_bytes(), 125u);
}

}  // namespace
}  // namespace larder::llama
