// HttpListener on Boost.Beast (parsing) and Asio (sockets, strands, timers): the only file that includes them.

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cassert>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "server/api_error.h"
#include "server/http_listener.h"

namespace larder {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr std::size_t kMaxRefusals = 64;  // connections beyond the limit that are being told so
constexpr auto kAcceptRetryDelay = std::chrono::milliseconds(100);
constexpr auto kDrainLimit = std::chrono::seconds(2);  // reading what a refused client still sends

class Session;

// What sessions share with the listener. Shared, because an exchange may outlive the listener.
struct Core {
  Core(const ListenOptions& o, HttpListener::Handler h, MetricsRegistry& metrics)
      : options(o),
        handler(std::move(h)),
        accepted(metrics.counter("larder_http_connections_total", "Connections accepted.")),
        refused(metrics.counter("larder_http_connections_refused_total", "Connections beyond the limit.")),
        open(metrics.gauge("larder_http_connections", "Open connections.")),
        registry(metrics) {}

  void count_response(unsigned status) {
    registry.counter("larder_http_responses_total", "Answers by status.", {{"code", std::to_string(status)}})
        .increment();
  }

  const ListenOptions options;
  const HttpListener::Handler handler;
  Counter& accepted;
  Counter& refused;
  Gauge& open;
  MetricsRegistry& registry;
  asio::io_context io;
  std::atomic<bool> stopping{false};  // relaxed: a request that just misses it is answered as usual

  RankedMutex mutex{LockRank::kServer};
  std::unordered_map<Session*, std::weak_ptr<Session>> sessions LARDER_GUARDED_BY(mutex);
  RankedCondition drained;  // sessions became empty
  std::size_t refusals LARDER_GUARDED_BY(mutex) = 0;
  bool closed LARDER_GUARDED_BY(mutex) = false;  // nothing is posted any more
};

// Without what says how long the body is, and without the empty line.
std::string head_text(const HttpResponse& head, bool keep_alive) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\n", head.status, http_reason(head.status));
  const bool has_server = std::any_of(head.headers.begin(), head.headers.end(),
                                      [](const auto& header) { return is_same_field_name(header.first, "server"); });
  if (!has_server) text += "Server: larder\r\n";
  text += keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  const bool has_type = !head.content_type.empty() && !is_bodyless_status(head.status);
  if (has_type) text += fmt::format("Content-Type: {}\r\n", head.content_type);
  for (const auto& [name, value] : head.headers) text += fmt::format("{}: {}\r\n", name, value);
  return text;
}

