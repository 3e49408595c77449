// SPDX-License-Identifier: Apache-2.0
#include "storage/factory.h"

#include <gtest/gtest.h>

#include "storage/file/file_backend.h"
#include "storage/memory/memory_backend.h"
#include "storage/option_text.h"

namespace larder {
namespace {

TEST(BackendFactory, NamesWhatIsWrong) {
  BackendFactory factory;
  ASSERT_TRUE(register_memory_backend(factory).is_ok());
  ASSERT_TRUE(register_file_backend(factory).is_ok());
  EXPECT_EQ(register_file_backend(factory).code(), StatusCode::kConflict);
  EXPECT_EQ(factory.names(), (std::vector<std::string>{"file", "memory"}));
  ASSERT_NE(factory.options_of("file"), nullptr);
  EXPECT_EQ(factory.options_of("file")->front().key, "directory");
  EXPECT_EQ(factory.options_of("none"), nullptr);

  InlineExecutor executor;
  const BackendEnvironment environment{&real_file_system(), &real_clock(), &executor};
  const Status unknown = factory.create("tape", {}, environment).status();
  EXPECT_EQ(unknown.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.message().find("file, memory"), std::string::npos) << unknown.message();
  const Status bad_key = factory.create("memory", {{"size", "1G"}}, environment).status();
  EXPECT_EQ(bad_key.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(bad_key.message().find("'size'"), std::string::npos);
  EXPECT_NE(bad_key.message().find("max_size"), std::string::npos);
  const Status bad_value = factory.create("memory", {{"max_size", "1Q"}}, environment).status();
  EXPECT_EQ(bad_value.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(bad_value.message().find("max_size"), std::string::npos);
  EXPECT_EQ(factory.create("memory", {}, {}).status().code(), StatusCode::kInvalidArgument) << "no executor";
  EXPECT_EQ(factory.create("file", {}, environment).status().code(), StatusCode::kInvalidArgument) << "no directory";
  EXPECT_EQ(factory.create("file", {{"directory", "/tmp"}, {"fsync", "maybe"}}, environment).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(factory.create("file", {{"directory", "/tmp"}, {"max_size", "1"}}, environment).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(factory.create("memory", {{"max_size", ""}}, environment).is_ok()) << "empty: the default";
}

TEST(OptionText, Sizes) {
  const auto size = [](std::string_view text) { return parse_size_bytes(text).value_or(1); };
  EXPECT_EQ(size("0"), 0u);
  EXPECT_EQ(size("4096"), 4096u);
  EXPECT_EQ(size("64K"), 64'000u);
  EXPECT_EQ(size("64Ki"), 65'536u);
  EXPECT_EQ(size("64KiB"), 65'536u);
  EXPECT_EQ(size("3mb"), 3'000'000u);
  EXPECT_EQ(size("2G"), 2'000'000'000u);
  EXPECT_EQ(size("2Ti"), std::uint64_t{2} << 40);
  EXPECT_EQ(size("7B"), 7u);
  EXPECT_EQ(size("unlimited"), kUnlimitedBytes);
  for (const char* bad : {"", "G", "-1", "1.5G", "1 G", "1Q", "1KK", "1Kib2", "99999999999999999999", "99999999999T"}) {
    EXPECT_EQ(parse_size_bytes(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

TEST(OptionText, KeysAndValuesOfACommandLine) {
  BackendOptions options = {{"a", "0"}, {"b", "0"}};
  ASSERT_TRUE(add_options("--extra", {"a=1", "c=x=y", "d=", "a=2"}, options).is_ok());
  EXPECT_EQ(options, (BackendOptions{{"a", "2"}, {"b", "0"}, {"c", "x=y"}, {"d", ""}}));
  EXPECT_EQ(add_options("--extra", {"a"}, options).message(), "--extra: KEY=VALUE is expected, not 'a'");
  EXPECT_EQ(add_options("", {"=1"}, options).message(), "KEY=VALUE is expected, not '=1'");
}

TEST(OptionText, Counts) {
  EXPECT_EQ(count_option({{"n", "7"}}, "n", 1, 1, 9).value_or(0), 7u);
  EXPECT_EQ(count_option({}, "n", 3, 1, 9).value_or(0), 3u);
  for (const char* bad : {"0", "10", "x", "7x", "-1", "1e3"}) {
    EXPECT_EQ(count_option({{"n", bad}}, "n", 1, 1, 9).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace larder
