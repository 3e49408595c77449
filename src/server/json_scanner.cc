#include "server/json_scanner.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "server/json_reader.h"

namespace larder {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(std::uint32_t code, std::string& out) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string_view kind_of(char c) {
  switch (c) {
    case '{': return "an object";
    case '[': return "an array";
    case '"': return "a string";
    case 't':
    case 'f': return "a boolean";
    case 'n': return "null";
    default: return "a number";
  }
}

}  // namespace

void JsonScanner::fail(Status status) {
  if (status_.is_ok()) status_ = std::move(status);
}

bool JsonScanner::malformed(std::string_view problem) {
  if (status_.is_ok()) {
    is_malformed_ = true;
    status_ = invalid_argument(fmt::format("malformed JSON at byte {}: {}", at_, problem));
  }
  return false;
}

// A value of another kind. Text that is no value at all is malformed.
bool JsonScanner::unexpected(std::string_view what, std::string_view expected) {
  if (!status_.is_ok()) return false;
  const std::size_t begin = at_;
  const char first = peek();
  if (!skip_at(0)) return false;
  at_ = begin;
  fail(invalid_argument(fmt::format("'{}' must be {}, got {}", what, expected, kind_of(first))));
  return false;
}

char JsonScanner::peek() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return c;
    ++at_;
  }
  return 0;
}

bool JsonScanner::enter(char open, std::string_view what, std::string_view expected) {
  if (!status_.is_ok()) return false;
  if (peek() != open) return unexpected(what, expected);
  ++at_;
  needs_comma_ = false;
  return true;
}

bool JsonScanner::enter_object(std::string_view what) { return enter('{', what, "an object"); }
bool JsonScanner::enter_array(std::string_view what) { return enter('[', what, "an array"); }

bool JsonScanner::next(char close) {
  if (!status_.is_ok()) return false;
  char c = peek();
  if (c == close) {
    ++at_;
    needs_comma_ = true;
    return false;
  }
  if (!needs_comma_) return true;
  if (c != ',') return malformed(close == ']' ? "',' or ']' is expected" : "',' or '}' is expected");
  ++at_;
  if (peek() == close) return malformed("a value is expected behind ','");
  return true;
}

bool JsonScanner::next_element() { return next(']'); }

bool JsonScanner::next_member(std::string_view& name) {
  if (!next('}')) return false;
  if (peek() != '"') return malformed("a member's name is expected");
  if (!scan_string(name)) return false;
  if (peek() != ':') return malformed("':' is expected");
  ++at_;
  needs_comma_ = false;
  return true;
}

bool JsonScanner::read_string(std::string_view what, std::string_view& out) {
  if (!status_.is_ok()) return false;
  if (peek() != '"') return unexpected(what, "a string");
  return scan_string(out) && value_read();
}

bool JsonScanner::read_integer(std::string_view what, std::int64_t& out) {
  if (!status_.is_ok()) return false;
  const char first = peek();
  if (first != '-' && !is_digit(first)) return unexpected(what, "an integer");
  const std::size_t begin = at_;
  if (!skip_number()) return false;
  const std::string_view digits = text_.substr(begin, at_ - begin);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
  if (error != std::errc{} || end != digits.data() + digits.size()) {
    fail(invalid_argument(fmt::format("'{}' must be an integer of 64 bits, got {}", what, digits.substr(0, 40))));
    return false;
  }
  return value_read();
}

bool JsonScanner::read_null() {
  if (!status_.is_ok() || peek() != 'n') return false;
  return skip_word("null") && value_read();
}

bool JsonScanner::skip() {
  if (!status_.is_ok()) return false;
  return skip_at(0) && value_read();
}

bool JsonScanner::skip_at(int depth) {
  if (depth > static_cast<int>(kMaxJsonDepth)) return malformed("nested too deep");
  const char c = peek();
  if (c == '"') {
    std::string_view ignored;
    return scan_string(ignored);
  }
  if (c == 't') return skip_word("true");
  if (c == 'f') return skip_word("false");
  if (c == 'n') return skip_word("null");
  if (c == '-' || is_digit(c)) return skip_number();
  if (c != '{' && c != '[') return malformed("a value is expected");
  ++at_;
  needs_comma_ = false;
  std::string_view name;
  while (c == '{' ? next_member(name) : next_element()) {
    if (!skip_at(depth + 1)) return false;
    needs_comma_ = true;
  }
  return status_.is_ok();
}

bool JsonScanner::skip_word(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) return malformed("a value is expected");
  at_ += word.size();
  return true;
}

