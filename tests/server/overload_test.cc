// SPDX-License-Identifier: Apache-2.0
// More than the server can hold at once: what is refused is told so, what was taken is answered, and health stays.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/thread_pool.h"
#include "server/http_listener.h"
#include "tests/server/raw_connection.h"
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
  // Everybody who waits makes room, however short the wait.
  void start_with_room_for(std::uint32_t connections, Nanos least_wait = Nanos{0}) {
    Options options;
    options.max_connections = connections;
    ListenOptions listen;
    listen.least_wait = least_wait;
    start(options, listen);
  }
  // A client may have its answer before the server knows that it is out, and until then nobody makes room.
  unsigned health_once_there_is_room() {
    const TimePoint end = real_clock().now() + std::chrono::seconds(20);
    unsigned status = 503;
    while (status == 503 && real_clock().now() < end) status = call("GET", "/health").status;
    return status;
  }
};

// A listener whose handler keeps the requests.
class BodyBudget : public ::testing::Test {
 protected:
  void SetUp() override {
    ListenOptions options;
    options.max_open_body_bytes = 4 * kBodyBytes + 2000;  // room for a small one beside them
    const auto keep = [this](HttpRequest request, const std::shared_ptr<HttpExchange>& exchange) {
      const std::lock_guard guard(mutex_);
      kept_.push_back(std::move(request));
      exchange->respond({});
    };
    auto made = HttpListener::create(options, keep, metrics_);
    ASSERT_TRUE(made.is_ok()) << made.status().to_string();
    listener_ = std::move(*made);
  }
  void TearDown() override { listener_.reset(); }

  unsigned status_of(std::size_t bytes) {
    HttpUrl url;
    url.host = "127.0.0.1";
    url.port = listener_->port();
    const auto reply = HttpClient(url, std::chrono::seconds(20)).request("POST", "/", std::string(bytes, ' '));
    return reply.is_ok() ? reply->status : 0;
  }

  MetricsRegistry metrics_;
  std::mutex mutex_;
  std::vector<HttpRequest> kept_;
  std::unique_ptr<HttpListener> listener_;
};

