// SPDX-License-Identifier: Apache-2.0
#include "server/tls_context.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <string>
#include <tuple>

#include "base/log.h"
#include "tests/support/certificates.h"
#include "tests/support/temporary_directory.h"

namespace larder {
namespace {

using support::CertificateAuthority;
using support::IssuedCertificate;
using support::put_file;

class TlsContextTest : public ::testing::Test {
 protected:
  std::string put(const std::string& name, const std::string& text) const {
    return put_file(folder_.path() + "/" + name, text);
  }
  [[nodiscard]] TlsFiles files(const std::string& certificate, const std::string& key) const {
    TlsFiles files;
    files.certificate = put("cert.pem", certificate);
    if (!key.empty()) files.key = put("key.pem", key);
    return files;
  }

  const support::TemporaryDirectory folder_;
  const CertificateAuthority authority_{"an authority of tests"};
  const IssuedCertificate issued_ = authority_.issue();
  ManualClock clock_{std::chrono::hours(1)};
};

TEST_F(TlsContextTest, APairInTwoFilesOrInOne) {
  const std::string chain = issued_.certificate + authority_.pem();
  for (const TlsFiles& given : {files(chain, issued_.key), files(chain + issued_.key, "")}) {
    EXPECT_TRUE(TlsContext::check(given).is_ok()) << TlsContext::check(given).to_string();
    const auto made = TlsContext::create(given, real_file_system(), clock_);
    ASSERT_TRUE(made.is_ok()) << made.status().to_string();
    STACK_OF(X509)* sent = nullptr;
    SSL_CTX_get0_chain_certs((*made)->current().get(), &sent);
    EXPECT_EQ(sk_X509_num(sent), 1) << "those behind the first lead to the authority";
  }
  EXPECT_TRUE(TlsContext::check({}).is_ok()) << "no TLS";
}

TEST_F(TlsContextTest, WhatIsWrongIsNamedWithItsOption) {
  const std::string other = authority_.issue().key;
  const std::string broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
  const std::tuple<std::string, std::string, const char*> cases[] = {
      {"hello\n", issued_.key, "--ssl-certfile"},
      {"hello\n", issued_.key, "holds no certificate in PEM"},
      {"", issued_.key, "holds no certificate in PEM"},
      {broken, issued_.key, "holds a broken certificate"},
      {issued_.certificate + broken, issued_.key, "holds a broken certificate"},
      {issued_.certificate, "hello\n", "--ssl-keyfile"},
      {issued_.certificate, "hello\n", "holds no private key in PEM"},
      {issued_.certificate, other, "is not the key of the certificate in --ssl-certfile: give the key"},
      {issued_.certificate, support::encrypted_key(issued_.key), "is encrypted"},
      {issued_.certificate, "", "--ssl-keyfile is not given"}};
  for (const auto& [certificate, key, problem] : cases) {
    const TlsFiles given = files(certificate, key);
    for (const Status& status :
         {TlsContext::check(given), TlsContext::create(given, real_file_system(), clock_).status()}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << problem;
      EXPECT_NE(status.message().find(problem), std::string::npos) << status.message();
      EXPECT_NE(status.message().find(folder_.path()), std::string::npos) << status.message();
    }
  }
}

TEST_F(TlsContextTest, FilesThatAreNotThereOrCannotBeFiles) {
  TlsFiles given = files(issued_.certificate, issued_.key);
  given.key = folder_.path() + "/absent.pem";
  EXPECT_NE(TlsContext::check(given).message().find("absent.pem: there is no such file"), std::string::npos);
  given.key = folder_.path();
  EXPECT_NE(TlsContext::check(given).message().find("is a folder"), std::string::npos);
  given = files(issued_.certificate, issued_.key);
  given.client_ca = put("ca.pem", "hello\n");
  EXPECT_NE(TlsContext::check(given).message().find("--ssl-ca-certs"), std::string::npos);
  TlsFiles half;
  half.key = given.key;
  EXPECT_NE(TlsContext::check(half).message().find("--ssl-keyfile needs --ssl-certfile"), std::string::npos);
  half = {};
  half.client_ca = given.client_ca;
  EXPECT_NE(TlsContext::check(half).message().find("--ssl-ca-certs needs --ssl-certfile"), std::string::npos);
}

TEST_F(TlsContextTest, TheModeOfAFileTellsWhoMayRead) {
  const std::string key = put("key.pem", issued_.key);
  for (const auto& [mode, is_open] : {std::pair{0600u, false}, {0640u, false}, {0644u, true}}) {
    ASSERT_EQ(::chmod(key.c_str(), mode), 0);
    const auto info = real_file_system().stat(key);
    ASSERT_TRUE(info.is_ok());
    EXPECT_EQ(info->others_may_read, is_open) << mode;
  }
}

TEST_F(TlsContextTest, AKeyThatAllMayReadIsWarnedOfAlsoWhenItIsRenewed) {
  int warnings = 0;
  set_log_sink([&](LogLevel, std::string_view, std::string_view message) {
    warnings += message.find("can be read by every user") != std::string_view::npos ? 1 : 0;
  });
  const TlsFiles given = files(issued_.certificate, issued_.key);
  ASSERT_EQ(::chmod(given.key.c_str(), 0600), 0);
  const auto made = TlsContext::create(given, real_file_system(), clock_);
  EXPECT_EQ(warnings, 0);
  const IssuedCertificate renewed = authority_.issue();
  put("cert.pem", renewed.certificate);
  put("key.pem", renewed.key);
  ASSERT_EQ(::chmod(given.key.c_str(), 0644), 0);
  clock_.advance(std::chrono::seconds(1));
  ASSERT_TRUE(made.is_ok()) << made.status().to_string();
  (void)(*made)->current();
  EXPECT_EQ(warnings, 1);
  set_log_sink({});
}

TEST_F(TlsContextTest, RenewedFilesAreSeenOnceASecond) {
  const TlsFiles given = files(issued_.certificate, issued_.key);
  const auto made = TlsContext::create(given, real_file_system(), clock_);
  ASSERT_TRUE(made.is_ok()) << made.status().to_string();
  const auto first = (*made)->current();
  const IssuedCertificate renewed = authority_.issue();
  put("cert.pem", renewed.certificate);
  put("key.pem", renewed.key);
  clock_.advance(std::chrono::milliseconds(999));
  EXPECT_EQ((*made)->current(), first) << "not yet";
  clock_.advance(std::chrono::milliseconds(1));
  const auto second = (*made)->current();
  EXPECT_NE(second, first);
  clock_.advance(std::chrono::seconds(1));
  EXPECT_EQ((*made)->current(), second) << "nothing is new";
}

TEST_F(TlsContextTest, FilesThatCannotBeUsedLeaveWhatWas) {
  const TlsFiles given = files(issued_.certificate, issued_.key);
  const auto made = TlsContext::create(given, real_file_system(), clock_);
  ASSERT_TRUE(made.is_ok()) << made.status().to_string();
  const auto first = (*made)->current();
  const IssuedCertificate renewed = authority_.issue();
  const auto look = [&] {
    clock_.advance(std::chrono::seconds(1));
    return (*made)->current();
  };
  put("cert.pem", renewed.certificate);  // and the key of the old one
  EXPECT_EQ(look(), first);
  put("key.pem", "half of a ke");
  EXPECT_EQ(look(), first);
  ASSERT_TRUE(real_file_system().remove(given.key).is_ok());
  EXPECT_EQ(look(), first);
  put("key.pem", renewed.key);
  EXPECT_NE(look(), first);
}

}  // namespace
}  // namespace larder
