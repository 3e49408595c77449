// SPDX-License-Identifier: Apache-2.0
#include "server/real_http_stream.h"

#include <sys/socket.h>

#include <cerrno>

namespace larder {

std::optional<boost::asio::ip::address> HttpStream::peer() const {
  namespace ip = boost::asio::ip;
  ErrorCode unknown;
  const ip::address address = tcp_.socket().remote_endpoint(unknown).address();
  if (unknown) return std::nullopt;
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return ip::make_address_v4(ip::v4_mapped, address.to_v6());
}

void HttpStream::watch(boost::beast::flat_buffer& buffer, Ended ended) {
  if (!tls_) return watch_socket(watches_, std::move(ended));
  // Enough waits here, and a client that sends without end must not fill the memory: it is not watched, as in the
  // clear.
  if (buffer.size() >= kWatchBytes) return;
  is_reading_ = true;
  tls_->async_read_some(buffer.prepare(kWatchBytes),
                        [this, &buffer, ended = std::move(ended)](ErrorCode error, std::size_t bytes) {
                          is_reading_ = false;
                          buffer.commit(bytes);
                          const std::function<void()> next = std::exchange(after_watch_, nullptr);
                          if (next) return next();  // an error is found again by who reads next
                          if (error) ended(error == boost::asio::error::eof);
                        });
}

void HttpStream::watch_socket(std::uint64_t number, Ended ended) {
  using Socket = boost::asio::ip::tcp::socket;
  tcp_.socket().async_wait(Socket::wait_read, [this, number, ended = std::move(ended)](ErrorCode error) mutable {
    if (error || number != watches_) return;
    char byte = 0;
    const ssize_t got = ::recv(tcp_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got > 0) return;
    const bool is_early = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    is_early ? watch_socket(number, std::move(ended)) : ended(got == 0);
  });
}

void HttpStream::end_watch(std::function<void()> done) {
  ++watches_;
  ErrorCode ignored;
  tcp_.socket().cancel(ignored);  // nothing else is pending
  if (!is_reading_) return done();
  after_watch_ = std::move(done);
}

}  // namespace larder
