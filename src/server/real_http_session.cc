// SPDX-License-Identifier: Apache-2.0
// One connection on Asio (sockets, strands, timers) and Boost.Beast (parsing).
#include "server/real_http_session.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <cassert>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "server/api_error.h"
#include "server/real_http_body.h"
#include "server/real_http_stream.h"

namespace larder {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr auto kDrainLimit = std::chrono::seconds(2);  // reading what a refused client still sends

// Beyond the limit of a head: what one read brings. Of what stands around the pieces of a chunked body (extensions, the
// fields behind it) Beast keeps as much as comes, up to the limit of its buffer.
constexpr std::size_t kReadAheadBytes = 128u << 10;

// Of a handshake: what came is a request in the clear.
bool is_plain_http(const ErrorCode& error) {
  const auto code = static_cast<unsigned long>(error.value());
  return error.category() == asio::error::get_ssl_category() && ERR_GET_LIB(code) == ERR_LIB_SSL &&
         ERR_GET_REASON(code) == SSL_R_HTTP_REQUEST;
}

// A piece of an answer in the chunked coding; the last one ends it.
void append_chunk(std::string_view bytes, bool last, std::string& out) {
  if (!bytes.empty()) out += fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
  if (last) out += "0\r\n\r\n";
}

// Four random bytes: ids of two servers, or of two runs of one, should differ.
std::string random_prefix() {
  std::array<unsigned char, 4> bytes{};
  (void)::RAND_bytes(bytes.data(), static_cast<int>(bytes.size()));
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

bool has_other_coding(const HttpRequest& head) {
  return std::ranges::any_of(head.fields, [](const HttpField& field) {
    return is_same_field_name(field.name, "transfer-encoding") && !is_same_field_name(field.value, "chunked");
  });
}

std::string id_of(const HttpRequest& head, HttpCore& core) {
  const std::string* given = find_field(head.fields, "x-request-id");
  if (given != nullptr && is_request_id(*given)) return *given;
  return fmt::format("{}-{}", core.id_prefix, core.next_id.fetch_add(1, std::memory_order_relaxed));
}

// One connection. All members are owned by its strand, but for what is marked otherwise.
class Session final : public HttpSession, public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<HttpCore> core, Tcp::socket socket, SSL_CTX* tls)
      : core_(std::move(core)),
        stream_(std::move(socket), tls),
        limit_(stream_.get_executor()),
        buffer_(core_->options.max_header_bytes + kReadAheadBytes) {}
  ~Session() override { forget(); }  // close() has run, but after an exception
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void post(std::function<void()> task) override {
    LockGuard guard(core_->mutex);
    if (core_->closed) return;
    asio::post(stream_.get_executor(), [self = shared_from_this(), task = std::move(task)] { self->run(task); });
  }

  void start() override {
    shake_hands([this] { read_next(); });
  }

  void refuse_connection() override {
    is_refusal_ = true;
    shake_hands([this] {
      fail_request(503,
                   fmt::format("too many connections (limit {}): try again later", core_->options.max_connections));
    });
  }

  void stop_if_idle() override {
    if (is_idle()) close();
  }

  void close_for_another() override {
    if (wait.began() > core_->latest_begin()) return;
    core_->closed_waiting.increment();
    close();
  }

  void close_now() override { lost(); }

  // --- what an Exchange asks for; `serial` says on behalf of which request ---

  void respond(std::uint64_t serial, HttpResponse response) {
    if (serial != serial_ || !in_request_ || is_answered_) return;
    is_answered_ = true;
    core_->count_response(response.status);
    keep_alive_ = keep_alive_ && !core_->stopping.load(std::memory_order_relaxed);
    is_ending_ = true;
    send(http_answer_text(response, keep_alive_, id_, is_head_), [this](bool) { finish(); });
  }

