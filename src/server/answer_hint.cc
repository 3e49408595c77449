// SPDX-License-Identifier: Apache-2.0
#include "server/answer_hint.h"

#include <fmt/format.h>

namespace larder {

std::string answer_hint(unsigned status, const char* key_option, const char* servers) {
  if (status == 401) return fmt::format("; give the server's key with {}", key_option);
  if (status == 404) return fmt::format("; no {} answers there", servers);
  return {};
}

}  // namespace larder
