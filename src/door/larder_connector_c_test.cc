// SPDX-License-Identifier: Apache-2.0
// Connectors of the C interface: that they are the connector door, and what they refuse. (examples/c_connector.c is a
// whole program.)
#include <larder/larder.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace larder {
namespace {

enum : std::uint32_t { kKv, kDraft, kWindow, kState };

// An engine: what it computes for a page is a text of the pool, the page and the tokens before it.
class ConnectorCTest : public ::testing::Test {
 public:
  [[nodiscard]] std::string content(std::uint32_t pool, std::uint64_t page) const {
    std::string text = std::string(pools_[pool].name) + " " + std::to_string(page) + " ";
    for (std::uint64_t i = 0; i < (page + 1) * model_.page_size; ++i) text += std::to_string(tokens_[i]) + ",";
    text.resize(pools_[pool].page_bytes, static_cast<char>('a' + page));
    return text;
  }

 protected:
  void SetUp() override {
    const auto pool = [&](std::uint32_t i, const char* name, std::uint64_t bytes, std::uint32_t trailing) {
      pools_[i].struct_size = sizeof(larder_pool);
      pools_[i].name = name;
      pools_[i].page_bytes = bytes;
      pools_[i].layout = "u8";
      pools_[i].hit_policy = trailing > 0 ? LARDER_TRAILING_PAGES : LARDER_ALL_PAGES;
      pools_[i].trailing_pages = trailing;
    };
    pool(kKv, "kv", 96, 0);
    pool(kDraft, "own-draft", 40, 0);
    pool(kWindow, "window", 64, 3);
    pool(kState, "state", 50, 1);
    model_.struct_size = sizeof model_;
    model_.page_size = 4;
    model_.identity = "model";
    model_.pools = pools_;
    model_.pool_count = 4;
    options_.struct_size = sizeof options_;
    options_.model = &model_;
    options_.host_bytes = 1 << 20;
    options_.prefetch_tokens = 1;
    tokens_.resize(41);
    std::iota(tokens_.begin(), tokens_.end(), 7u);
    larder_store_options store{};
    store.struct_size = sizeof store;
    store.backend = "memory";
    ASSERT_EQ(larder_store_open(&store, &store_, &error_), LARDER_OK) << error_.message;
    open();
  }
  void TearDown() override {
    close();
    EXPECT_EQ(larder_store_close(store_, 0, &error_), LARDER_OK) << error_.message;
  }
  void open() { ASSERT_EQ(larder_connector_open(&options_, &connector_, &error_), LARDER_OK) << error_.message; }
  void close() {
    EXPECT_EQ(larder_connector_close(connector_, 0, &error_), LARDER_OK) << error_.message;
    connector_ = nullptr;
  }
  void settle() {
    for (int i = 0; i < 500 && larder_connector_in_flight(connector_) > 0; ++i) {
      (void)larder_connector_poll(connector_, 0.02);
    }
  }

