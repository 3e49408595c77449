// SPDX-License-Identifier: Apache-2.0
// Header fields of HTTP: what the client and the listener know about them alike.
//
// Purpose: names compare without regard to case; what may stand in a field; which fields end at the next hop.
// Threads: values and pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

struct HttpField {
  std::string name;
  std::string value;  // without the blanks around it
  bool operator==(const HttpField&) const = default;
};

// ASCII letters, whatever their case.
[[nodiscard]] bool is_same_field_name(std::string_view a, std::string_view b);
// The value of the first field of that name; nullptr: none has it.
[[nodiscard]] const std::string* find_field(std::span<const HttpField> fields, std::string_view name);
// What a method or the name of a field is made of (RFC 9110 section 5.6.2): never empty, no blank, no control
// character.
[[nodiscard]] bool is_http_token(std::string_view text);
// No control character but the tab: nothing that ends a line. Empty is fine.
[[nodiscard]] bool is_field_value(std::string_view text);
// Whether a comma-separated list, as the value of Connection, has `option`.
[[nodiscard]] bool has_list_option(std::string_view list, std::string_view option);

// Takes out what is only for the connection it came on (RFC 9110 section 7.6.1): Connection and every field that it
// names, Keep-Alive, Proxy-Connection, Proxy-Authenticate, Proxy-Authorization, TE, Trailer, Transfer-Encoding,
// Upgrade.
void remove_hop_by_hop(std::vector<HttpField>& fields);
// Takes out every field of that name.
void remove_field(std::vector<HttpField>& fields, std::string_view name);

}  // namespace larder
