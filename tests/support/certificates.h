// SPDX-License-Identifier: Apache-2.0
// Certificates for tests of TLS: made when a test runs, so that no key lies in the repository.
// Threads: confined. Errors fail the test.
#pragma once

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>

#include <memory>
#include <span>
#include <string>

#include "base/file_system.h"

namespace larder::support {

struct CertificateWish {
  std::string names = "DNS:localhost,IP:127.0.0.1,IP:::1";  // whom it is made out to; empty: an authority
  long begins_seconds = -3600, ends_seconds = 3600;         // from now
  std::string subject = "a server of tests";                // its common name
};

// A certificate and its key, PEM.
struct IssuedCertificate {
  std::string certificate, key;
};

class CertificateAuthority {
 public:
  explicit CertificateAuthority(const std::string& name)
      : name_(name), key_(make_key()), certificate_(make({.names = ""}, name, key_.get())) {}

  // What whoever believes it keeps.
  [[nodiscard]] std::string pem() const { return pem_of(certificate_.get()); }
  [[nodiscard]] IssuedCertificate issue(const CertificateWish& wish = {}) const {
    const Key key = make_key();
    return {pem_of(make(wish, wish.subject, key.get()).get()), pem_of(key.get())};
  }

 private:
  template <auto Free>
  struct Deleter {
    template <class T>
    void operator()(T* made) const {
      Free(made);
    }
  };
  using Key = std::unique_ptr<EVP_PKEY, Deleter<&EVP_PKEY_free>>;
  using Certificate = std::unique_ptr<X509, Deleter<&X509_free>>;
  using Memory = std::unique_ptr<BIO, Deleter<&BIO_free>>;

  static Key make_key() { return Key(EVP_EC_gen("P-256")); }

  Certificate make(const CertificateWish& wish, const std::string& subject, EVP_PKEY* key) const {
    Certificate made(X509_new());
    X509* const x = made.get();
    static long serial = 0;
    EXPECT_EQ(X509_set_version(x, X509_VERSION_3), 1);
    EXPECT_EQ(ASN1_INTEGER_set(X509_get_serialNumber(x), ++serial), 1);
    EXPECT_NE(X509_gmtime_adj(X509_getm_notBefore(x), wish.begins_seconds), nullptr);
    EXPECT_NE(X509_gmtime_adj(X509_getm_notAfter(x), wish.ends_seconds), nullptr);
    set_name(X509_get_subject_name(x), subject);
    set_name(X509_get_issuer_name(x), name_);
    EXPECT_EQ(X509_set_pubkey(x, key), 1);
    if (wish.names.empty()) {
      extend(x, NID_basic_constraints, "critical,CA:TRUE");
      extend(x, NID_key_usage, "critical,keyCertSign");
    } else {
      extend(x, NID_subject_alt_name, wish.names);
    }
    EXPECT_NE(X509_sign(x, key_.get(), EVP_sha256()), 0);
    return made;
  }

  static void set_name(X509_NAME* name, const std::string& text) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(text.c_str());
    EXPECT_EQ(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, bytes, -1, -1, 0), 1);
  }

  static void extend(X509* x, int nid, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, x, x, nullptr, nullptr, 0);
    X509_EXTENSION* const made = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
    ASSERT_NE(made, nullptr) << value;
    EXPECT_EQ(X509_add_ext(x, made, -1), 1);
    X509_EXTENSION_free(made);
  }

  static std::string text_of(BIO* memory) {
    char* begin = nullptr;
    const long size = BIO_get_mem_data(memory, &begin);
    return std::string(begin, static_cast<std::size_t>(size));
  }
  static std::string pem_of(X509* x) {
    const Memory memory(BIO_new(BIO_s_mem()));
    EXPECT_EQ(PEM_write_bio_X509(memory.get(), x), 1);
    return text_of(memory.get());
  }
  static std::string pem_of(EVP_PKEY* key) {
    const Memory memory(BIO_new(BIO_s_mem()));
    EXPECT_EQ(PEM_write_bio_PrivateKey(memory.get(), key, nullptr, nullptr, 0, nullptr, nullptr), 1);
    return text_of(memory.get());
  }

  const std::string name_;
  const Key key_;
  const Certificate certificate_;
};

// The key with a pass phrase that nobody has.
inline std::string encrypted_key(const std::string& key) {
  BIO* const in = BIO_new_mem_buf(key.data(), static_cast<int>(key.size()));
  BIO* const out = BIO_new(BIO_s_mem());
  EVP_PKEY* const read = PEM_read_bio_PrivateKey(in, nullptr, nullptr, nullptr);
  const unsigned char phrase[] = "lost";
  EXPECT_EQ(PEM_write_bio_PrivateKey(out, read, EVP_aes_128_cbc(), phrase, 4, nullptr, nullptr), 1);
  char* begin = nullptr;
  const long size = BIO_get_mem_data(out, &begin);
  const std::string text(begin, static_cast<std::size_t>(size));
  EVP_PKEY_free(read);
  BIO_free(in);
  BIO_free(out);
  return text;
}

// Writes `text` as the whole file, in place of one that was there. Gives the path back.
inline std::string put_file(const std::string& path, const std::string& text) {
  OpenOptions options;
  options.write = options.create = options.truncate = true;
  const auto file = real_file_system().open(path, options);
  EXPECT_TRUE(file.is_ok()) << file.status().to_string();
  EXPECT_TRUE(file.is_ok() && write_fully(**file, std::as_bytes(std::span(text)), 0).is_ok());
  return path;
}

}  // namespace larder::support
