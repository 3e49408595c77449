// SPDX-License-Identifier: Apache-2.0
// The host side of backend libraries against tables made here: what a library must not answer becomes an error, and
// nothing worse. Whole backends: tests/conformance.
#include "storage/plugin/plugin_backend.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <stdexcept>

#include "base/clock.h"
#include "base/executor.h"
#include "storage/plugin/plugin_call.h"
#include "storage/plugin/plugin_library.h"

namespace larder::plugin {
namespace {

// The library under test: what each entry does is set by the test. One at a time.
struct Script {
  std::function<std::int32_t(const char*, LarderBackendCall*, LarderBackend**)> create;
  std::function<std::int32_t(LarderBackendCall*, LarderBackendPage*, std::uint64_t)> exists, read, drop;
  std::function<std::int32_t(LarderBackendCall*, LarderBackendGroup*, std::uint64_t)> write;
  std::function<std::int32_t(const std::uint8_t*)> clear;
  LarderBackendStatistics statistics{};
  int closed = 0;
};
Script* script = nullptr;
LarderBackend* const kHandle = reinterpret_cast<LarderBackend*>(0x1000);

LarderBackendTable scripted_table() {
  LarderBackendTable table{};
  table.abi_version = LARDER_BACKEND_ABI_VERSION;
  table.struct_size = sizeof table;
  table.name = "scripted";
  table.create = [](const char* options, LarderBackendCall* call, LarderBackend** out) -> std::int32_t {
    *out = kHandle;
    return script->create ? script->create(options, call, out) : LARDER_BACKEND_OK;
  };
  table.exists = [](LarderBackend*, LarderBackendCall* call, LarderBackendPage* pages, std::uint64_t count) {
    return script->exists(call, pages, count);
  };
  table.read = [](LarderBackend*, LarderBackendCall* call, LarderBackendPage* pages, std::uint64_t count) {
    return script->read(call, pages, count);
  };
  table.write = [](LarderBackend*, LarderBackendCall* call, LarderBackendGroup* groups, std::uint64_t count) {
    return script->write(call, groups, count);
  };
  table.drop = [](LarderBackend*, LarderBackendCall* call, LarderBackendPage* pages, std::uint64_t count) {
    return script->drop(call, pages, count);
  };
  table.clear = [](LarderBackend*, LarderBackendCall*, const std::uint8_t* digest) { return script->clear(digest); };
  table.stats = [](LarderBackend*, LarderBackendStatistics* out) { *out = script->statistics; };
  table.close = [](LarderBackend* backend) { script->closed += backend == kHandle ? 1 : 100; };
  return table;
}

class PluginBackendTest : public testing::Test {
 protected:
  PluginBackendTest() {
    script = &script_;
    scope_ = std::make_shared<StoreScope>();
    scope_->namespace_digest.bytes[0] = 1;
    scope_->set_pool(PoolName::kKv, Digest256{{2}});
    key_.bytes[0] = 3;
  }
  ~PluginBackendTest() override {
    backend_.reset();
    script = nullptr;
  }
  Status open(const LarderBackendTable& table, const BackendOptions& options = {}) {
    BackendEnvironment environment;
    environment.clock = &clock_;
    environment.executor = &inline_;
    LARDER_ASSIGN_OR_RETURN(backend_, open_backend(table, options, 10, environment));
    return Status::ok();
  }
  ExistsResult exists() {
    ExistsResult out;
    EXPECT_TRUE(backend_->submit_exists({scope_, {key_}, {PoolName::kKv}}, [&](ExistsResult r) { out = r; }).is_ok());
    return out;
  }
  Status read(std::size_t bytes = 8) {
    buffer_.assign(bytes, std::byte{7});
    Status out;
    EXPECT_TRUE(backend_
                    ->submit_read({scope_, {{PoolName::kKv, key_, {{buffer_.data(), bytes}}}}},
                                  [&](ReadResult r) { out = r.items.at(0); })
                    .is_ok());
    return out;
  }
  Status write() {
    buffer_.assign(8, std::byte{7});
    Status out;
    EXPECT_TRUE(backend_
                    ->submit_write({scope_, {{{{PoolName::kKv, key_, {{buffer_.data(), 8}}}}}}, true},
                                   [&](WriteResult r) { out = r.groups.at(0); })
                    .is_ok());
    return out;
  }
  static void expect_internal(const Status& status, const std::string& part) {
    EXPECT_EQ(status.code(), StatusCode::kInternal) << status.to_string();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.to_string();
    EXPECT_NE(status.message().find("scripted"), std::string::npos) << status.to_string();
  }

