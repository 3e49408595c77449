// SPDX-License-Identifier: Apache-2.0
#include "server/masked_config.h"

#include <algorithm>

#include "server/json_reader.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMask = "***";
constexpr std::string_view kNoSecret = "prefetch_timeout_per_ki_token";  // a time; its tokens are a model's

bool names_secret(std::string_view key) {
  if (key == kNoSecret) return false;
  std::string words;
  for (const char c : key) {
    if (c != '_' && c != '-') words += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  static constexpr std::string_view kEndings[] = {"apikey", "password", "token", "secret"};
  return std::any_of(std::begin(kEndings), std::end(kEndings), [&](auto ending) { return words.ends_with(ending); });
}

// "redis://user:password@host" becomes "redis://***@host". To the last '@', whatever stands there: a password may have
// a '/' or an '@' of its own, and a path that is hidden with it is the smaller loss.
void mask_userinfo(std::string& text) {
  const std::size_t scheme = text.find("://");
  const std::size_t at = text.rfind('@');
  if (scheme == std::string::npos || at == std::string::npos || at < scheme + 3) return;
  text.replace(scheme + 3, at - scheme - 3, kMask);
}

}  // namespace

void mask_secrets(Json& value) {
  if (value.is_string()) return mask_userinfo(value.get_ref<std::string&>());
  if (!value.is_structured()) return;
  for (auto& [key, item] : value.items()) {
    if (names_secret(key)) {
      item = item.is_null() || item == "" ? Json(nullptr) : Json(kMask);
    } else {
      mask_secrets(item);
    }
  }
}

std::string masked_config(std::string_view text) {
  std::string path(text);
  mask_userinfo(path);
  if (text.empty() || text.starts_with('@')) return path;
  if (!parse_json_object(text).is_ok()) return kMask;  // also of what is nested too deep for the next line
  Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);  // once more, as this one keeps the order
  mask_secrets(document);
  return dump_json(document);
}

}  // namespace larder
