#include "metadata/http_metadata.h"

#include <fmt/format.h>

#include <utility>

namespace larder {
namespace {

constexpr std::string_view kTarget = "/v1/metadata";
constexpr std::string_view kMediaType = "application/octet-stream";
constexpr std::size_t kMaxConnections = 1024;
constexpr std::size_t kShownBytes = 200;  // of an answer that is none of ours

using metadata::WireOperation;

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

}  // namespace

Result<std::unique_ptr<HttpMetadata>> HttpMetadata::create(const HttpMetadataOptions& options, Clock& clock) {
  Result<HttpUrl> url = parse_http_url(options.url);
  if (!url.is_ok()) return invalid_argument("metadata server: " + url.status().message());
  if (options.timeout <= Nanos{0}) return invalid_argument("metadata server: the time-out must be above 0");
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
    : options_(options), url_(std::move(url)), clock_(clock) {}

HttpMetadata::~HttpMetadata() = default;

Result<std::unique_ptr<HttpClient>> HttpMetadata::take_client() {
  const TimePoint end = clock_.now() + options_.timeout;
  LockGuard guard(mutex_);
  while (idle_.empty() && in_use_ >= options_.connections) {
    const Nanos left = end - clock_.now();
    if (left <= Nanos{0}) {
      return deadline_exceeded(fmt::format("all {} connections to the metadata server are in use", in_use_));
    }
    returned_.wait_for(mutex_, left);
  }
  ++in_use_;
  if (idle_.empty()) return std::make_unique<HttpClient>(url_, options_.timeout, options_.api_key);
  std::unique_ptr<HttpClient> client = std::move(idle_.back());
  idle_.pop_back();
  return client;
}

void HttpMetadata::give_back(std::unique_ptr<HttpClient> client) {
  LockGuard guard(mutex_);
  --in_use_;
  idle_.push_back(std::move(client));
  returned_.notify_one();
}

Result<std::string> HttpMetadata::exchange(const std::string& message) {
  Result<std::unique_ptr<HttpClient>> client = take_client();
  if (!client.is_ok()) return client.status();
  Result<HttpReply> reply = (*client)->request("POST", kTarget, message, kMediaType);
  if (!reply.is_ok() && reply.status().code() == StatusCode::kUnavailable) {
    (*client)->disconnect();
    reply = (*client)->request("POST", kTarget, message, kMediaType);
  }
  if (!reply.is_ok()) (*client)->disconnect();  // what still comes belongs to nobody
  give_back(std::move(*client));
  if (!reply.is_ok()) return Status(reply.status().code(), "metadata server: " + reply.status().message());
  if (!metadata::is_wire_answer(reply->body)) {
    return reply->status == 200 ? unsupported("the metadata server's answer is in another language")
                                : foreign_answer(*reply);
  }
  return std::move(reply->body);
}

template <class T, class Decode>
Result<T> HttpMetadata::call(WireOperation operation, const Result<std::string>& message, Decode decode) {
  if (!message.is_ok()) return message.status();
  const Result<std::string> answer = exchange(*message);
  if (!answer.is_ok()) return answer.status();
  const Result<std::string_view> payload = metadata::open_answer(operation, *answer);
  if (!payload.is_ok()) return payload.status();
  return decode(*payload);
}

Result<std::uint64_t> HttpMetadata::initialize(const MetadataNamespace& name_space, std::uint64_t pages) {
  return call<std::uint64_t>(WireOperation::kInitialize, metadata::encode_initialize(name_space, pages),
                             metadata::decode_count);
}

Result<std::vector<std::vector<std::optional<PageRef>>>> HttpMetadata::find(std::span<const MetadataKeys> wanted,
                                                                            Nanos lease) {
  return call<std::vector<std::vector<std::optional<PageRef>>>>(
      WireOperation::kFind, metadata::encode_find(wanted, lease),
      [&](std::string_view payload) { return metadata::decode_find(payload, wanted); });
}

Result<std::vector<std::vector<Reserved>>> HttpMetadata::reserve(const MetadataSession& session,
                                                                 std::span<const ReserveItems> wanted, Nanos ttl) {
  return call<std::vector<std::vector<Reserved>>>(
      WireOperation::kReserve, metadata::encode_reserve(session, wanted, ttl),
      [&](std::string_view payload) { return metadata::decode_reserve(payload, wanted); });
}

Result<std::vector<Status>> HttpMetadata::confirm(const ConfirmRequest& request) {
  return call<std::vector<Status>>(
      WireOperation::kConfirm, metadata::encode_confirm(request),
      [&](std::string_view payload) { return metadata::decode_confirm(payload, request.groups.size()); });
}

Result<std::uint64_t> HttpMetadata::remove(std::span<const ConfirmItem> items) {
  return call<std::uint64_t>(WireOperation::kRemove, metadata::encode_remove(items), metadata::decode_count);
}

Result<std::uint64_t> HttpMetadata::clear(const MetadataNamespace& name_space, std::string_view prefix) {
  return call<std::uint64_t>(WireOperation::kClear, metadata::encode_clear(name_space, prefix), metadata::decode_count);
}

Result<std::map<MetadataNamespace, NamespaceStats>> HttpMetadata::stats() {
  return call<std::map<MetadataNamespace, NamespaceStats>>(WireOperation::kStats, metadata::encode_stats(),
                                                           metadata::decode_stats);
}

}  // namespace larder
