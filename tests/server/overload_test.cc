// More than the server can hold at once: what is refused is told so, what was taken is answered, and health stays.
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/thread_pool.h"
#include "tests/server/server_fixture.h"

namespace larder {
namespace {

constexpr std::size_t kClients = 512;
constexpr std::size_t kBodyBytes = 256u << 10;
constexpr std::size_t kBudgetBodies = 64;

// A request of one token, as long as asked.
std::string padded_body(std::size_t bytes) {
  std::string body = generate_body({1}, 1).dump();
  body.insert(body.size() - 1, bytes - body.size(), ' ');
  return body;
}

class OverloadTest : public ServerFixture {
 protected:
  void start_small() {
    ListenOptions listen;
    listen.max_open_body_bytes = kBudgetBodies * kBodyBytes;
    start({}, listen);
  }
};

TEST_F(OverloadTest, BodiesBeyondTheBudgetAreToldSoAndTheOthersAreAnswered) {
  start_small();
  scheduler_->hold();
  const std::string body = padded_body(kBodyBytes);
  std::atomic<std::size_t> answered{0}, taken{0}, refused{0};
  {
    ThreadPoolExecutor clients("clients", kClients, kClients);
    for (std::size_t i = 0; i < kClients; ++i) {
      ASSERT_TRUE(clients
                      .post([&] {
                        const auto reply = client()->request("POST", "/generate", body);
                        if (!reply.is_ok()) return;
                        answered.fetch_add(1);
                        if (reply->status == 200) taken.fetch_add(1);
                        if (reply->status == 503) refused.fetch_add(1);
                        if (reply->status == 503) {
                          EXPECT_NE(reply->body.find("the bodies of open requests have"), std::string::npos);
                        }
                      })
                      .is_ok());
    }
    const TimePoint end = real_clock().now() + std::chrono::seconds(60);
    // Bodies that come at the same time can refuse each other, so that fewer than would fit are taken.
    while (refused.load() + scheduler_->open_requests() < kClients && real_clock().now() < end) {
      EXPECT_EQ(call("GET", "/health").status, 200u);
    }
    EXPECT_LE(scheduler_->open_requests(), kBudgetBodies);
    scheduler_->release();
  }
  EXPECT_EQ(answered.load(), kClients);
  EXPECT_EQ(taken.load() + refused.load(), kClients);
  EXPECT_GT(taken.load(), 0u);
  EXPECT_GT(refused.load(), 0u);
  EXPECT_EQ(call("POST", "/generate", body).status, 200u) << "the budget is free again";
}

TEST_F(OverloadTest, ABodyThatIsBrokenOffGivesItsBytesBack) {
  start_small();
  for (std::size_t i = 0; i < 2 * kBudgetBodies; ++i) {
    auto broken = client();
    const std::string head = "POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    const auto reply = broken->raw(head + "40000\r\n" + std::string(kBodyBytes, ' ') + "\r\nnot a chunk\r\n");
    ASSERT_TRUE(reply.is_ok()) << i << ": " << reply.status().to_string();
    ASSERT_EQ(reply->status, 400u) << i;
  }
  EXPECT_EQ(call("POST", "/generate", padded_body(kBodyBytes)).status, 200u);
}

// Parsed by threads of its own, beside the I/O threads; the answers are the same.
TEST_F(OverloadTest, ALargeBodyIsAnsweredAsASmallOne) {
  const HttpReply small = call("POST", "/generate", padded_body(1000));
  const HttpReply large = call("POST", "/generate", padded_body(1u << 20));
  EXPECT_EQ(large.status, 200u);
  EXPECT_EQ(Json::parse(large.body)["output_ids"], Json::parse(small.body)["output_ids"]);
  const HttpReply bad = call("POST", "/generate", padded_body(1u << 20) + "x");
  EXPECT_EQ(bad.status, 400u);
  EXPECT_NE(bad.body.find("malformed JSON at byte"), std::string::npos);
}

}  // namespace
}  // namespace larder
