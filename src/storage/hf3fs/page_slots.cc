// SPDX-License-Identifier: Apache-2.0
#include "storage/hf3fs/page_slots.h"

#include <charconv>
#include <optional>

namespace larder::hf3fs {
namespace {

constexpr std::size_t kFingerprintDigits = 16;
constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{1} << 40;
constexpr std::uint64_t kMaxFiles = 4096;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t to) { return (bytes + to - 1) / to * to; }

// Takes "-<mark><digits>" from the front of `text`.
std::optional<std::uint64_t> take_number(std::string_view& text, char mark) {
  if (text.size() < 3 || text[0] != '-' || text[1] != mark) return std::nullopt;
  std::uint64_t value = 0;
  const char* const begin = text.data() + 2;
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  if (error != std::errc{} || end == begin) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

}  // namespace

SlotAddress SlotGeometry::address_of(std::uint64_t page) const {
  const std::uint64_t index = page / files;
  const auto file = static_cast<std::uint32_t>(page % files);
  if (chunk_bytes == 0 || slot_bytes >= chunk_bytes) return {file, index * slot_bytes};
  const std::uint64_t per_chunk = chunk_bytes / slot_bytes;
  return {file, index / per_chunk * chunk_bytes + index % per_chunk * slot_bytes};
}

std::uint64_t SlotGeometry::pages_in(std::uint64_t bytes) const {
  const std::uint64_t per_file = bytes / files;
  if (chunk_bytes == 0 || slot_bytes >= chunk_bytes) return per_file / slot_bytes * files;
  return per_file / chunk_bytes * (chunk_bytes / slot_bytes) * files;
}

std::uint64_t transfer_bytes(std::uint64_t payload_bytes) {
  return kHeadBytes + round_up(payload_bytes, kSlotAlignment);
}

SlotGeometry make_slot_geometry(std::uint64_t payload_bytes, std::uint64_t chunk_bytes, std::uint32_t files) {
  SlotGeometry out{transfer_bytes(payload_bytes), chunk_bytes, files};
  if (chunk_bytes != 0 && out.slot_bytes >= chunk_bytes) out.slot_bytes = round_up(out.slot_bytes, chunk_bytes);
  return out;
}

std::string namespace_prefix(PoolName pool, const Digest256& layout_fingerprint) {
  return std::string(pool_name(pool)) + '-' + layout_fingerprint.hex().substr(0, kFingerprintDigits) + '-';
}

std::string namespace_name(PoolName pool, const Digest256& layout_fingerprint, const NamedGeometry& geometry) {
  return namespace_prefix(pool, layout_fingerprint) + 'b' + std::to_string(geometry.payload_bytes) + "-c" +
         std::to_string(geometry.slots.chunk_bytes) + "-f" + std::to_string(geometry.slots.files);
}

std::string_view namespace_prefix_of(std::string_view name) {
  return name.substr(0, name.find('-') + 1 + kFingerprintDigits + 1);
}

Result<NamedGeometry> parse_namespace_name(std::string_view name) {
  const Status bad = invalid_argument("'" + std::string(name) + "' is not a namespace of this backend");
  const std::size_t dash = name.find('-');
  if (dash == std::string_view::npos || name.size() < dash + 1 + kFingerprintDigits) return bad;
  name.remove_prefix(dash + 1 + kFingerprintDigits);
  const auto payload = take_number(name, 'b');
  if (!payload || *payload > kMaxPayloadBytes) return bad;
  const auto chunk = take_number(name, 'c');
  if (!chunk) return bad;
  const auto files = take_number(name, 'f');
  if (!files || *files == 0 || *files > kMaxFiles || !name.empty()) return bad;
  return NamedGeometry{*payload, make_slot_geometry(*payload, *chunk, static_cast<std::uint32_t>(*files))};
}

}  // namespace larder::hf3fs
