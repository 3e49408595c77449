// SPDX-License-Identifier: Apache-2.0
#include "base/plain_path.h"

#include <algorithm>
#include <system_error>

namespace larder {

std::filesystem::path plain_path(std::string_view text) {
  std::error_code unknown;
  const std::filesystem::path path = std::filesystem::absolute(text, unknown);
  std::filesystem::path plain = std::filesystem::weakly_canonical(path, unknown);
  if (unknown) plain = path.lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();  // "/a/" is "/a"
}

bool lies_in(const std::filesystem::path& inner, const std::filesystem::path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace larder
