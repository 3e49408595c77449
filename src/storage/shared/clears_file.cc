// SPDX-License-Identifier: Apache-2.0
#include "storage/shared/clears_file.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/wire_bytes.h"
#include "storage/envelope.h"

namespace larder::share {
namespace {

constexpr std::uint64_t kClearsMagic = 0x4c4352454452414cull;  // "LARDERCL"
constexpr std::uint16_t kClearsVersion = 1;
constexpr std::size_t kChecksumBytes = 16;

Checksum128 checksum_of(std::string_view bytes) {
  PayloadHasher hasher;
  hasher.update(std::as_bytes(std::span(bytes)));
  return hasher.finish();
}

Status broken(std::string_view what) { return corrupt(std::string(kClearsName) + ": " + std::string(what)); }

bool is_possible(const ClearHistory& history) {
  const auto is_between = [&](const auto& cleared) {
    return cleared.second > history.floor && cleared.second <= history.count;
  };
  return history.store != 0 && history.floor <= history.count && history.whole <= history.floor &&
         std::all_of(history.namespaces.begin(), history.namespaces.end(), is_between);
}

}  // namespace

std::string encode_clears(const Digest256& store, const ClearHistory& history) {
  WireWriter writer(kMaxClearsBytes);
  writer.number(kClearsMagic);
  writer.number(kClearsVersion);
  writer.digest(store);
  for (const std::uint64_t number : {history.store, history.count, history.floor, history.whole}) writer.number(number);
  writer.number(static_cast<std::uint32_t>(history.namespaces.size()));
  for (const auto& [digest, count] : history.namespaces) {
    writer.digest(digest);
    writer.number(count);
  }
  std::string out = writer.take();
  const Checksum128 checksum = checksum_of(out);
  WireWriter end(kChecksumBytes);
  end.number(checksum.low);
  end.number(checksum.high);
  return out += end.take();
}

Result<ClearHistory> decode_clears(const Digest256& store, std::string_view bytes) {
  if (bytes.size() < kChecksumBytes) return broken("it is cut off");
  WireReader end(bytes.substr(bytes.size() - kChecksumBytes));
  bytes.remove_suffix(kChecksumBytes);
  Checksum128 checksum;
  checksum.low = end.number<std::uint64_t>();
  checksum.high = end.number<std::uint64_t>();
  if (checksum != checksum_of(bytes)) return broken("its checksum is wrong");
  WireReader reader(bytes);
  if (reader.number<std::uint64_t>() != kClearsMagic) reader.fail();
  if (reader.number<std::uint16_t>() != kClearsVersion) reader.fail();
  if (!reader.ok()) return broken("it is of another version, or none of Larder's");
  if (reader.digest() != store && reader.ok()) return conflict(std::string(kClearsName) + " is of another store");
  ClearHistory out;
  for (std::uint64_t* const number : {&out.store, &out.count, &out.floor, &out.whole}) {
    *number = reader.number<std::uint64_t>();
  }
  const std::size_t namespaces = reader.count<std::uint32_t>(kClearsEntryBytes, ClearHistory::kMostNamespaces);
  for (std::size_t i = 0; i < namespaces; ++i) {
    const Digest256 digest = reader.digest();
    const auto count = reader.number<std::uint64_t>();
    if (!out.namespaces.emplace(digest, count).second) reader.fail();
  }
  if (!reader.is_done() || !is_possible(out)) return broken("its numbers contradict each other");
  return out;
}

}  // namespace larder::share
