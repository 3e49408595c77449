// SPDX-License-Identifier: Apache-2.0
#include "metadata/redis_metadata.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "metadata/request_checks.h"

namespace larder {

using metadata::check_key;
using metadata::check_namespace;
using metadata::RedisDurability;
using metadata::RedisOperation;
using metadata::RedisReply;

// Words that the command owns lie in a list that does not move; those of the caller are views.
class RedisMetadata::Command {
 public:
  void add_base(std::string base) { bases_.push_back(std::move(base)); }
  void add(std::string_view word) { words_.push_back({word, false, {}}); }
  void add_number(std::uint64_t number) { words_.push_back({{}, true, std::to_string(number)}); }
  void add_text(std::string text) { words_.push_back({{}, true, std::move(text)}); }
  // Number of the namespace among the bases, from 1; added if it is new.
  std::size_t place_of(const MetadataNamespace& name_space, const RedisMetadata& service) {
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (*places_[i] == name_space) return i + 1;
    }
    places_.push_back(&name_space);
    add_base(service.base_of(name_space));
    return places_.size();
  }
  [[nodiscard]] std::size_t bases() const { return bases_.size(); }
  void append_bases(std::vector<std::string_view>& out) const { out.insert(out.end(), bases_.begin(), bases_.end()); }
  void append_words(std::vector<std::string_view>& out) const {
    for (const Word& word : words_) out.push_back(word.is_owned ? std::string_view(word.text) : word.view);
  }

 private:
  struct Word {
    std::string_view view;
    bool is_owned = false;
    std::string text;
  };
  std::vector<std::string> bases_;
  std::vector<const MetadataNamespace*> places_;
  std::vector<Word> words_;
};

namespace {

// Up to which Lua's numbers are exact.
constexpr std::int64_t kMaxExact = std::int64_t{1} << 53;
constexpr std::uint64_t kPagesPerClear = 512;

Status check_item(const ConfirmItem& item) {
  LARDER_RETURN_IF_ERROR(check_namespace(item.name_space));
  return check_key(item.key);
}

// The server has become another one's replica since the connection was made. Until version 7 the word stood within.
bool is_from_replica(const RedisReply& reply) {
  return reply.kind == RedisReply::Kind::kError && reply.text.find("READONLY ") != std::string::npos;
}

Status nonsense() { return unavailable("redis: an answer that makes no sense (other data under our prefix?)"); }

std::uint64_t micros_up(Nanos duration) {
  return static_cast<std::uint64_t>(std::chrono::ceil<std::chrono::microseconds>(duration).count());
}

std::string session_bytes(const MetadataSession& session) {
  std::string bytes(24, '\0');
  store_le(bytes.data(), session.process[0]);
  store_le(bytes.data() + 8, session.process[1]);
  store_le(bytes.data() + 16, session.operation);
  return bytes;
}

// A count, or nothing if the reply is none.
std::optional<std::uint64_t> count_of(const RedisReply& reply) {
  if (reply.kind != RedisReply::Kind::kInteger || reply.integer < 0 || reply.integer > kMaxExact) return std::nullopt;
  return static_cast<std::uint64_t>(reply.integer);
}

// Two items of an answer as a page and its generation.
std::optional<PageRef> ref_of(const RedisReply& page, const RedisReply& generation) {
  const auto number = count_of(page), grown = count_of(generation);
  if (!number || *number >= kMaxNamespacePages || !grown) return std::nullopt;
  return PageRef{*number, *grown};
}

std::optional<MetadataNamespace> namespace_of(std::string_view text) {
  MetadataNamespace name_space;
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + colon, name_space.rank);
  if (error != std::errc{} || end != text.data() + colon) return std::nullopt;
  name_space.name = text.substr(colon + 1);
  if (!check_namespace(&name_space).is_ok()) return std::nullopt;
  return name_space;
}

// Part of a request: items from..to of entry `entry`.
struct Piece {
  std::size_t entry = 0, from = 0, to = 0;
};

// Cuts entries with sizes[i] items into rows of at most kMaxItemsPerScript items. Also entries without items are there.
std::vector<std::vector<Piece>> cut(const std::vector<std::size_t>& sizes) {
  std::vector<std::vector<Piece>> rows(1);
  std::size_t room = RedisMetadata::kMaxItemsPerScript;
  for (std::size_t entry = 0; entry < sizes.size(); ++entry) {
    std::size_t from = 0;
    do {
      if (room == 0 || rows.back().size() >= RedisMetadata::kMaxItemsPerScript) {
        rows.emplace_back();
        room = RedisMetadata::kMaxItemsPerScript;
      }
      const std::size_t to = std::min(sizes[entry], from + room);
      rows.back().push_back({entry, from, to});
      room -= to - from;
      from = to;
    } while (from < sizes[entry]);
  }
  return rows;
}

}  // namespace

