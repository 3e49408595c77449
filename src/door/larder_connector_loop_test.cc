// SPDX-License-Identifier: Apache-2.0
// Connectors of the C interface for an engine with an event loop of its own; where their host memory is, and what they
// tell Prometheus. (examples/c_event_loop.c is a whole program.)
#include <larder/larder.h>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_pool.h"

namespace larder {
namespace {

// An engine of one pool, with a store.
class ConnectorLoopTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kPages = 8, kPageBytes = 10'000;
  static constexpr int kForEver = 60'000;  // ms: a wait that should have ended has failed
  void SetUp() override {
    pool_.struct_size = sizeof pool_;
    pool_.name = "kv";
    pool_.page_bytes = kPageBytes;
    pool_.layout = "u8";
    larder_space_options model{};
    model.struct_size = sizeof model;
    model.page_size = 4;
    model.identity = "model";
    model.pools = &pool_;
    model.pool_count = 1;
    larder_connector_options options{};
    options.struct_size = sizeof options;
    options.model = &model;
    options.host_bytes = 1 << 20;
    options.prefetch_tokens = 1;
    tokens_.resize(kPages * model.page_size + 1);
    std::iota(tokens_.begin(), tokens_.end(), 7u);
    larder_store_options store{};
    store.struct_size = sizeof store;
    store.backend = "memory";
    ASSERT_EQ(larder_store_open(&store, &store_, &error_), LARDER_OK) << error_.message;
    ASSERT_EQ(larder_connector_open(&options, &connector_, &error_), LARDER_OK) << error_.message;
  }
  void TearDown() override {
    EXPECT_EQ(larder_connector_close(connector_, 0, &error_), LARDER_OK) << error_.message;
    EXPECT_EQ(larder_store_close(store_, 0, &error_), LARDER_OK) << error_.message;
  }
  void attach() { ASSERT_EQ(larder_connector_attach(connector_, store_, &error_), LARDER_OK) << error_.message; }
  [[nodiscard]] int descriptor() {
    std::int32_t fd = -1;
    EXPECT_EQ(larder_connector_fd(connector_, &fd, &error_), LARDER_OK) << error_.message;
    return fd;
  }
  [[nodiscard]] static bool is_readable(int fd, int wait_ms = 0) {
    pollfd wait{fd, POLLIN, 0};
    return ::poll(&wait, 1, wait_ms) == 1;
  }
  // Until nothing is under way and nothing is left to do.
  void quieten(int fd) {
    for (int i = 0; i < 1'000'000; ++i) {
      (void)larder_connector_poll(connector_, 0);
      if (larder_connector_in_flight(connector_) == 0 && larder_connector_next_poll(connector_) > 0 &&
          !is_readable(fd)) {
        return;
      }
      std::this_thread::yield();
    }
    FAIL() << "it is never quiet";
  }
  // One turn of a loop: waits for the descriptor alone, and polls.
  void turn(int fd) {
    const double most = larder_connector_next_poll(connector_);
    EXPECT_GE(most, 0);
    EXPECT_LE(most, 1);
    (void)is_readable(fd, static_cast<int>(std::ceil(most * 1000)));
    (void)larder_connector_poll(connector_, 0);
  }
  // Turns until the event has come.
  void await(int fd, std::uint32_t kind, std::uint64_t number) {
    for (int i = 0; i < 1000; ++i) {
      larder_event event{};
      while (larder_connector_events(connector_, &event, 1) == 1) {
        if (event.kind == kind && event.number == number) return;
      }
      turn(fd);
    }
    FAIL() << "no event " << kind << " of " << number;
  }
  std::uint64_t begin_save(larder_page_fn page) {
    larder_save_options save{};
    save.struct_size = sizeof save;
    save.tokens = tokens_.data();
    save.token_count = tokens_.size();
    save.to_page = kPages;
    save.page = page;
    save.context = this;
    std::uint64_t transfer = 0;
    EXPECT_EQ(larder_save(connector_, &save, &transfer, &error_), LARDER_OK) << error_.message;
    return transfer;
  }
  std::uint64_t begin_lookup() {
    larder_lookup_options look{};
    look.struct_size = sizeof look;
    look.tokens = tokens_.data();
    look.token_count = tokens_.size();
    std::uint64_t lookup = 0;
    EXPECT_EQ(larder_lookup(connector_, &look, &lookup, &error_), LARDER_OK) << error_.message;
    return lookup;
  }
  std::uint64_t begin_load(std::uint64_t lookup, larder_page_fn page) {
    larder_load_options load{};
    load.struct_size = sizeof load;
    load.lookup = lookup;
    load.pages = kPages;
    load.page = page;
    load.context = this;
    std::uint64_t transfer = 0;
    EXPECT_EQ(larder_load(connector_, &load, &transfer, &error_), LARDER_OK) << error_.message;
    return transfer;
  }
  void expect_taken(std::uint64_t transfer) {
    larder_transfer_result result{};
    result.struct_size = sizeof result;
    EXPECT_EQ(larder_transfer_take(connector_, transfer, &result, &error_), LARDER_OK) << error_.message;
    EXPECT_EQ(result.code, LARDER_OK);
    EXPECT_EQ(result.bytes, kPages * kPageBytes);
  }
  // Bytes of a page are its number.
  static larder_code fill(void*, std::uint32_t, std::uint64_t page, const larder_segment* segments, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) std::memset(segments[i].data, static_cast<int>(page), segments[i].size);
    return LARDER_OK;
  }
  static larder_code check(void*, std::uint32_t, std::uint64_t page, const larder_segment* segments,
                           std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::string expected(segments[i].size, static_cast<char>(page));
      if (std::memcmp(segments[i].data, expected.data(), expected.size()) != 0) return LARDER_CORRUPT;
    }
    return LARDER_OK;
  }
  [[nodiscard]] std::string metrics() const {
    std::string text(larder_connector_metrics(connector_, nullptr, 0), '\0');
    EXPECT_EQ(larder_connector_metrics(connector_, text.data(), text.size() + 1), text.size());
    return text;
  }

  larder_pool pool_{};
  larder_store* store_ = nullptr;
  larder_connector* connector_ = nullptr;
  larder_error error_{};
  std::vector<std::uint32_t> tokens_;
};

