// SPDX-License-Identifier: Apache-2.0
// The C interface: what it refuses, and that it is the store door. (examples/c_store.c is a whole program.)
#include <larder/larder.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/bytes.h"
#include "base/log.h"
#include "door/c_call.h"

namespace larder {
namespace {

class LarderCTest : public ::testing::Test {
 protected:
  void SetUp() override {
    larder_store_options options{};
    options.struct_size = sizeof options;
    options.backend = "memory";
    ASSERT_EQ(larder_store_open(&options, &store_, &error_), LARDER_OK) << error_.message;
    pools_[0].struct_size = pools_[1].struct_size = sizeof(larder_pool);
    pools_[0].name = "kv";
    pools_[0].page_bytes = 100;
    pools_[0].layout = "bf16";
    pools_[1].name = "mamba";
    pools_[1].page_bytes = 7;
    pools_[1].layout = "f32";
    pools_[1].hit_policy = LARDER_TRAILING_PAGES;
    pools_[1].trailing_pages = 1;
    options_.struct_size = sizeof options_;
    options_.page_size = 16;
    options_.identity = "model";
    options_.pools = pools_;
    options_.pool_count = 2;
    ASSERT_EQ(larder_space_open(store_, &options_, &space_, &error_), LARDER_OK) << error_.message;
    std::iota(std::begin(keys_), std::end(keys_), std::uint8_t{1});
  }
  void TearDown() override {
    larder_space_close(space_);
    EXPECT_EQ(larder_store_close(store_, 0, &error_), LARDER_OK) << error_.message;
  }
  larder_page page(std::size_t number, std::uint32_t pool, larder_segment* segment) {
    larder_page out{};
    out.key = keys_ + number * LARDER_KEY_BYTES;
    out.segments = segment;
    out.segment_count = 1;
    out.pool = pool;
    return out;
  }