RedisMetadata::RedisMetadata(const RedisMetadataOptions& options, metadata::RedisAddress address)
    : options_(options), registry_(options.prefix + ":1"), address_(std::move(address)), pool_(options.connections) {}

RedisMetadata::~RedisMetadata() = default;

std::string_view metadata::redis_durability_name(RedisDurability durability) {
  switch (durability) {
    case RedisDurability::kUnknown: return "unknown";
    case RedisDurability::kNone: return "none";
    case RedisDurability::kEverySecond: return "every_second";
    case RedisDurability::kAlways: return "always";
  }
  return "unknown";
}

Result<std::unique_ptr<RedisMetadata>> RedisMetadata::create(const RedisMetadataOptions& options) {
  LARDER_RETURN_IF_ERROR(metadata::RedisConnection::built());
  LARDER_ASSIGN_OR_RETURN(metadata::RedisAddress address, metadata::parse_redis_url(options.url, options.ca_file));
  const Nanos zero{0}, longest = std::chrono::hours(24 * 365);
  const auto is_between = [&](Nanos value, Nanos low) { return value >= low && value <= longest; };
  if (!is_between(options.max_lease, zero) || !is_between(options.max_ttl, Nanos{1}) ||
      !is_between(options.max_io_lifetime, zero) || !is_between(options.timeout, Nanos{1}) ||
      !is_between(options.connect_timeout, Nanos{1}) || !is_between(options.clear_timeout, Nanos{1}) ||
      options.connections == 0 || options.max_namespaces == 0 || options.prefix.empty()) {
    return invalid_argument(
        "metadata on Redis: the times (up to a year) and limits must be positive, the prefix not empty");
  }
  return std::unique_ptr<RedisMetadata>(new RedisMetadata(options, std::move(address)));
}

std::string RedisMetadata::base_of(const MetadataNamespace& name_space) const {
  return registry_ + ':' + name_space.text();
}

std::string RedisMetadata::time_text() const {
  if (options_.test_clock == nullptr) return {};
  const Nanos time = options_.test_clock->now().time_since_epoch();
  return std::to_string(std::chrono::floor<std::chrono::microseconds>(time).count());
}

Status RedisMetadata::look_at(const metadata::RedisServerFacts& facts) {
  if (facts.evicts_any_key) {
    return unavailable("redis: maxmemory-policy " + facts.eviction_policy +
                       " may drop parts of our tables; set it to noeviction");
  }
  durability_.store(facts.durability, std::memory_order_relaxed);
  return Status::ok();
}

Result<RedisMetadata::Lent> RedisMetadata::borrow(TimePoint deadline) {
  std::optional<metadata::ConnectionPool<metadata::RedisConnection>::Loan> loan = pool_.take(real_clock(), deadline);
  if (!loan) {
    return deadline_exceeded("redis " + address_.text() + ": all " + std::to_string(options_.connections) +
                             " connections were in use");
  }
  const bool is_fresh = !loan->connection();
  if (is_fresh) {
    LARDER_ASSIGN_OR_RETURN(auto opened, metadata::RedisConnection::open(address_, options_.connect_timeout, deadline));
    loan->connection() = std::move(opened);
  }
  LARDER_RETURN_IF_ERROR(look_at((*loan)->facts()));
  return Lent{std::move(*loan), is_fresh};
}

Result<RedisReply> RedisMetadata::evaluate(metadata::RedisConnection& connection, RedisOperation operation,
                                           const Command& command, TimePoint deadline) {
  const metadata::RedisScript& script = metadata::redis_script(operation);
  const std::string bases = std::to_string(command.bases()), now = time_text();
  const std::string io_lifetime = std::to_string(micros_up(options_.max_io_lifetime));
  std::vector<std::string_view> words{"EVALSHA", script.sha1, bases};
  command.append_bases(words);
  words.insert(words.end(), {now, io_lifetime, connection.facts().run_id});
  command.append_words(words);
  Result<RedisReply> reply = connection.call(words, deadline);
  const bool is_unknown =
      reply.is_ok() && reply->kind == RedisReply::Kind::kError && reply->text.starts_with("NOSCRIPT");
  if (!is_unknown) return reply;
  words[0] = "EVAL";
  words[1] = script.text;
  return connection.call(words, deadline);
}

