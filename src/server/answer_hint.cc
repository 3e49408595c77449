// SPDX-License-Identifier: Apache-2.0
#include "server/answer_hint.h"

#include <fmt/format.h>

#include <string_view>

namespace larder {

std::string answer_hint(unsigned status, const char* key_option, const char* servers) {
  if (status == 401) return fmt::format("; give the server's key with {}", key_option);
  if (status == 404) return fmt::format("; no {} answers there", servers);
  return {};
}

Status with_url_hint(const Status& status, const char* example) {
  const bool is_unreached =
      status.code() == StatusCode::kUnavailable && status.message().starts_with("cannot connect to ");
  if (!is_unreached) return status;
  const std::string_view shown = example;
  return {status.code(), fmt::format("{}; another server: --url{}{}{}", status.message(), shown.empty() ? "" : " (",
                                     shown, shown.empty() ? "" : ")")};
}

}  // namespace larder