bool JsonScanner::skip_digits() {
  if (at_ >= text_.size() || !is_digit(text_[at_])) return malformed("a digit is expected");
  while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
  return true;
}

bool JsonScanner::skip_number() {
  const auto is_next = [&](char a, char b) { return at_ < text_.size() && (text_[at_] == a || text_[at_] == b); };
  if (is_next('-', '-')) ++at_;
  if (is_next('0', '0')) {
    ++at_;
  } else if (!skip_digits()) {
    return false;
  }
  if (is_next('.', '.')) {
    ++at_;
    if (!skip_digits()) return false;
  }
  if (!is_next('e', 'E')) return true;
  ++at_;
  if (is_next('+', '-')) ++at_;
  return skip_digits();
}

bool JsonScanner::scan_string(std::string_view& out) {
  const std::size_t begin = ++at_;  // behind the quote
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '"') {
      out = text_.substr(begin, at_ - begin);
      ++at_;
      return true;
    }
    if (c == '\\') return scan_rest(begin, out);
    if (static_cast<unsigned char>(c) < 0x20) return malformed("a control character in a string");
    if (static_cast<unsigned char>(c) < 0x80) {
      ++at_;
    } else if (!scan_utf8()) {
      return false;
    }
  }
  return malformed("a string does not end");
}

// From the first escape on.
bool JsonScanner::scan_rest(std::size_t begin, std::string_view& out) {
  std::string& built = unescaped_.emplace_back(text_.substr(begin, at_ - begin));
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '"') {
      ++at_;
      out = built;
      return true;
    }
    if (c == '\\') {
      if (!scan_escape(built)) return false;
      continue;
    }
    if (static_cast<unsigned char>(c) < 0x20) return malformed("a control character in a string");
    const std::size_t from = at_;
    if (static_cast<unsigned char>(c) < 0x80) {
      ++at_;
    } else if (!scan_utf8()) {
      return false;
    }
    built.append(text_.substr(from, at_ - from));
  }
  return malformed("a string does not end");
}

bool JsonScanner::scan_escape(std::string& out) {
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
  const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
  at_ += 2;
  if (c != 'u') {
    const std::size_t index = c == '\0' ? std::string_view::npos : kNames.find(c);
    if (index == std::string_view::npos) return malformed("an unknown escape");
    out += kValues[index];
    return true;
  }
  std::uint32_t code = 0;
  if (!scan_hex(code)) return false;
  if (code >= 0xDC00 && code <= 0xDFFF) return malformed("half a surrogate pair");
  if (code >= 0xD800 && code <= 0xDBFF) {
    std::uint32_t low = 0;
    if (text_.substr(std::min(at_, text_.size()), 2) != "\\u") return malformed("half a surrogate pair");
    at_ += 2;
    if (!scan_hex(low)) return false;
    if (low < 0xDC00 || low > 0xDFFF) return malformed("half a surrogate pair");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(code, out);
  return true;
}

bool JsonScanner::scan_hex(std::uint32_t& out) {
  if (at_ + 4 > text_.size()) return malformed("four hex digits are expected");
  const char* const begin = text_.data() + at_;
  const auto [end, error] = std::from_chars(begin, begin + 4, out, 16);
  if (error != std::errc{} || end != begin + 4) return malformed("four hex digits are expected");
  at_ += 4;
  return true;
}

// One character of two bytes or more: no overlong forms, no surrogates, nothing above U+10FFFF.
bool JsonScanner::scan_utf8() {
  const auto byte = [&](std::size_t i) -> unsigned {
    return at_ + i < text_.size() ? static_cast<unsigned char>(text_[at_ + i]) : 0u;
  };
  const unsigned lead = byte(0);
  std::size_t size = 0;
  if (lead >= 0xC2 && lead <= 0xDF) size = 2;
  if (lead >= 0xE0 && lead <= 0xEF) size = 3;
  if (lead >= 0xF0 && lead <= 0xF4) size = 4;
  bool is_valid = size > 0;
  for (std::size_t i = 1; i < size; ++i) is_valid = is_valid && (byte(i) & 0xC0) == 0x80;
  const unsigned second = byte(1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F)) is_valid = false;
  if ((lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) is_valid = false;
  if (!is_valid) return malformed("a string is not UTF-8");
  at_ += size;
  return true;
}

bool JsonScanner::finish() {
  if (!status_.is_ok()) return false;
  if (peek() == 0 && at_ >= text_.size()) return true;
  return malformed("something follows the value");
}

}  // namespace larder
