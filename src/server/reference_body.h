// SPDX-License-Identifier: Apache-2.0
// The bodies of the reference's metadata calls (server/reference_routes.h), read by simdjson.
//
// Threads: confined. Lifetime: the views point into the body itself, which therefore stays in place; not into the text.
// Cost: a copy of the text, its strings again, and 4 to 20 bytes for each value, until the body goes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/reference_routes.h"

namespace simdjson::dom {
class parser;
}

namespace larder {

class ReferenceBody {
 public:
  ReferenceBody();
  ReferenceBody(const ReferenceBody&) = delete;
  ReferenceBody& operator=(const ReferenceBody&) = delete;
  ~ReferenceBody();

  // Once. kInvalidArgument: what is wrong; is_malformed tells bad JSON from bad fields.
  [[nodiscard]] Status read(ReferenceRoutes::Call call, std::string_view text);

  bool is_malformed = false;
  std::int64_t num_pages = 0;
  std::string_view name_space = "kv";
  std::vector<std::string_view> keys;                              // as MetadataService takes them
  std::vector<ReserveItem> wishes;                                 // keys of reserve
  std::vector<std::pair<std::string_view, std::int64_t>> written;  // of confirm
  std::vector<std::int64_t> released;

 private:
  class Fields;                                    // of one call
  std::unique_ptr<simdjson::dom::parser> parser_;  // owns all strings
  std::deque<std::string> place_;                  // owns keys that are kept under another name
};

}  // namespace larder
