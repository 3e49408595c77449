// SPDX-License-Identifier: Apache-2.0
#include "door/share_place.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

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

// Not only by their directories.
TEST(SharePlace, OtherStoresAreOthers) {
  struct Case {
    std::string backend;
    std::vector<BackendOptions> others;  // all different
    BackendOptions same;                 // as the first
  };
  const std::vector<Case> cases = {{"hf3fs",
                                    {{{"file_path_prefix", "/p"}},
                                     {{"file_path_prefix", "/q"}},
                                     {{"file_path_prefix", "/p"}, {"rank", "1"}},
                                     {{"file_path_prefix", "/p"}, {"metadata_server_url", "http://a:1"}},
                                     {{"file_path_prefix", "/p"}, {"metadata_server_url", "http://b:1"}}},
                                    {{"file_path_prefix", "/p"}, {"rank", "0"}, {"numjobs", "4"}}},
                                   {"mooncake",
                                    {{{"master_server_address", "a:1"}}, {{"master_server_address", "b:1"}}},
                                    {{"master_server_address", "a:1"}, {"replica_num", "2"}, {"local_hostname", "h"}}},
                                   {"plugin",
                                    {{{"library", "/a.so"}, {"bucket", "x"}},
                                     {{"library", "/a.so"}, {"bucket", "y"}},
                                     {{"library", "/a.so"}},
                                     {{"library", "/b.so"}, {"bucket", "x"}},
                                     {{"library", "a.so"}, {"bucket", "x"}},
                                     {{"library", "/a.so"}, {"bucket", "x"}, {"region", "x"}}},
                                    {{"library", "/./a.so"}, {"bucket", "x"}, {"queue_limit", "5"}}}};
  for (const Case& each : cases) {
    std::vector<Digest256> seen;
    for (const BackendOptions& options : each.others) {
      const Result<SharePlace> place = share_place(each.backend, options, "/s");
      ASSERT_TRUE(place.is_ok()) << place.status().to_string();
      EXPECT_EQ(std::count(seen.begin(), seen.end(), place->store), 0) << place->text;
      seen.push_back(place->store);
    }
    EXPECT_EQ(share_place(each.backend, each.same, "/s")->store, seen.front()) << each.backend;
  }
}

// Others read the text, in their errors and logs.
TEST(SharePlace, KeepsSecretsToItself) {
  const auto text = [](const std::string& backend, const BackendOptions& options) {
    return share_place(backend, options, "/s")->text;
  };
  EXPECT_EQ(text("hf3fs", {{"metadata_server_url", "redis://:secret@a:1/0"}}),
            "backend hf3fs, rank 0, metadata_server_url redis://a:1/0");
  const auto store = [](const char* url) {
    return share_place("hf3fs", {{"metadata_server_url", url}}, "/s").value().store;
  };
  EXPECT_EQ(store("http://larder:key@a:1"), store("http://a:1")) << "the key may be an option of its own";
  EXPECT_EQ(text("plugin", {{"library", "/a.so"}, {"key", "secret"}}), "backend plugin, library /a.so, with key");
}

}  // namespace
}  // namespace larder
