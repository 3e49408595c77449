// SPDX-License-Identifier: Apache-2.0
#include "engine/real_piped_text.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/file_system.h"

namespace larder {

Result<std::string> read_piped_text(int descriptor, const std::string& path, std::uint64_t max_bytes) {
  std::string text;
  std::array<char, 4096> part;
  while (text.size() <= max_bytes) {
    const std::uint64_t wanted = std::min<std::uint64_t>(part.size(), max_bytes + 1 - text.size());
    const ssize_t got = ::read(descriptor, part.data(), static_cast<std::size_t>(wanted));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return status_from_errno(errno, "read", path);
    if (got == 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return text;
}

}  // namespace larder
