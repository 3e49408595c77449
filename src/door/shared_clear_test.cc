// SPDX-License-Identifier: Apache-2.0
// Two stores that share one, as two processes do: what one kept for another try does not come after the other's clear.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "door/page_store.h"
#include "tests/support/faulty_memory.h"
#include "tests/support/rest.h"
#include "tests/support/temporary_directory.h"

namespace larder {
namespace {

constexpr std::size_t kKeptPages = 3, kKeptPageBytes = 700;

class SharedClearTest : public ::testing::TestWithParam<bool> {  // does the host keep, and the client clear?
 protected:
  void SetUp() override {
    ASSERT_TRUE(support::add_faulty_memory(factory_, faulty_).is_ok());
    StoreOptions options;
    options.backend = "faulty";
    options.config =
        R"({"timeout_seconds": 20, "staging_bytes": "1Mi", "share_directory": ")" + directory_.path() + R"(/share"})";
    for (auto& store : stores_) store = PageStore::open(options, &factory_).value();  // the first one hosts
    SpaceDescription space;
    space.page_size = 16;
    space.identity = "m";
    space.pools = {{"kv", kKeptPageBytes, "x", HitPolicy::kAllPages, 0, false}};
    space_.emplace(PageSpace::create(space).value());
  }
  void TearDown() override { stores_[1].reset(); }  // the client first: its operations end at the host

  PageStore& keeper() { return *stores_[GetParam() ? 0 : 1]; }
  PageStore& clearer() { return *stores_[GetParam() ? 1 : 0]; }

  std::size_t call(const std::function<void(std::span<CallPage>)>& run) {
    std::array<std::vector<std::byte>, kKeptPages> bytes;
    std::array<Segment, kKeptPages> segments;
    std::vector<CallPage> pages(kKeptPages);
    for (std::size_t i = 0; i < kKeptPages; ++i) {
      bytes[i].assign(kKeptPageBytes, static_cast<std::byte>(i + 1));
      segments[i] = {bytes[i].data(), kKeptPageBytes};
      pages[i].key.bytes = {static_cast<std::uint8_t>(i), 1};
      pages[i].segments = {&segments[i], 1};
    }
    run(pages);
    return static_cast<std::size_t>(
        std::count_if(pages.begin(), pages.end(), [](const CallPage& page) { return page.status.is_ok(); }));
  }
  std::size_t put(PageStore& store, bool retry) {
    CallTerms terms;
    terms.retry = retry;
    return call([&](std::span<CallPage> pages) { store.put(*space_, pages, terms); });
  }
  std::size_t get(PageStore& store) {
    return call([&](std::span<CallPage> pages) { store.get(*space_, pages, {}); });
  }
  static bool comes_true(const std::function<bool()>& holds) {
    const TimePoint end = real_clock().now() + std::chrono::seconds(20);
    while (!holds()) {
      if (real_clock().now() > end) return false;
      rest();
    }
    return true;
  }
  static bool keeps_nothing(const PageStore& store) {
    return store.stats_json().find("\"waiting\":0") != std::string::npos;
  }

  support::TemporaryDirectory directory_;
  BackendFactory factory_;
  sim::FaultyBackend* faulty_ = nullptr;
  std::optional<PageSpace> space_;
  std::array<std::unique_ptr<PageStore>, 2> stores_;
};

TEST_P(SharedClearTest, WhatOneKeptDoesNotComeAfterTheClearOfTheOther) {
  const ClearMark emptied = keeper().emptied_mark();
  faulty_->set_plan({.fail_percent = 100});
  EXPECT_EQ(put(keeper(), true), kKeptPages) << "kept, and answered ok";
  EXPECT_FALSE(keeps_nothing(keeper()));
  faulty_->set_plan({});
  EXPECT_TRUE(comes_true([&] { return clearer().clear(nullptr, {}).is_ok(); }));
  EXPECT_NE(keeper().emptied_mark(), emptied) << "a connector asks for that";
  EXPECT_TRUE(comes_true([&] { return keeps_nothing(keeper()); }));
  EXPECT_EQ(get(keeper()), 0u);
  EXPECT_EQ(get(clearer()), 0u);
  EXPECT_TRUE(comes_true([&] { return put(keeper(), false) == kKeptPages; }));  // its breaker may be open
  EXPECT_EQ(get(clearer()), kKeptPages);
}

INSTANTIATE_TEST_SUITE_P(Door, SharedClearTest, ::testing::Values(false, true),
                         [](const auto& test) { return test.param ? "HostKeeps" : "ClientKeeps"; });

}  // namespace
}  // namespace larder
