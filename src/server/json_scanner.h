// Reads JSON text from front to back without building a document: for small bodies at high rates.
//
// Purpose: the caller says what it expects next and gets it, as a view into the text where nothing is escaped. Strict:
// RFC 8259, valid UTF-8, no lone surrogates; accepts and refuses exactly what parse_json_object's parser does, but for
// numbers, whose value it reads only as 64-bit integers.
// Threads: confined. Lifetime: the text outlives the scanner; views into it live as long, the others as long as the
// scanner.
// Errors: the first one stays, later calls return false at once. kInvalidArgument: the text is no JSON ("malformed JSON
// at byte 17: ..."), or holds something else than was expected; is_malformed() tells which.
// Cost: about 1 ns per byte; an allocation only for strings with escapes.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "base/status.h"

namespace larder {

class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : text_(text) {}

  // Enters an object or array; then next_member() or next_element() until it says false, with one value read (or
  // skipped) after each true. `what` names the value in errors.
  bool enter_object(std::string_view what);
  bool enter_array(std::string_view what);
  bool next_member(std::string_view& name);
  bool next_element();
  bool read_string(std::string_view what, std::string_view& out);
  bool read_integer(std::string_view what, std::int64_t& out);
  // True if a null was there, and read.
  bool read_null();
  // Any value, which must be well-formed.
  bool skip();
  // Nothing but blanks may follow.
  bool finish();

  // Of the caller's own making.
  void fail(Status status);
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] bool is_malformed() const { return is_malformed_; }

 private:
  bool malformed(std::string_view problem);
  bool unexpected(std::string_view what, std::string_view expected);
  char peek();  // the next character that is no blank; 0 at the end
  bool enter(char open, std::string_view what, std::string_view expected);
  bool next(char close);
  bool value_read() {
    needs_comma_ = true;
    return true;
  }
  bool skip_at(int depth);
  bool skip_word(std::string_view word);
  bool skip_number();
  bool skip_digits();
  bool scan_string(std::string_view& out);
  bool scan_rest(std::size_t begin, std::string_view& out);
  bool scan_escape(std::string& out);
  bool scan_hex(std::uint32_t& out);
  bool scan_utf8();

  const std::string_view text_;
  std::size_t at_ = 0;
  bool needs_comma_ = false;
  bool is_malformed_ = false;
  Status status_;
  std::deque<std::string> unescaped_;
};

}  // namespace larder
