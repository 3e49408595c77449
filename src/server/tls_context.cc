// SPDX-License-Identifier: Apache-2.0
#include "server/tls_context.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <span>
#include <utility>

#include "base/log.h"
#include "base/tls_trust.h"
#include "key/sha256.h"

namespace larder {
namespace {

constexpr std::uint64_t kMaxPemBytes = 1u << 20;
constexpr unsigned char kSessionName[] = {'l', 'a', 'r', 'd', 'e', 'r'};

struct OpensslDeleter {
  void operator()(BIO* made) const { BIO_free(made); }
  void operator()(X509* made) const { X509_free(made); }
  void operator()(EVP_PKEY* made) const { EVP_PKEY_free(made); }
};
template <class T>
using Openssl = std::unique_ptr<T, OpensslDeleter>;

Result<std::string> read_pem(FileSystem& file_system, const char* option, const std::string& path) {
  const auto wrong = [&](std::string_view why) {
    return invalid_argument(fmt::format("{} {}: {}", option, path, why));
  };
  const Result<FileInfo> info = file_system.stat(path);
  if (info.status().code() == StatusCode::kNotFound) return wrong("there is no such file");
  if (info.is_ok() && info->is_directory) return wrong("is a folder; a file is expected");
  const auto file = file_system.open(path, {});
  if (!file.is_ok()) return wrong(file.status().message() + "; the server's user must be able to read it");
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t size, (*file)->size_bytes());
  if (size > kMaxPemBytes) return wrong("is larger than 1 MiB: this is no file of certificates");
  std::string text(static_cast<std::size_t>(size), '\0');
  LARDER_RETURN_IF_ERROR(read_exactly(**file, std::as_writable_bytes(std::span(text)), 0));
  return text;
}

Openssl<BIO> pem_reader(const std::string& text) {
  return Openssl<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// OpenSSL would ask at the terminal. Notes that it wanted to.
int refuse_passphrase(char*, int, int, void* was_asked) {
  *static_cast<bool*>(was_asked) = true;
  return -1;
}

// Did the last look for something in PEM fail because no more is there?
bool is_end_of_pem() {
  const unsigned long error = ERR_peek_last_error();
  const bool is_end = ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  if (is_end) ERR_clear_error();
  return is_end;
}

// The first is the server's, the others lead to its authority.
Status use_certificates(SSL_CTX* context, const std::string& text) {
  const Openssl<BIO> reader = pem_reader(text);
  int count = 0;
  for (;; ++count) {
    Openssl<X509> one(PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr));
    if (!one) break;
    const bool is_used = count == 0 ? SSL_CTX_use_certificate(context, one.get()) == 1
                                    : SSL_CTX_add1_chain_cert(context, one.get()) == 1;
    if (!is_used) return invalid_argument("cannot be used: " + take_tls_error());
  }
  if (!is_end_of_pem()) return invalid_argument("holds a broken certificate: " + take_tls_error());
  if (count == 0) return invalid_argument("holds no certificate in PEM (-----BEGIN CERTIFICATE-----)");
  return Status::ok();
}

Status use_key(SSL_CTX* context, const std::string& text) {
  bool is_encrypted = false;
  const Openssl<EVP_PKEY> key(
      PEM_read_bio_PrivateKey(pem_reader(text).get(), nullptr, &refuse_passphrase, &is_encrypted));
  if (is_encrypted) {
    return invalid_argument(
        "is encrypted, and nobody is there to type its pass phrase: write it without one (openssl pkey -in KEY -out "
        "NEW), readable by the server's user alone");
  }
  if (!key) {
    if (text.find("PRIVATE KEY-----") == std::string::npos) {
      return invalid_argument("holds no private key in PEM (-----BEGIN PRIVATE KEY-----)");
    }
    return invalid_argument("holds a broken private key: " + take_tls_error());
  }
  if (SSL_CTX_use_PrivateKey(context, key.get()) == 1 && SSL_CTX_check_private_key(context) == 1) return Status::ok();
  const std::string error =
      take_tls_error();  // of the two: OpenSSL's words for a pair that does not match name no file
  return invalid_argument(
      "is not the key of the certificate in --ssl-certfile: give the key that the certificate was "
      "made for (OpenSSL says: " +
      error + ")");
}

Status want_clients_of(SSL_CTX* context, const std::string& text) {
  const Openssl<BIO> reader = pem_reader(text);
  int count = 0;
  for (;; ++count) {
    const Openssl<X509> one(PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr));
    if (!one) break;
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), one.get()) != 1 ||
        SSL_CTX_add_client_CA(context, one.get()) != 1) {
      return invalid_argument("cannot be used: " + take_tls_error());
    }
  }
  if (!is_end_of_pem()) return invalid_argument("holds a broken certificate: " + take_tls_error());
  if (count == 0) return invalid_argument("holds no certificate in PEM (-----BEGIN CERTIFICATE-----)");
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return Status::ok();
}

// HTTP/1.1 to who asks for it among others, or for nothing.
int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
                    unsigned offered_size, void*) {
  static constexpr unsigned char kOurs[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  unsigned char* selected = nullptr;
  const int found = SSL_select_next_proto(&selected, size, kOurs, sizeof kOurs, offered, offered_size);
  if (found != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_ALERT_FATAL;
  *chosen = selected;
  return SSL_TLSEXT_ERR_OK;
}

std::shared_ptr<SSL_CTX> make_server_context() {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), [](SSL_CTX* made) { SSL_CTX_free(made); });
  if (!context) return context;
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);  // an idle connection keeps none
  // Sessions are resumed by what the client keeps; a table here would be one more thing to fill.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_session_id_context(context.get(), kSessionName, sizeof kSessionName);
  SSL_CTX_set_alpn_select_cb(context.get(), &choose_protocol, nullptr);
  return context;
}

