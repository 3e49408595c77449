// SPDX-License-Identifier: Apache-2.0
#include "server/reference_body.h"

#include <fmt/format.h>
#include <simdjson.h>

#include "key/sha256.h"
#include "server/json_reader.h"

namespace larder {
namespace {

using Call = ReferenceRoutes::Call;
using simdjson::dom::element;
using simdjson::dom::element_type;

std::string_view kind_of(const element& value) {
  switch (value.type()) {
    case element_type::OBJECT: return "an object";
    case element_type::ARRAY: return "an array";
    case element_type::STRING: return "a string";
    case element_type::BOOL: return "a boolean";
    case element_type::NULL_VALUE: return "null";
    default: return "a number";
  }
}

Status unexpected(std::string_view what, std::string_view expected, const element& value) {
  return invalid_argument(fmt::format("'{}' must be {}, got {}", what, expected, kind_of(value)));
}

Status read_array(const element& value, std::string_view what, simdjson::dom::array& out) {
  return value.get(out) == simdjson::SUCCESS ? Status::ok() : unexpected(what, "an array", value);
}

Status read_string(const element& value, std::string_view what, std::string_view& out) {
  return value.get(out) == simdjson::SUCCESS ? Status::ok() : unexpected(what, "a string", value);
}

Status read_integer(const element& value, std::string_view what, std::int64_t& out) {
  if (!value.is_number()) return unexpected(what, "an integer", value);
  if (value.get(out) == simdjson::SUCCESS) return Status::ok();
  return invalid_argument(
      fmt::format("'{}' must be an integer of 64 bits, got {}", what, simdjson::minify(value).substr(0, 40)));
}

// "[[a, b], ...]": first and second of each.
template <class Take>
Status for_each_pair(const element& value, std::string_view what, std::string_view parts, Take&& take) {
  simdjson::dom::array list;
  LARDER_RETURN_IF_ERROR(read_array(value, what, list));
  for (const element& entry : list) {
    simdjson::dom::array pair;
    LARDER_RETURN_IF_ERROR(read_array(entry, fmt::format("{}[]", what), pair));
    if (pair.size() != 2) {
      return invalid_argument(fmt::format("'{}[]' must be {}, got {} values", what, parts, pair.size()));
    }
    auto at = pair.begin();
    const element first = *at;
    LARDER_RETURN_IF_ERROR(take(first, *++at));
  }
  return Status::ok();
}

}  // namespace

// A member that comes twice counts as it stood last.
class ReferenceBody::Fields {
 public:
  Fields(Call call, ReferenceBody& body) : call_(call), body_(body) {}

  [[nodiscard]] Status read(const element& document) {
    simdjson::dom::object members;
    if (document.get(members) != simdjson::SUCCESS) return unexpected("body", "an object", document);
    for (const auto& member : members) LARDER_RETURN_IF_ERROR(read_member(member.key, member.value));
    const bool needs_keys = call_ != Call::kInitialize && call_ != Call::kConfirm && call_ != Call::kClear;
    if (call_ == Call::kInitialize && !has_pages_) return invalid_argument("'num_pages' is missing");
    if (needs_keys && !has_keys_) return invalid_argument("'keys' is missing");
    return Status::ok();
  }

 private:
  [[nodiscard]] Status read_member(std::string_view name, const element& value) {
    if (name == "namespace") return value.is_null() ? Status::ok() : read_string(value, name, body_.name_space);
    if (name == "num_pages" && call_ == Call::kInitialize) {
      has_pages_ = true;
      return read_integer(value, name, body_.num_pages);
    }
    if (name == "keys" && call_ == Call::kReserve) return read_wishes(value);
    if (name == "keys" && (call_ == Call::kExists || call_ == Call::kGet || call_ == Call::kDelete)) {
      return read_keys(value);
    }
    if (call_ != Call::kConfirm || value.is_null()) return Status::ok();
    if (name == "written_keys_to_confirm") return read_written(value);
    if (name == "pages_to_release") return read_released(value);
    return Status::ok();
  }

