// SPDX-License-Identifier: Apache-2.0
// The bytes of one connection of the HTTP listener, in the clear or over TLS: one class for both (internal to server/).
//
// Picture: tcp() has the socket and the time limits of both kinds; TLS lies over it, if there is any.
// Threads: the connection's strand.
// Lifetime: stays where it is until its last handler has run.
#pragma once

#include <openssl/ssl.h>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace larder {

class HttpStream {
 public:
  using ErrorCode = boost::system::error_code;
  using Tcp = boost::beast::tcp_stream;
  using executor_type = Tcp::executor_type;

  // tls: null: in the clear. Else handshake() comes first.
  HttpStream(boost::asio::ip::tcp::socket socket, SSL_CTX* tls) : tcp_(std::move(socket)) {
    if (tls == nullptr) return;
    SSL_CTX_up_ref(tls);
    boost::asio::ssl::context owner(tls);  // the stream keeps a reference of its own
    tls_.emplace(tcp_, owner);
  }

  [[nodiscard]] executor_type get_executor() { return tcp_.get_executor(); }
  [[nodiscard]] Tcp& tcp() { return tcp_; }
  [[nodiscard]] bool is_secure() const { return tls_.has_value(); }
  // Whose the connection is; an address of IPv4 in its own form, where we listen on :: as well. nullopt: unknown.
  [[nodiscard]] std::optional<boost::asio::ip::address> peer() const;

  // Only over TLS.
  template <class Handler>
  void handshake(Handler&& done) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Handler>(done));
  }
  // From a handshake that failed on: what is sent is read as it is.
  void end_tls() { tls_.reset(); }
  // Says that no more comes and, over TLS, waits until the peer has said so, too, or something else.
  void say_end(std::function<void()> done) {
    if (!tls_) return done();
    tls_->async_shutdown([done = std::move(done)](ErrorCode) { done(); });
  }

  // For Asio and Beast, by their names.
  template <class Buffers, class Handler>
  void async_read_some(const Buffers& into, Handler&& handler) {
    if (tls_) {
      tls_->async_read_some(into, std::forward<Handler>(handler));
    } else {
      tcp_.async_read_some(into, std::forward<Handler>(handler));
    }
  }
  template <class Buffers, class Handler>
  void async_write_some(const Buffers& from, Handler&& handler) {
    if (tls_) {
      tls_->async_write_some(from, std::forward<Handler>(handler));
    } else {
      tcp_.async_write_some(from, std::forward<Handler>(handler));
    }
  }

  // Calls `ended` when no more comes from the peer, while nobody reads: it has said that it sends no more, and may read
  // still, or it is gone. Bytes that come instead end the watch, and stay to be read; over TLS, where only reading
  // tells the two apart, they are put into `buffer`, which nobody else touches meanwhile; who has some thousand bytes
  // there already is not watched. `ended` keeps what must live until then.
  using Ended = std::function<void(bool may_read)>;
  void watch(boost::beast::flat_buffer& buffer, Ended ended);
  // Ends the watch, and then calls `done`: at once, unless a read over TLS has yet to end.
  void end_watch(std::function<void()> done);

 private:
  // Of a whole record over TLS; what does not fit stays in OpenSSL.
  static constexpr std::size_t kWatchBytes = 4096;

  void watch_socket(std::uint64_t number, Ended ended);

  Tcp tcp_;
  std::optional<boost::asio::ssl::stream<Tcp&>> tls_;
  std::uint64_t watches_ = 0;          // ended so far
  bool is_reading_ = false;            // for a watch over TLS
  std::function<void()> after_watch_;  // what waits for that to end
};

}  // namespace larder
