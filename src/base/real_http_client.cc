// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/http_client.h"
#include "base/parse_number.h"

namespace larder {
namespace {

constexpr std::size_t kMaxHeadBytes = 64u << 10;
constexpr std::uint64_t kMaxBodyBytes = 1ull << 30;
constexpr std::size_t kMaxLineBytes = 16u << 20;

std::string_view trim_line(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

// Of a socket that connects without waiting: 0 when it is connected, or what it failed with; ETIMEDOUT after `end`.
int wait_connected(int socket, TimePoint end) {
  int error = wait_for_socket(socket, POLLOUT, end);
  socklen_t size = sizeof error;
  if (error == 0) ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

Status cancelled_by_other() { return cancelled("the client was told to cancel"); }

// In a request line: nothing that would end it.
bool is_request_target(std::string_view text) {
  return text.starts_with('/') && std::all_of(text.begin(), text.end(), [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return byte > 0x20 && byte != 0x7f;
         });
}

// Reads whom to believe, where the URL needs it.
Status take_trust(HttpUrl& url, bool is_secure, const std::string& ca_file) {
  if (!is_secure) {  // who names authorities believes to be safe
    return ca_file.empty() ? Status::ok() : invalid_argument("certificates of authorities are for https:// URLs only");
  }
  Result<std::shared_ptr<const TlsTrust>> trust = TlsTrust::create(ca_file);
  if (trust.is_ok()) url.trust = std::move(*trust);
  return trust.status();
}

// Cuts a byte stream into lines.
class LineCutter {
 public:
  explicit LineCutter(const std::function<bool(std::string_view)>& sink) : sink_(sink) {}

  Status push(std::string_view bytes) {
    rest_ += bytes;
    std::size_t begin = 0;
    for (;;) {
      const std::size_t end = rest_.find('\n', begin);
      if (end == std::string::npos) break;
      std::string_view line(rest_.data() + begin, end - begin);
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (!sink_(line)) return cancelled("the caller ended the stream");
      begin = end + 1;
    }
    rest_.erase(0, begin);
    return rest_.size() > kMaxLineBytes ? corrupt("a line of the answer is longer than 16 MiB") : Status::ok();
  }

 private:
  const std::function<bool(std::string_view)>& sink_;
  std::string rest_;
};

}  // namespace

struct HttpClient::Head {
  HttpReplyHead reply;  // its fields: all of them
  bool is_chunked = false;
  bool keep_alive = true;
  bool has_body = true;

  [[nodiscard]] bool has_end() const { return !has_body || is_chunked || reply.length; }

  Status take_status_line(std::string_view line) {
    const auto number = line.size() >= 12 ? parse_number<unsigned>(line.substr(9, 3)) : std::nullopt;
    if (!line.starts_with("HTTP/1.") || !number || *number < 100) return corrupt("the answer is not HTTP/1.1");
    reply.status = *number;
    keep_alive = line.starts_with("HTTP/1.1");
    return Status::ok();
  }

  Status take_field(std::string_view line) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return corrupt("the answer has a header line without ':'");
    const std::string_view name = line.substr(0, colon);
    const std::string_view value = trim_line(line.substr(colon + 1));
    // A folded line too: it begins with a blank.
    if (!is_http_token(name)) return corrupt("the answer has a header line without a proper name");
    if (!is_field_value(value)) return corrupt("the answer has a control character in its head");
    LARDER_RETURN_IF_ERROR(take_framing(name, value));
    reply.fields.push_back({std::string(name), std::string(value)});
    return Status::ok();
  }

  // What the field says of the end of the body.
  Status take_framing(std::string_view name, std::string_view value) {
    if (is_same_field_name(name, "content-length")) {
      const auto number = parse_number<std::uint64_t>(value);
      if (!number || (reply.length && *reply.length != *number)) {
        return corrupt("the answer has a broken Content-Length");
      }
      reply.length = number;
    }
    if (is_same_field_name(name, "transfer-encoding")) {
      if (is_chunked) return corrupt("the answer has two Transfer-Encodings");
      is_chunked = is_same_field_name(value, "chunked");
      if (!is_chunked && !is_same_field_name(value, "identity"))
        return unsupported(fmt::format("the answer has Transfer-Encoding '{}'", value));
    }
    if (is_same_field_name(name, "connection") && has_list_option(value, "close")) keep_alive = false;
    return Status::ok();
  }
};

Result<HttpUrl> parse_http_url(std::string_view text, const std::string& ca_file) {
  // In front of an '@' may stand a key: no error shows it.
  const std::string_view shown = text.substr(text.rfind('@') + 1);  // all of it, if there is no '@'
  std::string_view rest = text;
  const bool is_secure = rest.starts_with("https://");
  if (is_secure || rest.starts_with("http://")) {
    rest.remove_prefix(rest.find("://") + 3);
  } else if (const std::size_t scheme = rest.find("://"); scheme != std::string_view::npos && scheme < rest.find('/')) {
    return invalid_argument(
        fmt::format("'{}': {} is not supported; write http://host:port, or https://", shown, rest.substr(0, scheme)));
  }
  HttpUrl url;
  if (is_secure) url.port = 443;
  const std::size_t slash = rest.find('/');
  if (slash != std::string_view::npos) {
    url.base = std::string(rest.substr(slash));
    while (!url.base.empty() && url.base.back() == '/') url.base.pop_back();
    rest = rest.substr(0, slash);
  }
  if (rest.find('@') != std::string_view::npos) {
    return invalid_argument(fmt::format("'{}': a host has no '@'; user and key do not belong in front of it", shown));
  }
  const std::size_t colon = rest.rfind(':');
  if (colon != std::string_view::npos && !rest.ends_with(']')) {
    const auto port = parse_number<std::uint16_t>(rest.substr(colon + 1));
    if (!port || *port == 0) return invalid_argument(fmt::format("'{}': the port must be 1..65535", shown));
    url.port = *port;
    rest = rest.substr(0, colon);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);  // IPv6
  if (rest.empty()) return invalid_argument(fmt::format("'{}': no host; write http://host:port", shown));
  url.host = std::string(rest);
  LARDER_RETURN_IF_ERROR(take_trust(url, is_secure, ca_file));
  return url;
}

HttpClient::HttpClient(HttpUrl url, Nanos timeout, std::string bearer)
    : url_(std::move(url)), timeout_(timeout), bearer_(std::move(bearer)) {}

HttpClient::~HttpClient() { disconnect(); }

void HttpClient::adopt(int socket) {
  socket_ = socket;
  LockGuard guard(mutex_);
  open_socket_ = socket;
}

void HttpClient::disconnect() {
  stream_.reset();
  const int socket = socket_;
  adopt(-1);  // first: the number may be somebody else's as soon as it is closed
  if (socket >= 0) ::close(socket);
  buffer_.clear();
}

void HttpClient::cancel() {
  LockGuard guard(mutex_);
  is_cancelled_.store(true, std::memory_order_relaxed);
  if (open_socket_ >= 0) ::shutdown(open_socket_, SHUT_RDWR);  // wakes who waits for it, also for the connection
}

int HttpClient::connect_one_of(const addrinfo* found, TimePoint end) {
  std::int64_t untried = 0;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) ++untried;
  int error = ECONNREFUSED;
  for (const addrinfo* at = found; at != nullptr && !is_cancelled(); at = at->ai_next, --untried) {
    const int fd = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    if (fd < 0) continue;
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int failed = ::connect(fd, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    adopt(fd);  // when it connects already: only then does a shutdown end that
    if (is_cancelled()) failed = ECANCELED;
    // A silent address leaves the others their share.
    const TimePoint now = real_clock().now();
    if (failed == EINPROGRESS) failed = wait_connected(fd, now + (end - now) / untried);
    if (failed == 0) return 0;
    if (error != ETIMEDOUT) error = failed;
    disconnect();
  }
  return error;
}

Status HttpClient::connect() {
  disconnect();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string where = fmt::format("{}:{}", url_.host, url_.port);
  const int unknown = ::getaddrinfo(url_.host.c_str(), std::to_string(url_.port).c_str(), &hints, &found);
  if (unknown != 0) return unavailable(fmt::format("cannot connect to {}: {}", where, ::gai_strerror(unknown)));
  const TimePoint end = real_clock().now() + timeout_;
  const int error = connect_one_of(found, end);
  ::freeaddrinfo(found);
  if (error == ETIMEDOUT) return deadline_exceeded(fmt::format("cannot connect to {}: it does not answer", where));
  if (error != 0) return unavailable(fmt::format("cannot connect to {}: {}", where, std::strerror(error)));
  stream_.emplace(socket_);
  const Status secured = url_.trust ? stream_->secure(*url_.trust, url_.host, "http/1.1", end) : Status::ok();
  if (secured.is_ok()) return secured;
  disconnect();
  return Status(secured.code(), fmt::format("cannot connect to {}: {}", where, secured.message()));
}

Status HttpClient::send_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const Result<std::size_t> sent = stream_->send_some(bytes, real_clock().now() + timeout_);
    if (sent.status().code() == StatusCode::kDeadlineExceeded) {
      return deadline_exceeded("the server does not read the request");
    }
    if (!sent.is_ok()) return unavailable("sending the request: " + sent.status().message());
    bytes.remove_prefix(*sent);
  }
  return Status::ok();
}