  void begin_stream(std::uint64_t serial, const HttpResponse& head) {
    if (serial != serial_ || !in_request_ || is_answered_) return;
    assert(head.body.empty());
    is_answered_ = true;
    core_->count_response(head.status);
    is_bodyless_ = is_head_ || is_bodyless_status(head.status);
    is_chunked_ = version_ >= 11 && !is_bodyless_status(head.status);
    const bool has_end = is_chunked_ || is_bodyless_;  // an HTTP/1.0 client reads to the end of the connection
    keep_alive_ = keep_alive_ && has_end && !core_->stopping.load(std::memory_order_relaxed);
    pending_head_ =
        http_head_text(head, keep_alive_, id_) + (is_chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
  }

  // The answer of `serial` will not be completed.
  void break_off(std::uint64_t serial) {
    if (serial != serial_ || !in_request_ || is_ending_) return;
    if (!is_answered_) return respond(serial, error_response(500, "the request was dropped without an answer"));
    lost();
  }

  void write(std::uint64_t serial, std::string_view bytes, bool last, std::function<void()> written) {
    if (serial != serial_ || !in_request_) return;
    std::string out = std::move(pending_head_);
    pending_head_.clear();
    if (is_chunked_ && !is_bodyless_) {
      append_chunk(bytes, last, out);
    } else if (!is_bodyless_) {
      out += bytes;
    }
    is_ending_ = last;
    send(std::move(out), [this, last, written = std::move(written)](bool) {
      if (last) finish();
      if (written) written();
    });
  }

  void on_gone(std::uint64_t serial, std::function<void()> gone) {
    if (serial == serial_ && in_request_) {
      gone_ = std::move(gone);
      if (has_client_ended_ && !is_ending_) lost();
    } else {
      gone();
    }
  }

 private:
  // Our own code throws only when memory is out: this connection ends, the server lives on.
  void run(const std::function<void()>& task) {
    try {
      task();
    } catch (const std::exception& error) {
      log_error("server", fmt::format("a request failed: {}", error.what()));
      lost();
    }
  }

  void shake_hands(std::function<void()> then) {
    if (!stream_.is_secure()) return then();
    stream_.tcp().expires_after(core_->options.handshake_limit);
    stream_.handshake([self = shared_from_this(), then = std::move(then)](ErrorCode error) {
      if (self->is_closed_) return;
      if (!error) return then();
      self->core_->handshakes_failed.increment();
      if (!is_plain_http(error)) return self->close();
      self->stream_.end_tls();
      self->fail_request(400, "this port speaks TLS, and plain HTTP came: write https:// in the URL");
    });
  }

  using Parser = http::request_parser<GrowingBody>;

  // From the first read on.
  Parser& parser() {
    assert(parser_);
    return *parser_;
  }

  // Nothing is answered, and nothing of a request has come.
  [[nodiscard]] bool is_idle() const {
    const bool has_begun = buffer_.size() > 0 || (parser_ && parser_->got_some());
    return wait.is_on() && !has_begun;
  }

  void read_next() {
    wait.begin(real_clock().now());
    id_.clear();
    parser_.emplace();
    parser_->header_limit(core_->options.max_header_bytes);
    parser_->body_limit(core_->options.max_body_bytes);
    stream_.tcp().expires_after(core_->options.idle_limit);
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = shared_from_this()](ErrorCode error, std::size_t) { self->on_head(error); });
  }

  void on_head(ErrorCode error) {
    if (is_closed_) return;
    wait.end();
    if (error) return read_failed(error);
    take_head();
    if (!parsed_.is_ok()) return refuse(error_response(parsed_));
    if (has_other_coding(request_)) {
      // Where its body ends is not known; what comes behind the head would be taken for the next request.
      return fail_request(400, "Transfer-Encoding: a body is sent with Content-Length, or chunked");
    }
    if (parser().get().count(http::field::host) > 1) return fail_request(400, "the request has several Host fields");
    if (core_->gate && !parser().is_done()) {
      std::optional<HttpResponse> refusal = core_->gate(request_);
      if (refusal) return refuse(*refusal);
    }
    parser().body_limit(body_limit());
    if (parser().content_length().value_or(0) > body_limit()) return read_failed(http::error::body_limit);
    const auto& head = parser().get();
    stream_.tcp().expires_after(core_->options.read_limit);
    if (beast::iequals(head[http::field::expect], "100-continue")) {
      send("HTTP/1.1 100 Continue\r\n\r\n", [this](bool ok) {
        if (ok) read_body();
      });
    } else {
      read_body();
    }
  }

  // Of the request whose head is here. A question has no body to speak of, and some may be asked by everybody.
  [[nodiscard]] std::uint64_t body_limit() const {
    const std::uint64_t most = core_->options.max_body_bytes;
    return request_.method == "GET" ? std::min(most, kSmallBodyBytes) : most;
  }

  // Now: later come the fields behind a chunked body, which are nobody's.
  void take_head() {
    const auto& head = parser().get();
    request_ = {};
    request_.method = std::string(head.method_string());
    request_.is_head = head.method() == http::verb::head;
    if (request_.is_head) request_.method = "GET";
    for (const auto& field : head) {
      const auto name = field.name_string();
      const auto value = field.value();
      request_.fields.push_back({std::string(name.data(), name.size()), std::string(value.data(), value.size())});
    }
    const std::string* authorization = find_field(request_.fields, "authorization");
    if (authorization) request_.authorization = *authorization;
    const auto peer = stream_.peer();  // unknown: then it is not on this machine
    if (peer) request_.peer = peer->to_string();
    const bool is_passed_on = is_from_web_page(request_.fields) || is_forwarded(request_.fields);
    request_.is_loopback = peer && peer->is_loopback() && !is_passed_on;
    id_ = id_of(request_, *core_);
    request_.id = id_;
    const auto target = head.target();
    request_.target = origin_form({target.data(), target.size()});
    parsed_ = parse_target(request_.target, request_);
  }

  void read_body() {
    stream_.tcp().expires_after(core_->options.read_limit);
    read_more();
  }

  // In pieces, so that what has come counts, and not what a head promises.
  void read_more() {
    if (parser().is_done()) return on_request({});
    http::async_read_some(stream_, buffer_, parser(), [self = shared_from_this()](ErrorCode error, std::size_t) {
      if (self->is_closed_) return;
      if (error) return self->read_failed(error);
      if (!self->body_hold_) self->body_hold_ = std::make_shared<BodyHold>(self->core_);
      if (!self->body_hold_->grow_to(self->parser().get().body().size())) {
        return self->fail_request(503,
                                  fmt::format("the bodies of open requests have {} bytes together: try again later",
                                              self->core_->options.max_open_body_bytes));
      }
      self->read_more();
    });
  }

  void read_failed(ErrorCode error) {
    if (error == http::error::body_limit) {
      return fail_request(413, fmt::format("the body is larger than {} bytes", body_limit()));
    }
    if (error == http::error::header_limit) {
      return fail_request(431, fmt::format("the head is larger than {} bytes", core_->options.max_header_bytes));
    }
    if (error == http::error::buffer_overflow) {
      return fail_request(431, "a chunk's extensions, or the fields behind the body, are too large: leave them out");
    }
    if (error == boost::system::errc::not_enough_memory) return fail_request(503, "there is no memory for the body");
    const bool is_quiet_end = error == http::error::end_of_stream || error == http::error::partial_message ||
                              error == beast::error::timeout || error.category() == asio::error::get_ssl_category() ||
                              error.category() == asio::ssl::error::get_stream_category() ||
                              error.category() == asio::error::get_system_category() || error == asio::error::eof;
    if (is_quiet_end) return close();
    fail_request(400, fmt::format("malformed HTTP: {}", error.message()));
  }

  void on_request(ErrorCode error) {
    if (error) return read_failed(error);
    auto message = parser().release();
    stream_.tcp().expires_never();
    ++serial_;
    in_request_ = true;
    is_answered_ = false;
    is_chunked_ = false;
    is_bodyless_ = false;
    is_ending_ = false;
    has_client_ended_ = false;
    keep_alive_ = message.keep_alive();
    version_ = message.version();
    is_head_ = request_.is_head;
    HttpRequest request = std::exchange(request_, {});
    request.body = std::move(message.body());
    request.body_hold = std::move(body_hold_);
    watch();
    dispatch(std::move(request));
  }

  void dispatch(HttpRequest request);

  // Notices that the client has left while its answer is being made. Bytes of a pipelined request end the watch, and so
  // does the end of the answer: a client may have it all and leave before we know that it is out.
  // The end of what a client sends does not tell whether it still reads: what is made at once is sent, and what waits
  // long (who makes it wants to know, by on_gone()) is not made for somebody who has left.
  void watch() {
    stream_.watch(buffer_, [self = shared_from_this(), serial = serial_](bool may_read) {
      if (serial != self->serial_ || !self->in_request_ || self->is_ending_) return;
      self->has_client_ended_ = true;
      if (!may_read || self->gone_) self->lost();
    });
  }

  // Over TLS the limits of tcp() do not bound a wait: the watch may write for its peer, without a limit, and hold up
  // what is to be sent, or read on when it should end. So such a wait ends with the connection after `limit`.
  void begin_limit(Nanos limit) {
    end_limit();
    if (!stream_.is_secure()) return;
    limit_.expires_after(limit);
    limit_.async_wait([self = shared_from_this(), number = limits_](ErrorCode stopped) {
      if (!stopped && number == self->limits_ && !self->is_closed_) self->lost();
    });
  }
  void end_limit() {
    ++limits_;
    limit_.cancel();
  }

  void send(std::string bytes, std::function<void(bool)> done) {
    // Asio ends a write of nothing over TLS by a read of nothing, and a read may be under way: the watch's.
    if (bytes.empty()) {
      return post([this, done = std::move(done)] {
        if (!is_closed_) done(true);
      });
    }
    stream_.tcp().expires_after(core_->options.write_limit);
    begin_limit(core_->options.write_limit);
    auto held = std::make_shared<std::string>(std::move(bytes));
    asio::async_write(stream_, asio::buffer(*held),
                      [self = shared_from_this(), held, done = std::move(done)](ErrorCode error, std::size_t) {
                        if (self->is_closed_) return;
                        self->end_limit();
                        self->stream_.tcp().expires_never();
                        if (error) return self->lost();
                        done(true);
                      });
  }

  // The answer of the current request is out.
  void finish() {
    in_request_ = false;
    ++serial_;
    const std::function<void()> gone = std::move(gone_);  // dies here, unrun
    gone_ = nullptr;
    // After a stop, too, for a request that is coming in already.
    const auto goes_on = [this] {
      const bool is_last = has_client_ended_ || core_->stopping.load(std::memory_order_relaxed);
      return keep_alive_ && (buffer_.size() > 0 || !is_last);
    };
    begin_limit(goes_on() ? core_->options.idle_limit : Nanos(kDrainLimit));
    stream_.end_watch([self = shared_from_this(), goes_on] {
      if (self->is_closed_) return;
      self->end_limit();
      if (goes_on()) return self->read_next();
      self->drain();
    });
  }

  // An answer to something that never became a request.
  void fail_request(unsigned status, const std::string& message) {
    HttpResponse response = error_response(status, message);
    if (status == 503) response.headers.emplace_back("Retry-After", "1");
    refuse(response);
  }

  void refuse(const HttpResponse& response) {
    wait.end();
    parser_.reset();  // what has come of the body
    body_hold_.reset();
    core_->count_response(response.status);
    send(http_answer_text(response, false, id_, request_.is_head), [this](bool) { drain(); });
  }

  // Closes without a reset that could overtake our last answer: tells the client we are done, and reads what it still
  // sends for a short while.
  void drain() {
    stream_.tcp().expires_after(kDrainLimit);
    stream_.say_end([self = shared_from_this()] {
      if (self->is_closed_) return;
      ErrorCode ignored;
      self->stream_.tcp().socket().shutdown(Tcp::socket::shutdown_send, ignored);
      self->drain_more();
    });
  }

  void drain_more() {
    stream_.tcp().async_read_some(asio::buffer(scratch_), [self = shared_from_this()](ErrorCode error, std::size_t) {
      if (error) return self->close();
      self->drain_more();  // the time limit set in drain() still runs
    });
  }

  void lost() {
    in_request_ = false;
    ++serial_;
    const std::function<void()> gone = std::move(gone_);
    gone_ = nullptr;
    close();
    if (gone) gone();
  }

  void close() {
    if (is_closed_) return;
    ErrorCode ignored;
    stream_.tcp().socket().shutdown(Tcp::socket::shutdown_both, ignored);
    stream_.tcp().close();
    end_limit();
    forget();
  }

  void forget() {
    if (std::exchange(is_closed_, true)) return;
    wait.end();
    body_hold_.reset();
    LockGuard guard(core_->mutex);
    core_->sessions.erase(this);
    if (is_refusal_) --core_->refusals;
    core_->open.set(static_cast<double>(core_->sessions.size()));
    if (core_->sessions.empty()) core_->drained.notify_all();
  }

  const std::shared_ptr<HttpCore> core_;
  HttpStream stream_;
  asio::steady_timer limit_;
  std::uint64_t limits_ = 0;  // ended so far: one that has passed already does not come too late
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::array<char, 4096> scratch_;
  std::uint64_t serial_ = 0;  // of the current request; grows at its begin and its end
  std::function<void()> gone_;
  HttpRequest request_;                  // that is being read: its head
  Status parsed_;                        // what its target is like
  std::string id_;                       // of the current request, from its head on
  std::shared_ptr<BodyHold> body_hold_;  // of the body that is being read; null: nothing has come
  std::string pending_head_;             // of a stream, sent with its first piece
  unsigned version_ = 11;
  bool in_request_ = false;
  bool is_answered_ = false;
  bool is_chunked_ = false;
  bool is_bodyless_ = false;       // of a stream: its pieces are not sent
  bool is_ending_ = false;         // the last bytes of the answer are being sent
  bool has_client_ended_ = false;  // during this request: nothing comes behind what came already
  bool is_head_ = false;
  bool keep_alive_ = false;
  bool is_refusal_ = false;
  bool is_closed_ = false;
};

