// SPDX-License-Identifier: Apache-2.0
#include "metadata/metadata_wire.h"

#include <fmt/format.h>

#include "metadata/message_bytes.h"

namespace larder::metadata {
namespace {

MessageWriter ask(WireOperation operation) { return MessageWriter(kAskMagic, static_cast<std::uint8_t>(operation), 0); }

Status check_name(const MetadataNamespace* name_space) {
  if (name_space == nullptr) return invalid_argument("a request without a namespace");
  if (name_space->name.size() <= kMaxNamespaceBytes) return Status::ok();
  return invalid_argument(
      fmt::format("a namespace has at most {} bytes, not {}", kMaxNamespaceBytes, name_space->name.size()));
}

Status check_key_size(std::string_view key) {
  if (key.size() <= kMaxKeyBytes) return Status::ok();
  return invalid_argument(fmt::format("a key has at most {} bytes, not {}", kMaxKeyBytes, key.size()));
}

Status check_items(std::uint64_t items) {
  if (items <= kMaxWireItems) return Status::ok();
  return invalid_argument(fmt::format("{} keys and groups in one call: at most {}", items, kMaxWireItems));
}

Result<std::string> finish(MessageWriter& out) {
  if (out.size() > kMaxWireBytes) {
    return invalid_argument(fmt::format("a call of {} bytes: at most {}", out.size(), kMaxWireBytes));
  }
  return out.finish();
}

// The names of a row of items, each once, in the order of their first item.
class NameTable {
 public:
  Status add(const ConfirmItem& item) {
    LARDER_RETURN_IF_ERROR(check_name(item.name_space));
    LARDER_RETURN_IF_ERROR(check_key_size(item.key));
    if (index_.emplace(*item.name_space, index_.size()).second) names_.push_back(item.name_space);
    return names_.size() <= 0xFFFF ? Status::ok() : invalid_argument("more than 65535 namespaces in one call");
  }
  void write(MessageWriter& out) const {
    out.number(static_cast<std::uint16_t>(names_.size()));
    for (const MetadataNamespace* name : names_) out.name(*name);
  }
  void write(MessageWriter& out, std::span<const ConfirmItem> items) const {
    out.number(static_cast<std::uint32_t>(items.size()));
    for (const ConfirmItem& item : items) {
      out.number(static_cast<std::uint16_t>(index_.find(*item.name_space)->second));
      out.key(item.key);
      out.ref(item.ref);
    }
  }

