// SPDX-License-Identifier: Apache-2.0
#include "metadata/request_checks.h"

#include <algorithm>
#include <string>

namespace larder::metadata {

Status check_namespace(const MetadataNamespace* name_space) {
  if (name_space == nullptr) return invalid_argument("a request without a namespace");
  const auto is_bad = [](char c) { return c == ':' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  const std::string& name = name_space->name;
  if (!name.empty() && name_space->text().size() <= kMaxNamespaceBytes &&
      std::none_of(name.begin(), name.end(), is_bad)) {
    return Status::ok();
  }
  return invalid_argument("a namespace's name has 1 to " + std::to_string(kMaxNamespaceBytes) +
                          " bytes with its rank, no ':' and no control characters");
}

Status check_pages(std::uint64_t pages) {
  if (pages > 0 && pages <= kMaxNamespacePages) return Status::ok();
  return invalid_argument("a namespace has 1 to " + std::to_string(kMaxNamespacePages) + " pages, not " +
                          std::to_string(pages));
}

Status check_key(std::string_view key) {
  if (!key.empty() && key.size() <= kMaxKeyBytes) return Status::ok();
  return invalid_argument("a key has 1 to " + std::to_string(kMaxKeyBytes) + " bytes, not " +
                          std::to_string(key.size()));
}

Status check_item(const ReserveItem& item) {
  LARDER_RETURN_IF_ERROR(check_key(item.key));
  return item.parent.empty() ? Status::ok() : check_key(item.parent);
}

}  // namespace larder::metadata