class SessionExchange final : public HttpExchange {
 public:
  SessionExchange(std::shared_ptr<Session> session, std::uint64_t serial)
      : session_(std::move(session)), serial_(serial) {}

  // A handler that forgets to answer must not leave its client waiting.
  ~SessionExchange() override {
    if (!is_complete_.load(std::memory_order_relaxed)) SessionExchange::break_off();
  }

  void respond(HttpResponse response) override {
    is_complete_.store(true, std::memory_order_relaxed);
    session_->post([session = session_.get(), serial = serial_, response = std::move(response)]() mutable {
      session->respond(serial, std::move(response));
    });
  }
  void break_off() override {
    session_->post([session = session_.get(), serial = serial_] { session->break_off(serial); });
  }
  void post(std::function<void()> task) override { session_->post(std::move(task)); }
  void begin_stream(HttpResponse head) override { session_->begin_stream(serial_, head); }
  void write(std::string bytes, bool last, std::function<void()> written) override {
    if (last) is_complete_.store(true, std::memory_order_relaxed);
    session_->write(serial_, bytes, last, std::move(written));
  }
  void on_gone(std::function<void()> gone) override { session_->on_gone(serial_, std::move(gone)); }

 private:
  const std::shared_ptr<Session> session_;
  const std::uint64_t serial_;
  std::atomic<bool> is_complete_{false};  // nothing follows; relaxed: the destructor runs after every use
};