  // Memory for pages of each kind, in two segments each.
  struct Memory {
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::string> pages;
    std::vector<std::vector<larder_segment>> segments;
    std::vector<larder_place> places;
  };
  [[nodiscard]] Memory memory(std::uint64_t first, std::uint64_t first_window, std::uint64_t end,
                              const std::vector<std::uint64_t>& states, bool is_computed) const {
    Memory m;
    const auto add = [&](std::uint32_t pool, std::uint64_t page) {
      m.pages[{pool, page}] = is_computed ? content(pool, page) : std::string(pools_[pool].page_bytes, '?');
    };
    for (std::uint64_t page = first; page < end; ++page) add(kKv, page), add(kDraft, page);
    for (std::uint64_t page = first_window; page < end; ++page) add(kWindow, page);
    for (const std::uint64_t point : states) add(kState, point - 1);
    for (auto& [at, bytes] : m.pages)
      m.segments.push_back({{bytes.data(), 10}, {bytes.data() + 10, bytes.size() - 10}});
    std::size_t i = 0;
    for (auto& [at, bytes] : m.pages) m.places.push_back({at.first, 2, at.second, m.segments[i++].data()});
    return m;
  }
  larder_transfer_result result_of(std::uint64_t transfer) {
    settle();
    larder_transfer_result result{};
    result.struct_size = sizeof result;
    EXPECT_EQ(larder_transfer_take(connector_, transfer, &result, &error_), LARDER_OK) << error_.message;
    return result;
  }
  [[nodiscard]] larder_save_options save_options(std::uint64_t to, const std::vector<std::uint64_t>& states,
                                                 const Memory& m) const {
    larder_save_options save{};
    save.struct_size = sizeof save;
    save.tokens = tokens_.data();
    save.token_count = tokens_.size();
    save.to_page = to;
    save.window_pages = 3;
    save.states = states.data();
    save.state_count = states.size();
    save.places = m.places.data();
    save.place_count = m.places.size();
    return save;
  }
  larder_transfer_result save_ten() {
    const std::vector<std::uint64_t> states = {10};
    const Memory m = memory(0, 7, 10, states, true);
    const larder_save_options save = save_options(10, states, m);
    std::uint64_t transfer = 0;
    EXPECT_EQ(larder_save(connector_, &save, &transfer, &error_), LARDER_OK) << error_.message;
    return result_of(transfer);
  }
  std::vector<larder_point> points(std::uint64_t& lookup, std::uint64_t own = 0) {
    larder_lookup_options look{};
    look.struct_size = sizeof look;
    look.tokens = tokens_.data();
    look.token_count = tokens_.size();
    look.own_pages = own;
    EXPECT_EQ(larder_lookup(connector_, &look, &lookup, &error_), LARDER_OK) << error_.message;
    std::vector<larder_point> out(16);
    std::size_t count = 0;
    larder_code code = LARDER_OVERLOADED;
    for (int i = 0; i < 500 && code == LARDER_OVERLOADED; ++i) {
      code = larder_points(connector_, lookup, out.data(), out.size(), &count, &error_);
      if (code == LARDER_OVERLOADED) (void)larder_connector_poll(connector_, 0.02);
    }
    EXPECT_EQ(code, LARDER_OK) << error_.message;
    out.resize(std::min(count, out.size()));
    return out;
  }
  void expect_loads(std::uint64_t lookup, const larder_point& point) {
    std::vector<std::uint64_t> states;
    if (point.has_state != 0) states.push_back(point.pages);
    Memory m = memory(point.first_page, point.first_window, point.pages, states, false);
    larder_load_options load{};
    load.struct_size = sizeof load;
    load.lookup = lookup;
    load.pages = point.pages;
    load.places = m.places.data();
    load.place_count = m.places.size();
    std::uint64_t transfer = 0;
    ASSERT_EQ(larder_load(connector_, &load, &transfer, &error_), LARDER_OK) << error_.message;
    const larder_transfer_result result = result_of(transfer);
    EXPECT_EQ(result.code, LARDER_OK) << error_.message;
    EXPECT_EQ(result.bytes, point.bytes);
    for (const auto& [at, bytes] : m.pages)
      EXPECT_EQ(bytes, content(at.first, at.second)) << at.first << " " << at.second;
  }

  larder_pool pools_[4]{};
  larder_space_options model_{};
  larder_connector_options options_{};
  larder_store* store_ = nullptr;
  larder_connector* connector_ = nullptr;
  larder_error error_{};
  std::vector<std::uint32_t> tokens_;
};

TEST_F(ConnectorCTest, WhatIsSavedComesBack) {
  const larder_transfer_result saved = save_ten();
  EXPECT_EQ(saved.code, LARDER_OK);
  EXPECT_EQ(saved.stop, static_cast<std::uint32_t>(LARDER_SAVE_ALL));
  EXPECT_EQ(saved.pages, 10u);
  EXPECT_EQ(saved.bytes, 10 * (96 + 40) + 3 * 64 + 50);
  EXPECT_EQ(save_ten().known_pages, 10u);
  std::uint64_t lookup = 0;
  std::vector<larder_point> found = points(lookup);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].pages, 10u);
  EXPECT_EQ(found[0].first_window, 7u);
  expect_loads(lookup, found[0]);
  larder_release(connector_, lookup);
  found = points(lookup, 4);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].first_page, 4u);
  expect_loads(lookup, found[0]);
  larder_release(connector_, lookup);
  char text[2048];
  EXPECT_GT(larder_connector_stats(connector_, text, sizeof text), 0u);
  EXPECT_NE(std::string(text).find("\"saved\":10"), std::string::npos) << text;
  EXPECT_EQ(larder_connector_flush(connector_), 10u);
}

