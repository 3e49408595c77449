// SPDX-License-Identifier: Apache-2.0
#include "storage/plugin/plugin_library.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace larder::plugin {
namespace {

// Up to and including `write`: what version 1 began with and cannot do without.
constexpr std::size_t kLeastTableBytes = offsetof(LarderBackendTable, drop);
constexpr std::size_t kMaxNameBytes = 64;

// The layout is the contract with libraries that are compiled elsewhere.
static_assert(sizeof(LarderBackendCall) == 16 && sizeof(LarderBackendSegment) == 16);
static_assert(sizeof(LarderBackendPage) == 176 && offsetof(LarderBackendPage, pool_name) == 128 &&
              offsetof(LarderBackendPage, status) == 140 && offsetof(LarderBackendPage, bytes_done) == 168);
static_assert(sizeof(LarderBackendGroup) == 24 && sizeof(LarderBackendStatistics) == 64);
static_assert(offsetof(LarderBackendTable, create) == 24 && sizeof(LarderBackendTable) == 88);

bool is_name(const char* text) {
  if (text == nullptr) return false;
  const std::size_t length = ::strnlen(text, kMaxNameBytes);
  const auto is_good = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  return length > 0 && length < kMaxNameBytes && std::all_of(text, text + length, is_good);
}

const char* missing_entry(const LarderBackendTable& table) {
  if (table.create == nullptr) return "create";
  if (table.exists == nullptr) return "exists";
  if (table.read == nullptr) return "read";
  return table.write == nullptr ? "write" : nullptr;
}

}  // namespace

Result<LarderBackendTable> take_table(const std::string& path, const LarderBackendTable* table) {
  const std::string place = "backend library '" + path + "': ";
  if (table == nullptr) return unavailable(place + "says that it cannot be used here (no table)");
  if (table->abi_version != LARDER_BACKEND_ABI_VERSION) {
    return unsupported(place + "speaks version " + std::to_string(table->abi_version) + " of the interface, not " +
                       std::to_string(LARDER_BACKEND_ABI_VERSION));
  }
  if (table->struct_size < kLeastTableBytes) {
    return unsupported(place + "its table has " + std::to_string(table->struct_size) + " bytes, at least " +
                       std::to_string(kLeastTableBytes) + " are needed");
  }
  LarderBackendTable out{};
  std::memcpy(&out, table, std::min<std::size_t>(table->struct_size, sizeof out));
  if (const char* const entry = missing_entry(out)) {
    return unsupported(place + "entry '" + entry + "' is null; create, exists, read and write are needed");
  }
  if (!is_name(out.name)) return unsupported(place + "its name is not 1 to 63 characters of a-z, 0-9 and _");
  if (out.alignment != 0 && !std::has_single_bit(out.alignment)) {
    return unsupported(place + "an alignment of " + std::to_string(out.alignment) + " is no power of two");
  }
  return out;
}

}  // namespace larder::plugin
