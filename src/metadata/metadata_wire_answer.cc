// SPDX-License-Identifier: Apache-2.0
// The answering side of metadata_wire.h.

#include <fmt/format.h>

#include <utility>

#include "metadata/message_bytes.h"
#include "metadata/metadata_wire.h"

namespace larder::metadata {
namespace {

constexpr std::size_t kMaxTextBytes = 1000;  // of a group's status

// `bytes`: of what follows the head, about.
MessageWriter answer_to(WireOperation operation, std::size_t bytes = 0) {
  return {kAnswerMagic, static_cast<std::uint8_t>(operation), 0, kWireHeadBytes + bytes};
}

// One message on its way through: decode, call, encode.
class Request {
 public:
  Request(MetadataService& service, std::string_view payload) : service_(service), in_(payload), whole_(payload) {}

  Result<std::string> run(WireOperation operation) {
    switch (operation) {
      case WireOperation::kInitialize: return initialize();
      case WireOperation::kFind: return find();
      case WireOperation::kReserve: return reserve();
      case WireOperation::kConfirm: return confirm();
      case WireOperation::kRemove: return remove();
      case WireOperation::kClear: return clear();
      case WireOperation::kStats: return stats();
    }
    return unsupported("no such operation");
  }
  [[nodiscard]] std::uint64_t keys() const { return keys_; }

 private:
  // What ended the reading, or ok when all of it was read.
  Status finish() {
    if (!failure_.is_ok()) return failure_;
    if (in_.is_done()) return Status::ok();
    return invalid_argument(in_.ok() ? fmt::format("{} bytes follow the request", in_.left())
                                     : fmt::format("the request of {} bytes ends too early", whole_.size()));
  }
  void fail(Status status) {
    if (failure_.is_ok()) failure_ = std::move(status);
    in_.fail();
  }
  // A count that is about to be allocated for.
  template <std::unsigned_integral T>
  std::size_t count(std::size_t least) {
    const std::size_t n = in_.count<T>(least);
    items_ += n;
    if (items_ > kMaxWireItems) fail(invalid_argument(fmt::format("more than {} keys and groups", kMaxWireItems)));
    return in_.ok() ? n : 0;
  }
  std::string_view key() {
    const std::string_view key = in_.key();
    if (key.size() > kMaxKeyBytes) {
      fail(invalid_argument(fmt::format("a key has at most {} bytes, not {}", kMaxKeyBytes, key.size())));
    }
    return in_.ok() ? key : std::string_view{};
  }
  void read_names() {
    names_.resize(count<std::uint16_t>(9));
    for (MetadataNamespace& name : names_) name = in_.name();
  }
  void read_items(std::vector<ConfirmItem>& out) {
    out.resize(count<std::uint32_t>(20));
    keys_ += out.size();
    for (ConfirmItem& item : out) {
      const auto index = in_.number<std::uint16_t>();
      item.key = key();
      item.ref = in_.ref();
      if (!in_.ok()) return;
      if (index >= names_.size()) return fail(invalid_argument(fmt::format("there is no namespace {}", index)));
      item.name_space = &names_[index];
    }
  }
  static std::string count_answer(WireOperation operation, std::uint64_t count) {
    MessageWriter out = answer_to(operation);
    out.number(count);
    return out.finish();
  }

  Result<std::string> initialize() {
    const MetadataNamespace name = in_.name();
    const auto pages = in_.number<std::uint64_t>();
    LARDER_RETURN_IF_ERROR(finish());
    LARDER_ASSIGN_OR_RETURN(const std::uint64_t given, service_.initialize(name, pages));
    return count_answer(WireOperation::kInitialize, given);
  }

