// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "base/socket_stream.h"

namespace larder {

int wait_for_socket(int socket, short events, TimePoint end) {
  pollfd wait{socket, events, 0};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - real_clock().now()).count();
    const int ready = ::poll(&wait, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX)));
    if (ready > 0) return 0;
    if (ready == 0) return ETIMEDOUT;
    if (errno != EINTR) return errno;
  }
}

namespace {

Status too_late() { return deadline_exceeded("nothing moved in time"); }

Status wait_or_say(int socket, short events, TimePoint end) {
  const int failed = wait_for_socket(socket, events, end);
  if (failed == 0) return Status::ok();
  return failed == ETIMEDOUT ? too_late() : unavailable(std::strerror(failed));
}

// Before each try, and not only when nothing is there: a peer that always has something to say must not hold us longer.
bool is_past(TimePoint end) { return real_clock().now() >= end; }

bool is_ip_address(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return ::inet_pton(AF_INET, host.c_str(), bytes) == 1 || ::inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

// Whose certificate the peer must show. False: `host` can be nobody's.
bool expect_host(SSL* tls, const std::string& host) {
  if (is_ip_address(host)) return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls), host.c_str()) == 1;
  // Names stand among the alternative ones; what a subject is called is no name of a host (RFC 9525).
  SSL_set_hostflags(tls, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  return SSL_set1_host(tls, host.c_str()) == 1 && SSL_set_tlsext_host_name(tls, host.c_str()) == 1;
}

Status late_handshake() {
  return deadline_exceeded("no answer in time to the TLS handshake (does that port speak TLS?)");
}

std::string why_not_believed(long problem, const std::string& host) {
  switch (problem) {
    case X509_V_ERR_CERT_HAS_EXPIRED: return "it, or one that it rests on, has expired";
    case X509_V_ERR_CERT_NOT_YET_VALID: return "it is not valid yet (is this machine's clock right?)";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH: return fmt::format("it is made out to others, not to {}", host);
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:  // by another authority of the same name
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
      return "who has issued it is unknown here; name that authority's certificate (--cacert FILE; larder proxy: "
             "--upstream-cacert; hf3fs: metadata_cacert; or the variable SSL_CERT_FILE)";
    default: return X509_verify_cert_error_string(problem);
  }
}

}  // namespace

// What OpenSSL reads from and writes to: as its own socket BIO, but for SIGPIPE and for errors (SocketStream::error_).
struct SocketBio {
  static int write(BIO* bio, const char* bytes, int size) {
    BIO_clear_retry_flags(bio);
    SocketStream& stream = of(bio);
    for (;;) {
      const ssize_t sent = ::send(stream.socket_, bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL);
      if (sent >= 0) return static_cast<int>(sent);
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) stream.error_ = errno;
      BIO_set_retry_write(bio);
      return -1;
    }
  }

  static int read(BIO* bio, char* into, int size) {
    BIO_clear_retry_flags(bio);
    SocketStream& stream = of(bio);
    if (is_past(stream.end_)) {  // one call of OpenSSL reads any number of records that have nothing for us
      BIO_set_retry_read(bio);
      return -1;
    }
    for (;;) {
      const ssize_t got = ::recv(stream.socket_, into, static_cast<std::size_t>(size), 0);
      if (got < 0 && errno == EINTR) continue;
      stream.is_at_end_ = got == 0;
      if (got >= 0) return static_cast<int>(got);
      if (errno != EAGAIN && errno != EWOULDBLOCK) stream.error_ = errno;
      BIO_set_retry_read(bio);
      return -1;
    }
  }

  static long control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_EOF) return of(bio).is_at_end_ ? 1 : 0;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  static BIO* make(SocketStream& stream) {
    // Made once, and never freed: connections of other threads use it to the end.
    static BIO_METHOD* const method = [] {
      BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "larder socket");
      BIO_meth_set_write(made, &SocketBio::write);
      BIO_meth_set_read(made, &SocketBio::read);
      BIO_meth_set_ctrl(made, &SocketBio::control);
      return made;
    }();
    BIO* const bio = BIO_new(method);
    if (bio == nullptr) return nullptr;
    BIO_set_data(bio, &stream);
    BIO_set_init(bio, 1);
    return bio;
  }

 private:
  static SocketStream& of(BIO* bio) { return *static_cast<SocketStream*>(BIO_get_data(bio)); }
};