// One connection. All members are owned by its strand, but for what is marked otherwise.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<Core> core, Tcp::socket socket) : core_(std::move(core)), stream_(std::move(socket)) {}

  // Any thread.
  void post(std::function<void()> task) {
    LockGuard guard(core_->mutex);
    if (core_->closed) return;
    asio::post(stream_.get_executor(), [self = shared_from_this(), task = std::move(task)] { self->run(task); });
  }

  void start() { read_next(); }

  void refuse_connection() {
    is_refusal_ = true;
    fail_request(503, fmt::format("too many connections (limit {}): try again later", core_->options.max_connections));
  }

  void stop_if_idle() {
    if (!in_request_) close();
  }

  void close_now() { lost(); }

  // --- what an Exchange asks for; `serial` says on behalf of which request ---

  void respond(std::uint64_t serial, HttpResponse response) {
    if (serial != serial_ || !in_request_ || is_answered_) return;
    is_answered_ = true;
    core_->count_response(response.status);
    keep_alive_ = keep_alive_ && !core_->stopping.load(std::memory_order_relaxed);
    std::string bytes = head_text(response, keep_alive_);
    const bool has_body = !is_bodyless_status(response.status);  // otherwise it has no length either (RFC 9110)
    if (has_body) bytes += fmt::format("Content-Length: {}\r\n", response.body.size());
    bytes += "\r\n";
    if (!is_head_ && has_body) bytes += response.body;
    is_ending_ = true;
    send(std::move(bytes), [this](bool) { finish(); });
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
    pending_head_ = head_text(head, keep_alive_) + (is_chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
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
    if (!is_bodyless_) append_piece(bytes, last, out);
    is_ending_ = last;
    send(std::move(out), [this, last, written = std::move(written)](bool) {
      if (last) finish();
      if (written) written();
    });
  }

  void on_gone(std::uint64_t serial, std::function<void()> gone) {
    if (serial == serial_ && in_request_) {
      gone_ = std::move(gone);
    } else {
      gone();
    }
  }

 private:
  void append_piece(std::string_view bytes, bool last, std::string& out) const {
    if (is_chunked_ && !bytes.empty()) {
      out += fmt::format("{:x}\r\n", bytes.size());
      out += bytes;
      out += "\r\n";
    } else {
      out += bytes;
    }
    if (is_chunked_ && last) out += "0\r\n\r\n";
  }

  // Our own code throws only when memory is out: this connection ends, the server lives on.
  void run(const std::function<void()>& task) {
    try {
      task();
    } catch (const std::exception& error) {
      log_error("server", fmt::format("a request failed: {}", error.what()));
      lost();
    }
  }

  using Parser = http::request_parser<http::string_body>;

  // From the first read on.
  Parser& parser() {
    assert(parser_);
    return *parser_;
  }

  void read_next() {
    parser_.emplace();
    parser_->header_limit(core_->options.max_header_bytes);
    parser_->body_limit(core_->options.max_body_bytes);
    stream_.expires_after(core_->options.idle_limit);
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = shared_from_this()](ErrorCode error, std::size_t) { self->on_head(error); });
  }

  void on_head(ErrorCode error) {
    if (error) return read_failed(error);
    const auto& head = parser().get();
    fields_.clear();  // now: later come those behind a chunked body, which are nobody's
    for (const auto& field : head) {
      const auto name = field.name_string();
      const auto value = field.value();
      fields_.push_back({std::string(name.data(), name.size()), std::string(value.data(), value.size())});
    }
    stream_.expires_after(core_->options.read_limit);
    if (beast::iequals(head[http::field::expect], "100-continue")) {
      send("HTTP/1.1 100 Continue\r\n\r\n", [this](bool ok) {
        if (ok) read_body();
      });
    } else {
      read_body();
    }
  }

  void read_body() {
    stream_.expires_after(core_->options.read_limit);
    http::async_read(stream_, buffer_, parser(),
                     [self = shared_from_this()](ErrorCode error, std::size_t) { self->on_request(error); });
  }

  void read_failed(ErrorCode error) {
    if (error == http::error::body_limit) {
      return fail_request(413, fmt::format("the body is larger than {} bytes", core_->options.max_body_bytes));
    }
    if (error == http::error::header_limit) {
      return fail_request(431, fmt::format("the head is larger than {} bytes", core_->options.max_header_bytes));
    }
    const bool is_quiet_end = error == http::error::end_of_stream || error == http::error::partial_message ||
                              error == beast::error::timeout ||
                              error.category() == asio::error::get_system_category() || error == asio::error::eof;
    if (is_quiet_end) return close();
    fail_request(400, fmt::format("malformed HTTP: {}", error.message()));
  }

  void on_request(ErrorCode error) {
    if (error) return read_failed(error);
    auto message = parser().release();
    stream_.expires_never();
    ++serial_;
    in_request_ = true;
    is_answered_ = false;
    is_chunked_ = false;
    is_bodyless_ = false;
    is_ending_ = false;
    keep_alive_ = message.keep_alive();
    version_ = message.version();
    is_head_ = message.method() == http::verb::head;

    HttpRequest request;
    request.method = std::string(message.method_string());
    request.is_head = is_head_;
    request.fields = std::exchange(fields_, {});
    const std::string* authorization = find_field(request.fields, "authorization");
    if (authorization) request.authorization = *authorization;
    ErrorCode unknown;  // then it is not on this machine
    const auto peer = stream_.socket().remote_endpoint(unknown);
    request.is_loopback = !unknown && peer.address().is_loopback() && !is_from_web_page(request.fields);
    const auto target = message.target();
    request.target.assign(target.data(), target.size());
    const Status parsed = parse_target(request.target, request);
    request.body = std::move(message.body());
    watch();
    dispatch(parsed, std::move(request));
  }

  void dispatch(const Status& parsed, HttpRequest request);

  // Notices that the client has left while its answer is being made. Bytes of a pipelined request end the watch, and so
  // does the end of the answer: a client may have it all and leave before we know that it is out.
  void watch() {
    stream_.socket().async_wait(Tcp::socket::wait_read, [self = shared_from_this(), serial = serial_](ErrorCode error) {
      if (!error && serial == self->serial_ && self->in_request_ && !self->is_ending_) self->peek();
    });
  }

  void peek() {
    char byte = 0;
    const ssize_t got = ::recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got > 0) return;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return watch();
    lost();
  }

  void send(std::string bytes, std::function<void(bool)> done) {
    stream_.expires_after(core_->options.write_limit);
    auto held = std::make_shared<std::string>(std::move(bytes));
    asio::async_write(stream_, asio::buffer(*held),
                      [self = shared_from_this(), held, done = std::move(done)](ErrorCode error, std::size_t) {
                        if (self->is_closed_) return;
                        self->stream_.expires_never();
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
    ErrorCode ignored;
    stream_.socket().cancel(ignored);  // the watch: nothing else is pending now
    if (keep_alive_ && !core_->stopping.load(std::memory_order_relaxed)) return read_next();
    drain();
  }

  // An answer to something that never became a request.
  void fail_request(unsigned status, const std::string& message) {
    core_->count_response(status);
    const std::string body = error_body(status, message);
    HttpResponse head;
    head.status = status;
    std::string bytes = head_text(head, false);
    bytes += fmt::format("Content-Length: {}\r\n\r\n{}", body.size(), body);
    send(std::move(bytes), [this](bool) { drain(); });
  }

  // Closes without a reset that could overtake our last answer: tells the client we are done, and reads what it still
  // sends for a short while.
  void drain() {
    ErrorCode ignored;
    stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
    stream_.expires_after(kDrainLimit);
    drain_more();
  }

  void drain_more() {
    stream_.async_read_some(asio::buffer(scratch_), [self = shared_from_this()](ErrorCode error, std::size_t) {
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
    is_closed_ = true;
    ErrorCode ignored;
    stream_.socket().shutdown(Tcp::socket::shutdown_both, ignored);
    stream_.close();
    LockGuard guard(core_->mutex);
    core_->sessions.erase(this);
    if (is_refusal_) --core_->refusals;
    core_->open.set(static_cast<double>(core_->sessions.size()));
    if (core_->sessions.empty()) core_->drained.notify_all();
  }

  const std::shared_ptr<Core> core_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::array<char, 4096> scratch_;
  std::uint64_t serial_ = 0;  // of the current request; grows at its begin and its end
  std::function<void()> gone_;
  std::vector<HttpField> fields_;  // of the request that is being read
  std::string pending_head_;       // of a stream, sent with its first piece
  unsigned version_ = 11;
  bool in_request_ = false;
  bool is_answered_ = false;
  bool is_chunked_ = false;
  bool is_bodyless_ = false;  // of a stream: its pieces are not sent
  bool is_ending_ = false;    // the last bytes of the answer are being sent
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

void Session::dispatch(const Status& parsed, HttpRequest request) {
  auto exchange = std::make_shared<SessionExchange>(shared_from_this(), serial_);
  if (!parsed.is_ok()) return exchange->respond(error_response(parsed));
  if (is_head_) request.method = "GET";
  run([&] { core_->handler(std::move(request), exchange); });
}

class BeastListener final : public HttpListener {
 public:
  BeastListener(const ListenOptions& options, Handler handler, MetricsRegistry& metrics)
      : core_(std::make_shared<Core>(options, std::move(handler), metrics)),
        strand_(asio::make_strand(core_->io)),
        acceptor_(strand_),
        retry_(strand_),
        work_(asio::make_work_guard(core_->io)),
        pool_("http", options.io_threads, options.io_threads) {}

  ~BeastListener() override {
    core_->stopping.store(true, std::memory_order_relaxed);
    asio::post(strand_, [this] {
      close_acceptor();
      for (const auto& session : live_sessions()) session->post([session] { session->close_now(); });
    });
    work_.reset();
    pool_.wait_idle();  // the loops end when no connection and no acceptor is left
    {
      LockGuard guard(core_->mutex);
      core_->closed = true;
    }
    core_->io.restart();
    core_->io.poll();  // runs what was posted in between, so that nothing keeps itself alive
  }

  Status listen() {
    const ListenOptions& options = core_->options;
    ErrorCode error;
    Tcp::resolver resolver(core_->io);
    const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                        Tcp::resolver::passive | Tcp::resolver::numeric_service, error);
    if (error || found.empty()) {
      return invalid_argument(fmt::format("--host '{}': no such address ({})", options.host, error.message()));
    }
    const Tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) return listen_error(error);
    port_ = acceptor_.local_endpoint().port();
    for (std::uint32_t i = 0; i < std::max(options.io_threads, 1u); ++i) {
      LARDER_RETURN_IF_ERROR(pool_.post([io = &core_->io] { io->run(); }));
    }
    asio::post(strand_, [this] { accept_next(); });
    return Status::ok();
  }

  std::uint16_t port() const override { return port_; }
  std::size_t connections() const override {
    LockGuard guard(core_->mutex);
    return core_->sessions.size();
  }
  void stop_accepting() override {
    core_->stopping.store(true, std::memory_order_relaxed);
    asio::post(strand_, [this] {
      close_acceptor();
      for (const auto& session : live_sessions()) session->post([session] { session->stop_if_idle(); });
    });
  }
  bool wait_drained(Nanos limit) override {
    const TimePoint end = real_clock().now() + limit;
    LockGuard guard(core_->mutex);
    while (!core_->sessions.empty()) {
      const Nanos left = end - real_clock().now();
      if (left <= Nanos{0}) return false;
      core_->drained.wait_for(core_->mutex, left);
    }
    return true;
  }

 private:
  Status listen_error(const ErrorCode& error) const {
    const std::string where = fmt::format("{}:{}", core_->options.host, core_->options.port);
    if (error == asio::error::address_in_use) {
      return conflict(
          fmt::format("cannot listen on {}: the port is in use; choose another with --port, or --port 0 "
                      "for any free one",
                      where));
    }
    return unavailable(fmt::format("cannot listen on {}: {}", where, error.message()));
  }

  void accept_next() {
    if (!acceptor_.is_open()) return;
    acceptor_.async_accept(asio::make_strand(core_->io),
                           asio::bind_executor(strand_, [this](ErrorCode error, Tcp::socket socket) {
                             if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
                             if (error) return accept_later(error);
                             admit(std::move(socket));
                             accept_next();
                           }));
  }

  // Out of descriptors or memory: what is open goes on, and accepting waits a little.
  void accept_later(const ErrorCode& error) {
    log_warning("server", "accept: " + error.message());
    retry_.expires_after(kAcceptRetryDelay);
    retry_.async_wait([this](ErrorCode stopped) {
      if (!stopped) accept_next();
    });
  }

  void admit(Tcp::socket socket) {
    ErrorCode ignored;
    socket.set_option(Tcp::no_delay(true), ignored);
    auto session = std::make_shared<Session>(core_, std::move(socket));
    bool is_full = false;
    {
      LockGuard guard(core_->mutex);
      is_full = core_->sessions.size() - core_->refusals >= core_->options.max_connections;
      if (is_full && core_->refusals >= kMaxRefusals) return;  // the socket closes here
      if (is_full) ++core_->refusals;
      core_->sessions.emplace(session.get(), session);
      core_->open.set(static_cast<double>(core_->sessions.size()));
    }
    (is_full ? core_->refused : core_->accepted).increment();
    session->post([session, is_full] { is_full ? session->refuse_connection() : session->start(); });
  }

  void close_acceptor() {
    ErrorCode ignored;
    acceptor_.close(ignored);
    retry_.cancel();
  }

  std::vector<std::shared_ptr<Session>> live_sessions() {
    std::vector<std::shared_ptr<Session>> live;
    LockGuard guard(core_->mutex);
    for (const auto& [key, weak] : core_->sessions) {
      if (auto session = weak.lock()) live.push_back(std::move(session));
    }
    return live;
  }

  const std::shared_ptr<Core> core_;
  asio::strand<asio::io_context::executor_type> strand_;
  Tcp::acceptor acceptor_;    // owned by strand_
  asio::steady_timer retry_;  // owned by strand_
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::uint16_t port_ = 0;   // constant after listen()
  ThreadPoolExecutor pool_;  // last: its threads use the rest
};

}  // namespace

Result<std::unique_ptr<HttpListener>> HttpListener::create(const ListenOptions& options, Handler handler,
                                                           MetricsRegistry& metrics) {
  auto listener = std::make_unique<BeastListener>(options, std::move(handler), metrics);
  const Status status = listener->listen();
  if (!status.is_ok()) return status;
  return std::unique_ptr<HttpListener>(std::move(listener));
}

}  // namespace larder
