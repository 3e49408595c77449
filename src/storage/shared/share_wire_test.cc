// SPDX-License-Identifier: Apache-2.0
#include "storage/shared/share_wire.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace larder::share {
namespace {

PageKey wire_key(std::uint8_t first) {
  PageKey key;
  key.bytes[0] = first;
  key.bytes[31] = 0xee;
  return key;
}

// The body of a frame, after its head was found to be right.
std::string_view body_of(const std::string& frame, Kind kind, std::uint64_t operation) {
  const Result<Head> head = decode_head(frame);
  EXPECT_TRUE(head.is_ok()) << head.status().to_string();
  EXPECT_EQ(head->kind, kind);
  EXPECT_EQ(head->operation, operation);
  EXPECT_EQ(head->body_bytes, frame.size() - kHeadBytes);
  return std::string_view(frame).substr(kHeadBytes);
}

// No beginning of a body is one, nor is one with more behind it.
template <class Decode>
void expect_whole_only(std::string_view body, Decode decode) {
  EXPECT_TRUE(decode(body).is_ok());
  for (std::size_t size = 0; size < body.size(); ++size) {
    EXPECT_EQ(decode(std::string(body.substr(0, size))).status().code(), StatusCode::kCorrupt) << size;
  }
  EXPECT_EQ(decode(std::string(body) + '\0').status().code(), StatusCode::kCorrupt);
}

StoreScope sample_scope() {
  StoreScope scope;
  scope.namespace_digest = wire_key(9);
  scope.rank = 3;
  scope.ranks = 8;
  scope.set_pool(PoolName::kKv, wire_key(1));
  scope.set_pool(PoolName::kMamba, wire_key(2), true);
  scope.set_pool(static_cast<PoolName>(kPoolNumberCount - 1), wire_key(3));
  return scope;
}

TEST(ShareWire, HelloAndWelcome) {
  const std::string hello = encode_hello({kVersion, 1 << 20, wire_key(7)});
  EXPECT_EQ(decode_hello(body_of(hello, Kind::kHello, 0))->arena_bytes, std::uint64_t{1} << 20);
  EXPECT_EQ(decode_hello(body_of(hello, Kind::kHello, 0))->store, wire_key(7));
  expect_whole_only(body_of(hello, Kind::kHello, 0), decode_hello);
  Welcome welcome;
  welcome.info.name = "file";
  welcome.info.persistent = welcome.info.atomic_groups = true;
  welcome.info.counts_pages = false;
  welcome.info.alignment = 4096;
  welcome.stats.pages = 5;
  welcome.stats.suspended_volumes = 7;
  welcome.clears_store = 0x1122334455667788u;
  const std::string frame = encode_welcome(welcome);
  const Result<Welcome> back = decode_welcome(body_of(frame, Kind::kWelcome, 0));
  ASSERT_TRUE(back.is_ok());
  EXPECT_EQ(back->info.name, "file");
  EXPECT_TRUE(back->info.persistent && back->info.atomic_groups && back->info.supports_clear);
  EXPECT_FALSE(back->info.counts_pages || back->info.zero_copy);
  EXPECT_EQ(back->info.alignment, 4096u);
  EXPECT_EQ(back->stats.pages, 5u);
  EXPECT_EQ(back->stats.suspended_volumes, 7u);
  EXPECT_EQ(back->clears_store, 0x1122334455667788u);
  expect_whole_only(body_of(frame, Kind::kWelcome, 0), decode_welcome);
}

TEST(ShareWire, AnotherVersionIsToldApartFromGarbage) {
  std::string hello = encode_hello({kVersion + 1, 5, {}});
  hello += "what the next version adds";
  const Result<Hello> read = decode_hello(std::string_view(hello).substr(kHeadBytes));
  ASSERT_TRUE(read.is_ok());
  EXPECT_EQ(read->version, kVersion + 1);
  Welcome refusal;
  refusal.version = kVersion + 1;
  refusal.status = unsupported("no");
  const std::string frame = encode_welcome(refusal);
  EXPECT_EQ(decode_welcome(body_of(frame, Kind::kWelcome, 0))->status.code(), StatusCode::kUnsupported);
}

TEST(ShareWire, Scopes) {
  const StoreScope scope = sample_scope();
  const std::string frame = encode_scope({17, scope});
  const Result<ScopeEntry> back = decode_scope(body_of(frame, Kind::kScope, 0));
  ASSERT_TRUE(back.is_ok());
  EXPECT_EQ(back->slot, 17);
  EXPECT_EQ(back->scope.namespace_digest, scope.namespace_digest);
  EXPECT_EQ(back->scope.rank, 3u);
  EXPECT_EQ(back->scope.ranks, 8u);
  EXPECT_EQ(back->scope.pool_limit(), kPoolNumberCount);
  for (std::size_t number = 0; number < kPoolNumberCount; ++number) {
    const auto pool = static_cast<PoolName>(number);
    EXPECT_EQ(back->scope.fingerprint(pool), scope.fingerprint(pool));
    EXPECT_EQ(back->scope.is_replicated(pool), scope.is_replicated(pool));
  }
  expect_whole_only(body_of(frame, Kind::kScope, 0), decode_scope);
}

TEST(ShareWire, Operations) {
  const Terms terms{5, Urgency::kSpeculative, 1234};
  const std::string exists = encode_exists(42, {terms, {PoolName::kKv, PoolName::kSwa}, {wire_key(1), wire_key(2)}});
  const auto exists_back = decode_exists(body_of(exists, Kind::kExists, 42));
  ASSERT_TRUE(exists_back.is_ok());
  EXPECT_EQ(exists_back->pools, (std::vector{PoolName::kKv, PoolName::kSwa}));
  EXPECT_EQ(exists_back->keys, (std::vector{wire_key(1), wire_key(2)}));
  EXPECT_EQ(exists_back->terms.scope, 5);
  EXPECT_EQ(exists_back->terms.urgency, Urgency::kSpeculative);
  EXPECT_EQ(exists_back->terms.left_ns, 1234);
  expect_whole_only(body_of(exists, Kind::kExists, 42), decode_exists);

  const std::string read = encode_read(43, {terms, {{PoolName::kMamba, wire_key(3), {4096, 100}}}});
  const auto read_back = decode_read(body_of(read, Kind::kRead, 43));
  ASSERT_TRUE(read_back.is_ok());
  ASSERT_EQ(read_back->items.size(), 1u);
  EXPECT_EQ(read_back->items[0].pool, PoolName::kMamba);
  EXPECT_EQ(read_back->items[0].key, wire_key(3));
  EXPECT_EQ(read_back->items[0].place, (Place{4096, 100}));
  expect_whole_only(body_of(read, Kind::kRead, 43), decode_read);

  const WriteAsk::Item page{PoolName::kKv, wire_key(4), wire_key(3), {64, 7}};
  const std::string write = encode_write(44, {terms, true, {{page, page}, {}, {page}}, {5, 6}});
  const auto write_back = decode_write(body_of(write, Kind::kWrite, 44));
  ASSERT_TRUE(write_back.is_ok());
  EXPECT_TRUE(write_back->durable);
  ASSERT_EQ(write_back->groups.size(), 3u);
  EXPECT_EQ(write_back->groups[0].size(), 2u);
  EXPECT_TRUE(write_back->groups[1].empty());
  EXPECT_EQ(write_back->groups[2][0].parent, wire_key(3));
  EXPECT_EQ(write_back->groups[2][0].place, (Place{64, 7}));
  EXPECT_EQ(write_back->as_of, (ClearMark{5, 6}));
  expect_whole_only(body_of(write, Kind::kWrite, 44), decode_write);

  const std::string clear = encode_clear(45, kNoScope);
  EXPECT_EQ(decode_clear(body_of(clear, Kind::kClear, 45)).value(), kNoScope);
  expect_whole_only(body_of(clear, Kind::kClear, 45), decode_clear);
}

TEST(ShareWire, Answers) {
  ExistsResult presence;
  presence.presence = {{PoolName::kKv, std::vector<bool>(9, true)}, {PoolName::kSwa, {}}};
  presence.presence[0].present[3] = false;
  const std::string frame = encode_presence(7, presence);
  const auto back = decode_presence(body_of(frame, Kind::kPresence, 7));
  ASSERT_TRUE(back.is_ok());
  ASSERT_EQ(back->presence.size(), 2u);
  EXPECT_EQ(back->presence[0].present, presence.presence[0].present);
  expect_whole_only(body_of(frame, Kind::kPresence, 7), decode_presence);

  const std::string statuses = encode_statuses(8, {Status::ok(), not_found("no"), corrupt(std::string(500, 'x'))});
  const auto told = decode_statuses(body_of(statuses, Kind::kStatuses, 8));
  ASSERT_TRUE(told.is_ok());
  EXPECT_TRUE(told.value()[0].is_ok());
  EXPECT_EQ(told.value()[1].to_string(), "not_found: no");
  EXPECT_EQ(told.value()[2].message(), std::string(kMaxTextBytes, 'x'));
  expect_whole_only(body_of(statuses, Kind::kStatuses, 8), decode_statuses);
}

TEST(ShareWire, StatisticsMayGrow) {
  BackendStats stats;
  stats.pages = 1;
  stats.suspended_volumes = 20;
  std::string frame = encode_stats(stats);
  expect_whole_only(body_of(frame, Kind::kStats, 0), decode_stats);
  frame[kHeadBytes] = static_cast<char>(frame[kHeadBytes] + 1);
  frame += std::string(8, '\1');  // a number that this version does not know
  const auto back = decode_stats(std::string_view(frame).substr(kHeadBytes));
  ASSERT_TRUE(back.is_ok());
  EXPECT_EQ(back->suspended_volumes, 20u);
}

TEST(ShareWire, NumbersOutOfRangeAreBroken) {
  const auto broken = [](std::string frame, std::size_t at, int byte, auto decode) {
    frame[kHeadBytes + at] = static_cast<char>(byte);
    EXPECT_EQ(decode(std::string_view(frame).substr(kHeadBytes)).status().code(), StatusCode::kCorrupt) << at;
  };
  const std::string read = encode_read(1, {{}, {{PoolName::kKv, {}, {}}}});
  broken(read, 1, 1, decode_read);                             // scope 256
  broken(read, 2, kUrgencyCount, decode_read);                 // urgency
  broken(read, 10, 0x80, decode_read);                         // a negative time
  broken(read, 13, 0xff, decode_read);                         // 16 million items
  broken(read, 15, kPoolNumberCount, decode_read);             // pool
  broken(encode_scope({0, {}}), 1, 1, decode_scope);           // slot 256
  broken(encode_clear(1, 0), 1, 1, decode_clear);              // scope 256
  broken(encode_statuses(1, {{}}), 4, 200, decode_statuses);   // code
  broken(encode_write(1, {{}, {}, {}}), 11, 2, decode_write);  // durable: 2
  broken(encode_hello({}), 0, 'x', decode_hello);              // magic
}

TEST(ShareWire, BrokenHeads) {
  const std::string good = encode_ask_stats();
  const auto code = [&](std::size_t at, int byte) {
    std::string head = good;
    head[at] = static_cast<char>(byte);
    return decode_head(head).status().code();
  };
  EXPECT_EQ(code(0, 1), StatusCode::kOk);
  EXPECT_EQ(code(3, 1), StatusCode::kCorrupt) << "16 MiB";
  EXPECT_EQ(code(4, 0), StatusCode::kCorrupt);
  EXPECT_EQ(code(4, 8), StatusCode::kCorrupt);
  EXPECT_EQ(code(4, 0x80), StatusCode::kCorrupt);
  EXPECT_EQ(code(4, 0x85), StatusCode::kCorrupt);
  EXPECT_EQ(code(5, 1), StatusCode::kCorrupt);
  EXPECT_EQ(decode_head(good.substr(0, kHeadBytes - 1)).status().code(), StatusCode::kCorrupt);
}

TEST(ShareWire, GarbageIsRefusedOrDecoded) {
  Rng rng(1);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes(rng.below(200), '\0');
    for (char& byte : bytes) byte = static_cast<char>(rng.below(rng.chance(1, 2) ? 4 : 256));
    const auto check = [](const Status& status) {
      EXPECT_TRUE(status.is_ok() || status.code() == StatusCode::kCorrupt) << status.to_string();
    };
    check(decode_head(bytes).status());
    check(decode_hello(bytes).status());
    check(decode_welcome(bytes).status());
    check(decode_scope(bytes).status());
    check(decode_exists(bytes).status());
    check(decode_read(bytes).status());
    check(decode_write(bytes).status());
    check(decode_presence(bytes).status());
    check(decode_statuses(bytes).status());
    check(decode_stats(bytes).status());
  }
}

