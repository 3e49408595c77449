// SPDX-License-Identifier: Apache-2.0
#include "base/http_field.h"

#include <algorithm>

namespace larder {
namespace {

constexpr std::string_view kHopByHop[] = {
    "connection", "keep-alive",        "proxy-connection", "proxy-authenticate", "proxy-authorization", "te",
    "trailer",    "transfer-encoding", "upgrade"};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool is_token_char(char c) {
  const bool is_letter = lower(c) >= 'a' && lower(c) <= 'z';
  return is_letter || (c >= '0' && c <= '9') || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

}  // namespace

bool is_same_field_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

const std::string* find_field(std::span<const HttpField> fields, std::string_view name) {
  for (const HttpField& field : fields) {
    if (is_same_field_name(field.name, name)) return &field.value;
  }
  return nullptr;
}

bool is_http_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

bool is_field_value(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte >= 0x20 && byte != 0x7f) || c == '\t';
  });
}

bool has_list_option(std::string_view list, std::string_view option) {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    if (is_same_field_name(trim(list.substr(0, comma)), option)) return true;
    list = comma == std::string_view::npos ? std::string_view{} : list.substr(comma + 1);
  }
  return false;
}

void remove_hop_by_hop(std::vector<HttpField>& fields) {
  std::string named;  // by all Connection fields
  for (const HttpField& field : fields) {
    if (is_same_field_name(field.name, "connection")) named += field.value + ",";
  }
  std::erase_if(fields, [&](const HttpField& field) {
    const auto is_it = [&](std::string_view name) { return is_same_field_name(field.name, name); };
    return std::any_of(std::begin(kHopByHop), std::end(kHopByHop), is_it) || has_list_option(named, field.name);
  });
}

void remove_field(std::vector<HttpField>& fields, std::string_view name) {
  std::erase_if(fields, [&](const HttpField& field) { return is_same_field_name(field.name, name); });
}

}  // namespace larder
