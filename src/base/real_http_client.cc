#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
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

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return out;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

// Of each wait of `socket`. At least a microsecond: none would mean for ever.
void limit_waits(int socket, Nanos limit) {
  const auto micros = std::max<std::int64_t>(1, std::chrono::duration_cast<std::chrono::microseconds>(limit).count());
  timeval value{};
  value.tv_sec = static_cast<time_t>(micros / 1'000'000);
  value.tv_usec = static_cast<suseconds_t>(micros % 1'000'000);
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &value, sizeof value);
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &value, sizeof value);
}

// What connect() ends with when nobody answered: SO_SNDTIMEO shows as EINPROGRESS, the kernel's own limit as ETIMEDOUT.
bool is_silence(int error) { return error == EINPROGRESS || error == EAGAIN || error == ETIMEDOUT; }

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
  unsigned status = 0;
  std::string content_type;
  std::optional<std::uint64_t> length;
  bool is_chunked = false;
  bool keep_alive = true;

  Status take_status_line(std::string_view line) {
    const auto number = line.size() >= 12 ? parse_number<unsigned>(line.substr(9, 3)) : std::nullopt;
    if (!line.starts_with("HTTP/1.") || !number || *number < 100) return corrupt("the answer is not HTTP/1.1");
    status = *number;
    keep_alive = line.starts_with("HTTP/1.1");
    return Status::ok();
  }

  Status take_field(std::string_view line) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return corrupt("the answer has a header line without ':'");
    const std::string name = lower(line.substr(0, colon));
    const std::string_view value = trim(line.substr(colon + 1));
    if (name == "content-length") {
      const auto number = parse_number<std::uint64_t>(value);
      if (!number || (length && *length != *number)) return corrupt("the answer has a broken Content-Length");
      length = number;
    }
    if (name == "content-type") content_type = std::string(value);
    if (name == "transfer-encoding") {
      if (is_chunked) return corrupt("the answer has two Transfer-Encodings");
      is_chunked = lower(value) == "chunked";
      if (!is_chunked && lower(value) != "identity")
        return unsupported(fmt::format("the answer has Transfer-Encoding '{}'", value));
    }
    if (name == "connection" && lower(value) == "close") keep_alive = false;
    return Status::ok();
  }
};

Result<HttpUrl> parse_http_url(std::string_view text) {
  // In front of an '@' may stand a key: no error shows it.
  const std::string_view shown = text.substr(text.rfind('@') + 1);  // all of it, if there is no '@'
  std::string_view rest = text;
  if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else if (const std::size_t scheme = rest.find("://"); scheme != std::string_view::npos && scheme < rest.find('/')) {
    return invalid_argument(
        fmt::format("'{}': {} is not supported; write http://host:port", shown, rest.substr(0, scheme)));
  }
  HttpUrl url;
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
  return url;
}

HttpClient::HttpClient(HttpUrl url, Nanos timeout, std::string bearer)
    : url_(std::move(url)), timeout_(timeout), bearer_(std::move(bearer)) {}

HttpClient::~HttpClient() { disconnect(); }

void HttpClient::disconnect() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
  buffer_.clear();
}

Status HttpClient::connect() {
  disconnect();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string where = fmt::format("{}:{}", url_.host, url_.port);
  const int failed = ::getaddrinfo(url_.host.c_str(), std::to_string(url_.port).c_str(), &hints, &found);
  if (failed != 0) return unavailable(fmt::format("cannot connect to {}: {}", where, ::gai_strerror(failed)));
  std::int64_t untried = 0;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) ++untried;
  const TimePoint end = real_clock().now() + timeout_;
  int error = ECONNREFUSED;
  bool was_silent = false;
  for (const addrinfo* at = found; at != nullptr && socket_ < 0; at = at->ai_next, --untried) {
    const int fd = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (fd < 0) continue;
    limit_waits(fd, (end - real_clock().now()) / untried);  // a silent address leaves the others their share
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (::connect(fd, at->ai_addr, at->ai_addrlen) == 0) {
      limit_waits(fd, timeout_);
      socket_ = fd;
    } else {
      error = errno;
      was_silent = was_silent || is_silence(error);
      ::close(fd);
    }
  }
  ::freeaddrinfo(found);
  if (socket_ >= 0) return Status::ok();
  if (was_silent) return deadline_exceeded(fmt::format("cannot connect to {}: it does not answer", where));
  return unavailable(fmt::format("cannot connect to {}: {}", where, std::strerror(error)));
}

Status HttpClient::send_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return deadline_exceeded("the server does not read the request");
    if (sent <= 0) return unavailable(fmt::format("sending the request: {}", std::strerror(errno)));
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return Status::ok();
}