Result<std::vector<RedisReply>> RedisMetadata::run(RedisOperation operation, const Command& command,
                                                   TimePoint deadline) {
  Result<RedisReply> reply = unavailable("redis: not reached");
  // Every connection of the pool may be one of before a restart, and each costs an attempt.
  for (std::size_t attempt = 0; attempt <= options_.connections; ++attempt) {
    LARDER_ASSIGN_OR_RETURN(Lent lent, borrow(deadline));
    std::unique_ptr<metadata::RedisConnection>& connection = lent.loan.connection();
    reply = evaluate(*connection, operation, command, deadline);
    const bool only_reads = reply.is_ok() && is_from_replica(*reply);
    if (connection->is_broken() || only_reads) connection.reset();
    const bool is_broken_off = !reply.is_ok() && reply.status().code() == StatusCode::kUnavailable;
    if (lent.is_fresh || !(is_broken_off || only_reads)) break;
    pool_.drop_idle();  // they are of the same age
  }
  if (!reply.is_ok()) return reply.status();
  if (reply->kind == RedisReply::Kind::kError) {
    if (reply->text.find(metadata::kLostWord) == std::string::npos) return unavailable("redis: " + reply->text);
    log_error("metadata/redis", "Redis has lost a part of a namespace, which was dropped: " + reply->text);
    return not_found("redis has lost a part of a namespace: initialise it again");
  }
  std::vector<RedisReply> items = std::move(reply->items);
  if (reply->kind != RedisReply::Kind::kArray || items.empty()) return nonsense();
  const std::string answer = items[0].text;
  if (answer == "unknown") return not_found("a namespace was never initialised, or Redis has lost it");
  if (answer == "full") {
    return overloaded("redis: there are " + std::to_string(options_.max_namespaces) + " namespaces under '" +
                      registry_ + "', the limit, and none is forgotten: begin with another database, or an empty one");
  }
  if (answer != "ok") return nonsense();
  items.erase(items.begin());
  return items;
}

Result<std::uint64_t> RedisMetadata::initialize(const MetadataNamespace& name_space, std::uint64_t pages) {
  LARDER_RETURN_IF_ERROR(check_namespace(&name_space));
  LARDER_RETURN_IF_ERROR(metadata::check_pages(pages));
  Command command;
  command.add_base(base_of(name_space));
  command.add_number(pages);
  command.add(registry_);
  command.add_text(name_space.text());
  command.add_number(options_.max_namespaces);
  LARDER_ASSIGN_OR_RETURN(const auto answer,
                          run(RedisOperation::kInitialize, command, real_clock().now() + options_.timeout));
  const auto given = answer.size() == 1 ? count_of(answer.front()) : std::nullopt;
  if (!given || *given == 0 || *given > kMaxNamespacePages) return nonsense();
  return *given;
}

Result<std::vector<std::vector<std::optional<PageRef>>>> RedisMetadata::find(std::span<const MetadataKeys> wanted,
                                                                             Nanos lease) {
  if (lease.count() < 0) return invalid_argument("a lease is not negative");
  const TimePoint deadline = real_clock().now() + options_.timeout;
  std::vector<std::vector<std::optional<PageRef>>> answer(wanted.size());
  std::vector<std::size_t> sizes;
  for (const MetadataKeys& keys : wanted) {
    LARDER_RETURN_IF_ERROR(check_namespace(keys.name_space));
    for (const std::string_view key : keys.keys) LARDER_RETURN_IF_ERROR(check_key(key));
    answer[sizes.size()].reserve(keys.keys.size());
    sizes.push_back(keys.keys.size());
  }
  if (wanted.empty()) return answer;
  for (const std::vector<Piece>& row : cut(sizes)) {
    Command command;
    command.add_number(micros_up(std::min(lease, options_.max_lease)));
    std::size_t count = 0;
    for (const Piece& piece : row) {
      command.add_base(base_of(*wanted[piece.entry].name_space));
      command.add_number(piece.to - piece.from);
      for (std::size_t i = piece.from; i < piece.to; ++i) command.add(wanted[piece.entry].keys[i]);
      count += piece.to - piece.from;
    }
    LARDER_ASSIGN_OR_RETURN(const auto found, run(RedisOperation::kFind, command, deadline));
    if (found.size() != 2 * count) return nonsense();
    std::size_t at = 0;
    for (const Piece& piece : row) {
      for (std::size_t i = piece.from; i < piece.to; ++i, at += 2) {
        const RedisReply& page = found[at];
        const bool is_absent = page.kind == RedisReply::Kind::kInteger && page.integer == -1;
        const std::optional<PageRef> ref = ref_of(page, found[at + 1]);
        if (!ref && !is_absent) return nonsense();
        answer[piece.entry].push_back(ref);
      }
    }
  }
  return answer;
}

