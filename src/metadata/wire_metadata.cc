// SPDX-License-Identifier: Apache-2.0
#include "metadata/wire_metadata.h"

namespace larder {

using metadata::WireOperation;

template <class T, class Decode>
Result<T> WireMetadata::call(WireOperation operation, const Result<std::string>& message, Decode decode) {
  if (!message.is_ok()) return message.status();
  LARDER_ASSIGN_OR_RETURN(const std::string answer, exchange(*message));
  LARDER_ASSIGN_OR_RETURN(const std::string_view payload, metadata::open_answer(operation, answer));
  return decode(payload);
}

Result<std::uint64_t> WireMetadata::initialize(const MetadataNamespace& name_space, std::uint64_t pages) {
  return call<std::uint64_t>(WireOperation::kInitialize, metadata::encode_initialize(name_space, pages),
                             metadata::decode_count);
}

Result<std::vector<std::vector<std::optional<PageRef>>>> WireMetadata::find(std::span<const MetadataKeys> wanted,
                                                                            Nanos lease) {
  return call<std::vector<std::vector<std::optional<PageRef>>>>(
      WireOperation::kFind, metadata::encode_find(wanted, lease),
      [&](std::string_view payload) { return metadata::decode_find(payload, wanted); });
}

Result<std::vector<std::vector<Reserved>>> WireMetadata::reserve(const MetadataSession& session,
                                                                 std::span<const ReserveItems> wanted, Nanos ttl) {
  return call<std::vector<std::vector<Reserved>>>(
      WireOperation::kReserve, metadata::encode_reserve(session, wanted, ttl),
      [&](std::string_view payload) { return metadata::decode_reserve(payload, wanted); });
}

Result<std::vector<Status>> WireMetadata::confirm(const ConfirmRequest& request) {
  return call<std::vector<Status>>(
      WireOperation::kConfirm, metadata::encode_confirm(request),
      [&](std::string_view payload) { return metadata::decode_confirm(payload, request.groups.size()); });
}

Result<std::uint64_t> WireMetadata::remove(std::span<const ConfirmItem> items) {
  return call<std::uint64_t>(WireOperation::kRemove, metadata::encode_remove(items), metadata::decode_count);
}

Result<std::uint64_t> WireMetadata::clear(const MetadataNamespace& name_space, std::string_view prefix) {
  return call<std::uint64_t>(WireOperation::kClear, metadata::encode_clear(name_space, prefix), metadata::decode_count);
}

Result<std::map<MetadataNamespace, NamespaceStats>> WireMetadata::stats() {
  return call<std::map<MetadataNamespace, NamespaceStats>>(WireOperation::kStats, metadata::encode_stats(),
                                                           metadata::decode_stats);
}

}  // namespace larder