TEST_F(ConnectorCTest, ALookupSaysWhyItEndsWhereItDoes) {
  const auto miss_now = [this] {
    std::uint64_t lookup = 0;
    (void)points(lookup);
    larder_miss miss{};
    miss.struct_size = sizeof miss;
    EXPECT_EQ(larder_lookup_miss(connector_, lookup, &miss, &error_), LARDER_OK) << error_.message;
    larder_release(connector_, lookup);
    EXPECT_EQ(larder_lookup_miss(connector_, lookup, &miss, &error_), LARDER_NOT_FOUND);
    return miss;
  };
  larder_miss miss = miss_now();
  EXPECT_EQ(miss.reason, static_cast<std::uint32_t>(LARDER_MISS_NEVER_SEEN));
  EXPECT_EQ(miss.at_token, 0u);
  EXPECT_LT(miss.seconds_ago, 0);
  (void)save_ten();
  std::swap(tokens_[20], tokens_.back());
  miss = miss_now();
  EXPECT_EQ(miss.reason, static_cast<std::uint32_t>(LARDER_MISS_NO_CHECKPOINT)) << miss.text;
  EXPECT_EQ(miss.trailing, 2u) << "five pages are there, and no window before their end";
  std::swap(tokens_[20], tokens_.back());
  EXPECT_EQ(larder_connector_flush(connector_), 10u);
  miss = miss_now();
  EXPECT_EQ(miss.reason, static_cast<std::uint32_t>(LARDER_MISS_FLUSHED)) << miss.text;
  EXPECT_GE(miss.seconds_ago, 0);
  EXPECT_EQ(miss.trailing, 0u);
  EXPECT_EQ(miss.for_operators, 0u);
  EXPECT_NE(std::string(miss.text).find("a flush dropped full at token 0 from host"), std::string::npos) << miss.text;
}

TEST_F(ConnectorCTest, AMissOfAnotherTenantIsForOperators) {
  (void)save_ten();
  larder_lookup_options look{};
  look.struct_size = sizeof look;
  look.tokens = tokens_.data();
  look.token_count = tokens_.size();
  look.salt = "tenant";
  std::uint64_t lookup = 0;
  ASSERT_EQ(larder_lookup(connector_, &look, &lookup, &error_), LARDER_OK) << error_.message;
  larder_miss miss{};
  miss.struct_size = offsetof(larder_miss, seconds_ago);  // of a caller who knows no more
  miss.text[0] = 'x';
  ASSERT_EQ(larder_lookup_miss(connector_, lookup, &miss, &error_), LARDER_OK) << error_.message;
  EXPECT_EQ(miss.reason, static_cast<std::uint32_t>(LARDER_MISS_OTHER_NAMESPACE));
  EXPECT_EQ(miss.for_operators, 1u);
  EXPECT_EQ(miss.text[0], 'x');
  larder_release(connector_, lookup);
}

TEST_F(ConnectorCTest, EventsNameWhatHasAnAnswer) {
  const std::vector<std::uint64_t> states = {10};
  const Memory m = memory(0, 7, 10, states, true);
  const larder_save_options save = save_options(10, states, m);
  std::uint64_t transfer = 0, lookup = 0;
  ASSERT_EQ(larder_save(connector_, &save, &transfer, &error_), LARDER_OK) << error_.message;
  larder_lookup_options look{};
  look.struct_size = sizeof look;
  look.tokens = tokens_.data();
  look.token_count = tokens_.size();
  ASSERT_EQ(larder_lookup(connector_, &look, &lookup, &error_), LARDER_OK) << error_.message;
  settle();
  larder_event events[2] = {};
  EXPECT_EQ(larder_connector_events(connector_, events, 0), 0u);
  ASSERT_EQ(larder_connector_events(connector_, events, 1), 1u);
  EXPECT_EQ(events[0].kind, LARDER_EVENT_LOOKUP);
  EXPECT_EQ(events[0].number, lookup);
  ASSERT_EQ(larder_connector_events(connector_, events, 2), 1u);
  EXPECT_EQ(events[0].kind, LARDER_EVENT_TRANSFER);
  EXPECT_EQ(events[0].number, transfer);
  EXPECT_EQ(larder_connector_events(connector_, events, 2), 0u);
  EXPECT_EQ(larder_connector_events(nullptr, events, 2), 0u);
  EXPECT_EQ(larder_connector_events(connector_, nullptr, 2), 0u);
  EXPECT_EQ(result_of(transfer).code, LARDER_OK);
  larder_release(connector_, lookup);
}