void Session::dispatch(HttpRequest request) {
  auto exchange = std::make_shared<SessionExchange>(shared_from_this(), serial_);
  run([&] { core_->handler(std::move(request), exchange); });
}

}  // namespace

HttpCore::HttpCore(const ListenOptions& o, HttpListener::Handler h, HttpListener::Gate g, MetricsRegistry& metrics)
    : options(o),
      handler(std::move(h)),
      gate(std::move(g)),
      accepted(metrics.counter("larder_http_connections_total", "Connections accepted.")),
      refused(metrics.counter("larder_http_connections_refused_total", "Connections beyond the limit.")),
      closed_waiting(metrics.counter("larder_http_waiting_connections_closed_total",
                                     "Connections that waited for a request, closed to make room for others.")),
      handshakes_failed(metrics.counter("larder_http_handshakes_failed_total",
                                        "TLS handshakes that failed, or were not ended in time.")),
      open(metrics.gauge("larder_http_connections", "Open connections.")),
      registry(metrics),
      id_prefix(random_prefix()) {}

void HttpCore::count_response(unsigned status) {
  registry.counter("larder_http_responses_total", "Answers by status.", {{"code", std::to_string(status)}}).increment();
}

std::shared_ptr<HttpSession> make_http_session(std::shared_ptr<HttpCore> core, Tcp::socket socket, SSL_CTX* tls) {
  return std::make_shared<Session>(std::move(core), std::move(socket), tls);
}

}  // namespace larder
