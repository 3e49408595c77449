// SPDX-License-Identifier: Apache-2.0
// An HTTP request and its answer as values: what handlers see, free of any HTTP library.
//
// Threads: values and pure functions.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/http_field.h"
#include "base/status.h"

namespace larder {

struct HttpRequest {
  std::string method;                        // as sent: "GET"; a HEAD is a GET here, see is_head
  bool is_head = false;                      // answer as to GET: the listener leaves the body out
  std::string target;                        // as sent, with the query, from its path on: "/a%20b?x=1"
  std::string path;                          // percent-decoded, without the query: "/flush_cache"
  std::map<std::string, std::string> query;  // percent-decoded; the last of a name counts
  std::vector<HttpField> fields;             // as sent, in their order (those of one name together)
  std::string authorization;                 // the header's value, or empty
  bool is_loopback = false;                  // the peer is on this machine: no web page, and no proxy
  std::string peer;                          // its address, without the port; empty: unknown
  std::string id;                            // X-Request-Id: the client's, if it may stand in a log; else a new one
  std::string body;
  std::shared_ptr<const void> body_hold;  // while it lives, the body counts (ListenOptions::max_open_body_bytes)
};

struct HttpResponse {
  unsigned status = 200;                          // 200 or above; 204 and 304 have no body
  std::string content_type = "application/json";  // empty: says none
  std::string body;
  // Further ones, none of which ends a line. The listener writes Connection, Content-Length and Transfer-Encoding
  // itself, and Server unless it is here.
  std::vector<std::pair<std::string, std::string>> headers;
};

[[nodiscard]] HttpResponse json_response(std::string body, unsigned status = 200);
[[nodiscard]] HttpResponse text_response(unsigned status, std::string_view text);  // UTF-8

// Could a web page of another site have made a browser on this machine send the request? Its Origin or Sec-Fetch-Site
// says so, or its Host is a name other than localhost: the page's own, if its owner lets it point here (DNS rebinding).
// What other programs send has none of this, unless they call this machine by a name.
[[nodiscard]] bool is_from_web_page(std::span<const HttpField> fields);

// Has a proxy passed the request on? Then its peer is the proxy, and says nothing about where the request is from.
[[nodiscard]] bool is_forwarded(std::span<const HttpField> fields);

// May a client's X-Request-Id stand in logs and answers? 1 to 128 of A-Z a-z 0-9 . _ : -
[[nodiscard]] bool is_request_id(std::string_view text);

// "OK", "Not Found", ...; "Status" for a code that is rare.
[[nodiscard]] std::string_view http_reason(unsigned status);

// Without a body whatever is asked: 204 and 304.
[[nodiscard]] bool is_bodyless_status(unsigned status);

// The bytes of an answer's head, without what says how long the body is, and without the empty line.
[[nodiscard]] std::string http_head_text(const HttpResponse& answer, bool keep_alive, std::string_view id);
// All bytes of an answer; to HEAD without the body.
[[nodiscard]] std::string http_answer_text(const HttpResponse& answer, bool keep_alive, std::string_view id,
                                           bool is_head);

// The head of another server's answer as that of ours, for HttpExchange::respond() and begin_stream(): Content-Type
// goes to its place, and what is for one hop (remove_hop_by_hop) and Content-Length are left out.
[[nodiscard]] HttpResponse passed_head(unsigned status, std::vector<HttpField> fields);

// A target from its path on. One that a client sends to a proxy begins with "http://host" (RFC 9112, 3.2.2), and is
// meant for us if it comes to us. "OPTIONS *" and others stay as they are.
[[nodiscard]] std::string origin_form(std::string_view target);

// Splits "/a/b?x=1&y" into path and query of `out`. kInvalidArgument: no leading '/', or a broken '%'.
[[nodiscard]] Status parse_target(std::string_view target, HttpRequest& out);

// A number as decimal text, such as a duration in seconds: finite, 0 <= x <= max. `fallback` when the query lacks
// `name`. kInvalidArgument names the parameter and its range.
[[nodiscard]] Result<double> query_number(const HttpRequest& request, const std::string& name, double fallback,
                                          double most);

}  // namespace larder
