// SPDX-License-Identifier: Apache-2.0
#include "storage/shared/share_wire.h"

#include <array>

#include "storage/shared/share_bytes.h"

namespace larder::share {
namespace {

// In the order of the bytes. A new field goes to the end, and needs no new version.
constexpr std::array kStatsFields = {&BackendStats::pages,          &BackendStats::bytes,
                                     &BackendStats::physical_bytes, &BackendStats::reads,
                                     &BackendStats::read_hits,      &BackendStats::read_misses,
                                     &BackendStats::read_errors,    &BackendStats::writes,
                                     &BackendStats::write_errors,   &BackendStats::duplicate_writes,
                                     &BackendStats::corrupt,        &BackendStats::evicted,
                                     &BackendStats::torn_tails,     &BackendStats::queued,
                                     &BackendStats::declined,       &BackendStats::moved,
                                     &BackendStats::written_bytes,  &BackendStats::capacity_bytes,
                                     &BackendStats::segments,       &BackendStats::suspended_volumes};
static_assert(sizeof(BackendStats) == kStatsFields.size() * sizeof(std::uint64_t), "a field is missing above");

constexpr std::uint8_t kPersistent = 1, kAtomicGroups = 2, kZeroCopy = 4, kCountsPages = 8, kSupportsClear = 16;
constexpr std::size_t kReadItemBytes = 1 + 32 + 16, kWriteItemBytes = 1 + 32 + 32 + 16, kPoolEntryBytes = 1 + 1 + 32;

void write_stats(FrameWriter& writer, const BackendStats& stats) {
  writer.number(static_cast<std::uint8_t>(kStatsFields.size()));
  for (const auto field : kStatsFields) writer.number(stats.*field);
}

BackendStats read_stats(FrameReader& reader) {
  BackendStats stats;
  const std::size_t count = reader.count<std::uint8_t>(sizeof(std::uint64_t), 255);
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = reader.number<std::uint64_t>();
    if (i < kStatsFields.size()) stats.*kStatsFields[i] = value;
  }
  return stats;
}

void write_info(FrameWriter& writer, const BackendInfo& info) {
  writer.text(info.name);
  writer.number(static_cast<std::uint8_t>((info.persistent ? kPersistent : 0) |
                                          (info.atomic_groups ? kAtomicGroups : 0) | (info.zero_copy ? kZeroCopy : 0) |
                                          (info.counts_pages ? kCountsPages : 0) |
                                          (info.supports_clear ? kSupportsClear : 0)));
  writer.number<std::uint64_t>(info.alignment);
}

BackendInfo read_info(FrameReader& reader) {
  BackendInfo info;
  info.name = reader.text();
  const auto flags = reader.number_up_to<std::uint8_t>(31);
  info.persistent = (flags & kPersistent) != 0;
  info.atomic_groups = (flags & kAtomicGroups) != 0;
  info.zero_copy = (flags & kZeroCopy) != 0;
  info.counts_pages = (flags & kCountsPages) != 0;
  info.supports_clear = (flags & kSupportsClear) != 0;
  info.alignment = static_cast<std::size_t>(reader.number<std::uint64_t>());
  return info;
}

template <class T>
Result<T> finished(const FrameReader& reader, std::string_view what, T value) {
  Status status = reader.finish(what);
  if (!status.is_ok()) return status;
  return value;
}

}  // namespace

Result<Head> decode_head(std::string_view bytes) {
  FrameReader reader(bytes.substr(0, kHeadBytes));
  Head head;
  head.body_bytes = reader.number_up_to<std::uint32_t>(kMaxFrameBytes - kHeadBytes);
  const auto kind = reader.number<std::uint8_t>();
  if (reader.number<std::uint8_t>() != 0 || reader.number<std::uint16_t>() != 0) reader.fail();
  head.operation = reader.number<std::uint64_t>();
  head.kind = static_cast<Kind>(kind);
  const bool is_ask = head.kind >= Kind::kHello && head.kind <= Kind::kAskStats;
  if (!is_ask && !(head.kind >= Kind::kWelcome && head.kind <= Kind::kStats)) reader.fail();
  return finished(reader, "head", head);
}

std::string encode_hello(const Hello& hello) {
  FrameWriter writer(Kind::kHello, 0);
  writer.number(kMagic);
  writer.number(hello.version);
  writer.number(hello.arena_bytes);
  writer.digest(hello.store);
  return writer.finish();
}

Result<Hello> decode_hello(std::string_view body) {
  FrameReader reader(body);
  Hello hello;
  if (reader.number<std::uint64_t>() != kMagic) reader.fail();
  hello.version = reader.number<std::uint16_t>();
  // What follows is another version's own business.
  if (reader.ok() && hello.version != kVersion) return hello;
  hello.arena_bytes = reader.number<std::uint64_t>();
  hello.store = reader.digest();
  return finished(reader, "hello", hello);
}