Status HttpClient::receive() {
  char piece[16384];
  const Result<std::size_t> got = stream_->receive_some(piece, real_clock().now() + timeout_);
  if (got.status().code() == StatusCode::kDeadlineExceeded) {
    return deadline_exceeded(fmt::format("no byte from the server for {} s",
                                         std::chrono::duration_cast<std::chrono::seconds>(timeout_).count()));
  }
  if (!got.is_ok()) return unavailable("reading the answer: " + got.status().message());
  is_at_end_ = *got == 0;
  if (is_at_end_) return unavailable("the server closed the connection");
  has_answered_ = true;
  buffer_.append(piece, *got);
  return Status::ok();
}

// `left`: how many bytes such lines may have together; becomes less by this one.
Result<std::string> HttpClient::read_line(std::size_t& left) {
  for (;;) {
    const std::size_t end = buffer_.find('\n');
    if (std::min(end, buffer_.size()) >= left) return corrupt("the head of the answer is longer than 64 KiB");
    if (end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) line.pop_back();
      buffer_.erase(0, end + 1);
      left -= end + 1;
      return line;
    }
    LARDER_RETURN_IF_ERROR(receive());
  }
}

Result<HttpClient::Head> HttpClient::read_head() {
  std::size_t left = kMaxHeadBytes;
  for (;;) {
    Head head;
    Result<std::string> line = read_line(left);
    if (!line.is_ok()) return line.status();
    LARDER_RETURN_IF_ERROR(head.take_status_line(*line));
    for (;;) {
      line = read_line(left);
      if (!line.is_ok()) return line.status();
      if (line->empty()) break;
      LARDER_RETURN_IF_ERROR(head.take_field(*line));
    }
    if (head.reply.status >= 200) return head;  // "100 Continue" and the like are passed over
  }
}