TEST_F(ConnectorLoopTest, ALoopNeedsNoWaitInAPoll) {
  attach();
  const int fd = descriptor();
  EXPECT_EQ(descriptor(), fd);
  const std::uint64_t save = begin_save(&fill);
  await(fd, LARDER_EVENT_TRANSFER, save);
  expect_taken(save);
  for (int i = 0; i < 1000 && larder_connector_in_flight(connector_) > 0; ++i) turn(fd);
  EXPECT_EQ(larder_connector_flush(connector_), kPages);

  const std::uint64_t lookup = begin_lookup();  // from the store
  await(fd, LARDER_EVENT_LOOKUP, lookup);
  std::size_t count = 0;
  larder_point point{};
  EXPECT_EQ(larder_points(connector_, lookup, &point, 1, &count, &error_), LARDER_OK) << error_.message;
  ASSERT_EQ(count, kPages);
  const std::uint64_t load = begin_load(lookup, &check);
  await(fd, LARDER_EVENT_TRANSFER, load);
  expect_taken(load);
  larder_release(connector_, lookup);
}

TEST_F(ConnectorLoopTest, WhatEndsMakesItReadableAndAPollDoesNotLeaveItSo) {
  const std::uint64_t before = begin_save(&fill);
  const int fd = descriptor();
  EXPECT_TRUE(is_readable(fd)) << "what ended before has rung for nobody";
  quieten(fd);
  expect_taken(before);
  EXPECT_FALSE(is_readable(fd));
  EXPECT_EQ(larder_connector_next_poll(connector_), 1) << "nothing is waited for";
  const std::uint64_t lookup = begin_lookup();
  EXPECT_EQ(larder_connector_next_poll(connector_), 0) << "it has its answer";
  quieten(fd);
  std::size_t count = 0;
  ASSERT_EQ(larder_points(connector_, lookup, nullptr, 0, &count, &error_), LARDER_OK) << error_.message;
  const std::uint64_t load = begin_load(lookup, &check);
  EXPECT_TRUE(is_readable(fd, kForEver));
  quieten(fd);
  expect_taken(load);
  larder_release(connector_, lookup);
}