std::string encode_welcome(const Welcome& welcome) {
  FrameWriter writer(Kind::kWelcome, 0);
  writer.number(kMagic);
  writer.number(welcome.version);
  writer.status(welcome.status);
  write_info(writer, welcome.info);
  write_stats(writer, welcome.stats);
  writer.number(welcome.clears_store);
  return writer.finish();
}

Result<Welcome> decode_welcome(std::string_view body) {
  FrameReader reader(body);
  Welcome welcome;
  if (reader.number<std::uint64_t>() != kMagic) reader.fail();
  welcome.version = reader.number<std::uint16_t>();
  welcome.status = reader.status();
  if (reader.ok() && !welcome.status.is_ok()) return welcome;  // of another version perhaps: nothing else counts
  welcome.info = read_info(reader);
  welcome.stats = read_stats(reader);
  welcome.clears_store = reader.number<std::uint64_t>();
  if (welcome.version != kVersion) reader.fail();
  return finished(reader, "welcome", std::move(welcome));
}

std::string encode_scope(const ScopeEntry& entry) {
  const StoreScope& scope = entry.scope;
  FrameWriter writer(Kind::kScope, 0, 64 + scope.pool_limit() * kPoolEntryBytes);
  writer.number(entry.slot);
  writer.digest(scope.namespace_digest);
  writer.number(scope.rank);
  writer.number(scope.ranks);
  std::vector<PoolName> pools;
  for (std::size_t number = 0; number < scope.pool_limit(); ++number) {
    const auto pool = static_cast<PoolName>(number);
    if (!scope.fingerprint(pool).is_zero() || scope.is_replicated(pool)) pools.push_back(pool);
  }
  writer.number(static_cast<std::uint8_t>(pools.size()));
  for (const PoolName pool : pools) {
    writer.pool(pool);
    writer.number(static_cast<std::uint8_t>(scope.is_replicated(pool) ? 1 : 0));
    writer.digest(scope.fingerprint(pool));
  }
  return writer.finish();
}

Result<ScopeEntry> decode_scope(std::string_view body) {
  FrameReader reader(body);
  ScopeEntry entry;
  entry.slot = reader.number_up_to<std::uint16_t>(kMaxScopes - 1);
  entry.scope.namespace_digest = reader.digest();
  entry.scope.rank = reader.number<std::uint32_t>();
  entry.scope.ranks = reader.number<std::uint32_t>();
  const std::size_t pools = reader.count<std::uint8_t>(kPoolEntryBytes, kMaxPools);
  for (std::size_t i = 0; i < pools && reader.ok(); ++i) {
    const PoolName pool = reader.pool();
    const bool is_replicated = reader.flag();
    const Digest256 fingerprint = reader.digest();
    if (reader.ok()) entry.scope.set_pool(pool, fingerprint, is_replicated);
  }
  return finished(reader, "scope", std::move(entry));
}

std::string encode_exists(std::uint64_t operation, const ExistsAsk& ask) {
  FrameWriter writer(Kind::kExists, operation, 32 + ask.pools.size() + ask.keys.size() * 32);
  writer.terms(ask.terms);
  writer.number(static_cast<std::uint8_t>(ask.pools.size()));
  for (const PoolName pool : ask.pools) writer.pool(pool);
  writer.number(static_cast<std::uint32_t>(ask.keys.size()));
  for (const PageKey& key : ask.keys) writer.digest(key);
  return writer.finish();
}

Result<ExistsAsk> decode_exists(std::string_view body) {
  FrameReader reader(body);
  ExistsAsk ask;
  ask.terms = reader.terms();
  ask.pools.resize(reader.count<std::uint8_t>(1, kMaxPools));
  for (PoolName& pool : ask.pools) pool = reader.pool();
  ask.keys.resize(reader.count<std::uint32_t>(32, kMaxItems));
  for (PageKey& key : ask.keys) key = reader.digest();
  return finished(reader, "exists", std::move(ask));
}

std::string encode_read(std::uint64_t operation, const ReadAsk& ask) {
  FrameWriter writer(Kind::kRead, operation, 32 + ask.items.size() * kReadItemBytes);
  writer.terms(ask.terms);
  writer.number(static_cast<std::uint32_t>(ask.items.size()));
  for (const ReadAsk::Item& item : ask.items) {
    writer.pool(item.pool);
    writer.digest(item.key);
    writer.place(item.place);
  }
  return writer.finish();
}

Result<ReadAsk> decode_read(std::string_view body) {
  FrameReader reader(body);
  ReadAsk ask;
  ask.terms = reader.terms();
  ask.items.resize(reader.count<std::uint32_t>(kReadItemBytes, kMaxItems));
  for (ReadAsk::Item& item : ask.items) {
    item.pool = reader.pool();
    item.key = reader.digest();
    item.place = reader.place();
  }
  return finished(reader, "read", std::move(ask));
}