Status HttpClient::read_counted(std::uint64_t size_bytes, const std::function<Status(std::string_view)>& sink) {
  while (size_bytes > 0) {
    if (buffer_.empty()) LARDER_RETURN_IF_ERROR(receive());
    const std::size_t take = static_cast<std::size_t>(std::min<std::uint64_t>(size_bytes, buffer_.size()));
    std::string piece;
    if (take == buffer_.size()) {
      piece.swap(buffer_);
    } else {
      piece = buffer_.substr(0, take);
      buffer_.erase(0, take);
    }
    size_bytes -= take;
    LARDER_RETURN_IF_ERROR(sink(piece));
  }
  return Status::ok();
}

Status HttpClient::read_chunked(const std::function<Status(std::string_view)>& sink) {
  for (;;) {
    std::size_t left = kMaxHeadBytes;
    Result<std::string> line = read_line(left);
    if (!line.is_ok()) return line.status();
    const auto size_bytes =
        parse_number<std::uint64_t>(trim_line(std::string_view(*line).substr(0, line->find(';'))), 16);
    if (!size_bytes) return corrupt("the answer has a broken chunk");
    if (*size_bytes > 0) LARDER_RETURN_IF_ERROR(read_counted(*size_bytes, sink));
    // After data an empty line; after the last chunk trailers, which nobody here wants, and an empty line.
    do {
      line = read_line(left);
      if (!line.is_ok()) return line.status();
      if (*size_bytes > 0 && !line->empty()) return corrupt("the answer has a broken chunk");
    } while (!line->empty());
    if (*size_bytes == 0) return Status::ok();
  }
}