Result<std::vector<std::vector<Reserved>>> RedisMetadata::reserve(const MetadataSession& session,
                                                                  std::span<const ReserveItems> wanted, Nanos ttl) {
  if (ttl.count() <= 0) return invalid_argument("a reservation needs a time above 0");
  const TimePoint deadline = real_clock().now() + options_.timeout;
  std::vector<std::vector<Reserved>> answer(wanted.size());
  std::vector<std::size_t> sizes;
  for (const ReserveItems& items : wanted) {
    LARDER_RETURN_IF_ERROR(check_namespace(items.name_space));
    for (const ReserveItem& item : items.items) LARDER_RETURN_IF_ERROR(metadata::check_item(item));
    answer[sizes.size()].reserve(items.items.size());
    sizes.push_back(items.items.size());
  }
  if (wanted.empty()) return answer;
  for (const std::vector<Piece>& row : cut(sizes)) {
    Command command;
    command.add_text(session_bytes(session));
    command.add_number(micros_up(std::min(ttl, options_.max_ttl)));
    std::size_t count = 0;
    for (const Piece& piece : row) {
      command.add_base(base_of(*wanted[piece.entry].name_space));
      command.add_number(piece.to - piece.from);
      for (std::size_t i = piece.from; i < piece.to; ++i) {
        command.add(wanted[piece.entry].items[i].key);
        command.add(wanted[piece.entry].items[i].parent);
      }
      count += piece.to - piece.from;
    }
    LARDER_ASSIGN_OR_RETURN(const auto got, run(RedisOperation::kReserve, command, deadline));
    if (got.size() != 3 * count) return nonsense();
    std::size_t at = 0;
    for (const Piece& piece : row) {
      for (std::size_t i = piece.from; i < piece.to; ++i, at += 3) {
        const auto outcome = count_of(got[at]);
        const auto ref = ref_of(got[at + 1], got[at + 2]);
        if (!outcome || *outcome > 3 || !ref) return nonsense();
        answer[piece.entry].push_back({static_cast<ReserveOutcome>(*outcome), *ref});
      }
    }
  }
  return answer;
}

Status RedisMetadata::confirm_some(const ConfirmRequest& request, std::size_t from, std::size_t to, bool is_last,
                                   TimePoint deadline, std::vector<Status>& answer) {
  Command command;
  command.add_text(session_bytes(request.session));
  command.add_number(to - from);
  const auto add_items = [&](const std::vector<ConfirmItem>& items) {
    command.add_number(items.size());
    for (const ConfirmItem& item : items) {
      command.add_number(command.place_of(*item.name_space, *this));
      command.add(item.key);
      command.add_number(item.ref.page);
      command.add_number(item.ref.generation);
    }
  };
  for (std::size_t group = from; group < to; ++group) add_items(request.groups[group]);
  add_items(is_last ? request.release : std::vector<ConfirmItem>());
  command.add_number(request.released_rest ? 1 : 0);
  LARDER_ASSIGN_OR_RETURN(const auto confirmed, run(RedisOperation::kConfirm, command, deadline));
  if (confirmed.size() != to - from) return nonsense();
  for (const RedisReply& group : confirmed) {
    const auto verdict = count_of(group);
    if (!verdict || *verdict > 1) return nonsense();
    answer.push_back(*verdict == 1 ? Status::ok()
                                   : not_found("a page of the group is not reserved by this session (any more)"));
  }
  return Status::ok();
}