TEST_F(ConnectorLoopTest, AWakeFromAnotherThreadMakesItReadable) {
  const int fd = descriptor();
  quieten(fd);
  ThreadPoolExecutor other{"other", 1, 1};
  ASSERT_TRUE(other.post([this] { larder_connector_wake(connector_); }).is_ok());
  EXPECT_TRUE(is_readable(fd, kForEver));
  quieten(fd);
}

TEST_F(ConnectorLoopTest, ADescriptorThatIsNotToBeHadIsAnAnswer) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  std::int32_t fd = 7;
  const larder_code code = larder_connector_fd(connector_, &fd, &error_);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(code, LARDER_OVERLOADED);
  EXPECT_EQ(fd, -1);
  EXPECT_NE(std::string(error_.message).find("ulimit -n"), std::string::npos) << error_.message;
  EXPECT_GE(descriptor(), 0);
}

struct SegmentsSeen {
  std::vector<larder_segment> memory;
  std::atomic<int> pages{0}, outside{0};
};
larder_code see_segments(void* context, std::uint32_t, std::uint64_t, const larder_segment* segments,
                         std::size_t count) {
  auto& seen = *static_cast<SegmentsSeen*>(context);
  ++seen.pages;
  for (std::size_t i = 0; i < count; ++i) {
    const auto* const begin = static_cast<const std::byte*>(segments[i].data);
    bool is_in = false;
    for (const larder_segment& piece : seen.memory) {
      const auto* const first = static_cast<const std::byte*>(piece.data);
      is_in = is_in || (begin >= first && begin + segments[i].size <= first + piece.size);
    }
    if (!is_in) ++seen.outside;
  }
  return LARDER_OK;
}

TEST_F(ConnectorLoopTest, HostMemoryIsWhereThePagesOfTransfersLie) {
  SegmentsSeen seen;
  seen.memory.resize(larder_connector_memory(connector_, nullptr, 0));
  ASSERT_FALSE(seen.memory.empty());
  EXPECT_EQ(larder_connector_memory(connector_, seen.memory.data(), seen.memory.size()), seen.memory.size());
  std::size_t bytes = 0;
  for (const larder_segment& piece : seen.memory) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece.data) % 4096, 0u);
    bytes += piece.size;
  }
  EXPECT_LE(bytes, std::size_t{1} << 20);
  EXPECT_GT(bytes, kPages * kPageBytes);
  larder_save_options save{};
  save.struct_size = sizeof save;
  save.tokens = tokens_.data();
  save.token_count = tokens_.size();
  save.to_page = kPages;
  save.page = &see_segments;
  save.context = &seen;
  std::uint64_t transfer = 0;
  ASSERT_EQ(larder_save(connector_, &save, &transfer, &error_), LARDER_OK) << error_.message;
  quieten(descriptor());
  expect_taken(transfer);
  EXPECT_EQ(seen.pages, static_cast<int>(kPages));
  EXPECT_EQ(seen.outside, 0);
  larder_segment untouched{};
  EXPECT_EQ(larder_connector_memory(connector_, &untouched, 0), seen.memory.size());
  EXPECT_EQ(untouched.data, nullptr);
}