TEST_F(ConnectorCTest, AStoreKeepsItForTheNextConnector) {
  ASSERT_EQ(larder_connector_attach(connector_, store_, &error_), LARDER_OK) << error_.message;
  EXPECT_EQ(larder_connector_attach(connector_, store_, &error_), LARDER_CONFLICT);
  (void)save_ten();
  settle();
  EXPECT_EQ(larder_store_close(store_, 0, &error_), LARDER_INVALID_ARGUMENT) << "a connector is attached";
  close();
  open();
  std::uint64_t lookup = 0;
  EXPECT_TRUE(points(lookup).empty());
  larder_release(connector_, lookup);
  ASSERT_EQ(larder_connector_attach(connector_, store_, &error_), LARDER_OK) << error_.message;
  const std::vector<larder_point> found = points(lookup);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].pages, 10u);
  expect_loads(lookup, found[0]);
  larder_release(connector_, lookup);
  EXPECT_EQ(larder_connector_detach(connector_, &error_), LARDER_OK);
  EXPECT_EQ(larder_connector_detach(connector_, &error_), LARDER_NOT_FOUND);
}

// Under way is what was saved, and what is read: the close of the store waits for it, and no call of the connector
// touches the store any more.
TEST_F(ConnectorCTest, ADetachedStoreClosesAndAnotherTakesItsPlace) {
  (void)save_ten();
  for (int turn = 0; turn < 20; ++turn) {
    larder_store* other = nullptr;
    larder_store_options options{};
    options.struct_size = sizeof options;
    options.backend = "memory";
    ASSERT_EQ(larder_store_open(&options, &other, &error_), LARDER_OK) << error_.message;
    ASSERT_EQ(larder_connector_attach(connector_, other, &error_), LARDER_OK) << error_.message;
    EXPECT_EQ(larder_store_close(other, 0, &error_), LARDER_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error_.message).find("larder_connector_detach()"), std::string::npos) << error_.message;
    for (int polls = 0; polls < turn; ++polls) (void)larder_connector_poll(connector_, 0);
    std::uint64_t lookup = 0;
    larder_lookup_options look{};
    look.struct_size = sizeof look;
    look.tokens = tokens_.data();
    look.token_count = tokens_.size();
    ASSERT_EQ(larder_lookup(connector_, &look, &lookup, &error_), LARDER_OK) << error_.message;
    ASSERT_EQ(larder_connector_detach(connector_, &error_), LARDER_OK) << error_.message;
    EXPECT_EQ(larder_store_close(other, 0, &error_), LARDER_OK) << error_.message;
    larder_release(connector_, lookup);
  }
  ASSERT_EQ(larder_connector_attach(connector_, store_, &error_), LARDER_OK) << error_.message;
  (void)larder_connector_poll(connector_, 0.02);  // which begins to store what the host has
  settle();
  close();
  open();
  ASSERT_EQ(larder_connector_attach(connector_, store_, &error_), LARDER_OK) << error_.message;
  std::uint64_t lookup = 0;
  const std::vector<larder_point> found = points(lookup);
  ASSERT_EQ(found.size(), 1u);
  expect_loads(lookup, found[0]);
  larder_release(connector_, lookup);
}

// Another name or layout of a pool is another model.
TEST_F(ConnectorCTest, OtherDescriptionsDoNotMeet) {
  ASSERT_EQ(larder_connector_attach(connector_, store_, &error_), LARDER_OK);
  (void)save_ten();
  settle();
  close();
  for (int i = 0; i < 2; ++i) {
    pools_[kDraft].name = i == 0 ? "other-draft" : "own-draft";
    pools_[kState].layout = i == 1 ? "u8 turned" : "u8";
    open();
    ASSERT_EQ(larder_connector_attach(connector_, store_, &error_), LARDER_OK);
    std::uint64_t lookup = 0;
    EXPECT_TRUE(points(lookup).empty()) << i;
    close();
  }
  open();
}

