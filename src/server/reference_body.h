// The bodies of the reference's metadata calls (server/reference_routes.h), read in one pass.
//
// Threads: values. Lifetime: the views point into the text and into the body itself, which therefore stays in place.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/json_scanner.h"
#include "server/reference_routes.h"

namespace larder {

struct ReferenceBody {
  explicit ReferenceBody(std::string_view text) : scanner(text) {}

  std::int64_t num_pages = 0;
  std::string_view name_space = "kv";
  std::vector<std::string_view> keys;                              // as MetadataService takes them
  std::vector<ReserveItem> wishes;                                 // keys of reserve
  std::vector<std::pair<std::string_view, std::int64_t>> written;  // of confirm
  std::vector<std::int64_t> released;

  JsonScanner scanner;            // owns strings that were escaped
  std::deque<std::string> place;  // owns keys that are kept under another name
};

// kInvalidArgument: what is wrong; body.scanner.is_malformed() tells bad JSON from bad fields.
[[nodiscard]] Status read_reference_body(ReferenceRoutes::Call call, ReferenceBody& body);

}  // namespace larder
