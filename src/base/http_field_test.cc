// SPDX-License-Identifier: Apache-2.0
#include "base/http_field.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

TEST(HttpField, NamesHaveNoCase) {
  EXPECT_TRUE(is_same_field_name("Content-Type", "content-tYPE"));
  EXPECT_FALSE(is_same_field_name("Content-Type", "Content-Typ"));
  EXPECT_FALSE(is_same_field_name("@", "`")) << "letters only";
  const std::vector<HttpField> fields = {{"A", "1"}, {"b", "2"}, {"a", "3"}};
  EXPECT_EQ(*find_field(fields, "a"), "1") << "the first";
  EXPECT_EQ(*find_field(fields, "B"), "2");
  EXPECT_EQ(find_field(fields, "c"), nullptr);
}

TEST(HttpField, WhatMayStandInOne) {
  for (const char* good : {"GET", "x-a_b.c", "!#$%&'*+-.^_`|~09"}) EXPECT_TRUE(is_http_token(good)) << good;
  for (const char* bad : {"", "a b", "a:", "a\r", "\xc3\xa4", "a/b", "(a)"}) EXPECT_FALSE(is_http_token(bad)) << bad;
  for (const char* good : {"", "a b\tc", "\xc3\xa4", "\"x\"; q=0.1"}) EXPECT_TRUE(is_field_value(good)) << good;
  for (const char* bad : {"a\r\nb: c", "a\n", "a\rb", "\x7f", "\x01"}) EXPECT_FALSE(is_field_value(bad)) << bad;
  EXPECT_FALSE(is_field_value(std::string_view("a\0b", 3)));
}

TEST(HttpField, OptionsOfAList) {
  EXPECT_TRUE(has_list_option("close", "close"));
  EXPECT_TRUE(has_list_option(" keep-alive ,\tClose", "close"));
  EXPECT_TRUE(has_list_option(",,close,", "close"));
  EXPECT_FALSE(has_list_option("closed, clos", "close"));
  EXPECT_FALSE(has_list_option("", "close"));
}

TEST(HttpField, WhatIsForOneHopGoes) {
  std::vector<HttpField> fields = {{"Accept", "x"},
                                   {"CONNECTION", "close, X-Hop"},
                                   {"x-hop", "1"},
                                   {"Keep-Alive", "timeout=5"},
                                   {"Proxy-Connection", "keep-alive"},
                                   {"Proxy-Authenticate", "Basic"},
                                   {"Proxy-Authorization", "Basic eA=="},
                                   {"TE", "trailers"},
                                   {"Trailer", "X"},
                                   {"Transfer-Encoding", "chunked"},
                                   {"Upgrade", "h2c"},
                                   {"Authorization", "Bearer x"},
                                   {"Connection", "x-other"},
                                   {"X-Other", "1"},
                                   {"X-Hops", "stays"}};
  remove_hop_by_hop(fields);
  const std::vector<HttpField> left = {{"Accept", "x"}, {"Authorization", "Bearer x"}, {"X-Hops", "stays"}};
  EXPECT_EQ(fields, left);
  remove_field(fields, "ACCEPT");
  EXPECT_EQ(fields.size(), 2u);
}

}  // namespace
}  // namespace larder
