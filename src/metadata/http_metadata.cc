// SPDX-License-Identifier: Apache-2.0
#include "metadata/http_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/percent.h"

namespace larder {
namespace {

constexpr std::string_view kTarget = "/v1/metadata";
constexpr std::string_view kMediaType = "application/octet-stream";
constexpr std::size_t kMaxConnections = 1024;
constexpr std::size_t kShownBytes = 200;  // of an answer that is none of ours

// An answer from something else than the metadata route: a proxy, the listener's own limits, another server.
Status foreign_answer(const HttpReply& reply) {
  const std::string text = fmt::format("the metadata server answers {}: {}", reply.status,
                                       std::string_view(reply.body).substr(0, kShownBytes));
  switch (reply.status) {
    case 400:
    case 413:
    case 431: return invalid_argument(text);
    case 401:
    case 403: return invalid_argument(text + " (is the metadata server's key given, and is it the right one?)");
    case 404:
    case 405:
    case 501: return unsupported(text + " (is this a larder metadata-server?)");
    case 408:
    case 504: return deadline_exceeded(text);
    default: return reply.status >= 500 ? unavailable(text) : unsupported(text);
  }
}

// "http://larder:KEY@host" becomes "http://host" with KEY as the key: one URL does for the reference's client and for
// this one. All up to the last '@' is taken for user and key, so that no later error can show a piece of them.
Status take_key_of_url(HttpMetadataOptions& options) {
  const std::size_t scheme = options.url.find("://");
  const std::size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  const std::size_t at = options.url.rfind('@');
  if (at == std::string::npos) return Status::ok();
  const std::string user_and_key = at < begin ? "" : options.url.substr(begin, at - begin);
  const std::size_t colon = user_and_key.find(':');
  const bool has_key = colon != std::string::npos && colon + 1 < user_and_key.size();
  if (!has_key || user_and_key.find('/') != std::string::npos) {
    return invalid_argument(
        "metadata server: in front of '@' stand a user, ':' and the key, as in http://larder:KEY@host:port; a '/' in "
        "the key is written %2F");
  }
  std::optional<std::string> key = percent_decode(std::string_view(user_and_key).substr(colon + 1));
  if (!key) return invalid_argument("metadata server: a '%' in the URL's key without two hex digits");
  if (!options.api_key.empty() && options.api_key != *key) {
    return invalid_argument("metadata server: the URL has one key and metadata_api_key is another: give one of them");
  }
  options.api_key = std::move(*key);
  options.url.erase(begin, at + 1 - begin);
  return Status::ok();
}

}  // namespace

Result<std::unique_ptr<HttpMetadata>> HttpMetadata::create(const HttpMetadataOptions& given, Clock& clock) {
  HttpMetadataOptions options = given;
  LARDER_RETURN_IF_ERROR(take_key_of_url(options));
  Result<HttpUrl> url = parse_http_url(options.url, options.ca_file);
  if (!url.is_ok()) return invalid_argument("metadata server: " + url.status().message());
  if (options.timeout <= Nanos{0} || options.clear_timeout <= Nanos{0}) {
    return invalid_argument("metadata server: the time-outs must be above 0");
  }
  if (options.connections < 1 || options.connections > kMaxConnections) {
    return invalid_argument(
        fmt::format("metadata server: 1 to {} connections, not {}", kMaxConnections, options.connections));
  }
  if (options.api_key.find_first_of("\r\n") != std::string::npos) {
    return invalid_argument("metadata server: a key has no line ends");
  }
  return std::unique_ptr<HttpMetadata>(new HttpMetadata(options, std::move(*url), clock));
}

HttpMetadata::HttpMetadata(const HttpMetadataOptions& options, HttpUrl url, Clock& clock)
    : options_(options), url_(std::move(url)), clock_(clock), pool_(options.connections) {}

HttpMetadata::~HttpMetadata() = default;

Nanos HttpMetadata::time_for(const std::string& message) const {
  const bool is_clear = metadata::glance_at(message).operation == metadata::WireOperation::kClear;
  return is_clear ? std::max(options_.timeout, options_.clear_timeout) : options_.timeout;
}

Result<HttpReply> HttpMetadata::ask(const std::string& message) {
  const Nanos time = time_for(message);
  const TimePoint deadline = clock_.now() + time;
  std::optional<metadata::ConnectionPool<HttpClient>::Loan> client = pool_.take(clock_, deadline);
  if (!client) {
    return deadline_exceeded(fmt::format("all {} connections to the metadata server are in use", options_.connections));
  }
  if (!client->connection()) {
    const Nanos longest = std::max(options_.timeout, options_.clear_timeout);  // the deadline ends a call before that
    client->connection() = std::make_unique<HttpClient>(url_, longest, options_.api_key);
  }
  (*client)->set_deadline(real_clock().now() + (deadline - clock_.now()));  // both attempts, and what waiting has left
  Result<HttpReply> reply = (*client)->request("POST", kTarget, message, kMediaType);
  if (!reply.is_ok() && reply.status().code() == StatusCode::kUnavailable) {
    (*client)->disconnect();
    reply = (*client)->request("POST", kTarget, message, kMediaType);
  }
  if (reply.is_ok()) return reply;
  (*client)->disconnect();  // what still comes belongs to nobody
  std::string text = "metadata server: " + reply.status().message();
  if (reply.status().code() == StatusCode::kDeadlineExceeded) {
    text += fmt::format(" (a call has {} s)", std::chrono::duration<double>(time).count());
  }
  return Status(reply.status().code(), std::move(text));
}

Result<std::string> HttpMetadata::exchange(const std::string& message) {
  LARDER_ASSIGN_OR_RETURN(HttpReply reply, ask(message));
  if (!metadata::is_wire_answer(reply.body)) {
    return reply.status == 200 ? unsupported("the metadata server's answer is in another language")
                               : foreign_answer(reply);
  }
  return std::move(reply.body);
}

}  // namespace larder