  [[nodiscard]] Status read_keys(const element& value) {
    has_keys_ = true;
    body_.keys.clear();
    simdjson::dom::array list;
    LARDER_RETURN_IF_ERROR(read_array(value, "keys", list));
    for (const element& entry : list) {
      std::string_view key;
      LARDER_RETURN_IF_ERROR(read_string(entry, "keys[]", key));
      body_.keys.push_back(stored_key(key, body_.place_));
    }
    return Status::ok();
  }

  // [[key, prefix_key], ...]; a prefix of null is none.
  [[nodiscard]] Status read_wishes(const element& value) {
    has_keys_ = true;
    body_.wishes.clear();
    return for_each_pair(value, "keys", "[key, prefix_key]", [&](const element& first, const element& second) {
      std::string_view key, prefix;
      LARDER_RETURN_IF_ERROR(read_string(first, "keys[][0]", key));
      if (!second.is_null()) LARDER_RETURN_IF_ERROR(read_string(second, "keys[][1]", prefix));
      ReserveItem item{stored_key(key, body_.place_), {}};
      if (!prefix.empty()) item.parent = stored_key(prefix, body_.place_);
      body_.wishes.push_back(item);
      return Status::ok();
    });
  }

  [[nodiscard]] Status read_written(const element& value) {
    body_.written.clear();
    return for_each_pair(value, "written_keys_to_confirm", "[key, page]",
                         [&](const element& first, const element& second) {
                           std::string_view key;
                           std::int64_t page = -1;
                           LARDER_RETURN_IF_ERROR(read_string(first, "written_keys_to_confirm[][0]", key));
                           LARDER_RETURN_IF_ERROR(read_integer(second, "written_keys_to_confirm[][1]", page));
                           body_.written.emplace_back(stored_key(key, body_.place_), page);
                           return Status::ok();
                         });
  }

  [[nodiscard]] Status read_released(const element& value) {
    body_.released.clear();
    simdjson::dom::array list;
    LARDER_RETURN_IF_ERROR(read_array(value, "pages_to_release", list));
    for (const element& entry : list) {
      std::int64_t page = -1;
      LARDER_RETURN_IF_ERROR(read_integer(entry, "pages_to_release[]", page));
      body_.released.push_back(page);
    }
    return Status::ok();
  }

  const Call call_;
  ReferenceBody& body_;
  bool has_pages_ = false, has_keys_ = false;
};

ReferenceBody::ReferenceBody() : parser_(std::make_unique<simdjson::dom::parser>()) {}
ReferenceBody::~ReferenceBody() = default;

std::string_view stored_key(std::string_view key, std::deque<std::string>& place) {
  if (!key.empty() && key.size() <= kMaxKeyBytes && key.front() != '\0') return key;
  const Digest256 digest = sha256(key);
  std::string& stored = place.emplace_back(1, '\0');
  for (const std::uint8_t byte : digest.bytes) stored += static_cast<char>(byte);
  return stored;
}

Status ReferenceBody::read(Call call, std::string_view text) {
  LARDER_RETURN_IF_ERROR(check_json_values(text));
  if (text.data() == nullptr) text = "";  // simdjson copies even no bytes, which memcpy allows from a real place only
  element document;
  simdjson::error_code error = parser_->allocate(text.size() + 1, kMaxJsonDepth + 1);
  if (error == simdjson::SUCCESS) error = parser_->parse(text.data(), text.size()).get(document);
  if (error == simdjson::SUCCESS) return Fields(call, *this).read(document);
  if (error == simdjson::MEMALLOC)
    return overloaded("no memory for a body of " + std::to_string(text.size()) + " bytes");
  // simdjson says what is wrong, and not where; and numbers of more than 64 bits are JSON, which it refuses.
  is_malformed =
      text.find('\0') != std::string_view::npos || text.starts_with("\xEF\xBB\xBF") || !nlohmann::json::accept(text);
  LARDER_ASSIGN_OR_RETURN(const nlohmann::json placed, parse_json_object(text));
  if (is_malformed) return invalid_argument(fmt::format("malformed JSON: {}", simdjson::error_message(error)));
  return invalid_argument("the body has a number that is too large for 64 bits");
}

}  // namespace larder