SocketStream::~SocketStream() {
  if (tls_ == nullptr) return;
  ERR_clear_error();
  if (!is_over_ && error_ == 0 && SSL_is_init_finished(tls_) == 1) SSL_shutdown(tls_);
  ERR_clear_error();
  SSL_free(tls_);
}

bool SocketStream::is_only_closed() const {
  if (tls_ == nullptr) return true;
  // OpenSSL asks for a record's head and body one after the other, so that what it has of one shows.
  return !is_broken_ && SSL_has_pending(tls_) == 0 && std::string_view(SSL_rstate_string(tls_)) == "RH";
}

Status SocketStream::wait_for_tls(int result, TimePoint end) {
  const int code = SSL_get_error(tls_, result);
  if (code == SSL_ERROR_WANT_READ || code == SSL_ERROR_WANT_WRITE) {
    if (error_ != 0) return unavailable(std::strerror(std::exchange(error_, 0)));
    return wait_or_say(socket_, code == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, end);
  }
  is_over_ = true;
  if (is_at_end_) return unavailable("the connection was closed without TLS's end: what came may not be all");
  is_broken_ = true;
  return unavailable("TLS: " + take_tls_error());
}

Status SocketStream::secure(const TlsTrust& trust, const std::string& host, std::string_view protocol, TimePoint end) {
  ERR_clear_error();
  tls_ = SSL_new(trust.context());
  BIO* const bio = tls_ == nullptr ? nullptr : SocketBio::make(*this);
  if (bio == nullptr) return unavailable("TLS: out of memory");
  SSL_set_bio(tls_, bio, bio);
  SSL_set_connect_state(tls_);
  if (!protocol.empty()) {
    std::string offered(1, static_cast<char>(protocol.size()));
    offered += protocol;
    SSL_set_alpn_protos(tls_, reinterpret_cast<const unsigned char*>(offered.data()),
                        static_cast<unsigned>(offered.size()));
  }
  if (!expect_host(tls_, host)) return invalid_argument(fmt::format("no certificate can be made out to '{}'", host));
  end_ = end;
  for (;;) {
    if (is_past(end)) return late_handshake();
    const int done = SSL_do_handshake(tls_);
    if (done == 1) return Status::ok();
    const unsigned long error = ERR_peek_error();
    const Status status = wait_for_tls(done, end);
    if (status.is_ok()) continue;
    if (const long problem = SSL_get_verify_result(tls_); is_over_ && problem != X509_V_OK) {
      return invalid_argument("the server's certificate is not believed: " + why_not_believed(problem, host));
    }
    const int reason = ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_GET_REASON(error) : 0;
    if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST) {
      return invalid_argument(
          "what answers there speaks no TLS; if none is meant, write http:// (redis://) in the URL");
    }
    if (is_at_end_) return unavailable("the connection was closed during the TLS handshake");
    if (status.code() == StatusCode::kDeadlineExceeded) return late_handshake();
    return status;
  }
}

Result<std::size_t> SocketStream::send_some(std::string_view bytes, TimePoint end) {
  end_ = end;
  for (;;) {
    if (is_past(end)) return too_late();
    if (tls_ != nullptr) {
      ERR_clear_error();
      const int sent = SSL_write(tls_, bytes.data(), static_cast<int>(std::min<std::size_t>(bytes.size(), INT_MAX)));
      if (sent > 0) return static_cast<std::size_t>(sent);
      LARDER_RETURN_IF_ERROR(wait_for_tls(sent, end));
      continue;
    }
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return unavailable(std::strerror(errno));
    LARDER_RETURN_IF_ERROR(wait_or_say(socket_, POLLOUT, end));
  }
}

Result<std::size_t> SocketStream::receive_some(std::span<char> into, TimePoint end) {
  end_ = end;
  for (;;) {
    if (is_past(end)) return too_late();
    if (tls_ != nullptr) {
      ERR_clear_error();
      const int got = SSL_read(tls_, into.data(), static_cast<int>(std::min<std::size_t>(into.size(), INT_MAX)));
      if (got > 0) return static_cast<std::size_t>(got);
      if (SSL_get_error(tls_, got) == SSL_ERROR_ZERO_RETURN) return std::size_t{0};
      LARDER_RETURN_IF_ERROR(wait_for_tls(got, end));
      continue;
    }
    const ssize_t got = ::recv(socket_, into.data(), into.size(), 0);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return unavailable(std::strerror(errno));
    LARDER_RETURN_IF_ERROR(wait_or_say(socket_, POLLIN, end));
  }
}

}  // namespace larder
