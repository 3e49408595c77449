// SPDX-License-Identifier: Apache-2.0
// Flushes of connectors and clears of their stores, with what is under way: of an engine that gets new weights.
#include <larder/larder.h>

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

namespace larder {
namespace {

constexpr std::uint64_t kPages = 16, kPageBytes = 200'000;

// An engine of one pool. Bytes of its pages are those of its weights and of the page.
class ConnectorFlushTest : public ::testing::Test {
 protected:
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
    options.host_bytes = 5 * kPages * kPageBytes;
    options.prefetch_tokens = 1;
    tokens_.resize(kPages * model.page_size + 1);
    std::iota(tokens_.begin(), tokens_.end(), 7u);
    larder_store_options store{};
    store.struct_size = sizeof store;
    store.backend = "memory";
    ASSERT_EQ(larder_store_open(&store, &store_, &error_), LARDER_OK) << error_.message;
    ASSERT_EQ(larder_connector_open(&options, &connector_, &error_), LARDER_OK) << error_.message;
    ASSERT_EQ(larder_connector_attach(connector_, store_, &error_), LARDER_OK) << error_.message;
  }
  void TearDown() override {
    EXPECT_EQ(stat("internal_errors"), 0u);
    EXPECT_EQ(larder_connector_close(connector_, 0, &error_), LARDER_OK) << error_.message;
    EXPECT_EQ(larder_store_close(store_, 0, &error_), LARDER_OK) << error_.message;
  }

  [[nodiscard]] std::uint64_t stat(const char* name) const {
    return json_of([this](char* text, std::size_t size) { return larder_connector_stats(connector_, text, size); })
        .at(name);
  }
  [[nodiscard]] std::uint64_t pages_in_store() const {
    return json_of([this](char* text, std::size_t size) { return larder_store_stats(store_, text, size); })
        .at("store")
        .at("pages");
  }
  void poll_until(const std::function<bool()>& holds) {
    for (int i = 0; i < 1000 && !holds(); ++i) (void)larder_connector_poll(connector_, 0.02);
    EXPECT_TRUE(holds());
  }
  void settle() {
    poll_until([this] { return larder_connector_in_flight(connector_) == 0; });
  }
  // Ends with the copy; the store has hardly begun.
  void save() {
    larder_save_options save{};
    save.struct_size = sizeof save;
    save.tokens = tokens_.data();
    save.token_count = tokens_.size();
    save.to_page = kPages;
    save.context = this;
    save.page = fill;
    std::uint64_t transfer = 0;
    ASSERT_EQ(larder_save(connector_, &save, &transfer, &error_), LARDER_OK) << error_.message;
    const larder_transfer_result saved = result_of(transfer);
    EXPECT_EQ(saved.pages, kPages);
  }
  larder_transfer_result result_of(std::uint64_t transfer) {
    larder_transfer_result result{};
    result.struct_size = sizeof result;
    bool is_over = false;
    poll_until([&] {
      is_over = is_over || larder_transfer_take(connector_, transfer, &result, &error_) != LARDER_OVERLOADED;
      return is_over;
    });
    EXPECT_EQ(result.code, LARDER_OK) << error_.message;
    return result;
  }
  std::uint64_t look_up(std::uint32_t flags = 0) {
    larder_lookup_options look{};
    look.struct_size = sizeof look;
    look.flags = flags;
    look.tokens = tokens_.data();
    look.token_count = tokens_.size();
    std::uint64_t lookup = 0;
    EXPECT_EQ(larder_lookup(connector_, &look, &lookup, &error_), LARDER_OK) << error_.message;
    return lookup;
  }
  // Of the last point; 0: there is none.
  std::uint64_t pages_of(std::uint64_t lookup) {
    larder_point point{};
    std::size_t count = 0;
    larder_code code = LARDER_OVERLOADED;
    for (int i = 0; i < 1000 && code == LARDER_OVERLOADED; ++i) {
      code = larder_points(connector_, lookup, &point, 1, &count, &error_);
      if (code == LARDER_OVERLOADED) (void)larder_connector_poll(connector_, 0.02);
    }
    EXPECT_EQ(code, LARDER_OK) << error_.message;
    return count == 0 ? 0 : point.pages;
  }
  std::uint64_t found(std::uint32_t flags = 0) {
    const std::uint64_t lookup = look_up(flags);
    const std::uint64_t pages = pages_of(lookup);
    larder_release(connector_, lookup);
    return pages;
  }
  void clear() { ASSERT_EQ(larder_store_clear(store_, 0, &error_), LARDER_OK) << error_.message; }
  void expect_nothing() {
    EXPECT_EQ(found(LARDER_LOOKUP_HOST_ONLY), 0u);
    for (int polls = 0; polls < 5; ++polls) (void)larder_connector_poll(connector_, 0.005);
    settle();
    EXPECT_EQ(found(LARDER_LOOKUP_HOST_ONLY), 0u);
    EXPECT_EQ(found(), 0u);
    EXPECT_EQ(pages_in_store(), 0u);
  }