  Script script_;
  ManualClock clock_{Nanos(1)};
  InlineExecutor inline_;
  std::shared_ptr<StoreScope> scope_;
  PageKey key_;
  std::vector<std::byte> buffer_;
  std::unique_ptr<StorageBackend> backend_;
};

TEST(PluginTable, IsTakenOrRefusedWithTheReason) {
  const auto refused = [](const LarderBackendTable* table, StatusCode code, const std::string& part) {
    const Result<LarderBackendTable> taken = take_table("/x.so", table);
    EXPECT_EQ(taken.status().code(), code) << part;
    EXPECT_NE(taken.status().message().find(part), std::string::npos) << taken.status().to_string();
  };
  const LarderBackendTable good = scripted_table();
  ASSERT_TRUE(take_table("/x.so", &good).is_ok());
  refused(nullptr, StatusCode::kUnavailable, "no table");
  LarderBackendTable bad = good;
  bad.abi_version = 2;
  refused(&bad, StatusCode::kUnsupported, "version 2");
  bad = good;
  bad.struct_size = 40;
  refused(&bad, StatusCode::kUnsupported, "40 bytes");
  bad = good;
  bad.exists = nullptr;
  refused(&bad, StatusCode::kUnsupported, "'exists'");
  bad = good;
  bad.write = nullptr;
  refused(&bad, StatusCode::kUnsupported, "'write'");
  for (const char* const name : {"", "Upper", "a-b", static_cast<const char*>(nullptr)}) {
    bad = good;
    bad.name = name;
    refused(&bad, StatusCode::kUnsupported, "name");
  }
  bad = good;
  bad.alignment = 3;
  refused(&bad, StatusCode::kUnsupported, "alignment");
}

TEST(PluginTable, EntriesBehindAShortTableAreNull) {
  LarderBackendTable older = scripted_table();
  older.struct_size = offsetof(LarderBackendTable, drop);
  const Result<LarderBackendTable> taken = take_table("/x.so", &older);
  ASSERT_TRUE(taken.is_ok()) << taken.status().to_string();
  EXPECT_NE(taken->write, nullptr);
  EXPECT_EQ(taken->drop, nullptr);
  EXPECT_EQ(taken->close, nullptr);
}

TEST(PluginTable, LibrariesThatAreNoneAreRefused) {
  EXPECT_EQ(load_library("libm.so.6").status().code(), StatusCode::kInvalidArgument) << "no directory";
  EXPECT_EQ(load_library("/no/such/library.so").status().code(), StatusCode::kUnavailable);
  const Status other = load_library(LARDER_FAKE_HF3FS).status();
  EXPECT_EQ(other.code(), StatusCode::kUnsupported) << "a library without the symbol";
  EXPECT_NE(other.message().find("larder_backend_v1"), std::string::npos) << other.to_string();
}

TEST_F(PluginBackendTest, OptionsAreLinesAndErrorsHaveTheLibrarysWords) {
  std::string seen;
  script_.create = [&](const char* options, LarderBackendCall* call, LarderBackend**) {
    seen = options;
    std::memset(call->error, 'x', call->error_capacity);  // not ended by 0
    std::memcpy(call->error, "no\ndisk", 7);
    return LARDER_BACKEND_INVALID;
  };
  const Status status = open(scripted_table(), {{"b", "2=3"}, {"a", "1"}});
  EXPECT_EQ(seen, "a=1\nb=2=3\n");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("no diskxxx"), std::string::npos) << status.to_string();
  EXPECT_LT(status.message().size(), 700u);
  for (const BackendOptions& bad :
       {BackendOptions{{"a", "1\n2"}}, BackendOptions{{"a=b", "1"}}, BackendOptions{{"", ""}}}) {
    seen = "not called";
    EXPECT_EQ(open(scripted_table(), bad).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(seen, "not called");
  }
}

TEST_F(PluginBackendTest, CreateMustGiveAHandle) {
  script_.create = [](const char*, LarderBackendCall*, LarderBackend** out) {
    *out = nullptr;
    return LARDER_BACKEND_OK;
  };
  expect_internal(open(scripted_table()), "no handle");
  script_.create = [](const char*, LarderBackendCall*, LarderBackend**) -> std::int32_t {
    throw std::runtime_error("x");
  };
  expect_internal(open(scripted_table()), "exception");
  EXPECT_EQ(script_.closed, 0);
}

TEST_F(PluginBackendTest, AnswersThatAreNoneAreErrors) {
  ASSERT_TRUE(open(scripted_table()).is_ok());
  std::int32_t item = LARDER_BACKEND_NOT_ANSWERED, whole = LARDER_BACKEND_OK;
  script_.exists = script_.read = [&](LarderBackendCall*, LarderBackendPage* pages, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) pages[i].status = item;
    return whole;
  };
  expect_internal(exists().status, "no answer");
  expect_internal(read(), "no answer");
  for (const std::int32_t unknown : {9, 77, -2, INT32_MAX, INT32_MIN + 1}) {
    item = unknown;
    expect_internal(exists().status, "unknown code");
    expect_internal(read(), "unknown code");
  }
  item = LARDER_BACKEND_ALREADY;
  expect_internal(exists().status, "ALREADY");
  item = LARDER_BACKEND_CORRUPT;
  expect_internal(exists().status, "CORRUPT");
  item = LARDER_BACKEND_OK;
  whole = LARDER_BACKEND_NOT_FOUND;
  expect_internal(exists().status, "NOT_FOUND");
  whole = LARDER_BACKEND_OVERLOADED;
  EXPECT_EQ(exists().status.code(), StatusCode::kOverloaded) << "a failure of the whole call";
  EXPECT_TRUE(exists().presence.empty());
  EXPECT_EQ(read().code(), StatusCode::kOverloaded);
  script_.exists = [](LarderBackendCall*, LarderBackendPage*, std::uint64_t) -> std::int32_t { throw 5; };
  expect_internal(exists().status, "exception");
}

TEST_F(PluginBackendTest, AReadCountsOnlyIfLengthAndEnvelopeAreRight) {
  ASSERT_TRUE(open(scripted_table()).is_ok());
  std::vector<std::byte> stored;
  script_.write = [&](LarderBackendCall* call, LarderBackendGroup* groups, std::uint64_t) {
    EXPECT_EQ(call->flags, LARDER_BACKEND_DURABLE);
    LarderBackendPage& page = groups[0].pages[0];
    EXPECT_STREQ(page.pool_name, "kv");
    for (std::uint64_t i = 0; i < page.segment_count; ++i) {
      const auto* const data = static_cast<const std::byte*>(page.segments[i].data);
      stored.insert(stored.end(), data, data + page.segments[i].bytes);
    }
    page.bytes_done = page.bytes;
    page.status = groups[0].status = LARDER_BACKEND_OK;
    return LARDER_BACKEND_OK;
  };
  std::uint64_t lie = 0;
  script_.read = [&](LarderBackendCall*, LarderBackendPage* pages, std::uint64_t) {
    std::size_t at = 0;
    for (std::uint64_t i = 0; i < pages->segment_count; ++i) {
      std::memcpy(pages->segments[i].data, stored.data() + at, pages->segments[i].bytes);
      at += pages->segments[i].bytes;
    }
    pages->bytes_done = pages->bytes + lie;
    pages->status = LARDER_BACKEND_OK;
    return LARDER_BACKEND_OK;
  };
  int drops = 0;
  script_.drop = [&](LarderBackendCall*, LarderBackendPage* pages, std::uint64_t count) {
    EXPECT_EQ(count, 1u);
    EXPECT_EQ(pages->key[0], 3);
    ++drops;
    return LARDER_BACKEND_OK;
  };
  ASSERT_TRUE(write().is_ok());
  ASSERT_EQ(stored.size(), 168u);
  EXPECT_TRUE(read().is_ok());
  lie = static_cast<std::uint64_t>(-1);
  expect_internal(read(), "167 bytes for 168");
  lie = 0;
  EXPECT_EQ(drops, 0);
  for (const std::size_t at : {std::size_t{0}, std::size_t{20}, std::size_t{100}, std::size_t{167}}) {
    stored[at] ^= std::byte{1};
    EXPECT_EQ(read().code(), StatusCode::kCorrupt) << "byte " << at;
    stored[at] ^= std::byte{1};
  }
  EXPECT_EQ(drops, 4);
  EXPECT_EQ(backend_->stats().corrupt, 4u);
  EXPECT_EQ(backend_->stats().read_hits, 1u);
  EXPECT_EQ(backend_->stats().read_errors, 1u);
}

TEST_F(PluginBackendTest, AGroupIsOkOnlyIfItsPagesAre) {
  ASSERT_TRUE(open(scripted_table()).is_ok());
  std::int32_t page = LARDER_BACKEND_OK, group = LARDER_BACKEND_OK;
  std::uint64_t missing = 0;
  script_.write = [&](LarderBackendCall*, LarderBackendGroup* groups, std::uint64_t) {
    groups[0].pages[0].status = page;
    groups[0].pages[0].bytes_done = groups[0].pages[0].bytes - missing;
    groups[0].status = group;
    if (page == LARDER_BACKEND_INTERNAL) groups[0].pages = nullptr, groups[0].page_count = 1'000'000;
    return LARDER_BACKEND_OK;
  };
  EXPECT_TRUE(write().is_ok());
  page = LARDER_BACKEND_ALREADY;
  EXPECT_TRUE(write().is_ok());
  EXPECT_EQ(backend_->stats().duplicate_writes, 1u);
  page = LARDER_BACKEND_NOT_ANSWERED;
  expect_internal(write(), "a page of it is not");
  page = LARDER_BACKEND_INTERNAL;  // and the group is overwritten: what the host gave counts
  expect_internal(write(), "a page of it is not");
  page = LARDER_BACKEND_OK;
  missing = 1;
  expect_internal(write(), "167 bytes of 168");
  group = LARDER_BACKEND_NOT_FOUND;
  expect_internal(write(), "NOT_FOUND");
  group = LARDER_BACKEND_UNSUPPORTED;
  EXPECT_EQ(write().code(), StatusCode::kUnsupported);
  EXPECT_EQ(backend_->stats().declined, 1u) << "no failure";
  EXPECT_EQ(backend_->stats().write_errors, 4u);
}

TEST_F(PluginBackendTest, NullEntriesAreNotSupported) {
  LarderBackendTable table = scripted_table();
  table.drop = nullptr;
  table.clear = nullptr;
  table.stats = nullptr;
  table.close = nullptr;
  script_.statistics.objects = 5;
  ASSERT_TRUE(open(table).is_ok());
  EXPECT_FALSE(backend_->info().supports_clear);
  EXPECT_FALSE(backend_->info().counts_pages);
  EXPECT_EQ(backend_->submit_clear(scope_, [](Status) { FAIL(); }).code(), StatusCode::kUnsupported);
  EXPECT_EQ(backend_->stats().pages, 0u);
  script_.read = [](LarderBackendCall*, LarderBackendPage* pages, std::uint64_t) {
    pages->status = LARDER_BACKEND_OK;
    pages->bytes_done = pages->bytes;
    return LARDER_BACKEND_OK;
  };
  EXPECT_EQ(read().code(), StatusCode::kCorrupt) << "bytes that were never filled in";
  EXPECT_TRUE(backend_->close(Nanos(0)).is_ok());
  backend_.reset();
  EXPECT_EQ(script_.closed, 0);
}

TEST_F(PluginBackendTest, ClosesOnceAndKeepsTheLastStatistics) {
  ASSERT_TRUE(open(scripted_table()).is_ok());
  script_.statistics.objects = 3;
  script_.statistics.bytes = 3 * LARDER_BACKEND_ENVELOPE_BYTES + 50;
  EXPECT_EQ(backend_->stats().bytes, 50u) << "payloads, without envelopes";
  EXPECT_TRUE(backend_->close(Nanos(0)).is_ok());
  EXPECT_TRUE(backend_->close(Nanos(0)).is_ok());
  script_.statistics = {};
  EXPECT_EQ(backend_->stats().pages, 3u) << "the library is not asked any more";
  script_.statistics.bytes = 1;
  backend_.reset();
  EXPECT_EQ(script_.closed, 1);
}

TEST_F(PluginBackendTest, ClearNamesTheNamespace) {
  ASSERT_TRUE(open(scripted_table()).is_ok());
  int first = -1;
  script_.clear = [&](const std::uint8_t* digest) -> std::int32_t {
    first = digest == nullptr ? -2 : digest[0];
    return first == -2 ? LARDER_BACKEND_UNAVAILABLE : LARDER_BACKEND_OK;
  };
  Status status;
  ASSERT_TRUE(backend_->submit_clear(scope_, [&](Status s) { status = s; }).is_ok());
  EXPECT_TRUE(status.is_ok());
  EXPECT_EQ(first, 1);
  ASSERT_TRUE(backend_->submit_clear(nullptr, [&](Status s) { status = s; }).is_ok());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(first, -2);
}

}  // namespace
}  // namespace larder::plugin