Status HttpClient::read_body(const Head& head, const std::function<Status(std::string_view)>& sink) {
  if (!head.has_body) return Status::ok();
  if (head.is_chunked) return read_chunked(sink);
  if (head.reply.length) return read_counted(*head.reply.length, sink);
  for (;;) {  // to the end of the connection
    if (!buffer_.empty()) {
      const std::string piece = std::move(buffer_);
      buffer_.clear();
      LARDER_RETURN_IF_ERROR(sink(piece));
    }
    const Status status = receive();
    if (is_at_end_) return Status::ok();
    LARDER_RETURN_IF_ERROR(status);
  }
}

Result<HttpClient::Head> HttpClient::attempt(std::string_view bytes) {
  has_answered_ = is_at_end_ = false;
  const Status sent = send_all(bytes);
  if (!sent.is_ok() && sent.code() != StatusCode::kUnavailable) return sent;
  // A server that closed the connection may have said why before: 413 to a body that it does not read.
  Result<Head> head = read_head();
  if (sent.is_ok()) return head;
  if (!head.is_ok()) return sent;
  head->keep_alive = false;
  return head;
}

Result<HttpClient::Head> HttpClient::begin(std::string_view method, std::string_view bytes) {
  if (is_cancelled()) return cancelled_by_other();
  const bool was_open = socket_ >= 0;
  const Status connected = was_open ? Status::ok() : connect();
  Result<Head> head = connected.is_ok() ? attempt(bytes) : Result<Head>(connected);
  const bool was_stale =
      was_open && !has_answered_ && head.status().code() == StatusCode::kUnavailable && stream_->is_only_closed();
  if (was_stale && !is_cancelled()) {  // the server had closed the idle connection: nothing was done, so once more
    const Status reconnected = connect();
    head = reconnected.is_ok() ? attempt(bytes) : Result<Head>(reconnected);
  }
  if (!head.is_ok()) {
    disconnect();
    return is_cancelled() ? cancelled_by_other() : head.status();
  }
  const unsigned status = head->reply.status;
  head->has_body = method != "HEAD" && status != 204 && status != 304;
  return head;
}

Status HttpClient::end(const Head& head, const Status& status) {
  if (!status.is_ok() || !head.keep_alive || !head.has_end()) disconnect();
  if (!is_cancelled()) return status;
  disconnect();
  return cancelled_by_other();
}

Result<HttpReply> HttpClient::exchange(std::string_view method, std::string_view bytes, const LineSink* on_line) {
  const Result<Head> head = begin(method, bytes);
  if (!head.is_ok()) return head.status();
  HttpReply reply;
  reply.status = head->reply.status;
  const std::string* content_type = find_field(head->reply.fields, "content-type");
  if (content_type) reply.content_type = *content_type;
  LineSink ignore = [](std::string_view) { return true; };
  LineCutter lines(on_line ? *on_line : ignore);
  const bool by_line = on_line && reply.status == 200;
  const Status status = read_body(*head, [&](std::string_view piece) -> Status {
    if (by_line) return lines.push(piece);
    reply.body += piece;
    return reply.body.size() > kMaxBodyBytes ? corrupt("the answer is larger than 1 GiB") : Status::ok();
  });
  LARDER_RETURN_IF_ERROR(end(*head, status));
  return reply;
}