  larder_connector* connector_ = nullptr;
  char weights_ = 1;

 private:
  static nlohmann::json json_of(const std::function<std::size_t(char*, std::size_t)>& write) {
    std::string text(1 << 16, '\0');
    (void)write(text.data(), text.size());
    return nlohmann::json::parse(text.c_str());
  }
  static larder_code fill(void* context, std::uint32_t /*pool*/, std::uint64_t page, const larder_segment* segments,
                          std::size_t count) {
    const int byte = static_cast<ConnectorFlushTest*>(context)->weights_ * 40 + static_cast<int>(page);
    for (std::size_t i = 0; i < count; ++i) std::memset(segments[i].data, byte, segments[i].size);
    return LARDER_OK;
  }

  larder_pool pool_{};
  larder_store* store_ = nullptr;
  larder_error error_{};
  std::vector<std::uint32_t> tokens_;
};

TEST_F(ConnectorFlushTest, AStoreThatWasClearedIsFilledAgain) {
  save();
  poll_until([this] { return stat("stored") == kPages; });
  clear();
  EXPECT_EQ(pages_in_store(), 0u);
  poll_until([this] { return stat("stored") == 2 * kPages; });
  EXPECT_EQ(pages_in_store(), kPages);
  (void)larder_connector_flush(connector_);
  EXPECT_EQ(found(), kPages);
}

TEST_F(ConnectorFlushTest, WhatIsBeingWrittenDoesNotComeBack) {
  for (int turn = 0; turn < 10; ++turn) {
    save();
    for (int polls = 0; polls < turn; ++polls) (void)larder_connector_poll(connector_, 0);
    EXPECT_EQ(larder_connector_flush(connector_), kPages);
    clear();
    expect_nothing();
  }
  const std::uint64_t stored = stat("stored");
  save();
  poll_until([&] { return stat("stored") == stored + kPages; });
}

TEST_F(ConnectorFlushTest, WhatIsBeingReadDoesNotComeBack) {
  for (int turn = 0; turn < 10; ++turn) {
    save();
    settle();
    EXPECT_EQ(larder_connector_flush(connector_), kPages);
    const std::uint64_t waits = look_up(), released = look_up();
    for (int polls = 0; polls < turn; ++polls) (void)larder_connector_poll(connector_, turn < 5 ? 0 : 0.001);
    larder_release(connector_, released);
    (void)larder_connector_flush(connector_);
    clear();
    EXPECT_EQ(pages_of(waits), 0u);
    larder_release(connector_, waits);
    expect_nothing();
  }
}

TEST_F(ConnectorFlushTest, ALeaseIsLoadedAsItWas) {
  save();
  const std::uint64_t lookup = look_up();
  ASSERT_EQ(pages_of(lookup), kPages);
  EXPECT_EQ(larder_connector_flush(connector_), kPages);
  clear();
  expect_nothing();
  weights_ = 2;
  save();
  larder_load_options load{};
  load.struct_size = sizeof load;
  load.lookup = lookup;
  load.pages = kPages;
  load.context = &weights_;
  load.page = [](void*, std::uint32_t, std::uint64_t page, const larder_segment* segments, std::size_t) {
    return *static_cast<const char*>(segments[0].data) == 40 + static_cast<int>(page) ? LARDER_OK : LARDER_CORRUPT;
  };
  std::uint64_t transfer = 0;
  larder_error error{};
  ASSERT_EQ(larder_load(connector_, &load, &transfer, &error), LARDER_OK) << error.message;
  (void)result_of(transfer);
  larder_release(connector_, lookup);
  settle();
  (void)larder_connector_poll(connector_, 0);
  EXPECT_EQ(stat("host_resident"), kPages) << "of the new weights";
  EXPECT_EQ(found(LARDER_LOOKUP_HOST_ONLY), kPages);
}

}  // namespace
}  // namespace larder
