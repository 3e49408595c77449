// SPDX-License-Identifier: Apache-2.0
#include "metadata/real_redis_connection.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <utility>

namespace larder::metadata {
namespace {

struct ReplyDeleter {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using RawReply = std::unique_ptr<redisReply, ReplyDeleter>;

// hiredis refuses deeper nesting itself.
RedisReply value_of(const redisReply& raw) {
  RedisReply reply;
  switch (raw.type) {
    case REDIS_REPLY_INTEGER:
      reply.kind = RedisReply::Kind::kInteger;
      reply.integer = raw.integer;
      break;
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
      reply.kind = RedisReply::Kind::kText;
      reply.text.assign(raw.str, raw.len);
      break;
    case REDIS_REPLY_ERROR:
      reply.kind = RedisReply::Kind::kError;
      reply.text.assign(raw.str, raw.len);
      break;
    case REDIS_REPLY_ARRAY:
      reply.kind = RedisReply::Kind::kArray;
      reply.items.reserve(raw.elements);
      for (std::size_t i = 0; i < raw.elements; ++i) reply.items.push_back(value_of(*raw.element[i]));
      break;
    default: break;
  }
  return reply;
}

timeval timeval_of(Nanos duration) {
  const auto micros =
      std::max<std::int64_t>(1000, std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
  return {static_cast<time_t>(micros / 1'000'000), static_cast<suseconds_t>(micros % 1'000'000)};
}

// The line "<name>:<value>" of what INFO says.
std::string info_field(std::string_view info, std::string_view name) {
  std::size_t at = info.find(name);
  if (at == std::string_view::npos) return {};
  at += name.size();
  return std::string(info.substr(at, info.find('\r', at) - at));
}

}  // namespace

void RedisConnection::ContextDeleter::operator()(redisContext* context) const { redisFree(context); }

RedisConnection::~RedisConnection() = default;

Status RedisConnection::built() { return Status::ok(); }

Result<std::unique_ptr<RedisConnection>> RedisConnection::open(const RedisAddress& address, Nanos connect_timeout,
                                                               TimePoint deadline) {
  const TimePoint now = real_clock().now();
  const Nanos left = deadline - now;
  if (left <= Nanos{0}) return deadline_exceeded("redis " + address.text() + ": no time left to connect");
  redisContext* const context =
      redisConnectWithTimeout(address.host.c_str(), address.port, timeval_of(std::min(connect_timeout, left)));
  if (context == nullptr) return unavailable("redis: out of memory");
  std::unique_ptr<RedisConnection> connection(new RedisConnection(context, "redis " + address.text()));
  if (context->err != 0) return unavailable(connection->server_ + ": " + context->errstr);
  const int flags = ::fcntl(context->fd, F_GETFL);
  if (flags < 0 || ::fcntl(context->fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
      ::fcntl(context->fd, F_SETFD, FD_CLOEXEC) != 0) {
    return unavailable(connection->server_ + ": fcntl: " + std::strerror(errno));
  }
  connection->stream_.emplace(context->fd);
  if (address.trust) {
    const TimePoint end = std::min(deadline, now + connect_timeout);
    const Status secured = connection->stream_->secure(*address.trust, address.host, {}, end);
    if (!secured.is_ok()) return Status(secured.code(), connection->server_ + ": " + secured.message());
  }
  LARDER_RETURN_IF_ERROR(connection->greet(address, deadline));
  LARDER_RETURN_IF_ERROR(connection->ask_facts(deadline));
  return connection;
}

Status RedisConnection::greet(const RedisAddress& address, TimePoint deadline) {
  const auto expect_ok = [&](std::initializer_list<std::string_view> words) -> Status {
    LARDER_ASSIGN_OR_RETURN(const RedisReply reply, call(std::span(words.begin(), words.size()), deadline));
    if (reply.kind == RedisReply::Kind::kText && reply.text == "OK") return Status::ok();
    const std::string said = reply.kind == RedisReply::Kind::kError ? reply.text : "an answer that makes no sense";
    return broken(unavailable(server_ + ": " + std::string(*words.begin()) + ": " + said));
  };
  if (!address.password.empty()) LARDER_RETURN_IF_ERROR(expect_ok({"AUTH", address.password}));
  if (address.database != 0) LARDER_RETURN_IF_ERROR(expect_ok({"SELECT", std::to_string(address.database)}));
  return Status::ok();
}

// A server that does not tell is served all the same, unless it is because it does not know us.
Status RedisConnection::ask_facts(TimePoint deadline) {
  const std::string_view info_words[] = {"INFO", "server"};
  LARDER_ASSIGN_OR_RETURN(const RedisReply info, call(info_words, deadline));
  for (const std::string_view code : {"NOAUTH", "LOADING", "MASTERDOWN"}) {
    if (info.kind != RedisReply::Kind::kError || !info.text.starts_with(code)) continue;
    return broken(unavailable(server_ + ": " + info.text));
  }
  if (info.kind == RedisReply::Kind::kText) facts_.run_id = info_field(info.text, "run_id:");
  Status failed;
  const auto setting = [&](std::string_view name) -> std::optional<std::string> {
    const std::string_view words[] = {"CONFIG", "GET", name};
    const Result<RedisReply> reply = failed.is_ok() ? call(words, deadline) : Result<RedisReply>(failed);
    failed = reply.status();
    if (!reply.is_ok() || reply->kind != RedisReply::Kind::kArray || reply->items.size() != 2) return std::nullopt;
    return reply->items[1].text;
  };
  const auto append_only = setting("appendonly"), sync = setting("appendfsync");
  const auto policy = setting("maxmemory-policy"), limit = setting("maxmemory");
  LARDER_RETURN_IF_ERROR(failed);
  if (append_only && sync) {
    facts_.durability = *append_only != "yes" ? RedisDurability::kNone
                        : *sync == "always"   ? RedisDurability::kAlways
                        : *sync == "everysec" ? RedisDurability::kEverySecond
                                              : RedisDurability::kNone;
  }
  facts_.eviction_policy = policy.value_or("");
  facts_.evicts_any_key = facts_.eviction_policy.starts_with("allkeys") && limit.value_or("0") != "0";
  return Status::ok();
}

Status RedisConnection::broken(Status status) {
  is_broken_ = true;
  return status;
}

Status RedisConnection::stream_failed(std::string_view doing, const Status& status) {
  if (status.code() == StatusCode::kDeadlineExceeded) return broken(deadline_exceeded(server_ + ": no answer in time"));
  return broken(Status(status.code(), server_ + ": " + std::string(doing) + ": " + status.message()));
}

Status RedisConnection::send_all(std::string_view bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const Result<std::size_t> sent = stream_->send_some(bytes, deadline);
    if (!sent.is_ok()) return stream_failed("sending", sent.status());
    bytes.remove_prefix(*sent);
  }
  return Status::ok();
}

Result<RedisReply> RedisConnection::receive(TimePoint deadline) {
  for (;;) {
    void* raw = nullptr;
    if (redisGetReplyFromReader(context_.get(), &raw) != REDIS_OK) {
      return broken(unavailable(server_ + ": not the protocol of Redis: " + context_->errstr));
    }
    if (raw != nullptr) return value_of(*RawReply(static_cast<redisReply*>(raw)));
    char piece[16384];
    const Result<std::size_t> got = stream_->receive_some(piece, deadline);
    if (!got.is_ok()) return stream_failed("receiving", got.status());
    if (*got == 0) return broken(unavailable(server_ + ": receiving: the server closed the connection"));
    if (redisReaderFeed(context_->reader, piece, *got) != REDIS_OK) {
      return broken(unavailable(server_ + ": receiving: " + context_->reader->errstr));
    }
  }
}

Result<RedisReply> RedisConnection::call(std::span<const std::string_view> words, TimePoint deadline) {
  if (is_broken_) return unavailable(server_ + ": the connection is broken");
  std::vector<const char*> bytes;
  std::vector<std::size_t> sizes;
  for (const std::string_view word : words) {
    bytes.push_back(word.empty() ? "" : word.data());
    sizes.push_back(word.size());
  }
  char* command = nullptr;
  const int size = redisFormatCommandArgv(&command, static_cast<int>(words.size()), bytes.data(), sizes.data());
  if (size < 0 || command == nullptr) return unavailable(server_ + ": out of memory");
  const std::unique_ptr<char, void (*)(char*)> owner(command, redisFreeCommand);
  LARDER_RETURN_IF_ERROR(send_all({command, static_cast<std::size_t>(size)}, deadline));
  return receive(deadline);
}

}  // namespace larder::metadata
