// SPDX-License-Identifier: Apache-2.0
#include "base/socket_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "base/thread_pool.h"
#include "tests/support/certificates.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tls_peer.h"

namespace larder {
namespace {

using support::CertificateAuthority;
using support::TlsPeer;
using support::TlsSide;

// Two ends of a connection, the first of which does not wait.
class SocketStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets_.data()), 0);
  }
  void TearDown() override {
    for (const int socket : sockets_) ::close(socket);
  }
  [[nodiscard]] static TimePoint soon() { return real_clock().now() + std::chrono::seconds(20); }
  [[nodiscard]] static TimePoint past() { return real_clock().now() - std::chrono::milliseconds(1); }

  std::array<int, 2> sockets_{};
  std::array<char, 8> piece_{};
};

// Whoever calls in a loop would otherwise never come to the end of it.
TEST_F(SocketStreamTest, AfterTheEndNothingIsTakenFromAPeerThatAlwaysHasMore) {
  SocketStream stream(sockets_[0]);
  ASSERT_EQ(::send(sockets_[1], "more", 4, 0), 4);
  EXPECT_EQ(stream.receive_some(piece_, past()).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(stream.send_some("more", past()).status().code(), StatusCode::kDeadlineExceeded);
  const auto got = stream.receive_some(piece_, soon());
  ASSERT_TRUE(got.is_ok()) << got.status().to_string();
  EXPECT_EQ(*got, 4u);
}

TEST_F(SocketStreamTest, AfterTheEndNothingIsTakenOverTls) {
  const support::TemporaryDirectory folder;
  const CertificateAuthority authority("an authority of tests");
  const auto trust = TlsTrust::create(support::put_file(folder.path() + "/ca.pem", authority.pem()));
  ASSERT_TRUE(trust.is_ok()) << trust.status().to_string();
  const TlsSide side(authority.issue());
  ASSERT_EQ(::fcntl(sockets_[1], F_SETFL, 0), 0);  // the server's end waits
  TlsPeer server(side, ::dup(sockets_[1]));
  ThreadPoolExecutor thread("server", 1, 1);
  ASSERT_TRUE(thread.post([&] { EXPECT_TRUE(server.accept() && server.send("more")); }).is_ok());
  SocketStream stream(sockets_[0]);
  EXPECT_EQ(SocketStream(sockets_[0]).secure(**trust, "localhost", {}, past()).code(), StatusCode::kDeadlineExceeded);
  const Status secured = stream.secure(**trust, "localhost", {}, soon());
  thread.wait_idle();
  ASSERT_TRUE(secured.is_ok()) << secured.to_string();
  EXPECT_EQ(stream.receive_some(piece_, past()).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(stream.send_some("more", past()).status().code(), StatusCode::kDeadlineExceeded);
  const auto got = stream.receive_some(piece_, soon());
  ASSERT_TRUE(got.is_ok()) << got.status().to_string();
  EXPECT_EQ(*got, 4u);
}

}  // namespace
}  // namespace larder