Status HttpClient::receive() {
  char piece[16384];
  for (;;) {
    const ssize_t got = ::recv(socket_, piece, sizeof piece, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return deadline_exceeded(fmt::format("no byte from the server for {} s",
                                           std::chrono::duration_cast<std::chrono::seconds>(timeout_).count()));
    }
    if (got < 0) return unavailable(fmt::format("reading the answer: {}", std::strerror(errno)));
    is_at_end_ = got == 0;
    if (is_at_end_) return unavailable("the server closed the connection");
    has_answered_ = true;
    buffer_.append(piece, static_cast<std::size_t>(got));
    return Status::ok();
  }
}

// `left`: how many bytes such lines may have together; becomes less by this one.
Result<std::string> HttpClient::read_line(std::size_t& left) {
  for (;;) {
    const std::size_t end = buffer_.find('\n');
    if (std::min(end, buffer_.size()) >= left) return corrupt("the head of the answer is longer than 64 KiB");
    if (end != std::string::npos) {
      std::string line(trim(std::string_view(buffer_).substr(0, end)));
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
    if (head.status >= 200) return head;  // "100 Continue" and the like are passed over
  }
}

Status HttpClient::read_counted(std::uint64_t size_bytes, const std::function<Status(std::string_view)>& sink) {
  while (size_bytes > 0) {
    if (buffer_.empty()) LARDER_RETURN_IF_ERROR(receive());
    const std::size_t take = static_cast<std::size_t>(std::min<std::uint64_t>(size_bytes, buffer_.size()));
    const std::string piece = buffer_.substr(0, take);
    buffer_.erase(0, take);
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
    const auto size_bytes = parse_number<std::uint64_t>(trim(std::string_view(*line).substr(0, line->find(';'))), 16);
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
  if (head.status == 204) return Status::ok();
  if (head.is_chunked) return read_chunked(sink);
  if (head.length) return read_counted(*head.length, sink);
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

Result<HttpReply> HttpClient::exchange(std::string_view bytes, const LineSink* on_line) {
  const bool was_open = socket_ >= 0;
  if (!was_open) LARDER_RETURN_IF_ERROR(connect());
  has_answered_ = is_at_end_ = false;
  Status sent = send_all(bytes);
  Result<Head> head = sent.is_ok() ? read_head() : Result<Head>(sent);
  const bool was_stale = was_open && !has_answered_ && head.status().code() == StatusCode::kUnavailable;
  if (was_stale) {  // the server had closed the idle connection: nothing was done, so once more on a new one
    LARDER_RETURN_IF_ERROR(connect());
    sent = send_all(bytes);
    head = sent.is_ok() ? read_head() : Result<Head>(sent);
  }
  if (!head.is_ok()) {
    disconnect();
    return head.status();
  }
  HttpReply reply;
  reply.status = head->status;
  reply.content_type = head->content_type;
  LineSink ignore = [](std::string_view) { return true; };
  LineCutter lines(on_line ? *on_line : ignore);
  const bool by_line = on_line && head->status == 200;
  const Status status = read_body(*head, [&](std::string_view piece) -> Status {
    if (by_line) return lines.push(piece);
    reply.body += piece;
    return reply.body.size() > kMaxBodyBytes ? corrupt("the answer is larger than 1 GiB") : Status::ok();
  });
  const bool has_end = head->is_chunked || head->length || head->status == 204;
  if (!status.is_ok() || !head->keep_alive || !has_end) disconnect();
  if (!status.is_ok()) return status;
  return reply;
}

std::string HttpClient::request_text(std::string_view method, std::string_view target, std::string_view body,
                                     std::string_view media_type) const {
  std::string text =
      fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\n", method, url_.base, target, url_.host, url_.port);
  if (!bearer_.empty()) text += fmt::format("Authorization: Bearer {}\r\n", bearer_);
  if (!body.empty()) text += fmt::format("Content-Type: {}\r\n", media_type);
  text += fmt::format("Content-Length: {}\r\n\r\n", body.size());
  text += body;
  return text;
}

Result<HttpReply> HttpClient::request(std::string_view method, std::string_view target, std::string_view body,
                                      std::string_view media_type) {
  if (!buffer_.empty()) disconnect();  // what stands behind the last answer is an answer to nothing
  return exchange(request_text(method, target, body, media_type), nullptr);
}

Result<HttpReply> HttpClient::stream(std::string_view method, std::string_view target, std::string_view body,
                                     const std::function<bool(std::string_view line)>& on_line) {
  if (!buffer_.empty()) disconnect();
  return exchange(request_text(method, target, body, "application/json"), &on_line);
}

Result<HttpReply> HttpClient::raw(std::string_view bytes) { return exchange(bytes, nullptr); }

}  // namespace larder
