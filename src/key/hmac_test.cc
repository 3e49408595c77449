// SPDX-License-Identifier: Apache-2.0
// The cases of RFC 4231, which are not ours.
#include "key/hmac.h"

#include <gtest/gtest.h>

#include <string>

namespace larder {
namespace {

TEST(HmacSha256, GivesWhatTheStandardSays) {
  EXPECT_EQ(HmacSha256(std::string(20, '\x0b')).of({"Hi There"}).hex(),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(HmacSha256("Jefe").of({"what do ya want for nothing?"}).hex(),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  // A key that is longer than a block.
  EXPECT_EQ(HmacSha256(std::string(131, '\xaa')).of({"Test Using Larger Than Block-Size Key - Hash Key First"}).hex(),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(HmacSha256, TakesPiecesAsOneMessageAndMayBeAskedAgain) {
  const HmacSha256 mac("Jefe");
  EXPECT_EQ(mac.of({"what do ya ", "", "want for nothing?"}), mac.of({"what do ya want for nothing?"}));
  EXPECT_NE(mac.of({"what do ya want for nothing"}), mac.of({"what do ya want for nothing?"}));
}

TEST(HmacSha256, ComparesWholeCodes) {
  EXPECT_TRUE(are_equal_macs("abcd", "abcd"));
  EXPECT_FALSE(are_equal_macs("abcd", "abce"));
  EXPECT_FALSE(are_equal_macs("abcd", "abc"));
  EXPECT_TRUE(are_equal_macs("", ""));
}

}  // namespace
}  // namespace larder