Result<std::vector<Status>> RedisMetadata::confirm(const ConfirmRequest& request) {
  for (const std::vector<ConfirmItem>& group : request.groups) {
    if (group.size() > kMaxItemsPerGroup) return invalid_argument("a group has too many items");
    for (const ConfirmItem& item : group) LARDER_RETURN_IF_ERROR(check_item(item));
  }
  if (request.release.size() > kMaxItemsPerGroup) return invalid_argument("too many items to release");
  for (const ConfirmItem& item : request.release) LARDER_RETURN_IF_ERROR(check_item(item));
  const TimePoint deadline = real_clock().now() + options_.timeout;
  std::vector<Status> answer;
  std::size_t from = 0;
  do {
    std::size_t to = from, items = 0;
    while (to < request.groups.size()) {
      items += request.groups[to].size() + 1;
      if (to > from && items > kMaxItemsPerScript) break;
      ++to;
    }
    const bool is_last = to == request.groups.size();
    LARDER_RETURN_IF_ERROR(confirm_some(request, from, to, is_last, deadline, answer));
    from = to;
  } while (from < request.groups.size());
  const RedisDurability durability = durability_.load(std::memory_order_relaxed);
  if (request.durable && durability != RedisDurability::kAlways && !is_warned_.exchange(true)) {
    log_warning("metadata/redis",
                "durable confirmations do not survive a power cut of this server: its durability is '" +
                    std::string(redis_durability_name(durability)) + "', not appendonly yes with appendfsync always");
  }
  return answer;
}

Result<std::uint64_t> RedisMetadata::remove(std::span<const ConfirmItem> items) {
  for (const ConfirmItem& item : items) LARDER_RETURN_IF_ERROR(check_item(item));
  const TimePoint deadline = real_clock().now() + options_.timeout;
  std::uint64_t removed = 0;
  for (std::size_t from = 0; from < items.size(); from += kMaxItemsPerScript) {
    const std::span<const ConfirmItem> some = items.subspan(from, std::min(kMaxItemsPerScript, items.size() - from));
    Command command;
    command.add_number(some.size());
    for (const ConfirmItem& item : some) {
      command.add_number(command.place_of(*item.name_space, *this));
      command.add(item.key);
      command.add_number(item.ref.page);
      command.add_number(item.ref.generation);
    }
    LARDER_ASSIGN_OR_RETURN(const auto answer, run(RedisOperation::kRemove, command, deadline));
    const auto count = answer.size() == 1 ? count_of(answer.front()) : std::nullopt;
    if (!count || *count > some.size()) return nonsense();
    removed += *count;
  }
  return removed;
}

Result<std::uint64_t> RedisMetadata::clear(const MetadataNamespace& name_space, std::string_view prefix) {
  LARDER_RETURN_IF_ERROR(check_namespace(&name_space));
  const TimePoint end = real_clock().now() + options_.clear_timeout;
  std::uint64_t dropped = 0, page = 0;
  std::string bound;
  for (;;) {
    Command command;
    command.add_base(base_of(name_space));
    command.add(prefix);
    command.add_number(page);
    command.add_number(kPagesPerClear);
    command.add(bound);
    const TimePoint deadline = std::min(end, real_clock().now() + options_.timeout);
    LARDER_ASSIGN_OR_RETURN(const auto answer, run(RedisOperation::kClear, command, deadline));
    if (answer.size() != 3 || answer[1].kind != RedisReply::Kind::kInteger) return nonsense();
    const auto count = count_of(answer[0]), generation = count_of(answer[2]);
    if (!count || *count > kPagesPerClear || !generation) return nonsense();
    dropped += *count;
    const std::int64_t next = answer[1].integer;
    if (next == -1) return dropped;
    if (next <= static_cast<std::int64_t>(page) || next > static_cast<std::int64_t>(kMaxNamespacePages)) {
      return nonsense();
    }
    page = static_cast<std::uint64_t>(next);
    bound = std::to_string(*generation);
  }
}

Result<std::map<MetadataNamespace, NamespaceStats>> RedisMetadata::stats() {
  constexpr std::size_t kColumns = 10;
  Command command;
  command.add(registry_);
  LARDER_ASSIGN_OR_RETURN(const auto answer,
                          run(RedisOperation::kStats, command, real_clock().now() + options_.timeout));
  if (answer.size() % kColumns != 0) return nonsense();
  std::map<MetadataNamespace, NamespaceStats> all;
  for (std::size_t row = 0; row < answer.size(); row += kColumns) {
    const auto name_space = namespace_of(answer[row].text);
    if (!name_space) return nonsense();
    std::array<std::uint64_t, kColumns - 1> numbers{};
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto number = count_of(answer[row + 1 + i]);
      if (!number) return nonsense();
      numbers[i] = *number;
    }
    const auto& [pages, free, reserved, stored, quarantined, leased, evicted, expired, refused] = numbers;
    all[*name_space] = {pages, free, reserved, stored, quarantined, leased, evicted, expired, refused};
  }
  return all;
}

Result<RedisDurability> RedisMetadata::durability() {
  LARDER_ASSIGN_OR_RETURN(const Lent lent, borrow(real_clock().now() + options_.timeout));
  return lent.loan->facts().durability;
}

}  // namespace larder
