// SPDX-License-Identifier: Apache-2.0
#include "metadata/journal.h"

#include "base/bytes.h"

namespace larder::metadata {

void JournalBatch::add(char kind, std::string_view key, std::string_view value) {
  char size[sizeof(std::uint32_t)];
  bytes_ += kind;
  store_le(size, static_cast<std::uint32_t>(key.size()));
  bytes_.append(size, sizeof size).append(key);
  store_le(size, static_cast<std::uint32_t>(value.size()));
  bytes_.append(size, sizeof size).append(value);
}

std::string_view JournalBatch::take(std::string_view& left, std::size_t skip) {
  const std::size_t size = load_le<std::uint32_t>(left.data() + skip);
  const std::string_view taken = left.substr(skip + sizeof(std::uint32_t), size);
  left.remove_prefix(skip + sizeof(std::uint32_t) + size);
  return taken;
}

}  // namespace larder::metadata