TEST_F(ConnectorCTest, CallbacksMoveTheSameBytes) {
  struct Context {
    const ConnectorCTest* test;
    std::size_t calls = 0;
  } context{this};
  const auto fill = [](void* at, std::uint32_t pool, std::uint64_t page, const larder_segment* segments,
                       std::size_t count) -> larder_code {
    auto* c = static_cast<Context*>(at);
    const std::string text = c->test->content(pool, page);
    std::size_t done = 0;
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(segments[i].data, text.data() + done, segments[i].size);
      done += segments[i].size;
    }
    ++c->calls;
    return done == text.size() ? LARDER_OK : LARDER_INTERNAL;
  };
  const auto compare = [](void* at, std::uint32_t pool, std::uint64_t page, const larder_segment* segments,
                          std::size_t count) -> larder_code {
    auto* c = static_cast<Context*>(at);
    std::string text;
    for (std::size_t i = 0; i < count; ++i) text.append(static_cast<const char*>(segments[i].data), segments[i].size);
    --c->calls;
    return text == c->test->content(pool, page) ? LARDER_OK : LARDER_CORRUPT;
  };
  const std::vector<std::uint64_t> states = {5};
  larder_save_options save = save_options(5, states, {});
  save.page = fill;
  save.context = &context;
  std::uint64_t transfer = 0, lookup = 0;
  ASSERT_EQ(larder_save(connector_, &save, &transfer, &error_), LARDER_OK) << error_.message;
  EXPECT_EQ(result_of(transfer).pages, 5u);
  EXPECT_EQ(context.calls, 5u + 5u + 3u + 1u);
  ASSERT_EQ(points(lookup).size(), 1u);
  larder_load_options load{};
  load.struct_size = sizeof load;
  load.lookup = lookup;
  load.pages = 5;
  load.page = compare;
  load.context = &context;
  ASSERT_EQ(larder_load(connector_, &load, &transfer, &error_), LARDER_OK) << error_.message;
  EXPECT_EQ(result_of(transfer).code, LARDER_OK);
  EXPECT_EQ(context.calls, 0u);
  load.page = [](void*, std::uint32_t, std::uint64_t, const larder_segment*, std::size_t) {
    return LARDER_UNAVAILABLE;
  };
  ASSERT_EQ(larder_load(connector_, &load, &transfer, &error_), LARDER_OK);
  EXPECT_EQ(result_of(transfer).code, LARDER_UNAVAILABLE);
  EXPECT_NE(std::string(error_.message).find("unavailable"), std::string::npos) << error_.message;
}

