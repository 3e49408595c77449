// SPDX-License-Identifier: Apache-2.0
#include "server/masked_config.h"

#include <algorithm>
#include <array>

#include "server/json_reader.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMask = "***";
constexpr std::string_view kPlugin = "plugin";  // its keys are a library's, of which nobody knows what they mean
constexpr std::string_view kPerToken = "prefetch_timeout_per_ki_token";  // a time; its tokens are a model's
// What Larder itself reads of a plugin's configuration, and does not give to the library.
constexpr std::array<std::string_view, 8> kOwnKeys = {
    "library", "queue_limit",          "prefetch_threshold", "prefetch_timeout_base",
    kPerToken, "prefetch_timeout_max", "tp_lcm_size",        "hicache_storage_pass_prefix_keys"};

// In lower case, without '-' and '_'.
std::string bare_name(std::string_view key) {
  std::string name;
  for (const char c : key) {
    if (c != '_' && c != '-') name += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return name;
}

bool has_text(const Json& value) {
  if (value.is_string()) return true;
  return value.is_structured() && std::any_of(value.begin(), value.end(), has_text);
}

// A "token" that opens something: not a tokenizer, and not a count of a model's tokens, in which no text is.
bool names_token(std::string_view name, const Json& value) {
  constexpr std::string_view kWord = "token";
  for (std::size_t at = name.find(kWord); at != std::string_view::npos; at = name.find(kWord, at + 1)) {
    const std::string_view rest = name.substr(at + kWord.size());
    const bool is_count = rest.starts_with('s') && !has_text(value);
    if (!is_count && !rest.starts_with("iz")) return true;
  }
  return false;
}

// "passw", for password and passwd, but not where "bypass_write" runs together to it.
bool names_password(std::string_view name) {
  for (std::size_t at = name.find("passw"); at != std::string_view::npos; at = name.find("passw", at + 1)) {
    if (!name.substr(0, at).ends_with("by")) return true;
  }
  return false;
}

bool holds_secret(std::string_view key, const Json& value) {
  if (key == kPerToken) return false;
  const std::string name = bare_name(key);
  if (name.ends_with("file") || name.ends_with("path")) return false;  // where it lies, not what it is
  static constexpr std::string_view kWords[] = {"secret",     "passphrase", "credential", "authorization",
                                                "privatekey", "accesskey",  "apikey"};
  const auto is_in_name = [&](std::string_view word) { return name.find(word) != std::string::npos; };
  return std::any_of(std::begin(kWords), std::end(kWords), is_in_name) || names_password(name) ||
         names_token(name, value);
}

void hide(Json& value) { value = value.is_null() || value == "" ? Json(nullptr) : Json(kMask); }

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
    if (holds_secret(key, item)) {
      hide(item);
    } else {
      mask_secrets(item);
    }
  }
}

std::string masked_config(std::string_view backend, std::string_view text) {
  std::string path(text);
  mask_userinfo(path);
  if (text.empty() || text.starts_with('@')) return path;
  if (!parse_json_object(text).is_ok()) return kMask;  // also of what is nested too deep for the next line
  Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);  // once more, as this one keeps the order
  if (backend == kPlugin) {
    for (auto& [key, item] : document.items()) {
      if (std::find(kOwnKeys.begin(), kOwnKeys.end(), key) == kOwnKeys.end()) hide(item);
    }
  }
  mask_secrets(document);
  return dump_json(document);
}

}  // namespace larder