 private:
  std::map<MetadataNamespace, std::size_t> index_;
  std::vector<const MetadataNamespace*> names_;
};

Status broken_answer() { return corrupt("the metadata server's answer is broken"); }

}  // namespace

Result<std::string> encode_initialize(const MetadataNamespace& name_space, std::uint64_t pages) {
  LARDER_RETURN_IF_ERROR(check_name(&name_space));
  MessageWriter out = ask(WireOperation::kInitialize);
  out.name(name_space);
  out.number(pages);
  return finish(out);
}

Result<std::string> encode_find(std::span<const MetadataKeys> wanted, Nanos lease) {
  MessageWriter out = ask(WireOperation::kFind);
  out.nanos(lease.count());
  out.number(static_cast<std::uint32_t>(wanted.size()));
  std::uint64_t items = wanted.size();
  for (const MetadataKeys& group : wanted) {
    items += group.keys.size();
    LARDER_RETURN_IF_ERROR(check_items(items));
    LARDER_RETURN_IF_ERROR(check_name(group.name_space));
    out.name(*group.name_space);
    out.number(static_cast<std::uint32_t>(group.keys.size()));
    for (const std::string_view key : group.keys) {
      LARDER_RETURN_IF_ERROR(check_key_size(key));
      out.key(key);
    }
  }
  return finish(out);
}

Result<std::string> encode_reserve(const MetadataSession& session, std::span<const ReserveItems> wanted, Nanos ttl) {
  MessageWriter out = ask(WireOperation::kReserve);
  out.session(session);
  out.nanos(ttl.count());
  out.number(static_cast<std::uint32_t>(wanted.size()));
  std::uint64_t items = wanted.size();
  for (const ReserveItems& group : wanted) {
    items += group.items.size();
    LARDER_RETURN_IF_ERROR(check_items(items));
    LARDER_RETURN_IF_ERROR(check_name(group.name_space));
    out.name(*group.name_space);
    out.number(static_cast<std::uint32_t>(group.items.size()));
    const ReserveItem* before = nullptr;
    for (const ReserveItem& item : group.items) {
      LARDER_RETURN_IF_ERROR(check_key_size(item.key));
      LARDER_RETURN_IF_ERROR(check_key_size(item.parent));
      out.key(item.key);
      if (before != nullptr && !item.parent.empty() && item.parent == before->key) {
        out.number(kParentIsKeyBefore);
      } else {
        out.key(item.parent);
      }
      before = &item;
    }
  }
  return finish(out);
}

Result<std::string> encode_confirm(const ConfirmRequest& request) {
  NameTable names;
  std::uint64_t items = request.groups.size() + request.release.size();
  for (const auto& group : request.groups) {
    items += group.size();
    LARDER_RETURN_IF_ERROR(check_items(items));
    for (const ConfirmItem& item : group) LARDER_RETURN_IF_ERROR(names.add(item));
  }
  LARDER_RETURN_IF_ERROR(check_items(items));
  for (const ConfirmItem& item : request.release) LARDER_RETURN_IF_ERROR(names.add(item));
  MessageWriter out = ask(WireOperation::kConfirm);
  out.session(request.session);
  out.number(static_cast<std::uint8_t>((request.durable ? kFlagDurable : 0) | (request.released_rest ? kFlagRest : 0)));
  names.write(out);
  out.number(static_cast<std::uint32_t>(request.groups.size()));
  for (const auto& group : request.groups) names.write(out, group);
  names.write(out, request.release);
  return finish(out);
}

Result<std::string> encode_remove(std::span<const ConfirmItem> items) {
  NameTable names;
  LARDER_RETURN_IF_ERROR(check_items(items.size()));
  for (const ConfirmItem& item : items) LARDER_RETURN_IF_ERROR(names.add(item));
  MessageWriter out = ask(WireOperation::kRemove);
  names.write(out);
  names.write(out, items);
  return finish(out);
}

Result<std::string> encode_clear(const MetadataNamespace& name_space, std::string_view prefix) {
  LARDER_RETURN_IF_ERROR(check_name(&name_space));
  LARDER_RETURN_IF_ERROR(check_key_size(prefix));
  MessageWriter out = ask(WireOperation::kClear);
  out.name(name_space);
  out.key(prefix);
  return finish(out);
}

std::string encode_stats() { return ask(WireOperation::kStats).finish(); }

bool is_wire_answer(std::string_view bytes) {
  return bytes.size() >= kWireHeadBytes && bytes.starts_with(kAnswerMagic);
}

Result<std::string_view> open_answer(WireOperation operation, std::string_view answer) {
  if (!is_wire_answer(answer)) return broken_answer();
  MessageReader head(answer.substr(4, kWireHeadBytes - 4));
  const auto version = head.number<std::uint16_t>();
  const auto answered = head.number<std::uint8_t>();
  const auto code = head.number<std::uint8_t>();
  const auto size = head.number<std::uint32_t>();
  const std::string_view payload = answer.substr(kWireHeadBytes);
  if (version != kWireVersion) {
    return unsupported(fmt::format("the metadata server speaks version {}, we speak {}", version, kWireVersion));
  }
  if (size != payload.size() || code > static_cast<std::uint8_t>(StatusCode::kInternal)) return broken_answer();
  // A server that could not read the head answers operation 0.
  if (code != 0) return Status(static_cast<StatusCode>(code), std::string(payload));
  if (answered != static_cast<std::uint8_t>(operation)) return broken_answer();
  return payload;
}

Result<std::uint64_t> decode_count(std::string_view payload) {
  MessageReader in(payload);
  const auto count = in.number<std::uint64_t>();
  if (!in.is_done()) return broken_answer();
  return count;
}

Result<std::vector<std::vector<std::optional<PageRef>>>> decode_find(std::string_view payload,
                                                                     std::span<const MetadataKeys> wanted) {
  MessageReader in(payload);
  std::vector<std::vector<std::optional<PageRef>>> out(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    out[i].resize(wanted[i].keys.size());
    for (auto& found : out[i]) {
      const auto mark = in.number<std::uint8_t>();
      if (mark > 1 || !in.ok()) return broken_answer();
      if (mark == 1) found = in.ref();
    }
  }
  if (!in.is_done()) return broken_answer();
  return out;
}

Result<std::vector<std::vector<Reserved>>> decode_reserve(std::string_view payload,
                                                          std::span<const ReserveItems> wanted) {
  MessageReader in(payload);
  std::vector<std::vector<Reserved>> out(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    out[i].resize(wanted[i].items.size());
    for (Reserved& reserved : out[i]) {
      const auto outcome = in.number<std::uint8_t>();
      if (outcome > static_cast<std::uint8_t>(ReserveOutcome::kFull) || !in.ok()) return broken_answer();
      reserved.outcome = static_cast<ReserveOutcome>(outcome);
      const bool has_page =
          reserved.outcome == ReserveOutcome::kReserved || reserved.outcome == ReserveOutcome::kStored;
      if (has_page) reserved.ref = in.ref();
    }
  }
  if (!in.is_done()) return broken_answer();
  return out;
}

Result<std::vector<Status>> decode_confirm(std::string_view payload, std::size_t groups) {
  MessageReader in(payload);
  std::vector<Status> out;
  out.reserve(groups);
  for (std::size_t i = 0; i < groups; ++i) {
    const auto code = in.number<std::uint8_t>();
    const std::string_view text = in.key();
    if (!in.ok() || code > static_cast<std::uint8_t>(StatusCode::kInternal)) return broken_answer();
    out.emplace_back(static_cast<StatusCode>(code), std::string(text));
  }
  if (!in.is_done()) return broken_answer();
  return out;
}

Result<std::map<MetadataNamespace, NamespaceStats>> decode_stats(std::string_view payload) {
  MessageReader in(payload);
  std::map<MetadataNamespace, NamespaceStats> out;
  const std::size_t names = in.count<std::uint32_t>(81);
  for (std::size_t i = 0; i < names; ++i) {
    NamespaceStats& stats = out[in.name()];
    for (std::uint64_t* number : {&stats.pages, &stats.free, &stats.reserved, &stats.stored, &stats.quarantined,
                                  &stats.leased, &stats.evicted, &stats.expired, &stats.refused}) {
      *number = in.number<std::uint64_t>();
    }
  }
  if (!in.is_done()) return broken_answer();
  return out;
}

}  // namespace larder::metadata