TEST_F(BodyBudget, CountsBodiesForAsLongAsTheyAreKept) {
  for (int i = 0; i < 4; ++i) EXPECT_EQ(status_of(kBodyBytes), 200u) << i;
  EXPECT_EQ(status_of(kBodyBytes), 503u);
  EXPECT_EQ(status_of(1000), 200u) << "small ones are always taken";
  {
    const std::lock_guard guard(mutex_);
    kept_.erase(kept_.begin());
  }
  EXPECT_EQ(status_of(kBodyBytes), 200u) << "room for one";
  EXPECT_EQ(status_of(kBodyBytes), 503u);
  {
    const std::lock_guard guard(mutex_);
    kept_.clear();
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(status_of(kBodyBytes), 200u) << i;
}

TEST_F(OverloadTest, EverybodyIsAnsweredAndHealthStays) {
  start_small();
  const std::string body = padded_body(kBodyBytes);
  std::atomic<std::size_t> taken{0}, refused{0};
  {
    ThreadPoolExecutor clients("clients", kClients, kClients);
    for (std::size_t i = 0; i < kClients; ++i) {
      ASSERT_TRUE(clients
                      .post([&] {
                        const auto reply = client()->request("POST", "/generate", body);
                        if (!reply.is_ok()) return;
                        (reply->status == 200 ? taken : refused).fetch_add(1);
                        EXPECT_TRUE(reply->status == 200 || reply->status == 503) << reply->body;
                      })
                      .is_ok());
    }
    for (int i = 0; i < 50; ++i) EXPECT_EQ(call("GET", "/health").status, 200u);
  }
  EXPECT_EQ(taken.load() + refused.load(), kClients);
  EXPECT_GT(taken.load(), 0u);
  EXPECT_EQ(call("POST", "/generate", body).status, 200u) << "the budget is free again";
}

// A key that is missing is seen before a body is read, so that who has none takes no memory.
TEST_F(OverloadTest, WhoMayNotAskIsToldSoBeforeItsBodyIsRead) {
  Options options;
  options.api_key = "key";
  start(options);
  const std::string head = "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n";
  const auto denied = client()->raw(head + "\r\n{");
  ASSERT_TRUE(denied.is_ok()) << denied.status().to_string();
  EXPECT_EQ(denied->status, 401u);
  const auto unknown = client()->raw("POST /nope HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n\r\n{");
  ASSERT_TRUE(unknown.is_ok());
  EXPECT_EQ(unknown->status, 404u);
  // Of a target that is none, nobody can say who may ask it.
  const auto no_target = client()->raw("POST /%zz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n\r\n{");
  ASSERT_TRUE(no_target.is_ok()) << no_target.status().to_string();
  EXPECT_EQ(no_target->status, 400u);
  // Routes for everybody take no body to speak of.
  const std::string open = "GET /health HTTP/1.1\r\nHost: localhost\r\n";
  const auto large = client()->raw(open + "Content-Length: 60000000\r\n\r\n{");
  ASSERT_TRUE(large.is_ok()) << large.status().to_string();
  EXPECT_EQ(large->status, 413u);
  EXPECT_NE(large->body.find("larger than 65536 bytes"), std::string::npos) << large->body;
  const auto chunked = client()->raw(open + "Transfer-Encoding: chunked\r\n\r\n10001\r\n{");
  ASSERT_TRUE(chunked.is_ok()) << chunked.status().to_string();
  EXPECT_EQ(chunked->status, 413u);
  EXPECT_EQ(client()->request("GET", "/health", std::string(60'000, ' '))->status, 200u);
  const std::string body = padded_body(1000);
  const auto allowed = client()->raw(
      "POST /generate HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key\r\n"
      "Content-Length: 1000\r\n\r\n" +
      body);
  ASSERT_TRUE(allowed.is_ok());
  EXPECT_EQ(allowed->status, 200u);
}

TEST_F(OverloadTest, AStopLetsARequestThatIsComingInBeAnswered) {
  {
    RawConnection idle(api_->port()), half_head(api_->port()), half_body(api_->port());
    half_head.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /he");
    EXPECT_TRUE(half_head.read_to("\r\n\r\n").starts_with("HTTP/1.1 200"));
    idle.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_TRUE(idle.read_to("\r\n\r\n").starts_with("HTTP/1.1 200"));
    const std::string body = padded_body(1000);
    half_body.send("POST /generate HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n");
    EXPECT_TRUE(half_body.read_to("\r\n\r\n").starts_with("HTTP/1.1 100"));
    half_body.send(std::string_view(body).substr(0, 500));
    api_->stop_accepting();
    EXPECT_EQ(idle.read_to("\r\n\r\n"), "") << "the idle one is closed";
    half_head.send("alth HTTP/1.1\r\nHost: x\r\n\r\n");
    half_body.send(std::string_view(body).substr(500));
    for (const RawConnection* connection : {&half_head, &half_body}) {
      const std::string head = connection->read_to("\r\n\r\n");
      EXPECT_TRUE(head.starts_with("HTTP/1.1 200")) << head;
      EXPECT_NE(head.find("Connection: close"), std::string::npos) << head;
      (void)connection->read_to("the end of the connection");
    }
  }
  EXPECT_TRUE(api_->wait_drained(std::chrono::seconds(20)));
}

// Told in full, also to a client that still sends: a reset would overtake the answer.
TEST_F(OverloadTest, AStopLetsARefusalBeTold) {
  RawConnection refused(api_->port());
  refused.send("POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n{");
  EXPECT_TRUE(refused.read_to("\r\n\r\n").starts_with("HTTP/1.1 404"));
  api_->stop_accepting();
  refused.send("more");
  EXPECT_FALSE(api_->wait_drained(std::chrono::milliseconds(20))) << "the rest of the body is still read";
  EXPECT_NE(refused.read_to("the end of the connection").find("no route"), std::string::npos);
}

TEST_F(OverloadTest, WhoWaitsMakesRoomForWhoAsks) {
  start_with_room_for(8);
  std::vector<std::unique_ptr<RawConnection>> idle;
  for (int i = 0; i < 8; ++i) idle.push_back(std::make_unique<RawConnection>(api_->port()));
  EXPECT_EQ(call("GET", "/health").status, 200u);
  EXPECT_EQ(std::ranges::count_if(idle, [](const auto& one) { return one->has_ended(); }), 1);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(call("GET", "/metrics").status, 200u) << i;
}

// A head that is sent byte by byte takes no place for long either.
TEST_F(OverloadTest, AHeadThatDoesNotEndMakesRoomToo) {
  start_with_room_for(1);
  RawConnection half(api_->port());
  // Both at once: its beginning is read with the request before.
  half.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /he");
  EXPECT_TRUE(half.read_to("\r\n\r\n").starts_with("HTTP/1.1 200"));
  EXPECT_EQ(health_once_there_is_room(), 200u);
  EXPECT_TRUE(half.has_ended());
}

// Who has come a moment ago is about to ask, and so may be who has just had its answer.
TEST_F(OverloadTest, WhoHasWaitedForAMomentKeepsItsPlace) {
  start_with_room_for(1, std::chrono::hours(1));
  RawConnection young(api_->port());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(call("GET", "/health").status, 503u) << i;
    young.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_TRUE(young.read_to("\r\n\r\n").starts_with("HTTP/1.1 200")) << i;
  }
}

TEST_F(OverloadTest, ConnectionsBeyondTheLimitAreToldSo) {
  start_with_room_for(2);
  scheduler_->hold();
  RawConnection first(api_->port()), second(api_->port());
  const std::string body = padded_body(1000);
  for (const RawConnection* busy : {&first, &second}) {
    busy->send("POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + body);
  }
  scheduler_->wait_open(2);
  const HttpReply third = call("GET", "/health");
  EXPECT_EQ(third.status, 503u);
  EXPECT_NE(third.body.find("too many connections (limit 2)"), std::string::npos) << third.body;
  scheduler_->release();
  for (const RawConnection* busy : {&first, &second}) {
    EXPECT_TRUE(busy->read_to("\r\n\r\n").starts_with("HTTP/1.1 200"));
  }
  EXPECT_EQ(health_once_there_is_room(), 200u) << "they wait again";
}

// Who may ask as a user takes nothing from administrators, however long the scheduler makes everybody wait.
TEST_F(OverloadTest, ManyWhoAskForServerInfoShutNoAdministratorOut) {
  scheduler_->hold_stats();
  std::vector<std::unique_ptr<RawConnection>> users;
  for (int i = 0; i < 70; ++i) {
    users.push_back(std::make_unique<RawConnection>(api_->port()));
    users.back()->send("GET /server_info HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  scheduler_->wait_stats();
  EXPECT_EQ(call("GET", "/hicache/storage-backend").status, 200u);
  EXPECT_EQ(call("POST", "/quiesce").status, 200u);
  scheduler_->release_stats();
  for (const auto& user : users) EXPECT_TRUE(user->read_to("\r\n\r\n").starts_with("HTTP/1.1 200"));
}

// Nobody waits for its answer any more, and what is not in storage yet waits for the stop to go on.
TEST_F(OverloadTest, AStopDoesNotWaitForAClear) {
  scheduler_->hold_clear();
  RawConnection admin(api_->port());
  admin.send("POST /hicache/storage-backend/clear HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
  scheduler_->wait_clear();
  api_->stop_accepting();
  EXPECT_FALSE(api_->wait_drained(std::chrono::milliseconds(10))) << "until it is over, or the server's patience is";
  const TimePoint begun = real_clock().now();
  api_.reset();
  EXPECT_LT(real_clock().now() - begun, FakeScheduler::kHangs / 2);
}

// It cannot be ended; who stops the server hears of it, and need not wait.
TEST_F(OverloadTest, AStopNamesAnAttachThatHangs) {
  scheduler_->hold_attach();
  RawConnection admin(api_->port());
  const std::string body = R"({"hicache_storage_backend":"file"})";
  admin.send("PUT /hicache/storage-backend HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
             std::to_string(body.size()) + "\r\n\r\n" + body);
  scheduler_->wait_attach();
  api_->stop_accepting();
  for (int i = 0; i < 2; ++i) {
    const Status ended = api_->end(std::chrono::milliseconds(10));
    EXPECT_EQ(ended.code(), StatusCode::kDeadlineExceeded) << ended.to_string();
    EXPECT_EQ(ended.message(), "PUT /hicache/storage-backend has not ended");
  }
  scheduler_->release_attach();
  const Status ended = api_->end(FakeScheduler::kHangs / 2);
  EXPECT_TRUE(ended.is_ok()) << ended.to_string();
}

// As "nc -N" and "socat" do behind a request that is complete.
TEST_F(OverloadTest, WhoEndsWhatItSendsGetsItsAnswer) {
  for (int i = 0; i < 50; ++i) {
    RawConnection client(api_->port());
    client.send("GET /server_info HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client.end_sending();
    const std::string answer = client.read_to_the_end();
    ASSERT_TRUE(answer.starts_with("HTTP/1.1 200")) << i << ": " << answer;
    ASSERT_TRUE(answer.ends_with("}")) << "all of it";
  }
}

// What takes long is made for nobody whose end may mean that it has left.
TEST_F(OverloadTest, ACompletionOfWhoEndsWhatItSendsIsCancelled) {
  scheduler_->hold();
  RawConnection client(api_->port());
  client.send("POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + padded_body(1000));
  client.end_sending();
  EXPECT_EQ(client.read_to_the_end(), "");
  scheduler_->wait_cancelled(1);
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
