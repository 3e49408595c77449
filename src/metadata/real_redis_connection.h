// SPDX-License-Identifier: Apache-2.0
// One connection to a Redis server, in the clear or over TLS, with a deadline for everything. hiredis connects, and
// makes and reads the messages; SocketStream carries them (hiredis's own TLS writes without MSG_NOSIGNAL, too).
//
// Purpose: commands as lists of byte strings, answers as values; no command and no answer can end the process (hiredis
// writes without MSG_NOSIGNAL) or hold a thread longer than its deadline, also when bytes trickle.
// Threads: confined; one owner at a time.
// Errors: kUnavailable: no connection, it broke, or the answer is not Redis's protocol. kDeadlineExceeded: no answer in
// time. kInvalidArgument: over TLS the server's certificate is not believed, or it speaks no TLS. After each the
// connection is broken and is to be thrown away: an answer may come late. An answer that *is* an error ("-ERR ...") is
// a value.
// Limits: the name of the host is looked up without a time limit of ours; give an address where that matters.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/socket_stream.h"
#include "base/status.h"
#include "metadata/redis_address.h"

struct redisContext;

namespace larder::metadata {

struct RedisReply {
  enum class Kind : unsigned char { kNil, kInteger, kText, kError, kArray };
  Kind kind = Kind::kNil;
  std::int64_t integer = 0;
  std::string text;               // of kText, kError; of an integer nothing
  std::vector<RedisReply> items;  // of kArray
};

// What an acknowledged change survives.
enum class RedisDurability : unsigned char {
  kUnknown,      // CONFIG is not allowed to us
  kNone,         // nothing: no append-only file (snapshots may be there, but they lag by minutes)
  kEverySecond,  // the end of the Redis process; a power cut loses about a second
  kAlways,       // a power cut: appendonly yes, appendfsync always
};
[[nodiscard]] std::string_view redis_durability_name(RedisDurability durability);

// What a server said of itself when the connection was made.
struct RedisServerFacts {
  std::string run_id;  // of the server's process; empty: INFO is not allowed to us
  RedisDurability durability = RedisDurability::kUnknown;
  std::string eviction_policy;  // of maxmemory; empty: CONFIG is not allowed to us
  bool evicts_any_key = false;  // that policy may drop any key: Redis may lose parts of what we keep there
};

class RedisConnection {
 public:
  // kUnsupported: a build without hiredis (absent_redis_connection.cc); the message names the CMake option.
  [[nodiscard]] static Status built();
  // Connects (for at most connect_timeout), authenticates, selects the database, asks for the facts.
  [[nodiscard]] static Result<std::unique_ptr<RedisConnection>> open(const RedisAddress& address, Nanos connect_timeout,
                                                                     TimePoint deadline);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // `deadline` is of real_clock().
  [[nodiscard]] Result<RedisReply> call(std::span<const std::string_view> words, TimePoint deadline);
  [[nodiscard]] bool is_broken() const { return is_broken_; }
  [[nodiscard]] const RedisServerFacts& facts() const { return facts_; }

 private:
  struct ContextDeleter {
    void operator()(redisContext* context) const;
  };

  RedisConnection(redisContext* context, std::string server) : context_(context), server_(std::move(server)) {}
  [[nodiscard]] Status greet(const RedisAddress& address, TimePoint deadline);
  [[nodiscard]] Status ask_facts(TimePoint deadline);
  [[nodiscard]] Status send_all(std::string_view bytes, TimePoint deadline);
  [[nodiscard]] Result<RedisReply> receive(TimePoint deadline);
  [[nodiscard]] Status broken(Status status);
  // Of the stream, where it failed while `doing`.
  [[nodiscard]] Status stream_failed(std::string_view doing, const Status& status);

  const std::unique_ptr<redisContext, ContextDeleter> context_;
  std::optional<SocketStream> stream_;  // over the context's socket, and gone before it
  const std::string server_;            // for messages
  RedisServerFacts facts_;              // constant after open()
  bool is_broken_ = false;
};

}  // namespace larder::metadata