TEST_F(ConnectorLoopTest, MetricsHaveCountersAndMissesByReason) {
  attach();
  const int fd = descriptor();
  const std::uint64_t unknown = begin_lookup();
  quieten(fd);
  std::size_t count = 0;
  ASSERT_EQ(larder_points(connector_, unknown, nullptr, 0, &count, &error_), LARDER_OK) << error_.message;
  ASSERT_EQ(larder_points(connector_, unknown, nullptr, 0, &count, &error_), LARDER_OK) << "and is counted once";
  larder_release(connector_, unknown);
  const std::uint64_t save = begin_save(&fill);
  quieten(fd);
  expect_taken(save);
  const std::uint64_t lookup = begin_lookup();
  quieten(fd);
  ASSERT_EQ(larder_points(connector_, lookup, nullptr, 0, &count, &error_), LARDER_OK) << error_.message;
  const std::uint64_t load = begin_load(lookup, &check);
  quieten(fd);
  expect_taken(load);
  const std::string text = metrics();
  for (const char* const line : {"larder_connector_saved_pages_total 8\n",
                                 "larder_connector_loaded_pages_total 8\n",
                                 "larder_connector_fetched_pages_total 0\n",
                                 "larder_stored_pages_total 8\n",
                                 "larder_host_pages 8\n",
                                 "larder_host_evicted_pages_total 0\n",
                                 "larder_host_flushed_pages_total 0\n",
                                 "larder_corrupt_pages_total 0\n",
                                 "larder_store_failed_pages_total 0\n",
                                 "larder_store_declined_pages_total 0\n",
                                 "larder_store_waits_total 0\n",
                                 "larder_prefetch_late_total 0\n",
                                 "larder_prefetch_refused_total 0\n",
                                 "larder_internal_errors_total 0\n",
                                 "larder_misses_total{reason=\"never_seen\"} 1\n",
                                 "larder_misses_total{reason=\"none\"} 1\n",
                                 "larder_misses_total{reason=\"evicted\"} 0\n",
                                 "sglang:backup_pgs_count{storage_backend=\"memory\"} 1\n",
                                 "sglang:load_back_duration_seconds_count{cache_type=\"larder\"} 1\n",
                                 "larder_tier_capacity_bytes{component=\"all\",tier=\"host\"} "}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "is not in\n" << text;
  }
  EXPECT_EQ(text.find("larder_connector_leased_bytes 0\n"), std::string::npos) << "the lookup has a lease";
  EXPECT_NE(text.find("larder_connector_leased_bytes "), std::string::npos);
  larder_release(connector_, lookup);
  EXPECT_EQ(larder_connector_flush(connector_), kPages);
  EXPECT_NE(metrics().find("larder_host_flushed_pages_total 8\n"), std::string::npos);
}

// A page of Prometheus names each family once.
TEST_F(ConnectorLoopTest, MetricsOfAStoreAndAConnectorMakeAPage) {
  attach();
  quieten(descriptor());
  std::string page(larder_store_metrics(store_, nullptr, 0), '\0');
  (void)larder_store_metrics(store_, page.data(), page.size() + 1);
  page += metrics();
  std::istringstream lines(page);
  std::set<std::string> families;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# TYPE ")) continue;
    EXPECT_TRUE(families.insert(line.substr(0, line.rfind(' '))).second) << line;
  }
  EXPECT_GT(families.size(), 30u);
}

TEST_F(ConnectorLoopTest, BadCalls) {
  std::int32_t fd = 7;
  EXPECT_EQ(larder_connector_fd(nullptr, &fd, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_connector_fd(connector_, nullptr, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "connector or fd is null");
  EXPECT_EQ(larder_connector_next_poll(nullptr), 1);
  EXPECT_EQ(larder_connector_memory(nullptr, nullptr, 0), 0u);
  EXPECT_EQ(larder_connector_memory(connector_, nullptr, 5), 1u);
  char text[8] = "";
  EXPECT_EQ(larder_connector_metrics(nullptr, text, sizeof text), 0u);
  EXPECT_GT(larder_connector_metrics(connector_, text, sizeof text), sizeof text);
  EXPECT_EQ(std::string(text), "# HELP ");
}

}  // namespace
}  // namespace larder
