// SPDX-License-Identifier: Apache-2.0
// The page-index service on a Redis server, for more than one process or machine.
//
// Purpose: MetadataService whose tables are in Redis (redis_scripts.h has their layout). Each call is one Lua script,
// which Redis runs alone, so all clients see one order of events; calls with more than kMaxItemsPerScript items are cut
// into several (never a group of confirm()), and clear() always is. Nothing is kept in this process.
// Needs Redis 6.2 or newer, one server (no cluster: a script touches several keys), and all clients with the same
// limits.
//
// Time is that of the Redis server. A step of its clock forwards ends leases and reservations early, which readers find
// out by the generation in the page; a step backwards lengthens them.
// Generations begin with the microseconds since 1970 and jump to them again after each restart of Redis, so they also
// grow over a Redis that lost everything, or its last second.
//
// Durability is that of the server, asked when a connection is made (durability()):
//   appendonly yes, appendfsync always    what was answered survives a power cut; `durable` is kept
//   appendonly yes, appendfsync everysec  it survives kill -9 unless the disk lags; a power cut loses about a second:
//                                         `durable` is NOT kept
//   else                                  a restart loses everything since the last snapshot, or all: kNotFound
// (WAITAOF, which would sync one confirmation, came with Redis 7.2.) A durable confirmation on a server that cannot
// keep it is carried out all the same, and warned about once.
//
// What Redis forgot may be handed out while a writer or a reader of its earlier life is still at it: the envelopes of
// the pages tell (a miss, never wrong bytes). A server that evicts any key when memory is short (maxmemory-policy
// allkeys-* with a maxmemory) is refused: kUnavailable.
//
// Threads: any; at most `connections` talk at the same time, the others wait.
// Errors: kUnavailable: not reached, broken off, refused, or an answer that makes no sense. kDeadlineExceeded: no
// answer within `timeout`, waiting for a connection and connecting included. kOverloaded: initialize() with
// max_namespaces there. A connection that turns out dead (Redis was restarted), or to lead to a server that only reads
// (the name of the host has moved on), is replaced, and the call repeated: that is safe.
// Cost: a round trip, and the time of Redis's one thread: measured on a shared core with batches of 128 keys, 4 us per
// key for find, 16 with a lease, 40 for reserve + confirm, 60 when each evicts. About 600 bytes of Redis's memory per
// used page with keys of 64 bytes. Initialising does not depend on the number of pages; clear() looks at every page
// that was ever used (16 us each that it drops).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "metadata/connection_pool.h"
#include "metadata/real_redis_connection.h"
#include "metadata/redis_scripts.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder {

struct RedisMetadataOptions {
  std::string url;                // redis://[:password@]host[:port][/database], or rediss:// for TLS
  std::string ca_file{};          // of rediss://: who may have issued the certificate, PEM; empty: as the system says
  std::string prefix = "larder";  // of all keys in Redis; services with different prefixes share nothing
  std::size_t connections = 8;
  Nanos connect_timeout = std::chrono::seconds(1);
  Nanos timeout = std::chrono::seconds(2);         // of a call
  Nanos clear_timeout = std::chrono::seconds(60);  // of clear()
  Nanos max_lease = std::chrono::seconds(120);
  Nanos max_ttl = kUsualMaxReservation;               // of a reservation
  Nanos max_io_lifetime = std::chrono::seconds(120);  // the longest that a write takes after its process gave it up
  std::size_t max_namespaces = 1024;
  // Tests only: the time instead of Redis's own, the same for all clients. Outlives the service.
  const Clock* test_clock = nullptr;
};

class RedisMetadata final : public MetadataService {
 public:
  static constexpr std::size_t kMaxItemsPerScript = kKeysSeenAtOnce;  // a script of find() is one look
  static constexpr std::size_t kMaxItemsPerGroup = 65'536;            // of confirm(): kInvalidArgument above

  // Does not connect yet. kInvalidArgument: an option. kUnsupported: a build without hiredis (LARDER_REDIS).
  [[nodiscard]] static Result<std::unique_ptr<RedisMetadata>> create(const RedisMetadataOptions& options);
  ~RedisMetadata() override;

  [[nodiscard]] bool is_remote() const override { return true; }
  [[nodiscard]] Result<std::uint64_t> initialize(const MetadataNamespace& name_space, std::uint64_t pages) override;
  [[nodiscard]] Result<std::vector<std::vector<std::optional<PageRef>>>> find(std::span<const MetadataKeys> wanted,
                                                                              Nanos lease) override;
  [[nodiscard]] Result<std::vector<std::vector<Reserved>>> reserve(const MetadataSession& session,
                                                                   std::span<const ReserveItems> wanted,
                                                                   Nanos ttl) override;
  [[nodiscard]] Result<std::vector<Status>> confirm(const ConfirmRequest& request) override;
  [[nodiscard]] Result<std::uint64_t> remove(std::span<const ConfirmItem> items) override;
  [[nodiscard]] Result<std::uint64_t> clear(const MetadataNamespace& name_space, std::string_view prefix) override;
  [[nodiscard]] Result<std::map<MetadataNamespace, NamespaceStats>> stats() override;

  // What a confirmation survives, as the server said when the last connection was made. Connects if none was.
  [[nodiscard]] Result<metadata::RedisDurability> durability();

 private:
  class Command;  // the arguments of one script

  RedisMetadata(const RedisMetadataOptions& options, metadata::RedisAddress address);
  // The answer's items behind "ok". kNotFound: a namespace is not there.
  [[nodiscard]] Result<std::vector<metadata::RedisReply>> run(metadata::RedisOperation operation,
                                                              const Command& command, TimePoint deadline);
  [[nodiscard]] Result<metadata::RedisReply> evaluate(metadata::RedisConnection& connection,
                                                      metadata::RedisOperation operation, const Command& command,
                                                      TimePoint deadline);
  struct Lent {
    metadata::ConnectionPool<metadata::RedisConnection>::Loan loan;
    bool is_fresh = false;  // made just now; others may be from before a restart of the server
  };
  // A connection to a server that keeps what we store. kDeadlineExceeded, kUnavailable.
  [[nodiscard]] Result<Lent> borrow(TimePoint deadline);
  [[nodiscard]] Status look_at(const metadata::RedisServerFacts& facts);
  [[nodiscard]] Status confirm_some(const ConfirmRequest& request, std::size_t from, std::size_t to, bool is_last,
                                    TimePoint deadline, std::vector<Status>& answer);
  [[nodiscard]] std::string time_text() const;
  [[nodiscard]] std::string base_of(const MetadataNamespace& name_space) const;

  // constant after construction
  const RedisMetadataOptions options_;
  const std::string registry_;  // the Redis key of the set of namespaces, and what their keys begin with

  const metadata::RedisAddress address_;

  metadata::ConnectionPool<metadata::RedisConnection> pool_;
  std::atomic<metadata::RedisDurability> durability_{metadata::RedisDurability::kUnknown};  // any thread
  std::atomic<bool> is_warned_{false};                                                      // any thread
};

}  // namespace larder