std::string encode_write(std::uint64_t operation, const WriteAsk& ask) {
  FrameWriter writer(Kind::kWrite, operation);
  writer.terms(ask.terms);
  writer.number(static_cast<std::uint8_t>(ask.durable ? 1 : 0));
  writer.number(static_cast<std::uint32_t>(ask.groups.size()));
  for (const auto& group : ask.groups) {
    writer.number(static_cast<std::uint32_t>(group.size()));
    for (const WriteAsk::Item& item : group) {
      writer.pool(item.pool);
      writer.digest(item.key);
      writer.digest(item.parent);
      writer.place(item.place);
    }
  }
  writer.number(ask.as_of.store);
  writer.number(ask.as_of.count);
  return writer.finish();
}

Result<WriteAsk> decode_write(std::string_view body) {
  FrameReader reader(body);
  WriteAsk ask;
  ask.terms = reader.terms();
  ask.durable = reader.flag();
  ask.groups.resize(reader.count<std::uint32_t>(4, kMaxItems));
  std::size_t items = 0;
  for (auto& group : ask.groups) {
    group.resize(reader.count<std::uint32_t>(kWriteItemBytes, kMaxItems - items));
    items += group.size();
    for (WriteAsk::Item& item : group) {
      item.pool = reader.pool();
      item.key = reader.digest();
      item.parent = reader.digest();
      item.place = reader.place();
    }
  }
  ask.as_of.store = reader.number<std::uint64_t>();
  ask.as_of.count = reader.number<std::uint64_t>();
  return finished(reader, "write", std::move(ask));
}

std::string encode_clear(std::uint64_t operation, std::uint16_t scope) {
  FrameWriter writer(Kind::kClear, operation);
  writer.number(scope);
  return writer.finish();
}

Result<std::uint16_t> decode_clear(std::string_view body) {
  FrameReader reader(body);
  const auto scope = reader.number<std::uint16_t>();
  if (scope >= kMaxScopes && scope != kNoScope) reader.fail();
  return finished(reader, "clear", scope);
}

std::string encode_ask_stats() { return FrameWriter(Kind::kAskStats, 0).finish(); }

std::string encode_presence(std::uint64_t operation, const ExistsResult& presence) {
  FrameWriter writer(Kind::kPresence, operation);
  writer.status(presence.status);
  const std::size_t pools = presence.status.is_ok() ? presence.presence.size() : 0;
  writer.number(static_cast<std::uint8_t>(pools));
  for (std::size_t i = 0; i < pools; ++i) {
    const std::vector<bool>& present = presence.presence[i].present;
    writer.pool(presence.presence[i].pool);
    writer.number(static_cast<std::uint32_t>(present.size()));
    for (std::size_t key = 0; key < present.size(); key += 8) {
      unsigned bits = 0;
      for (std::size_t bit = 0; bit < 8 && key + bit < present.size(); ++bit)
        bits |= unsigned{present[key + bit]} << bit;
      writer.number(static_cast<std::uint8_t>(bits));
    }
  }
  return writer.finish();
}

Result<ExistsResult> decode_presence(std::string_view body) {
  FrameReader reader(body);
  ExistsResult out;
  out.status = reader.status();
  out.presence.resize(reader.count<std::uint8_t>(5, kMaxPools));
  if (!out.status.is_ok() && !out.presence.empty()) reader.fail();
  for (PoolPresence& pool : out.presence) {
    pool.pool = reader.pool();
    pool.present.resize(reader.number_up_to<std::uint32_t>(kMaxItems));
    const std::string_view bits = reader.bytes((pool.present.size() + 7) / 8);
    for (std::size_t key = 0; reader.ok() && key < pool.present.size(); ++key) {
      pool.present[key] = ((static_cast<unsigned char>(bits[key / 8]) >> (key % 8)) & 1) != 0;
    }
  }
  return finished(reader, "presence", std::move(out));
}

std::string encode_statuses(std::uint64_t operation, const std::vector<Status>& statuses) {
  FrameWriter writer(Kind::kStatuses, operation, 4 + statuses.size() * 3);
  writer.number(static_cast<std::uint32_t>(statuses.size()));
  for (const Status& status : statuses) writer.status(status);
  return writer.finish();
}

Result<std::vector<Status>> decode_statuses(std::string_view body) {
  FrameReader reader(body);
  std::vector<Status> statuses(reader.count<std::uint32_t>(3, kMaxItems));
  for (Status& status : statuses) status = reader.status();
  return finished(reader, "statuses", std::move(statuses));
}

std::string encode_stats(const BackendStats& stats) {
  FrameWriter writer(Kind::kStats, 0);
  write_stats(writer, stats);
  return writer.finish();
}

Result<BackendStats> decode_stats(std::string_view body) {
  FrameReader reader(body);
  const BackendStats stats = read_stats(reader);
  return finished(reader, "stats", stats);
}

}  // namespace larder::share
