// SPDX-License-Identifier: Apache-2.0
// HttpListener on Asio: the acceptor and its threads. Its connections, and Boost.Beast: real_http_session.cc.

#include <fcntl.h>
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
#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/file_system.h"
#include "base/log.h"
#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "server/auth.h"
#include "server/http_listener.h"
#include "server/real_http_session.h"
#include "server/tls_context.h"

namespace larder {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr std::size_t kMaxRefusals = 64;  // connections beyond the limit that are being told so
constexpr auto kAcceptRetryDelay = std::chrono::milliseconds(100);
constexpr auto kBetweenComplaints = std::chrono::seconds(10);

// Asio opens and accepts without it. A program that is started in between gets none all the same
// (server/real_child_process.h).
void close_on_exec(int descriptor) { (void)::fcntl(descriptor, F_SETFD, FD_CLOEXEC); }

class BeastListener final : public HttpListener {
 public:
  BeastListener(const ListenOptions& options, Handler handler, Gate gate, MetricsRegistry& metrics)
      : core_(std::make_shared<HttpCore>(options, std::move(handler), std::move(gate), metrics)),
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
    LARDER_RETURN_IF_ERROR(load_certificate());
    ErrorCode error;
    Tcp::resolver resolver(core_->io);
    const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                        Tcp::resolver::passive | Tcp::resolver::numeric_service, error);
    if (error || found.empty()) return host_error(error);
    const Tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) close_on_exec(acceptor_.native_handle());
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) return listen_error(error);
    port_ = acceptor_.local_endpoint().port();
    for (std::uint32_t i = 0; i < std::max(options.io_threads, 1u); ++i) {
      LARDER_RETURN_IF_ERROR(pool_.post([this] { serve(); }));
    }
    asio::post(strand_, [this] { accept_next(); });
    return Status::ok();
  }

  std::uint16_t port() const override { return port_; }
  std::string url() const override {
    const std::string& host = core_->options.host;
    return fmt::format("{}://{}:{}", tls_ ? "https" : "http",
                       host.find(':') == std::string::npos ? host : "[" + host + "]", port_);
  }
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
  // Until nothing is left to do. A handler throws only when memory is out: its connection ends, the thread goes on.
  void serve() {
    for (;;) {
      try {
        core_->io.run();
        return;
      } catch (const std::exception& error) {
        log_error("server", fmt::format("a connection failed: {}", error.what()));
      }
    }
  }

  Status load_certificate() {
    const ListenOptions& options = core_->options;
    if (!options.tls.is_wanted()) {
      if (!is_loopback_host(options.host)) {
        log_warning("server",
                    fmt::format("--host {} can be reached from other machines, and this is plain HTTP: whoever is "
                                "between reads keys and prompts; give --ssl-certfile and --ssl-keyfile, or let a "
                                "proxy that speaks TLS be all that reaches this port, over a network that is yours",
                                options.host));
      }
      return TlsContext::check(options.tls);
    }
    auto made = TlsContext::create(options.tls, real_file_system(), real_clock());
    if (made.is_ok()) tls_ = std::move(*made);
    return made.status();
  }

  // A resolver that is not there yet may answer a later start.
  Status host_error(const ErrorCode& error) const {
    const std::string& host = core_->options.host;
    const bool is_answer = !error || error == asio::error::host_not_found || error == asio::error::no_data;
    if (is_answer) return invalid_argument(fmt::format("--host '{}': no such address ({})", host, error.message()));
    return unavailable(fmt::format("--host '{}': its address cannot be found now ({})", host, error.message()));
  }

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
                             accept_next();  // first: whatever becomes of this one, others are accepted
                             place(std::make_shared<Tcp::socket>(std::move(socket)));
                           }));
  }

  // Out of descriptors or memory: what is open goes on, and accepting waits a little.
  void accept_later(const ErrorCode& error) {
    ++failed_accepts_;
    if (const TimePoint now = real_clock().now(); !next_complaint_ || now >= *next_complaint_) {
      log_warning("server", fmt::format("no connection is accepted: {} ({} tries); if descriptors are out, raise "
                                        "LimitNOFILE of the unit, or ulimit -n",
                                        error.message(), failed_accepts_));
      next_complaint_ = now + kBetweenComplaints;
      failed_accepts_ = 0;
    }
    retry_.expires_after(kAcceptRetryDelay);
    retry_.async_wait([this](ErrorCode stopped) {
      if (!stopped) accept_next();
    });
  }

  // Admits it. Where all places are taken, the connection that has waited longest gives up its own first.
  // Only when memory is out something throws: this connection ends.
  void place(const std::shared_ptr<Tcp::socket>& socket) {
    if (!acceptor_.is_open()) return;
    try {
      if (const std::shared_ptr<HttpSession> oldest = one_to_close()) {
        return oldest->post([this, oldest, socket] {
          oldest->close_for_another();
          asio::post(strand_, [this, socket] { place(socket); });
        });
      }
      admit(std::move(*socket));
    } catch (const std::exception& error) {
      log_error("server", fmt::format("a connection was not taken: {}", error.what()));
    }
  }

  // Null: there is a place left, or none has waited for least_wait. Cost: one look at each connection, for each new one
  // that finds no place.
  std::shared_ptr<HttpSession> one_to_close() {
    std::shared_ptr<HttpSession> longest;
    TimePoint began = core_->latest_begin();
    const std::weak_ptr<HttpSession>* found = nullptr;
    LockGuard guard(core_->mutex);
    if (!is_full()) return longest;
    for (const auto& [session, weak] : core_->sessions) {
      const TimePoint its = session->wait.began();
      if (its > began) continue;
      began = its;
      found = &weak;
    }
    if (found != nullptr) longest = found->lock();
    return longest;
  }

  bool is_full() LARDER_REQUIRES(core_->mutex) {
    return core_->sessions.size() - core_->refusals >= core_->options.max_connections;
  }

  void admit(Tcp::socket socket) {
    close_on_exec(socket.native_handle());
    ErrorCode ignored;
    socket.set_option(Tcp::no_delay(true), ignored);
    auto session = make_http_session(core_, std::move(socket), tls_ ? tls_->current().get() : nullptr);
    bool is_refused = false;
    {
      LockGuard guard(core_->mutex);
      is_refused = is_full();
      if (is_refused && core_->refusals >= kMaxRefusals) return;  // the socket closes here
      if (is_refused) {
        ++core_->refusals;
        session->wait.begin_without_place();
      } else {
        session->wait.begin(real_clock().now());
      }
      core_->sessions.emplace(session.get(), session);
      core_->open.set(static_cast<double>(core_->sessions.size()));
    }
    (is_refused ? core_->refused : core_->accepted).increment();
    session->post([session, is_refused] { is_refused ? session->refuse_connection() : session->start(); });
  }

  void close_acceptor() {
    ErrorCode ignored;
    acceptor_.close(ignored);
    retry_.cancel();
  }

  std::vector<std::shared_ptr<HttpSession>> live_sessions() {
    std::vector<std::shared_ptr<HttpSession>> live;
    LockGuard guard(core_->mutex);
    for (const auto& [key, weak] : core_->sessions) {
      if (auto session = weak.lock()) live.push_back(std::move(session));
    }
    return live;
  }

  const std::shared_ptr<HttpCore> core_;
  std::unique_ptr<TlsContext> tls_;  // owned by strand_, from listen() on; null: in the clear
  asio::strand<asio::io_context::executor_type> strand_;
  Tcp::acceptor acceptor_;                   // owned by strand_
  asio::steady_timer retry_;                 // owned by strand_
  std::uint64_t failed_accepts_ = 0;         // owned by strand_: since the last line about them
  std::optional<TimePoint> next_complaint_;  // owned by strand_
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::uint16_t port_ = 0;   // constant after listen()
  ThreadPoolExecutor pool_;  // last: its threads use the rest
};

}  // namespace

Result<std::unique_ptr<HttpListener>> HttpListener::create(const ListenOptions& options, Handler handler,
                                                           MetricsRegistry& metrics, Gate gate) {
  auto listener = std::make_unique<BeastListener>(options, std::move(handler), std::move(gate), metrics);
  const Status status = listener->listen();
  if (!status.is_ok()) return status;
  return std::unique_ptr<HttpListener>(std::move(listener));
}

}  // namespace larder
