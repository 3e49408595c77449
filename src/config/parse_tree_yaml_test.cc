// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/rng.h"
#include "config/parse_tree.h"

namespace larder {
namespace {

const Tree* find(const Tree& tree, std::string_view key) {
  const auto* table = tree.as<Tree::Table>();
  if (!table) return nullptr;
  for (const TreeEntry& entry : *table) {
    if (entry.first == key) return &entry.second;
  }
  return nullptr;
}

TEST(ParseYaml, TypesAreThoseOfTheCoreSchema) {
  const auto tree = parse_yaml_tree(
      "# a store\nmax_size: 10G\nthreads: 4\nshare: 0.5\nless: -3\nquoted: \"4\"\nsingle: '*x'\non: true\nnone: ~\n"
      "list: [1, a, {b: 2}]\n",
      "x.yaml");
  ASSERT_TRUE(tree.is_ok()) << tree.status().to_string();
  EXPECT_EQ(*find(*tree, "max_size")->as<std::string>(), "10G");
  EXPECT_EQ(*find(*tree, "threads")->as<std::uint64_t>(), 4u);
  EXPECT_EQ(*find(*tree, "share")->as<double>(), 0.5);
  EXPECT_EQ(*find(*tree, "less")->as<std::int64_t>(), -3);
  EXPECT_EQ(*find(*tree, "quoted")->as<std::string>(), "4");
  EXPECT_EQ(*find(*tree, "single")->as<std::string>(), "*x");
  EXPECT_EQ(*find(*tree, "on")->as<bool>(), true);
  EXPECT_TRUE(find(*tree, "none")->as<std::monostate>());
  const auto* list = find(*tree, "list")->as<Tree::List>();
  ASSERT_TRUE(list && list->size() == 3);
  EXPECT_EQ(*find((*list)[2], "b")->as<std::uint64_t>(), 2u);
}

TEST(ParseYaml, ErrorsSayWhere) {
  const auto message = [](std::string_view text) {
    const auto tree = parse_yaml_tree(text, "x.yaml");
    return tree.is_ok() ? std::string("taken") : tree.status().message();
  };
  EXPECT_EQ(message("a: 1\nb: [1\n").rfind("x.yaml:", 0), 0u) << message("a: 1\nb: [1\n");
  EXPECT_NE(message("a: 1\na: 2\n").find("x.yaml:2:1: key 'a' is there twice"), std::string::npos);
  EXPECT_NE(message("a: &x 1\nb: *x\n").find("anchors"), std::string::npos);
  EXPECT_NE(message("a: 1\n---\nb: 2\n").find("more than one"), std::string::npos);
  EXPECT_NE(message("a: !!str 1\n").find("tags"), std::string::npos);
  EXPECT_NE(message("~: 1\n").find("plain text"), std::string::npos);
  EXPECT_NE(message("? [1]\n: 2\n").find("plain text"), std::string::npos);
  std::string deep = "a: ";
  for (int i = 0; i < 40; ++i) deep += "[";
  for (int i = 0; i < 40; ++i) deep += "]";
  EXPECT_NE(message(deep).find("nested deeper"), std::string::npos);
}

// Found by fuzzing: the parser never came back from these, and took memory all the while.
TEST(ParseYaml, ATextThatBeginsWithACommaEnds) {
  for (const std::string_view text : {",", ", a", ",]\n", "[1], 2"}) {
    EXPECT_EQ(parse_yaml_tree(text, "x").status().code(), StatusCode::kInvalidArgument) << text;
  }
}

// However it is dressed, an alias does not make much out of little.
TEST(ParseYaml, NoAliasIsTaken) {
  for (const std::string_view text : {"[\"\\\\\", &x [1], *x]", "{&x a: 1, *x : 2}", "a: &x 1", "- 'it''s'\n- &x 1\n",
                                      "# '\na: \"\\\\\"\nb: &x [1]\nc: [*x, *x]\n"}) {
    const auto tree = parse_yaml_tree(text, "x");
    EXPECT_NE(tree.status().message().find("anchors"), std::string::npos) << text << tree.status().to_string();
  }
  const auto quoted = parse_yaml_tree("a: \"&x\"\nb: '*x'\nc: x*y&z\n", "x");
  EXPECT_TRUE(quoted.is_ok()) << quoted.status().to_string();
}

TEST(ParseYaml, AnyTextIsTakenOrRefused) {
  Rng rng(11);
  constexpr std::string_view kPieces[] = {"a", ": ", "\n", "- ", "[", "]", "{", "}",  "\"",  ",",
                                          "'", "#",  "  ", "1",  "~", "|", ">", "\t", "\xff"};
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (std::uint64_t n = rng.below(30); n > 0; --n) text += kPieces[rng.below(std::size(kPieces))];
    const auto tree = parse_yaml_tree(text, "x");
    EXPECT_TRUE(tree.is_ok() || tree.status().code() == StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace larder