  Result<std::string> find() {
    const Nanos lease(in_.nanos());
    const std::size_t groups = count<std::uint32_t>(13);
    names_.resize(groups);
    std::vector<MetadataKeys> wanted(groups);
    for (std::size_t i = 0; i < groups && in_.ok(); ++i) {
      names_[i] = in_.name();
      wanted[i].name_space = &names_[i];
      wanted[i].keys.resize(count<std::uint32_t>(2));
      keys_ += wanted[i].keys.size();
      for (std::string_view& one : wanted[i].keys) one = key();
    }
    LARDER_RETURN_IF_ERROR(finish());
    LARDER_ASSIGN_OR_RETURN(const auto found, service_.find(wanted, lease));
    MessageWriter out = answer_to(WireOperation::kFind, 17 * keys_);
    for (const auto& group : found) {
      for (const std::optional<PageRef>& ref : group) {
        out.number(static_cast<std::uint8_t>(ref ? 1 : 0));
        if (ref) out.ref(*ref);
      }
    }
    return out.finish();
  }

  void read_wishes(std::vector<ReserveItem>& out) {
    out.resize(count<std::uint32_t>(4));
    keys_ += out.size();
    std::string_view before;
    for (ReserveItem& item : out) {
      item.key = key();
      const auto size = in_.number<std::uint16_t>();
      if (size != kParentIsKeyBefore) {
        item.parent = in_.bytes(size);
        if (size > kMaxKeyBytes) fail(invalid_argument("a parent is longer than a key can be"));
      } else if (&item == out.data()) {
        fail(invalid_argument("the first key has no key before it"));
      } else {
        item.parent = before;
      }
      before = item.key;
    }
  }

  Result<std::string> reserve() {
    const MetadataSession session = in_.session();
    const Nanos ttl(in_.nanos());
    const std::size_t groups = count<std::uint32_t>(13);
    names_.resize(groups);
    std::vector<ReserveItems> wanted(groups);
    for (std::size_t i = 0; i < groups && in_.ok(); ++i) {
      names_[i] = in_.name();
      wanted[i].name_space = &names_[i];
      read_wishes(wanted[i].items);
    }
    LARDER_RETURN_IF_ERROR(finish());
    LARDER_ASSIGN_OR_RETURN(const auto given, service_.reserve(session, wanted, ttl));
    MessageWriter out = answer_to(WireOperation::kReserve, 17 * keys_);
    for (const auto& group : given) {
      for (const Reserved& one : group) {
        out.number(static_cast<std::uint8_t>(one.outcome));
        if (one.outcome == ReserveOutcome::kReserved || one.outcome == ReserveOutcome::kStored) out.ref(one.ref);
      }
    }
    return out.finish();
  }

  Result<std::string> confirm() {
    ConfirmRequest request;
    request.session = in_.session();
    const auto flags = in_.number<std::uint8_t>();
    if ((flags & ~(kFlagDurable | kFlagRest)) != 0) fail(invalid_argument("unknown flags of a confirmation"));
    request.durable = (flags & kFlagDurable) != 0;
    request.released_rest = (flags & kFlagRest) != 0;
    read_names();
    request.groups.resize(count<std::uint32_t>(4));
    for (auto& group : request.groups) read_items(group);
    read_items(request.release);
    LARDER_RETURN_IF_ERROR(finish());
    LARDER_ASSIGN_OR_RETURN(const auto done, service_.confirm(request));
    MessageWriter out = answer_to(WireOperation::kConfirm);
    for (const Status& status : done) {
      out.number(static_cast<std::uint8_t>(status.code()));
      out.key(std::string_view(status.message()).substr(0, kMaxTextBytes));
    }
    return out.finish();
  }

  Result<std::string> remove() {
    read_names();
    std::vector<ConfirmItem> items;
    read_items(items);
    LARDER_RETURN_IF_ERROR(finish());
    LARDER_ASSIGN_OR_RETURN(const auto removed, service_.remove(items));
    return count_answer(WireOperation::kRemove, removed);
  }

