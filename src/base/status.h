// SPDX-License-Identifier: Apache-2.0
// Errors as values.
//
// Rule 5 of docs/ARCHITECTURE.md: a miss is a value, an error says what the caller should do.
// The set of codes is small and closed; each names the *caller's next step*, not the cause. The cause is in
// the message, which says what went wrong, where, and how to mend it.
//
// Threads: Status and Result are values; they carry no shared state.
// Cost: an ok Status is one byte of code and an empty string; no allocation.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace larder {

enum class StatusCode : unsigned char {
  kOk = 0,
  kInvalidArgument,   // the caller's input is wrong: mend it, do not retry
  kNotFound,          // absent; on the data path this is a miss
  kConflict,          // identity differs (other model, other layout, double registration)
  kOverloaded,        // a bounded resource is full: retry later, or do without
  kDeadlineExceeded,  // the wait ended; the operation may still complete and is quarantined
  kCancelled,         // the caller (or shutdown, flush, detach) ended it
  kCorrupt,           // stored bytes failed verification: treated as a miss, the page is dropped
  kUnavailable,       // the peer, disk or directory cannot serve now: retry after back-off
  kUnsupported,       // this build, backend or device cannot do it
  kInternal,          // a broken invariant: report it; the operation was refused
};

// Lower-case snake name of a code, as printed in logs, metrics and JSON ("deadline_exceeded").
[[nodiscard]] std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] static Status ok() { return {}; }
  [[nodiscard]] bool is_ok() const { return code_ == StatusCode::kOk; }
  explicit operator bool() const { return is_ok(); }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  // "code: message", or "ok".
  [[nodiscard]] std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

[[nodiscard]] inline Status invalid_argument(std::string m) { return {StatusCode::kInvalidArgument, std::move(m)}; }
[[nodiscard]] inline Status not_found(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
[[nodiscard]] inline Status conflict(std::string m) { return {StatusCode::kConflict, std::move(m)}; }
[[nodiscard]] inline Status overloaded(std::string m) { return {StatusCode::kOverloaded, std::move(m)}; }
[[nodiscard]] inline Status deadline_exceeded(std::string m) { return {StatusCode::kDeadlineExceeded, std::move(m)}; }
[[nodiscard]] inline Status cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
[[nodiscard]] inline Status corrupt(std::string m) { return {StatusCode::kCorrupt, std::move(m)}; }
[[nodiscard]] inline Status unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
[[nodiscard]] inline Status unsupported(std::string m) { return {StatusCode::kUnsupported, std::move(m)}; }
[[nodiscard]] inline Status internal_error(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

// A value or a non-ok Status.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit on purpose, so that `return value;` works
  Result(Status status) : status_(std::move(status)) {  // NOLINT: as above, for `return invalid_argument(...)`
    if (status_.is_ok()) status_ = internal_error("Result built from an ok Status without a value");
  }

  [[nodiscard]] bool is_ok() const { return value_.has_value(); }
  explicit operator bool() const { return is_ok(); }
  [[nodiscard]] const Status& status() const { return status_; }
  // Precondition: is_ok().
  [[nodiscard]] T& value() & {
    assert(value_);
    return *value_;
  }
  [[nodiscard]] const T& value() const& {
    assert(value_);
    return *value_;
  }
  [[nodiscard]] T&& value() && {
    assert(value_);
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  [[nodiscard]] T value_or(T other) const& { return value_ ? *value_ : std::move(other); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace larder

// Returns early with the Status of an expression that is not ok.
#define LARDER_RETURN_IF_ERROR(expr)                    \
  do {                                                  \
    ::larder::Status larder_status_ = (expr);           \
    if (!larder_status_.is_ok()) return larder_status_; \
  } while (false)

// Returns early with the Status of an expression without a value; else assigns or declares: the value is moved there.
//   LARDER_ASSIGN_OR_RETURN(const FileInfo info, files.stat(path));
// Two statements: not for the body of an `if` without braces.
#define LARDER_ASSIGN_OR_RETURN(target, ...) \
  LARDER_ASSIGN_OR_RETURN_FROM_(LARDER_ASSIGN_NAME_(larder_result_, __LINE__), target, __VA_ARGS__)
#define LARDER_ASSIGN_OR_RETURN_FROM_(result, target, ...) \
  auto result = (__VA_ARGS__);                             \
  if (!result.is_ok()) return result.status();             \
  target = std::move(result).value()
#define LARDER_ASSIGN_NAME_(a, b) LARDER_ASSIGN_PASTE_(a, b)
#define LARDER_ASSIGN_PASTE_(a, b) a##b