std::string HttpClient::first_lines(std::string_view method, std::string_view target) const {
  const bool is_v6 = url_.host.find(':') != std::string::npos;
  return fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\n", method, url_.base, target,
                     is_v6 ? "[" + url_.host + "]" : url_.host, url_.port);
}

std::string HttpClient::request_text(std::string_view method, std::string_view target, std::string_view body,
                                     std::string_view media_type) const {
  std::string text = first_lines(method, target);
  if (!bearer_.empty()) text += fmt::format("Authorization: Bearer {}\r\n", bearer_);
  if (!body.empty()) text += fmt::format("Content-Type: {}\r\n", media_type);
  text += fmt::format("Content-Length: {}\r\n\r\n", body.size());
  text += body;
  return text;
}

Result<HttpReply> HttpClient::request(std::string_view method, std::string_view target, std::string_view body,
                                      std::string_view media_type) {
  if (!buffer_.empty()) disconnect();  // what stands behind the last answer is an answer to nothing
  return exchange(method, request_text(method, target, body, media_type), nullptr);
}

Result<HttpReply> HttpClient::stream(std::string_view method, std::string_view target, std::string_view body,
                                     const std::function<bool(std::string_view line)>& on_line) {
  if (!buffer_.empty()) disconnect();
  return exchange(method, request_text(method, target, body, "application/json"), &on_line);
}

Result<std::string> HttpClient::relay_text(const HttpRelayRequest& request) const {
  if (!is_http_token(request.method)) return invalid_argument("the method is not a word");
  if (!is_request_target(request.target)) return invalid_argument("the target must begin with '/' and have no blanks");
  std::vector<HttpField> fields(request.fields.begin(), request.fields.end());
  remove_hop_by_hop(fields);
  remove_field(fields, "host");
  remove_field(fields, "content-length");
  std::string text = first_lines(request.method, request.target) + "Connection: keep-alive\r\n";
  for (const HttpField& field : fields) {
    if (!is_http_token(field.name)) return invalid_argument("a header field has no proper name");
    if (!is_field_value(field.value)) {
      return invalid_argument(fmt::format("the header field {} has a control character", field.name));
    }
    text += fmt::format("{}: {}\r\n", field.name, field.value);
  }
  // A request without a body says so where one is expected (RFC 9110 section 8.6).
  const bool is_body_expected = request.method == "POST" || request.method == "PUT" || request.method == "PATCH";
  if (!request.body.empty() || is_body_expected) text += fmt::format("Content-Length: {}\r\n", request.body.size());
  text += "\r\n";
  text += request.body;
  return text;
}

Status HttpClient::relay(const HttpRelayRequest& request, const std::function<bool(const HttpReplyHead&)>& on_head,
                         const std::function<bool(std::string_view piece)>& on_bytes) {
  const Result<std::string> text = relay_text(request);
  if (!text.is_ok()) return text.status();
  if (!buffer_.empty()) disconnect();
  const Result<Head> head = begin(request.method, *text);
  if (!head.is_ok()) return head.status();
  HttpReplyHead passed = head->reply;
  remove_hop_by_hop(passed.fields);
  remove_field(passed.fields, "content-length");
  if (head->is_chunked) passed.length.reset();
  if (!on_head(passed)) return end(*head, cancelled("the caller ended the answer"));
  return end(*head, read_body(*head, [&](std::string_view piece) -> Status {
    if (is_cancelled()) return cancelled_by_other();
    return on_bytes(piece) ? Status::ok() : cancelled("the caller ended the answer");
  }));
}

Result<HttpReply> HttpClient::raw(std::string_view bytes) { return exchange({}, bytes, nullptr); }

}  // namespace larder
