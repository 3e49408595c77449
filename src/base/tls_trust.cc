// SPDX-License-Identifier: Apache-2.0
#include "base/tls_trust.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <memory>

#include "base/file_system.h"

namespace larder {
namespace {

Status add_authorities(SSL_CTX* context, const std::string& file) {
  if (file.empty()) {
    // A system without a store is no error: then no server is believed, and each connection says so.
    if (SSL_CTX_set_default_verify_paths(context) == 1) return Status::ok();
    return unavailable("TLS: the system's certificates cannot be used: " + take_tls_error());
  }
  const auto opened = real_file_system().open(file, {});
  if (!opened.is_ok()) {
    return invalid_argument(fmt::format("the authorities' certificates: {}", opened.status().message()));
  }
  if (SSL_CTX_load_verify_file(context, file.c_str()) == 1) return Status::ok();
  return invalid_argument(
      fmt::format("{}: holds no certificate in PEM (-----BEGIN CERTIFICATE-----): {}", file, take_tls_error()));
}

}  // namespace

Result<std::shared_ptr<const TlsTrust>> TlsTrust::create(const std::string& ca_file) {
  ERR_clear_error();
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  if (context == nullptr) return unavailable("TLS: " + take_tls_error());
  const std::shared_ptr<const TlsTrust> trust(new TlsTrust(context));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  LARDER_RETURN_IF_ERROR(add_authorities(context, ca_file));
  return trust;
}

TlsTrust::~TlsTrust() { SSL_CTX_free(context_); }

std::string take_tls_error() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  if (error == 0) return "unknown";
  const char* const reason = ERR_reason_error_string(error);
  return reason != nullptr ? reason : fmt::format("OpenSSL's error {:#x}", error);
}

}  // namespace larder
