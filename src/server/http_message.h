// An HTTP request and its answer as values: what handlers see, free of any HTTP library.
//
// Threads: values and pure functions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace larder {

struct HttpRequest {
  std::string method;                        // as sent: "GET"
  std::string path;                          // percent-decoded, without the query: "/flush_cache"
  std::map<std::string, std::string> query;  // percent-decoded; the last of a name counts
  std::string authorization;                 // the header's value, or empty
  bool is_loopback = false;                  // the peer is on this machine
  std::string body;
};

struct HttpResponse {
  unsigned status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // further ones
};

// "OK", "Not Found", ...; "Status" for a code we never send.
[[nodiscard]] std::string_view http_reason(unsigned status);

// "%41+b" -> "A b" when `plus_is_space`. nullopt: a '%' without two hex digits.
[[nodiscard]] std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space);

// Splits "/a/b?x=1&y" into path and query of `out`. kInvalidArgument: no leading '/', or a broken '%'.
[[nodiscard]] Status parse_target(std::string_view target, HttpRequest& out);

// A duration given in seconds as decimal text: finite, 0 <= x <= max. `fallback` when the query lacks `name`.
// kInvalidArgument names the parameter and its range.
[[nodiscard]] Result<double> query_seconds(const HttpRequest& request, const std::string& name, double fallback,
                                           double max_seconds);

}  // namespace larder
