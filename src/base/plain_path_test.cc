// SPDX-License-Identifier: Apache-2.0
#include "base/plain_path.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace larder {
namespace {

TEST(PlainPath, IsTheSameHoweverItIsWritten) {
  const support::TemporaryDirectory folder;
  const std::string a = folder.path() + "/a";
  std::filesystem::create_directory(a);
  std::filesystem::create_directory_symlink(a, folder.path() + "/link");
  const std::filesystem::path plain = plain_path(a);
  for (const std::string& same : {a + "/", a + "/.", folder.path() + "//a", folder.path() + "/no/../a",
                                  folder.path() + "/link", folder.path() + "/link/../a"}) {
    EXPECT_EQ(plain_path(same), plain) << same;
  }
  EXPECT_EQ(plain_path(folder.path() + "/link/new"), plain / "new") << "as far as it exists";
  EXPECT_EQ(plain_path("larder-not-there"), plain_path(".") / "larder-not-there");
  EXPECT_EQ(plain_path("/"), "/");
}

TEST(PlainPath, LiesInADirectoryOrBesideIt) {
  EXPECT_TRUE(lies_in("/a/b", "/a/b"));
  EXPECT_TRUE(lies_in("/a/b/c/d", "/a/b"));
  EXPECT_TRUE(lies_in("/a", "/"));
  EXPECT_FALSE(lies_in("/a/bc", "/a/b"));
  EXPECT_FALSE(lies_in("/a", "/a/b"));
}

}  // namespace
}  // namespace larder