  larder_store* store_ = nullptr;
  larder_space* space_ = nullptr;
  larder_pool pools_[2]{};
  larder_space_options options_{};
  larder_error error_{};
  std::uint8_t keys_[3 * LARDER_KEY_BYTES]{};
};

TEST_F(LarderCTest, StoresFindsAndReadsPages) {
  std::string kv(100, 'k'), state(7, 's'), got(100, '?');
  larder_segment segments[] = {{kv.data(), 100}, {state.data(), 7}};
  larder_page pages[] = {page(0, 0, &segments[0]), page(1, 1, &segments[1]), page(1, 0, &segments[0])};
  ASSERT_EQ(larder_put(space_, pages, 3, nullptr, &error_), LARDER_OK) << error_.message;
  std::uint64_t restorable = 0, present[2] = {};
  ASSERT_EQ(larder_exists(space_, keys_, 3, nullptr, 0, nullptr, &restorable, present, nullptr), LARDER_OK);
  EXPECT_EQ(restorable, 0b10u);
  EXPECT_EQ(present[0], 0b11u);
  EXPECT_EQ(present[1], 0b10u);
  const larder_need kv_only{0, LARDER_ALL_PAGES, 0};
  ASSERT_EQ(larder_exists(space_, keys_, 3, &kv_only, 1, nullptr, &restorable, nullptr, nullptr), LARDER_OK);
  EXPECT_EQ(restorable, 0b11u);
  larder_segment into{got.data(), 100};
  larder_page reads[] = {page(0, 0, &into), page(2, 0, &into)};
  EXPECT_EQ(larder_get(space_, reads, 2, nullptr, &error_), LARDER_NOT_FOUND);
  EXPECT_EQ(reads[0].code, LARDER_OK);
  EXPECT_EQ(reads[1].code, LARDER_NOT_FOUND);
  EXPECT_EQ(std::string(error_.message).substr(0, 7), "page 1:");
  EXPECT_EQ(larder_get(space_, reads, 1, nullptr, nullptr), LARDER_OK);
  EXPECT_EQ(got, kv);
  EXPECT_EQ(larder_space_clear(space_, 0, &error_), LARDER_OK);
  EXPECT_EQ(larder_get(space_, reads, 1, nullptr, nullptr), LARDER_NOT_FOUND);
}

TEST_F(LarderCTest, MemoryThatComesLaterIsRegistered) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "larder_c_memory";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string config = R"({"zero_copy": true, "directory": ")" + folder.string() + R"("})";
  larder_store_options options{};
  options.struct_size = sizeof options;
  options.backend = "file";
  options.config = config.c_str();
  larder_store* store = nullptr;
  ASSERT_EQ(larder_store_open(&options, &store, &error_), LARDER_OK) << error_.message;
  larder_space* space = nullptr;
  ASSERT_EQ(larder_space_open(store, &options_, &space, &error_), LARDER_OK) << error_.message;
  std::string kv(100, 'k'), got(100, '?');
  const larder_segment lent[] = {{kv.data(), kv.size()}, {got.data(), got.size()}};
  // A system without io_uring, or with little locked memory, refuses; pages move all the same.
  for (const larder_segment& segment : lent) {
    const larder_code code = larder_store_add_memory(store, &segment, 1, &error_);
    EXPECT_TRUE(code == LARDER_OK || code == LARDER_UNSUPPORTED || code == LARDER_OVERLOADED) << error_.message;
  }
  larder_segment from{kv.data(), kv.size()}, into{got.data(), got.size()};
  larder_page write = page(0, 0, &from), read = page(0, 0, &into);
  EXPECT_EQ(larder_put(space, &write, 1, nullptr, &error_), LARDER_OK) << error_.message;
  EXPECT_EQ(larder_get(space, &read, 1, nullptr, &error_), LARDER_OK) << error_.message;
  EXPECT_EQ(got, kv);
  larder_space_close(space);
  EXPECT_EQ(larder_store_close(store, 0, &error_), LARDER_OK) << error_.message;
  std::filesystem::remove_all(folder);
}

TEST_F(LarderCTest, NullIsAnAnswerAndNoCrash) {
  std::uint64_t word = 0;
  EXPECT_EQ(larder_store_open(nullptr, nullptr, nullptr), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_store_close(nullptr, 0, nullptr), LARDER_OK);
  EXPECT_EQ(larder_store_clear(nullptr, 0, nullptr), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_store_add_memory(nullptr, nullptr, 0, nullptr), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_store_add_memory(store_, nullptr, 1, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_store_stats(nullptr, nullptr, 0), 0u);
  EXPECT_EQ(larder_store_metrics(nullptr, nullptr, 0), 0u);
  EXPECT_EQ(larder_space_open(nullptr, nullptr, nullptr, nullptr), LARDER_INVALID_ARGUMENT);
  larder_space_close(nullptr);
  larder_cancel_set(nullptr);
  larder_cancel_free(nullptr);
  EXPECT_EQ(larder_space_clear(nullptr, 0, nullptr), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_space_digest(nullptr, nullptr), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_exists(nullptr, keys_, 1, nullptr, 0, nullptr, &word, nullptr, nullptr), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_exists(space_, nullptr, 1, nullptr, 0, nullptr, &word, nullptr, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_exists(space_, nullptr, 0, nullptr, 0, nullptr, &word, nullptr, nullptr), LARDER_OK);
  EXPECT_EQ(larder_get(space_, nullptr, 1, nullptr, nullptr), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_get(space_, nullptr, 0, nullptr, nullptr), LARDER_OK);
  larder_page without_key{};
  EXPECT_EQ(larder_put(space_, &without_key, 1, nullptr, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(without_key.code, LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_page_keys(nullptr, 5, 1, nullptr, keys_), 0u);
}

TEST_F(LarderCTest, MemoryThatIsNoneIsRefusedBeforeTheSystemSeesIt) {
  alignas(8) char byte = 0;
  const larder_segment none[] = {{&byte, 1}, {nullptr, 4096}}, endless[] = {{&byte, SIZE_MAX - 4095}};
  const auto refused = [&](const larder_segment* memory, std::size_t count, const char* words) {
    EXPECT_EQ(larder_store_add_memory(store_, memory, count, &error_), LARDER_INVALID_ARGUMENT) << error_.message;
    EXPECT_NE(std::string(error_.message).find(words), std::string::npos) << error_.message;
    larder_store_options options{};
    options.struct_size = sizeof options;
    options.backend = "memory";
    options.memory = memory;
    options.memory_count = count;
    larder_store* store = nullptr;
    EXPECT_EQ(larder_store_open(&options, &store, &error_), LARDER_INVALID_ARGUMENT) << error_.message;
    EXPECT_EQ(larder_store_close(store, 0, nullptr), LARDER_OK);
  };
  refused(none, 2, "memory[1]");
  refused(endless, 1, "memory[0]");
}

// 0 means the store's own time, and an engine that has almost none left would wait for seconds.
TEST(LarderSecondsTest, AlmostNoTimeIsNotTheDefault) {
  Nanos out{0};
  EXPECT_TRUE(c::read_seconds(1e-12, out).is_ok());
  EXPECT_EQ(out, Nanos{1});
  EXPECT_TRUE(c::read_seconds(0, out).is_ok());
  EXPECT_EQ(out, Nanos{0});
  EXPECT_TRUE(c::read_seconds(1.5, out).is_ok());
  EXPECT_EQ(out, std::chrono::milliseconds(1500));
}

TEST_F(LarderCTest, SegmentsWhoseSizesOverflowAreRefused) {
  char byte = 0, other[200] = {};
  larder_segment segments[] = {{&byte, SIZE_MAX - 99}, {other, 200}};  // 100 bytes, modulo 2^64
  larder_page one = page(0, 0, segments);
  one.segment_count = 2;
  EXPECT_EQ(larder_put(space_, &one, 1, nullptr, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(larder_get(space_, &one, 1, nullptr, &error_), LARDER_INVALID_ARGUMENT) << error_.message;
}

// A code of zeros says that a page was read.
TEST_F(LarderCTest, NoPageOfAWrongCallIsOk) {
  char bytes[64] = {};
  larder_segment segment = {bytes, sizeof bytes};
  larder_page pages[2] = {page(0, 0, &segment), page(1, 0, &segment)};
  const auto expect_refused = [&](larder_space* space) {
    pages[0].code = pages[1].code = LARDER_OK;
    EXPECT_EQ(larder_get(space, pages, 2, nullptr, &error_), LARDER_INVALID_ARGUMENT);
    EXPECT_NE(pages[0].code, LARDER_OK);
    EXPECT_NE(pages[1].code, LARDER_OK);
  };
  expect_refused(nullptr);
  pages[1].reserved = 1;
  expect_refused(space_);
  EXPECT_NE(std::string(error_.message).find("larder_page 1: reserved"), std::string::npos) << error_.message;
}

TEST_F(LarderCTest, TheAnswerTellsOfTheWrongPageWhereverItIs) {
  std::string kv(100, 'k');
  larder_segment right{kv.data(), 100}, wrong{kv.data(), 99};
  larder_page pages[] = {page(0, 0, &right), page(1, 0, &wrong), page(2, 0, &right)};
  for (auto* call : {&larder_put, &larder_get}) {
    EXPECT_EQ(call(space_, pages, 3, nullptr, &error_), LARDER_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(error_.message).substr(0, 7), "page 1:") << error_.message;
    EXPECT_EQ(pages[0].code, LARDER_CANCELLED);
    EXPECT_EQ(pages[1].code, LARDER_INVALID_ARGUMENT);
    EXPECT_EQ(pages[2].code, LARDER_CANCELLED);
  }
}

TEST_F(LarderCTest, AQueryThatFailsLeavesNoOldWords) {
  std::uint64_t restorable = 0, present[2] = {};
  const larder_need needs[] = {{0, LARDER_ALL_PAGES, 0}, {1, LARDER_TRAILING_PAGES, 1}};
  larder_terms terms{};
  terms.struct_size = sizeof terms;
  terms.timeout_seconds = -1;
  const auto words_after = [&](larder_space* space, const std::uint8_t* keys, const larder_need* asked,
                               std::size_t count, const larder_terms* with) {
    restorable = present[0] = present[1] = 99;
    EXPECT_EQ(larder_exists(space, keys, 3, asked, count, with, &restorable, present, &error_),
              LARDER_INVALID_ARGUMENT);
    return restorable + present[0] + present[1];
  };
  EXPECT_EQ(words_after(nullptr, keys_, needs, 2, nullptr), 0u);
  EXPECT_EQ(words_after(space_, nullptr, needs, 2, nullptr), 0u);
  EXPECT_EQ(words_after(space_, nullptr, nullptr, 0, nullptr), 0u);
  EXPECT_EQ(words_after(space_, keys_, nullptr, 2, nullptr), 0u);
  EXPECT_EQ(words_after(space_, keys_, nullptr, 0, &terms), 0u);
  const larder_need forgotten[] = {{1, LARDER_ALL_PAGES, 1}, {0, LARDER_ALL_PAGES, 0}};
  EXPECT_EQ(words_after(space_, keys_, forgotten, 2, nullptr), 0u) << "trailing_pages without TRAILING_PAGES";
  // Not behind what the caller has, who forgot the needs and not their number.
  present[1] = 99;
  EXPECT_EQ(larder_exists(space_, keys_, 3, nullptr, 1, nullptr, &restorable, present, &error_),
            LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(present[1], 99u);
}

TEST_F(LarderCTest, AQueryOfTooManyKeysOrPoolsLeavesNoOldWords) {
  constexpr std::size_t kKeys = LARDER_MAX_KEYS + 1, kWords = (kKeys + 63) / 64, kPools = LARDER_MAX_POOLS + 1;
  const std::vector<std::uint8_t> keys(kKeys * LARDER_KEY_BYTES, 1);
  std::vector<std::uint64_t> restorable(kWords, 99), present(2 * kWords, 99);
  EXPECT_EQ(larder_exists(space_, keys.data(), kKeys, nullptr, 0, nullptr, restorable.data(), present.data(), &error_),
            LARDER_INVALID_ARGUMENT);
  const auto first_of = [](std::size_t zero, std::size_t all) {
    std::vector<std::uint64_t> out(all, 99);
    std::fill_n(out.begin(), zero, 0);
    return out;
  };
  EXPECT_EQ(restorable, first_of(kWords - 1, kWords));
  EXPECT_EQ(present, first_of(2 * (kWords - 1), 2 * kWords));

  const std::vector<larder_need> needs(kPools, larder_need{0, LARDER_ALL_PAGES, 0});
  restorable.assign(1, 99);
  present.assign(kPools, 99);
  EXPECT_EQ(
      larder_exists(space_, keys.data(), 3, needs.data(), kPools, nullptr, restorable.data(), present.data(), &error_),
      LARDER_INVALID_ARGUMENT);
  EXPECT_EQ(restorable, std::vector<std::uint64_t>(1, 0));
  EXPECT_EQ(present, first_of(LARDER_MAX_POOLS, kPools));
}

TEST_F(LarderCTest, TheLogIsThatOfTheLastStoreThatIsOpen) {
  using Lines = std::vector<std::string>;
  Lines first, second;
  const auto open_with = [&](const char* backend, Lines* lines) {
    larder_store_options options{};
    options.struct_size = sizeof options;
    options.backend = backend;
    options.log = [](void* context, std::int32_t, const char*, const char* message) {
      static_cast<Lines*>(context)->emplace_back(message);
    };
    options.log_context = lines;
    larder_store* store = nullptr;
    (void)larder_store_open(&options, &store, &error_);
    return store;
  };
  larder_store* const one = open_with("memory", &first);
  ASSERT_EQ(open_with("tape", &second), nullptr);
  log_info("test", "after an open that failed");
  larder_store* const other = open_with("memory", &second);
  log_info("test", "beside another");
  EXPECT_EQ(larder_store_close(other, 0, &error_), LARDER_OK) << error_.message;
  log_info("test", "alone again");
  EXPECT_EQ(larder_store_close(one, 0, &error_), LARDER_OK) << error_.message;
  log_info("test", "after all");
  EXPECT_EQ(first, (Lines{"after an open that failed", "alone again"}));
  EXPECT_EQ(second, Lines{"beside another"});
}

TEST_F(LarderCTest, WrongStructsAndTextsAreRefusedInWords) {
  larder_code code = LARDER_OK;
  const auto open_error = [&](const char* backend, const char* config) {
    larder_store_options options{};
    options.struct_size = sizeof options;
    options.backend = backend;
    options.config = config;
    larder_store* store = nullptr;
    code = larder_store_open(&options, &store, &error_);
    EXPECT_NE(code, LARDER_OK);
    EXPECT_EQ(store, nullptr);
    return std::string(error_.message);
  };
  EXPECT_NE(open_error("tape", nullptr).find("file"), std::string::npos) << error_.message;
  EXPECT_NE(open_error("memory", "{").find("store configuration"), std::string::npos) << error_.message;
  EXPECT_NE(open_error("memory", R"({"colour": 1})").find("timeout_seconds"), std::string::npos) << error_.message;
  EXPECT_NE(open_error("file", "{}").find("directory"), std::string::npos) << error_.message;
  const std::string nowhere = open_error("file", R"({"directory": "/proc/none/none"})");
  EXPECT_NE(nowhere.find("/proc/none"), std::string::npos) << nowhere;
  EXPECT_EQ(code, LARDER_UNAVAILABLE) << "not found is the answer to a page that is not there";
  options_.struct_size = 1;
  larder_space* space = nullptr;
  EXPECT_EQ(larder_space_open(store_, &options_, &space, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("sizeof(larder_space_options)"), std::string::npos);
  options_.struct_size = sizeof options_;
  options_.pools = nullptr;
  options_.pool_count = 0;
  EXPECT_EQ(larder_space_open(store_, &options_, &space, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("1 to 55 pools, not 0"), std::string::npos) << error_.message;
  options_.pools = pools_;
  options_.pool_count = 2;
  pools_[1].hit_policy = 9;
  EXPECT_EQ(larder_space_open(store_, &options_, &space, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("pools[1].hit_policy"), std::string::npos);
  larder_terms terms{};
  terms.struct_size = sizeof terms;
  terms.timeout_seconds = -1;
  EXPECT_EQ(larder_get(space_, nullptr, 0, &terms, &error_), LARDER_INVALID_ARGUMENT);
  terms.timeout_seconds = 0;
  terms.flags = 64;
  EXPECT_EQ(larder_get(space_, nullptr, 0, &terms, &error_), LARDER_INVALID_ARGUMENT);
}

// A program of a later version asks for what this library does not know, and must not believe that it has it.
TEST_F(LarderCTest, WhatALaterVersionAsksForIsRefused) {
  struct LaterTerms {
    larder_terms known;
    std::uint64_t more;
  } later{};
  later.known.struct_size = sizeof later;
  EXPECT_EQ(larder_get(space_, nullptr, 0, &later.known, &error_), LARDER_OK) << "it asks for nothing";
  later.more = 1;
  EXPECT_EQ(larder_get(space_, nullptr, 0, &later.known, &error_), LARDER_UNSUPPORTED);
  EXPECT_NE(std::string(error_.message).find("larder_terms"), std::string::npos) << error_.message;
  larder_store_options options{};
  options.struct_size = sizeof options;
  options.backend = "memory";
  options.reserved = 1;
  larder_store* store = nullptr;
  EXPECT_EQ(larder_store_open(&options, &store, &error_), LARDER_INVALID_ARGUMENT);
}

TEST_F(LarderCTest, AStoreWithNamespacesDoesNotClose) {
  EXPECT_EQ(larder_store_close(store_, 0, &error_), LARDER_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("larder_space_close()"), std::string::npos);
}

TEST_F(LarderCTest, TextsAreCutAndTheirLengthIsTold) {
  char text[8];
  const std::size_t length = larder_store_stats(store_, text, sizeof text);
  EXPECT_GT(length, 100u);
  EXPECT_EQ(std::strlen(text), 7u);
  EXPECT_EQ(larder_store_stats(store_, nullptr, 0), length);
  EXPECT_EQ(larder_store_option_help("tape", text, sizeof text), 0u);
  EXPECT_GT(larder_store_option_help("file", nullptr, 0), larder_store_option_help(nullptr, nullptr, 0));
  EXPECT_STREQ(larder_code_name(LARDER_NOT_FOUND), "not_found");
  EXPECT_STREQ(larder_code_name(99), "?");
  EXPECT_EQ(larder_abi_version(), LARDER_ABI_VERSION);
}

TEST_F(LarderCTest, ACancelledCallEnds) {
  larder_cancel* cancel = larder_cancel_new();
  larder_cancel_set(cancel);
  larder_terms terms{};
  terms.struct_size = sizeof terms;
  terms.cancel = cancel;
  std::string kv(100, 'k');
  larder_segment segment{kv.data(), 100};
  larder_page one = page(0, 0, &segment);
  EXPECT_EQ(larder_put(space_, &one, 1, &terms, &error_), LARDER_CANCELLED) << error_.message;
  EXPECT_EQ(one.code, LARDER_CANCELLED);
  larder_cancel_free(cancel);
}

// The chain of SGLang 0.5.23, from its own code.
TEST(LarderKeysTest, KeysAreThoseOfSGLang) {
  std::vector<std::uint32_t> tokens(150);
  std::iota(tokens.begin(), tokens.end(), 1u);
  std::vector<Digest256> keys(2);
  ASSERT_EQ(larder_page_keys(tokens.data(), tokens.size(), 64, nullptr, keys[0].bytes.data()), 2u);
  EXPECT_EQ(keys[0].hex().substr(0, 8), "0c8f4629");
  EXPECT_EQ(keys[0].hex().substr(58), "aeec32");
  EXPECT_EQ(keys[1].hex().substr(0, 8), "e9c2a460");
  EXPECT_EQ(keys[1].hex().substr(59), "f6a56");
  Digest256 second;
  EXPECT_EQ(larder_page_keys(tokens.data() + 64, 64, 64, keys[0].bytes.data(), second.bytes.data()), 1u);
  EXPECT_EQ(second, keys[1]);
}

}  // namespace
}  // namespace larder
