// SPDX-License-Identifier: Apache-2.0
// One side of a TLS connection that does exactly what a test writes, over a socket that waits.
// Threads: confined. Whoever writes to a connection that may be closed blocks SIGPIPE in its thread.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "tests/support/certificates.h"

namespace larder::support {

inline void block_sigpipe() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  EXPECT_EQ(::pthread_sigmask(SIG_BLOCK, &signals, nullptr), 0);
}

// What a server shows, or a client, if it has one.
class TlsSide {
 public:
  explicit TlsSide(const SSL_METHOD* method) : context_(SSL_CTX_new(method)) {}
  explicit TlsSide(const IssuedCertificate& issued) : TlsSide(TLS_server_method()) { show(issued); }
  ~TlsSide() { SSL_CTX_free(context_); }
  TlsSide(const TlsSide&) = delete;
  TlsSide& operator=(const TlsSide&) = delete;

  void show(const IssuedCertificate& issued) {
    BIO* const certificate = BIO_new_mem_buf(issued.certificate.data(), static_cast<int>(issued.certificate.size()));
    BIO* const key = BIO_new_mem_buf(issued.key.data(), static_cast<int>(issued.key.size()));
    X509* const x = PEM_read_bio_X509(certificate, nullptr, nullptr, nullptr);
    EVP_PKEY* const private_key = PEM_read_bio_PrivateKey(key, nullptr, nullptr, nullptr);
    EXPECT_EQ(SSL_CTX_use_certificate(context_, x), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey(context_, private_key), 1);
    X509_free(x);
    EVP_PKEY_free(private_key);
    BIO_free(certificate);
    BIO_free(key);
  }
  [[nodiscard]] SSL_CTX* context() const { return context_; }

 private:
  SSL_CTX* const context_;
};

class TlsPeer {
 public:
  // Takes the socket, and closes it at the end.
  TlsPeer(const TlsSide& side, int socket) : socket_(socket), tls_(SSL_new(side.context())) {
    EXPECT_EQ(SSL_set_fd(tls_, socket), 1);
    // Else an answer waits until the records before it are acknowledged, and a close with bytes unread drops it.
    const int on = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~TlsPeer() {
    SSL_free(tls_);
    ERR_clear_error();
    if (socket_ >= 0) ::close(socket_);
  }
  TlsPeer(const TlsPeer&) = delete;
  TlsPeer& operator=(const TlsPeer&) = delete;

  [[nodiscard]] bool accept() { return SSL_accept(tls_) == 1; }
  [[nodiscard]] bool connect() { return SSL_connect(tls_) == 1; }
  // All that came up to `end`, which it includes; what came before the connection ended, if it never comes.
  std::string read_to(const std::string& end) {
    std::string text;
    char byte = 0;
    while (!text.ends_with(end) && SSL_read(tls_, &byte, 1) == 1) text += byte;
    return text;
  }
  std::string read_all() { return read_to("\n\n nothing ends like this"); }
  bool send(std::string_view text) { return SSL_write(tls_, text.data(), static_cast<int>(text.size())) > 0; }
  // Says that nothing follows. Without it the end of the connection is one that anybody could have caused.
  void say_end() { (void)SSL_shutdown(tls_); }
  [[nodiscard]] SSL* tls() const { return tls_; }

 private:
  const int socket_;
  SSL* const tls_;
};

}  // namespace larder::support