std::string hex_of(const std::string& bytes) {
  return hex_encode({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}
std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

// docs/formats.md, section 9: other bytes are another version.
TEST(ShareWire, GoldenBytes) {
  const std::string key = "04" + std::string(60, '0') + "ee", parent = "05" + std::string(60, '0') + "ee";
  const Terms terms{5, Urgency::kSpeculative, 0x1234};
  const std::string said = "0500 01 3412000000000000";
  const auto expect = [](const std::string& frame, const std::string& golden) {
    EXPECT_EQ(hex_of(frame), without_spaces(golden));
  };
  expect(encode_hello({kVersion, 1 << 20, wire_key(4)}),
         "32000000 01 000000 0000000000000000 4c41524445525348 0300 0000100000000000" + key);
  expect(encode_exists(7, {terms, {PoolName::kKv}, {wire_key(4)}}),
         "31000000 03 000000 0700000000000000" + said + "01 00 01000000" + key);
  expect(encode_read(8, {terms, {{PoolName::kMamba, wire_key(4), {4096, 100}}}}),
         "40000000 04 000000 0800000000000000" + said + "01000000 01" + key + "0010000000000000 6400000000000000");
  expect(encode_write(9, {terms, true, {{{PoolName::kKv, wire_key(4), wire_key(5), {64, 7}}}}, {0x0102, 3}}),
         "75000000 05 000000 0900000000000000" + said + "01 01000000 01000000 00" + key + parent +
             "4000000000000000 0700000000000000 0201000000000000 0300000000000000");
  expect(encode_clear(10, kNoScope), "02000000 06 000000 0a00000000000000 ffff");
  expect(encode_ask_stats(), "00000000 07 000000 0000000000000000");
  expect(encode_presence(7, {{}, {{PoolName::kKv, {true, false, true}}}}),
         "0a000000 82 000000 0700000000000000 00 0000 01 00 03000000 05");
  expect(encode_statuses(8, {Status::ok(), not_found("no")}),
         "0c000000 83 000000 0800000000000000 02000000 00 0000 02 0200 6e6f");
}

// The largest messages fit into a frame.
TEST(ShareWire, LimitsFitTogether) {
  const std::vector<Status> statuses(kMaxItems, corrupt(std::string(kMaxTextBytes, 'x')));
  EXPECT_LE(encode_statuses(1, statuses).size(), kMaxFrameBytes);
  ExistsResult presence;
  presence.presence.assign(kMaxPools, {PoolName::kKv, std::vector<bool>(kMaxItems)});
  EXPECT_LE(encode_presence(1, presence).size(), kMaxFrameBytes);
  const WriteAsk write{{}, false, std::vector<std::vector<WriteAsk::Item>>(kMaxItems, std::vector<WriteAsk::Item>(1))};
  EXPECT_LE(encode_write(1, write).size(), kMaxFrameBytes);
}

}  // namespace
}  // namespace larder::share
