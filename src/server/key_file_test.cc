// SPDX-License-Identifier: Apache-2.0
#include "server/key_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <span>
#include <string>
#include <vector>

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
  static constexpr KeyNames kNames{"--key", kVariable};
  support::TemporaryDirectory directory_;
};

TEST_F(KeyFileTest, TheOptionComesFirstThenTheFileThenTheEnvironment) {
  ::setenv(kVariable, "from-environment\n", 1);
  std::string key = "given";
  EXPECT_TRUE(fill_key(key, file("from-file\n"), kNames, EmptyVariable::kRefused).is_ok());
  EXPECT_EQ(key, "given");
  key.clear();
  EXPECT_TRUE(fill_key(key, file("from-file\r\n"), kNames, EmptyVariable::kRefused).is_ok());
  EXPECT_EQ(key, "from-file");
  key.clear();
  EXPECT_TRUE(fill_key(key, "", kNames, EmptyVariable::kRefused).is_ok());
  EXPECT_EQ(key, "from-environment");
  ::unsetenv(kVariable);
  key.clear();
  EXPECT_TRUE(fill_key(key, "", kNames, EmptyVariable::kRefused).is_ok());
  EXPECT_EQ(key, "");
}

// An empty key would let everybody in.
TEST_F(KeyFileTest, AFileWithoutAKeyIsRefused) {
  std::string key;
  for (const char* text : {"", "\n", "\r\n\n"}) {
    const Status refused = fill_key(key, file(text), kNames, EmptyVariable::kRefused);
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.message().find("holds no key"), std::string::npos) << refused.message();
  }
  EXPECT_EQ(fill_key(key, file(std::string(5000, 'k')), kNames, EmptyVariable::kRefused).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(fill_key(key, directory_.path() + "/absent", kNames, EmptyVariable::kRefused).code(),
            StatusCode::kNotFound);
}

// HTTP drops blanks around a field: every client would get 401.
TEST_F(KeyFileTest, AKeyThatNoClientCouldBringIsRefused) {
  const std::vector<std::string> keys = {" secret", "secret ", "secret \n", "\tsecret",
                                         "a\nb",    "a\x01-b", "a\x7f",     std::string("a\0b", 3)};
  for (const std::string& text : keys) {
    std::string key;
    EXPECT_EQ(fill_key(key, file(text), kNames, EmptyVariable::kRefused).code(), StatusCode::kInvalidArgument) << text;
    key = text;
    EXPECT_EQ(fill_key(key, "", kNames, EmptyVariable::kRefused).code(), StatusCode::kInvalidArgument) << text;
    if (text.find('\0') != std::string::npos) continue;
    ::setenv(kVariable, text.c_str(), 1);
    key.clear();
    EXPECT_EQ(fill_key(key, "", kNames, EmptyVariable::kRefused).code(), StatusCode::kInvalidArgument) << text;
  }
  ::unsetenv(kVariable);
  for (const char* text : {"two words", "k\xc3\xa4se", "!~"}) {
    std::string key;
    EXPECT_TRUE(fill_key(key, file(text), kNames, EmptyVariable::kRefused).is_ok()) << text;
    EXPECT_EQ(key, text);
  }
}

// Whoever has set it means to ask for a key.
TEST_F(KeyFileTest, AVariableThatIsEmptyIsRefused) {
  for (const char* text : {"", "\n"}) {
    ::setenv(kVariable, text, 1);
    std::string key;
    const Status refused = fill_key(key, "", kNames, EmptyVariable::kRefused);
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.message(), "the variable LARDER_KEY_FILE_TEST is empty: unset it, or give it a key");
    EXPECT_TRUE(fill_key(key, "", kNames, EmptyVariable::kNoKey).is_ok()) << "a client of a server without a key";
    EXPECT_EQ(key, "");
    EXPECT_TRUE(fill_key(key, file("from-file"), kNames, EmptyVariable::kRefused).is_ok()) << "it is not asked";
  }
}

TEST_F(KeyFileTest, AnErrorNamesWhatTheKeyCameFrom) {
  const auto message = [&](std::string key, const std::string& path) {
    return fill_key(key, path, kNames, EmptyVariable::kNoKey).message();
  };
  EXPECT_TRUE(message(" x", "").starts_with("--key: the key begins")) << message(" x", "");
  const std::string path = file(" x");
  EXPECT_TRUE(message("", path).starts_with("--key-file: " + path + ": the key begins")) << message("", path);
  ::setenv(kVariable, " x", 1);
  EXPECT_TRUE(message("", "").starts_with("the variable LARDER_KEY_FILE_TEST: the key begins")) << message("", "");
}

// `--api-key-file <(pass show larder)`. As in a shell, the writer has closed its end, perhaps before it is read.
TEST_F(KeyFileTest, AKeyComesOutOfAPipe) {
  const auto piped = [](const std::string& text, std::string& key) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe(ends), 0);
    EXPECT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    ::close(ends[1]);
    const Status status = fill_key(key, "/proc/self/fd/" + std::to_string(ends[0]), kNames, EmptyVariable::kRefused);
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