void warn_of_dates(SSL_CTX* context, const std::string& path) {
  const X509* const shown = SSL_CTX_get0_certificate(context);
  if (X509_cmp_current_time(X509_get0_notAfter(shown)) < 0) {
    log_warning("server", fmt::format("the certificate in {} has expired: clients will refuse it", path));
  } else if (X509_cmp_current_time(X509_get0_notBefore(shown)) > 0) {
    log_warning("server", fmt::format("the certificate in {} is not valid yet: clients will refuse it", path));
  }
}

void warn_of_readers(FileSystem& file_system, const std::string& key) {
  const Result<FileInfo> info = file_system.stat(key);
  if (!info.is_ok() || !info->others_may_read) return;
  log_warning("server",
              fmt::format("the private key in {} can be read by every user of this machine: chmod 600 {}", key, key));
}

Status named(const Status& status, const char* option, const std::string& path) {
  return status.is_ok() ? status : Status(status.code(), fmt::format("{} {} {}", option, path, status.message()));
}

}  // namespace

TlsContext::Texts::~Texts() {
  for (std::string* text : {&key, &certificate}) OPENSSL_cleanse(text->data(), text->size());  // it may have the key
}

// With the sizes: bytes that moved from one file to the next are a change. Copies nothing.
Digest256 TlsContext::Texts::digest() const {
  Sha256 all;
  for (const std::string* text : {&certificate, &key, &client_ca}) {
    all.update(fmt::format("{} ", text->size())).update(*text);
  }
  return all.finish();
}

Result<TlsContext::Texts> TlsContext::read() const {
  Texts texts;
  const auto read_into = [&](std::string& text, const char* option, const std::string& path) -> Status {
    Result<std::string> read = read_pem(file_system_, option, path);
    if (read.is_ok()) text = std::move(*read);
    return read.status();
  };
  LARDER_RETURN_IF_ERROR(read_into(texts.certificate, "--ssl-certfile", files_.certificate));
  if (!files_.key.empty()) LARDER_RETURN_IF_ERROR(read_into(texts.key, "--ssl-keyfile", files_.key));
  if (!files_.client_ca.empty()) {
    LARDER_RETURN_IF_ERROR(read_into(texts.client_ca, "--ssl-ca-certs", files_.client_ca));
  }
  return texts;
}

Result<std::shared_ptr<ssl_ctx_st>> TlsContext::load(const Texts& texts) const {
  ERR_clear_error();
  std::shared_ptr<SSL_CTX> context = make_server_context();
  if (!context) return unavailable("TLS: " + take_tls_error());
  LARDER_RETURN_IF_ERROR(
      named(use_certificates(context.get(), texts.certificate), "--ssl-certfile", files_.certificate));
  const bool has_key_file = !files_.key.empty();
  const Status keyed = use_key(context.get(), has_key_file ? texts.key : texts.certificate);
  if (!has_key_file && !keyed.is_ok()) {
    return named(keyed, "--ssl-keyfile is not given, and", files_.certificate);
  }
  LARDER_RETURN_IF_ERROR(named(keyed, "--ssl-keyfile", files_.key));
  if (!files_.client_ca.empty()) {
    LARDER_RETURN_IF_ERROR(named(want_clients_of(context.get(), texts.client_ca), "--ssl-ca-certs", files_.client_ca));
  }
  return context;
}

Result<std::unique_ptr<TlsContext>> TlsContext::create(const TlsFiles& files, FileSystem& file_system, Clock& clock) {
  std::unique_ptr<TlsContext> made(new TlsContext(files, file_system, clock));
  made->looked_ = clock.now();
  LARDER_RETURN_IF_ERROR(made->look());
  return made;
}

Status TlsContext::check(const TlsFiles& files, FileSystem& file_system) {
  if (!files.is_wanted()) {
    if (files.key.empty() && files.client_ca.empty()) return Status::ok();
    return invalid_argument(fmt::format("{} needs --ssl-certfile, the server's certificate",
                                        files.key.empty() ? "--ssl-ca-certs" : "--ssl-keyfile"));
  }
  const TlsContext tried(files, file_system, real_clock());
  const Result<Texts> texts = tried.read();
  return texts.is_ok() ? tried.load(*texts).status() : texts.status();
}

// A change in the middle of being made (the new certificate, the old key) is tried in vain, and again when the rest of
// it is there, as that changes the digest.
Status TlsContext::look() {
  const Result<Texts> texts = read();
  const Digest256 digest = texts.is_ok() ? texts->digest() : sha256(texts.status().message());
  if (std::exchange(seen_, digest) == digest) return Status::ok();
  const auto loaded = texts.is_ok() ? load(*texts) : Result<std::shared_ptr<SSL_CTX>>(texts.status());
  if (!loaded.is_ok()) {
    if (context_) log_warning("server", "the certificate stays as it was: " + loaded.status().message());
    return loaded.status();
  }
  if (context_) log_info("server", "new connections get what is in " + files_.certificate + " now");
  context_ = *loaded;
  warn_of_dates(context_.get(), files_.certificate);
  warn_of_readers(file_system_, files_.key.empty() ? files_.certificate : files_.key);
  return Status::ok();
}

std::shared_ptr<ssl_ctx_st> TlsContext::current() {
  const TimePoint now = clock_.now();
  if (now - looked_ >= files_.look_interval) {
    looked_ = now;
    (void)look();  // it has told
  }
  return context_;
}

}  // namespace larder