  Result<std::string> clear() {
    const MetadataNamespace name = in_.name();
    const std::string_view prefix = key();
    LARDER_RETURN_IF_ERROR(finish());
    LARDER_ASSIGN_OR_RETURN(const auto cleared, service_.clear(name, prefix));
    return count_answer(WireOperation::kClear, cleared);
  }

  Result<std::string> stats() {
    LARDER_RETURN_IF_ERROR(finish());
    LARDER_ASSIGN_OR_RETURN(const auto all, service_.stats());
    MessageWriter out = answer_to(WireOperation::kStats);
    out.number(static_cast<std::uint32_t>(all.size()));
    for (const auto& [name, stats] : all) {
      out.name(name);
      for (const std::uint64_t number : {stats.pages, stats.free, stats.reserved, stats.stored, stats.quarantined,
                                         stats.leased, stats.evicted, stats.expired, stats.refused}) {
        out.number(number);
      }
    }
    return out.finish();
  }

  MetadataService& service_;
  MessageReader in_;
  const std::string_view whole_;
  Status failure_;
  std::vector<MetadataNamespace> names_;
  std::uint64_t items_ = 0;
  std::uint64_t keys_ = 0;
};

WireAnswer error_answer(std::uint8_t operation, const Status& status) {
  MessageWriter out(kAnswerMagic, operation, static_cast<std::uint8_t>(status.code()));
  out.bytes(status.message());
  return {status.code(), 0, out.finish()};
}

}  // namespace

WireGlance glance_at(std::string_view message) {
  WireGlance glance;
  if (message.size() < kWireHeadBytes || !message.starts_with(kAskMagic)) return glance;
  const auto number = static_cast<std::uint8_t>(message[6]);
  if (number < 1 || number > static_cast<std::uint8_t>(WireOperation::kStats)) return glance;
  const auto operation = static_cast<WireOperation>(number);
  glance.operation = operation;
  constexpr std::size_t kDurableAt = kWireHeadBytes + 24;
  const bool is_durable =
      operation == WireOperation::kConfirm && message.size() > kDurableAt && message[kDurableAt] != 0;
  glance.may_wait = is_durable || operation == WireOperation::kInitialize || operation == WireOperation::kClear ||
                    operation == WireOperation::kStats;
  glance.changes = operation != WireOperation::kFind && operation != WireOperation::kStats;
  return glance;
}

WireAnswer answer_wire_request(MetadataService& service, std::string_view message) {
  if (message.size() < kWireHeadBytes) {
    return error_answer(0, invalid_argument(fmt::format("a message of {} bytes has no head", message.size())));
  }
  if (!message.starts_with(kAskMagic)) return error_answer(0, invalid_argument("this is no metadata request"));
  MessageReader head(message.substr(4, kWireHeadBytes - 4));
  const auto version = head.number<std::uint16_t>();
  const auto operation = head.number<std::uint8_t>();
  const auto flags = head.number<std::uint8_t>();
  const auto size = head.number<std::uint32_t>();
  const auto reserved = head.number<std::uint32_t>();
  if (version != kWireVersion) {
    return error_answer(operation,
                        unsupported(fmt::format("version {} is asked, this server speaks {}", version, kWireVersion)));
  }
  if (flags != 0 || reserved != 0) return error_answer(operation, invalid_argument("the head has unknown flags"));
  const std::string_view payload = message.substr(kWireHeadBytes);
  if (size != payload.size()) {
    return error_answer(operation,
                        invalid_argument(fmt::format("the head announces {} bytes, {} came", size, payload.size())));
  }
  if (operation < 1 || operation > static_cast<std::uint8_t>(WireOperation::kStats)) {
    return error_answer(operation, unsupported(fmt::format("there is no operation {}", operation)));
  }
  Request request(service, payload);
  Result<std::string> done = request.run(static_cast<WireOperation>(operation));
  if (!done.is_ok()) return error_answer(operation, done.status());
  return {StatusCode::kOk, request.keys(), std::move(*done)};
}

}  // namespace larder::metadata
