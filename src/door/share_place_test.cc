// SPDX-License-Identifier: Apache-2.0
#include "door/share_place.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temporary_directory.h"

namespace larder {
namespace {

Digest256 store_of(const std::string& directory, const std::string& backend = "file") {
  const Result<SharePlace> place = share_place(backend, {{"directory", directory}, {"max_size", "1G"}}, "/s");
  EXPECT_TRUE(place.is_ok()) << place.status().to_string();
  return place.is_ok() ? place->store : Digest256{};
}

TEST(SharePlace, IsTheSameHoweverThePathsAreWritten) {
  const support::TemporaryDirectory folder;
  const std::string a = folder.path() + "/a";
  std::filesystem::create_directory(a);
  std::filesystem::create_directory_symlink(a, folder.path() + "/link");
  const Digest256 store = store_of(a);
  for (const std::string& same : {a + "/", folder.path() + "/./x/../a", folder.path() + "/link", a + ":", ":" + a}) {
    EXPECT_EQ(store_of(same), store) << same;
  }
  EXPECT_EQ(store_of("larder-not-there"), store_of(std::filesystem::current_path().string() + "/larder-not-there"));
  for (const std::string& other : {a + "2", a + "/b", a + ":" + a + "2"}) {
    EXPECT_NE(store_of(other), store) << other;
  }
  EXPECT_NE(store_of(a, "hf3fs"), store);
}

TEST(SharePlace, LiesOutsideOfTheStoresDirectories) {
  const support::TemporaryDirectory folder;
  const std::string a = folder.path() + "/a", b = folder.path() + "/b";
  const BackendOptions options = {{"directory", a + ":" + b}};
  for (const std::string& wrong : {a, a + "/", b, b + "/share", folder.path() + "/x/../a/y"}) {
    const Result<SharePlace> place = share_place("file", options, wrong);
    EXPECT_EQ(place.status().code(), StatusCode::kInvalidArgument) << wrong;
    EXPECT_NE(place.status().message().find("share_directory"), std::string::npos) << place.status().message();
  }
  EXPECT_FALSE(std::filesystem::exists(a));
  for (const std::string& right : {a + ".share", folder.path(), folder.path() + "/c"}) {
    const Result<SharePlace> place = share_place("file", options, right);
    ASSERT_TRUE(place.is_ok()) << right << ": " << place.status().to_string();
    EXPECT_EQ(place->text, "backend file, directory " + std::filesystem::weakly_canonical(a).string() + ":" +
                               std::filesystem::weakly_canonical(b).string());
  }
  EXPECT_TRUE(share_place("memory", {}, "/s").is_ok());
}

}  // namespace
}  // namespace larder
