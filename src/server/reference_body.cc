#include "server/reference_body.h"

#include <fmt/format.h>

#include "key/sha256.h"

namespace larder {
namespace {

using Call = ReferenceRoutes::Call;

// The fields that were there.
struct Seen {
  bool num_pages = false;
  bool keys = false;
};

void read_keys(ReferenceBody& body) {
  JsonScanner& in = body.scanner;
  body.keys.clear();
  if (!in.enter_array("keys")) return;
  while (in.next_element()) {
    std::string_view key;
    if (!in.read_string("keys[]", key)) return;
    body.keys.push_back(stored_key(key, body.place));
  }
}

// [[key, prefix_key], ...]; a prefix of null is none.
void read_wishes(ReferenceBody& body) {
  JsonScanner& in = body.scanner;
  body.wishes.clear();
  if (!in.enter_array("keys")) return;
  while (in.next_element()) {
    std::string_view key, prefix;
    std::size_t parts = 0;
    if (!in.enter_array("keys[]")) return;
    for (; in.next_element(); ++parts) {
      if (parts == 0 && !in.read_string("keys[][0]", key)) return;
      if (parts == 1 && !in.read_null() && !in.read_string("keys[][1]", prefix)) return;
      if (parts > 1 && !in.skip()) return;
    }
    if (parts != 2)
      return in.fail(invalid_argument(fmt::format("'keys[]' must be [key, prefix_key], got {} values", parts)));
    ReserveItem item{stored_key(key, body.place), {}};
    if (!prefix.empty()) item.parent = stored_key(prefix, body.place);
    body.wishes.push_back(item);
  }
}

void read_written(ReferenceBody& body) {
  JsonScanner& in = body.scanner;
  body.written.clear();
  if (in.read_null() || !in.enter_array("written_keys_to_confirm")) return;
  while (in.next_element()) {
    std::string_view key;
    std::int64_t page = -1;
    std::size_t parts = 0;
    if (!in.enter_array("written_keys_to_confirm[]")) return;
    for (; in.next_element(); ++parts) {
      if (parts == 0 && !in.read_string("written_keys_to_confirm[][0]", key)) return;
      if (parts == 1 && !in.read_integer("written_keys_to_confirm[][1]", page)) return;
      if (parts > 1 && !in.skip()) return;
    }
    if (parts != 2) {
      return in.fail(
          invalid_argument(fmt::format("'written_keys_to_confirm[]' must be [key, page], got {} values", parts)));
    }
    body.written.emplace_back(stored_key(key, body.place), page);
  }
}

void read_released(ReferenceBody& body) {
  JsonScanner& in = body.scanner;
  body.released.clear();
  if (in.read_null() || !in.enter_array("pages_to_release")) return;
  while (in.next_element()) {
    std::int64_t page = -1;
    if (!in.read_integer("pages_to_release[]", page)) return;
    body.released.push_back(page);
  }
}

void read_member(Call call, std::string_view name, ReferenceBody& body, Seen& seen) {
  JsonScanner& in = body.scanner;
  if (name == "namespace") {
    if (!in.read_null()) in.read_string("namespace", body.name_space);
  } else if (name == "num_pages" && call == Call::kInitialize) {
    seen.num_pages = in.read_integer("num_pages", body.num_pages);
  } else if (name == "keys" && call == Call::kReserve) {
    seen.keys = true;
    read_wishes(body);
  } else if (name == "keys" && (call == Call::kExists || call == Call::kGet || call == Call::kDelete)) {
    seen.keys = true;
    read_keys(body);
  } else if (name == "written_keys_to_confirm" && call == Call::kConfirm) {
    read_written(body);
  } else if (name == "pages_to_release" && call == Call::kConfirm) {
    read_released(body);
  } else {
    in.skip();
  }
}

}  // namespace

std::string_view stored_key(std::string_view key, std::deque<std::string>& place) {
  if (!key.empty() && key.size() <= kMaxKeyBytes && key.front() != '\0') return key;
  const Digest256 digest = sha256(key);
  std::string& stored = place.emplace_back(1, '\0');
  for (const std::uint8_t byte : digest.bytes) stored += static_cast<char>(byte);
  return stored;
}

Status read_reference_body(Call call, ReferenceBody& body) {
  JsonScanner& in = body.scanner;
  Seen seen;
  std::string_view name;
  if (in.enter_object("body")) {
    while (in.next_member(name)) read_member(call, name, body, seen);
  }
  in.finish();
  LARDER_RETURN_IF_ERROR(in.status());
  const bool needs_keys = call != Call::kInitialize && call != Call::kConfirm && call != Call::kClear;
  if (call == Call::kInitialize && !seen.num_pages) return invalid_argument("'num_pages' is missing");
  if (needs_keys && !seen.keys) return invalid_argument("'keys' is missing");
  return Status::ok();
}

}  // namespace larder