TEST_F(ConnectorCTest, ModelsThatItHasNoRoomFor) {
  close();
  larder_connector* none = nullptr;
  larder_pool two[5] = {pools_[0], pools_[1], pools_[2], pools_[3], pools_[2]};
  model_.pools = two;
  model_.pool_count = 5;
  two[4].name = "other-window";
  two[4].trailing_pages = 4;
  EXPECT_EQ(larder_connector_open(&options_, &none, &error_), LARDER_UNSUPPORTED);
  EXPECT_NE(std::string(error_.message).find("other-window"), std::string::npos) << error_.message;
  two[4].trailing_pages = 3;
  EXPECT_EQ(larder_connector_open(&options_, &none, &error_), LARDER_OK) << error_.message;
  EXPECT_EQ(larder_connector_close(none, 0, nullptr), LARDER_OK);
  two[4].trailing_pages = two[2].trailing_pages = ~0u;
  EXPECT_EQ(larder_connector_open(&options_, &none, &error_), LARDER_UNSUPPORTED);
  model_.pool_count = 4;
  two[2].trailing_pages = 3;
  two[0].hit_policy = LARDER_TRAILING_PAGES;
  two[0].trailing_pages = 2;
  EXPECT_EQ(larder_connector_open(&options_, &none, &error_), LARDER_INVALID_ARGUMENT);
  two[0] = pools_[0];
  options_.host_bytes = 100;
  EXPECT_EQ(larder_connector_open(&options_, &none, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("host_bytes"), std::string::npos) << error_.message;
  options_.host_bytes = 1 << 20;
  options_.prefetch_policy = 7;
  EXPECT_EQ(larder_connector_open(&options_, &none, &error_), LARDER_INVALID_ARGUMENT);
  options_.prefetch_policy = LARDER_PREFETCH_WAIT_COMPLETE;
  for (const double seconds : {-1.0, 1e6}) {
    options_.prefetch_seconds = seconds;
    EXPECT_EQ(larder_connector_open(&options_, &none, &error_), LARDER_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error_.message).find("prefetch_seconds"), std::string::npos) << error_.message;
  }
  options_.prefetch_seconds = 0;
  options_.lease_share = 2;
  EXPECT_EQ(larder_connector_open(&options_, &none, &error_), LARDER_INVALID_ARGUMENT);
  options_.lease_share = 0;
  options_.struct_size = 3;
  EXPECT_EQ(larder_connector_open(&options_, &none, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(none, nullptr);
  options_.struct_size = sizeof options_;
  open();
}

// It has no way to say that it dislikes its timeout.
TEST_F(ConnectorCTest, APollDoesItsWorkWhateverItsTimeoutIs) {
  for (const double odd : {-1.0, std::nan(""), HUGE_VAL, 1e9}) {
    const std::vector<std::uint64_t> states = {10};
    const Memory m = memory(0, 7, 10, states, true);
    const larder_save_options save = save_options(10, states, m);
    std::uint64_t transfer = 0;
    ASSERT_EQ(larder_save(connector_, &save, &transfer, &error_), LARDER_OK) << error_.message;
    for (int i = 0; i < 1'000'000 && larder_connector_in_flight(connector_) > 0; ++i) {
      (void)larder_connector_poll(connector_, odd);
      std::this_thread::yield();
    }
    EXPECT_EQ(larder_connector_in_flight(connector_), 0u) << odd;
    (void)result_of(transfer);
  }
}

TEST_F(ConnectorCTest, BadCalls) {
  std::uint64_t id = 0;
  std::size_t count = 0;
  larder_transfer_result result{};
  EXPECT_EQ(larder_connector_open(nullptr, &connector_, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_connector_close(nullptr, 0, &error_), LARDER_OK);
  EXPECT_EQ(larder_connector_close(connector_, -1, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_connector_attach(connector_, nullptr, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_connector_poll(nullptr, 0), 0);
  EXPECT_EQ(larder_connector_poll(connector_, -1), 0);
  larder_connector_wake(nullptr);
  EXPECT_EQ(larder_connector_in_flight(nullptr) + larder_connector_flush(nullptr), 0u);
  EXPECT_EQ(larder_connector_stats(nullptr, nullptr, 0), 0u);
  larder_release(nullptr, 1);
  larder_release(connector_, 77);
  larder_lookup_options look{};
  EXPECT_EQ(larder_lookup(connector_, &look, &id, &error_), LARDER_INVALID_ARGUMENT) << "struct_size";
  look.struct_size = sizeof look;
  EXPECT_EQ(larder_lookup(connector_, &look, &id, &error_), LARDER_INVALID_ARGUMENT) << "no tokens";
  look.tokens = tokens_.data();
  EXPECT_EQ(larder_lookup(connector_, &look, &id, &error_), LARDER_INVALID_ARGUMENT) << "none of them";
  look.token_count = tokens_.size();
  look.flags = 2;
  EXPECT_EQ(larder_lookup(connector_, &look, &id, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_points(connector_, 77, nullptr, 0, &count, &error_), LARDER_NOT_FOUND);
  EXPECT_EQ(larder_points(connector_, 77, nullptr, 1, &count, &error_), LARDER_INVALID_ARGUMENT);
  larder_miss miss{};
  EXPECT_EQ(larder_lookup_miss(connector_, 77, &miss, &error_), LARDER_INVALID_ARGUMENT) << "struct_size";
  EXPECT_EQ(larder_lookup_miss(connector_, 77, nullptr, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_lookup_miss(nullptr, 77, &miss, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_transfer_take(connector_, 77, &result, &error_), LARDER_INVALID_ARGUMENT) << "struct_size";
  result.struct_size = sizeof result;
  EXPECT_EQ(larder_transfer_take(connector_, 77, &result, &error_), LARDER_NOT_FOUND);
  EXPECT_EQ(std::string(error_.message).find("save:"), std::string::npos) << error_.message;
  const std::vector<std::uint64_t> states = {10};
  Memory m = memory(0, 7, 10, states, true);
  larder_save_options save = save_options(10, states, m);
  m.places[0].pool = 4;
  EXPECT_EQ(larder_save(connector_, &save, &id, &error_), LARDER_INVALID_ARGUMENT);
  m.places[0].pool = 0;
  m.places[0].segment_count = 1;
  EXPECT_EQ(larder_save(connector_, &save, &id, &error_), LARDER_INVALID_ARGUMENT);
  m.places[0].segments = nullptr;
  EXPECT_EQ(larder_save(connector_, &save, &id, &error_), LARDER_INVALID_ARGUMENT);
  m.places.pop_back();  // of the state
  save.places = m.places.data();
  save.place_count = m.places.size();
  m.places[0].segments = m.segments[0].data();
  m.places[0].segment_count = 2;
  EXPECT_EQ(larder_save(connector_, &save, &id, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("page 9 of pool state"), std::string::npos) << error_.message;
  m.places[10].segment_count = 1;
  EXPECT_EQ(larder_save(connector_, &save, &id, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("page 0 of pool own-draft must"), std::string::npos) << error_.message;
  save.places = nullptr;
  EXPECT_EQ(larder_save(connector_, &save, &id, &error_), LARDER_INVALID_ARGUMENT);
  larder_load_options load{};
  load.struct_size = sizeof load;
  load.lookup = 77;
  EXPECT_EQ(larder_load(connector_, &load, &id, &error_), LARDER_NOT_FOUND);
  load.reserved = 1;
  EXPECT_EQ(larder_load(connector_, &load, &id, &error_), LARDER_INVALID_ARGUMENT);
  options_.reserved = 1;
  larder_connector* other = nullptr;
  EXPECT_EQ(larder_connector_open(&options_, &other, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_connector_in_flight(connector_), 0u);
}

// Who does not look at the code of a call goes on with no other prompt's pages, and with no result that looks right.
TEST_F(ConnectorCTest, NumbersAndResultsOfACallThatFailedAreNone) {
  std::uint64_t id = 77;
  larder_lookup_options look{};
  look.struct_size = sizeof look;
  EXPECT_EQ(larder_lookup(connector_, &look, &id, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(id, 0u);
  id = 77;
  larder_load_options load{};
  load.struct_size = sizeof load;
  EXPECT_EQ(larder_load(connector_, &load, &id, &error_), LARDER_NOT_FOUND);
  EXPECT_EQ(id, 0u);
  id = 77;
  larder_save_options save{};
  save.struct_size = sizeof save;
  EXPECT_EQ(larder_save(connector_, &save, &id, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(id, 0u);
  larder_transfer_result result{};
  result.struct_size = sizeof result;
  EXPECT_EQ(larder_transfer_take(connector_, 77, &result, &error_), LARDER_NOT_FOUND);
  EXPECT_EQ(result.code, LARDER_NOT_FOUND);
}

// A program of an earlier version knows fewer fields: they are not written.
TEST_F(ConnectorCTest, AResultHasTheSizeThatTheCallerKnows) {
  const std::vector<std::uint64_t> states = {10};
  const Memory m = memory(0, 7, 10, states, true);
  const larder_save_options save = save_options(10, states, m);
  std::uint64_t transfer = 0;
  ASSERT_EQ(larder_save(connector_, &save, &transfer, &error_), LARDER_OK);
  settle();
  larder_transfer_result result{};
  result.struct_size = offsetof(larder_transfer_result, bytes);
  result.bytes = 4711;
  ASSERT_EQ(larder_transfer_take(connector_, transfer, &result, &error_), LARDER_OK) << error_.message;
  EXPECT_EQ(result.pages, 10u);
  EXPECT_EQ(result.bytes, 4711u);
}

// One of a later version knows more: those are zero.
TEST_F(ConnectorCTest, AResultHasZerosInFieldsOfALaterVersion) {
  std::uint64_t lookup = 0;
  larder_lookup_options look{};
  look.struct_size = sizeof look;
  look.tokens = tokens_.data();
  look.token_count = tokens_.size();
  ASSERT_EQ(larder_lookup(connector_, &look, &lookup, &error_), LARDER_OK) << error_.message;
  struct LaterMiss {
    larder_miss known;
    std::uint64_t more;
  } later{{}, 4711};
  later.known.struct_size = sizeof later;
  ASSERT_EQ(larder_lookup_miss(connector_, lookup, &later.known, &error_), LARDER_OK) << error_.message;
  EXPECT_EQ(later.known.reason, static_cast<std::uint32_t>(LARDER_MISS_NEVER_SEEN));
  EXPECT_EQ(later.more, 0u);
}

}  // namespace
}  // namespace larder
