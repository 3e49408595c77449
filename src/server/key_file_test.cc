// SPDX-License-Identifier: Apache-2.0
#include "server/key_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <span>

#include "base/file_system.h"
#include "tests/support/temporary_directory.h"

namespace larder {
namespace {

class KeyFileTest : public ::testing::Test {
 protected:
  void TearDown() override { ::unsetenv(kVariable); }

  std::string file(const std::string& text) {
    const std::string path = directory_.path() + "/key";
    auto file = real_file_system().open(path, {.write = true, .create = true, .truncate = true});
    EXPECT_TRUE(file.is_ok() && (*file)->write_at(std::as_bytes(std::span(text)), 0).is_ok());
    return path;
  }

  static constexpr const char* kVariable = "LARDER_KEY_FILE_TEST";
  support::TemporaryDirectory directory_;
};

TEST_F(KeyFileTest, TheOptionComesFirstThenTheFileThenTheEnvironment) {
  ::setenv(kVariable, "from-environment\n", 1);
  std::string key = "given";
  EXPECT_TRUE(fill_key(key, file("from-file\n"), kVariable).is_ok());
  EXPECT_EQ(key, "given");
  key.clear();
  EXPECT_TRUE(fill_key(key, file("from-file\r\n"), kVariable).is_ok());
  EXPECT_EQ(key, "from-file");
  key.clear();
  EXPECT_TRUE(fill_key(key, "", kVariable).is_ok());
  EXPECT_EQ(key, "from-environment");
  ::unsetenv(kVariable);
  key.clear();
  EXPECT_TRUE(fill_key(key, "", kVariable).is_ok());
  EXPECT_EQ(key, "");
}

// An empty key would let everybody in.
TEST_F(KeyFileTest, AFileWithoutAKeyIsRefused) {
  std::string key;
  for (const char* text : {"", "\n", "\r\n\n"}) {
    const Status refused = fill_key(key, file(text), kVariable);
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.message().find("holds no key"), std::string::npos) << refused.message();
  }
  EXPECT_EQ(fill_key(key, file(std::string(5000, 'k')), kVariable).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(fill_key(key, directory_.path() + "/absent", kVariable).code(), StatusCode::kNotFound);
}

// `--api-key-file <(pass show larder)`. As in a shell, the writer has closed its end, perhaps before it is read.
TEST_F(KeyFileTest, AKeyComesOutOfAPipe) {
  const auto piped = [](const std::string& text, std::string& key) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe(ends), 0);
    EXPECT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    ::close(ends[1]);
    const Status status = fill_key(key, "/proc/self/fd/" + std::to_string(ends[0]), kVariable);
    ::close(ends[0]);
    return status;
  };
  std::string key;
  const Status read = piped("from-pipe\n", key);
  EXPECT_TRUE(read.is_ok()) << read.message();
  EXPECT_EQ(key, "from-pipe");
  key.clear();
  EXPECT_TRUE(piped(std::string(4096, 'k'), key).is_ok());
  EXPECT_EQ(key.size(), 4096u);
  key.clear();
  EXPECT_NE(piped("\n", key).message().find("holds no key"), std::string::npos);
  const Status refused = piped(std::string(4097, 'k'), key);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("at most 4096"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace larder
