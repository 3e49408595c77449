// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>

#include "base/http_client.h"

namespace larder {
namespace beast = boost::beast::http;
namespace {

constexpr std::size_t kMaxHeadBytes = 64u << 10;
constexpr std::uint64_t kMaxBodyBytes = 1ull << 30;
constexpr std::size_t kMaxLineBytes = 16u << 20;

// Of a socket that connects without waiting: 0 when it is connected, or what it failed with; ETIMEDOUT after `end`.
int wait_connected(int socket, TimePoint end) {
  int error = wait_for_socket(socket, POLLOUT, end);
  socklen_t size = sizeof error;
  if (error == 0) ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

Status out_of_time() { return deadline_exceeded("the time was over before the whole answer was there"); }

Status cancelled_by_other() { return cancelled("the client was told to cancel"); }

// In a request line: nothing that would end it.
bool is_request_target(std::string_view text) {
  return text.starts_with('/') && std::all_of(text.begin(), text.end(), [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return byte > 0x20 && byte != 0x7f;
         });
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

// Beast knows where an answer's head and body end. Here stands what it lets pass and this client does not, and where
// the pieces go.
class HttpClient::Answer final : public beast::basic_parser<false> {
 public:
  using Sink = std::function<Status(std::string_view)>;

  Answer(std::size_t head_limit_bytes, bool is_to_head) {
    header_limit(static_cast<std::uint32_t>(head_limit_bytes));
    body_limit(std::numeric_limits<std::uint64_t>::max());  // boost::none is no limit from 1.75 on
    skip(is_to_head);
  }
  // From here on the body is read, and goes there; the sink outlives what is parsed then.
  void set_sink(const Sink& sink) {
    sink_ = &sink;
    eager(true);  // all chunks that have come at once
  }
  // Beast 1.74 takes for granted that the last chunk comes with all that is behind it, five bytes, where it is the only
  // one. No other body in chunks is shorter, so nothing waits in vain.
  [[nodiscard]] bool wants_more_than(std::size_t bytes) {
    return is_header_done() && chunked() && !has_chunks_ && bytes < 5;
  }
  // After a request that the server did not read to its end.
  void set_last() { is_last_ = true; }
  [[nodiscard]] const HttpReplyHead& head() const { return head_; }
  [[nodiscard]] bool is_last() const { return is_last_ || !keep_alive(); }
  [[nodiscard]] Status failure(const boost::system::error_code& error) const {
    if (!failure_.is_ok()) return failure_;
    using E = beast::error;
    if (error == E::header_limit) return corrupt("the head of the answer is longer than 64 KiB");
    if (error == E::bad_version || error == E::bad_status) return corrupt("the answer is not HTTP/1.1");
    if (error == E::bad_field) return corrupt("the answer has a header line without a proper name and ':'");
    if (error == E::bad_content_length) return corrupt("the answer has a broken Content-Length");
    if (error == E::bad_transfer_encoding) return corrupt("the answer has two ends: Transfer-Encoding, and another");
    if (error == E::bad_chunk || error == E::bad_chunk_extension) return corrupt("the answer has a broken chunk");
    return corrupt("the answer is not HTTP/1.1: " + error.message());
  }

 private:
  using Text = boost::beast::string_view;
  using Error = boost::system::error_code;

  void fail(Status failure, Error& error) {
    failure_ = std::move(failure);
    error = boost::system::errc::make_error_code(boost::system::errc::operation_canceled);
  }
  std::size_t take(Text piece, Error& error) {
    Status status = piece.empty() || sink_ == nullptr ? Status::ok() : (*sink_)({piece.data(), piece.size()});
    if (!status.is_ok()) fail(std::move(status), error);
    return piece.size();
  }
  void on_request_impl(beast::verb, Text, Text, int, Error&) override {}
  void on_response_impl(int status, Text, int, Error& error) override {
    head_.status = static_cast<unsigned>(status);
    if (status < 100) fail(corrupt("the answer is not HTTP/1.1"), error);
  }
  void on_field_impl(beast::field known, Text name, Text value, Error& error) override {
    if (is_header_done()) return;  // behind a chunked body
    const std::string_view text(value.data(), value.size());
    if (known == beast::field::transfer_encoding && !is_same_field_name(text, "chunked") &&
        !is_same_field_name(text, "identity")) {
      return fail(unsupported(fmt::format("the answer has Transfer-Encoding '{}'", text)), error);
    }
    head_.fields.push_back({std::string(name), std::string(text)});
  }
  void on_header_impl(Error&) override {
    if (const auto length = content_length(); length && !chunked()) head_.length = *length;
  }
  void on_body_init_impl(const boost::optional<std::uint64_t>&, Error&) override {}
  std::size_t on_body_impl(Text piece, Error& error) override { return take(piece, error); }
  void on_chunk_header_impl(std::uint64_t, Text, Error&) override { has_chunks_ = true; }
  std::size_t on_chunk_body_impl(std::uint64_t, Text piece, Error& error) override { return take(piece, error); }
  void on_finish_impl(Error&) override {}

  HttpReplyHead head_;  // its fields: all of them
  const Sink* sink_ = nullptr;
  Status failure_;
  bool is_last_ = false, has_chunks_ = false;
};

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

void HttpClient::set_deadline(TimePoint end) {
  deadline_ = end;
  searched_.reset();
}

TimePoint HttpClient::end_of_wait() const {
  const TimePoint end = real_clock().now() + timeout_;
  return deadline_ ? std::min(end, *deadline_) : end;
}

bool HttpClient::is_too_late() const { return deadline_ && real_clock().now() >= *deadline_; }

Status HttpClient::find_host() {
  if (deadline_ && searched_) return *searched_;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const TimePoint begin = real_clock().now();
  const int unknown = ::getaddrinfo(url_.host.c_str(), std::to_string(url_.port).c_str(), &hints, &found);
  if (deadline_) *deadline_ += real_clock().now() - begin;
  found_ = Addresses(unknown == 0 ? found : nullptr, &::freeaddrinfo);
  searched_ = unknown == 0 ? Status::ok() : unavailable(::gai_strerror(unknown));
  return *searched_;
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
  const std::string where = fmt::format("{}:{}", url_.host, url_.port);
  const Status found = find_host();
  if (!found.is_ok()) return Status(found.code(), fmt::format("cannot connect to {}: {}", where, found.message()));
  const TimePoint end = end_of_wait();
  const int error = connect_one_of(found_.get(), end);
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
    const Result<std::size_t> sent = stream_->send_some(bytes, end_of_wait());
    if (sent.status().code() == StatusCode::kDeadlineExceeded) {
      if (is_too_late()) return out_of_time();
      return deadline_exceeded("the server does not read the request");
    }
    if (!sent.is_ok()) return unavailable("sending the request: " + sent.status().message());
    bytes.remove_prefix(*sent);
  }
  return Status::ok();
}

Status HttpClient::receive() {
  char piece[16384];
  const Result<std::size_t> got = stream_->receive_some(piece, end_of_wait());
  if (got.status().code() == StatusCode::kDeadlineExceeded) {
    if (is_too_late()) return out_of_time();
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

Status HttpClient::feed(Answer& answer) {
  boost::system::error_code error;
  if (!buffer_.empty() && !answer.wants_more_than(buffer_.size())) {
    const std::size_t used = answer.put(boost::asio::buffer(buffer_), error);
    buffer_.erase(0, used);
    if (error && error != beast::error::need_more) return answer.failure(error);
    if (used > 0 || !error) return Status::ok();
    if (buffer_.size() > kMaxHeadBytes) return corrupt("a line between the chunks of the answer is longer than 64 KiB");
    // A head is parsed when it is whole, which another protocol's first words never are.
    const bool is_begin = answer.head().status == 0;
    if (is_begin && !std::string_view(buffer_).starts_with(std::string_view("HTTP/1.").substr(0, buffer_.size()))) {
      return corrupt("the answer is not HTTP/1.1");
    }
  }
  const Status status = receive();
  if (!is_at_end_ || !answer.is_header_done()) return status;
  answer.put_eof(error);
  return error ? status : Status::ok();
}

Result<std::unique_ptr<HttpClient::Answer>> HttpClient::read_head(std::string_view method) {
  std::size_t left = kMaxHeadBytes;
  for (;;) {
    auto answer = std::make_unique<Answer>(left, method == "HEAD");
    while (!answer->is_header_done()) {
      const std::size_t before = buffer_.size();
      LARDER_RETURN_IF_ERROR(feed(*answer));
      left -= std::min(left, before - std::min(before, buffer_.size()));
      // Beast counts what it has at once, and a head may come field by field.
      if (left == 0) return corrupt("the head of the answer is longer than 64 KiB");
    }
    if (answer->head().status >= 200) return answer;  // "100 Continue" and the like are passed over
  }
}

Status HttpClient::read_body(Answer& answer, const Answer::Sink& sink) {
  answer.set_sink(sink);
  while (!answer.is_done()) LARDER_RETURN_IF_ERROR(feed(answer));
  return Status::ok();
}

Result<std::unique_ptr<HttpClient::Answer>> HttpClient::attempt(std::string_view method, std::string_view bytes) {
  has_answered_ = is_at_end_ = false;
  const Status sent = send_all(bytes);
  if (!sent.is_ok() && sent.code() != StatusCode::kUnavailable) return sent;
  // A server that closed the connection may have said why before: 413 to a body that it does not read.
  Result<std::unique_ptr<Answer>> answer = read_head(method);
  if (sent.is_ok()) return answer;
  if (!answer.is_ok()) return sent;
  (*answer)->set_last();
  return answer;
}

Result<std::unique_ptr<HttpClient::Answer>> HttpClient::begin(std::string_view method, std::string_view bytes) {
  if (is_cancelled()) return cancelled_by_other();
  if (is_too_late()) return out_of_time();
  const auto attempt_when = [&](const Status& connected) {
    return connected.is_ok() ? attempt(method, bytes) : Result<std::unique_ptr<Answer>>(connected);
  };
  const bool was_open = socket_ >= 0;
  auto answer = attempt_when(was_open ? Status::ok() : connect());
  const bool was_stale =
      was_open && !has_answered_ && answer.status().code() == StatusCode::kUnavailable && stream_->is_only_closed();
  // The server had closed the idle connection: nothing was done, so once more.
  if (was_stale && !is_cancelled()) answer = attempt_when(connect());
  if (answer.is_ok()) return answer;
  disconnect();
  return is_cancelled() ? cancelled_by_other() : answer.status();
}

Status HttpClient::end(const Answer& answer, const Status& status) {
  if (!status.is_ok() || answer.is_last()) disconnect();
  if (!is_cancelled()) return status;
  disconnect();
  return cancelled_by_other();
}

Result<HttpReply> HttpClient::exchange(std::string_view method, std::string_view bytes, const LineSink* on_line) {
  LARDER_ASSIGN_OR_RETURN(const auto answer, begin(method, bytes));
  HttpReply reply;
  reply.status = answer->head().status;
  const std::string* content_type = find_field(answer->head().fields, "content-type");
  if (content_type) reply.content_type = *content_type;
  LineSink ignore = [](std::string_view) { return true; };
  LineCutter lines(on_line ? *on_line : ignore);
  const bool by_line = on_line && reply.status == 200;
  const Status status = read_body(*answer, [&](std::string_view piece) -> Status {
    if (by_line) return lines.push(piece);
    reply.body += piece;
    return reply.body.size() > kMaxBodyBytes ? corrupt("the answer is larger than 1 GiB") : Status::ok();
  });
  LARDER_RETURN_IF_ERROR(end(*answer, status));
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
  LARDER_ASSIGN_OR_RETURN(const std::string text, relay_text(request));
  if (!buffer_.empty()) disconnect();
  LARDER_ASSIGN_OR_RETURN(const auto answer, begin(request.method, text));
  HttpReplyHead passed = answer->head();
  remove_hop_by_hop(passed.fields);
  remove_field(passed.fields, "content-length");
  if (!on_head(passed)) return end(*answer, cancelled("the caller ended the answer"));
  return end(*answer, read_body(*answer, [&](std::string_view piece) -> Status {
    if (is_cancelled()) return cancelled_by_other();
    return on_bytes(piece) ? Status::ok() : cancelled("the caller ended the answer");
  }));
}

Result<HttpReply> HttpClient::raw(std::string_view bytes) { return exchange({}, bytes, nullptr); }

}  // namespace larder
