// SPDX-License-Identifier: Apache-2.0
// Answers in pieces from threads that wait, over loopback: the real listener and the real client.
#include "server/reply_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/http_client.h"
#include "base/thread_pool.h"
#include "tests/support/signal.h"

namespace larder {
namespace {

constexpr Nanos kLimit = std::chrono::seconds(20);
using support::Signal;
using Exchange = std::shared_ptr<HttpExchange>;

// Each request is a task of a pool: one thread writes its answer.
class WorkServer {
 public:
  using Work = std::function<void(const HttpRequest&, const Exchange&)>;
  explicit WorkServer(Work work, const ListenOptions& options = {}) : work_(std::move(work)) {
    auto made = HttpListener::create(
        options,
        [this](HttpRequest request, Exchange exchange) {
          EXPECT_TRUE(pool_.post(
              [this, request = std::move(request), exchange = std::move(exchange)] { work_(request, exchange); }));
        },
        metrics_);
    EXPECT_TRUE(made.is_ok()) << made.status().to_string();
    listener_ = std::move(*made);
    url_.host = "127.0.0.1";
    url_.port = listener_->port();
  }
  [[nodiscard]] const HttpUrl& url() const { return url_; }
  // The listener goes; the writers end by themselves, and this waits for them.
  void close() {
    listener_.reset();
    pool_.wait_idle();
  }
  ~WorkServer() { close(); }
  WorkServer(const WorkServer&) = delete;
  WorkServer& operator=(const WorkServer&) = delete;

 private:
  const Work work_;
  MetricsRegistry metrics_;
  HttpUrl url_;
  ThreadPoolExecutor pool_{"writers", 4, 64};
  std::unique_ptr<HttpListener> listener_;
};

HttpResponse event_head() {
  HttpResponse head;
  head.content_type = "text/event-stream";
  return head;
}

struct Relayed {
  Status status;
  HttpReplyHead head;
  std::string body;
};

Relayed relay(HttpClient& client, std::string_view method, std::string_view target = "/") {
  Relayed out;
  out.status = client.relay(
      {method, target, {}, {}},
      [&](const HttpReplyHead& head) {
        out.head = head;
        return true;
      },
      [&](std::string_view piece) {
        out.body += piece;
        return true;
      });
  return out;
}

bool take_head(const HttpReplyHead&) { return true; }

TEST(ReplyStream, APieceArrivesBeforeTheNextIsWritten) {
  Signal head_came, first_came, second_came, is_over;
  WorkServer server([&](const HttpRequest&, const Exchange& exchange) {
    ReplyStream reply(exchange);
    reply.begin(event_head());
    head_came.wait();
    EXPECT_TRUE(reply.write("data: 1\n\n"));
    first_came.wait();
    EXPECT_TRUE(reply.write("data: 2"));
    second_came.wait();
    EXPECT_TRUE(reply.write("\n\n"));
    EXPECT_TRUE(reply.end());
    EXPECT_FALSE(reply.is_gone());
    is_over.set();
  });
  HttpClient client(server.url(), kLimit);
  std::string body;
  const Status status = client.relay(
      {"GET", "/", {}, {}},
      [&](const HttpReplyHead& head) {
        EXPECT_EQ(*find_field(head.fields, "content-type"), "text/event-stream");
        head_came.set();
        return true;
      },
      [&](std::string_view piece) {
        body += piece;
        if (body == "data: 1\n\n") first_came.set();
        if (body.ends_with("data: 2")) second_came.set();
        return true;
      });
  EXPECT_TRUE(status.is_ok()) << status.to_string();
  EXPECT_EQ(body, "data: 1\n\ndata: 2\n\n");
  client.disconnect();  // at once
  is_over.wait();
}

TEST(ReplyStream, AWholeAnswerAndOneThatIsForgotten) {
  WorkServer server([](const HttpRequest& request, const Exchange& exchange) {
    ReplyStream reply(exchange);
    if (request.path != "/whole") return;
    HttpResponse response;
    response.status = 502;
    response.body = "oh";
    response.headers.emplace_back("X-Why", "because");
    reply.respond(std::move(response));
    reply.respond({});  // dropped
  });
  HttpClient client(server.url(), kLimit);
  const Relayed whole = relay(client, "GET", "/whole");
  EXPECT_EQ(whole.head.status, 502u);
  EXPECT_EQ(*find_field(whole.head.fields, "x-why"), "because");
  EXPECT_EQ(whole.body, "oh");
  EXPECT_EQ(relay(client, "GET", "/forgotten").head.status, 500u);
  EXPECT_EQ(relay(client, "GET", "/whole").body, "oh");
}

TEST(ReplyStream, WithoutAnEndTheClientSeesThatItIsMissing) {
  WorkServer server([](const HttpRequest&, const Exchange& exchange) {
    ReplyStream reply(exchange);
    reply.begin(event_head());
    EXPECT_TRUE(reply.write("data: 1\n\n"));
  });
  HttpClient client(server.url(), kLimit);
  const Relayed got = relay(client, "GET");
  EXPECT_EQ(got.status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(got.body, "data: 1\n\n") << "what was written came";
}

TEST(ReplyStream, WithoutABodyTheConnectionGoesOn) {
  WorkServer server([](const HttpRequest& request, const Exchange& exchange) {
    EXPECT_EQ(request.is_head, request.path == "/head");
    ReplyStream reply(exchange);
    HttpResponse head = event_head();
    if (request.path == "/204") head.status = 204;
    if (request.path == "/304") head.status = 304;
    reply.begin(std::move(head));
    EXPECT_TRUE(reply.write("unseen"));
    EXPECT_TRUE(reply.end());
  });
  HttpClient client(server.url(), kLimit);
  for (const auto& [method, target, status] :
       {std::tuple{"HEAD", "/head", 200u}, {"GET", "/204", 204u}, {"GET", "/304", 304u}}) {
    const Relayed got = relay(client, method, target);
    EXPECT_TRUE(got.status.is_ok()) << got.status.to_string();
    EXPECT_EQ(got.head.status, status);
    EXPECT_EQ(got.body, "");
  }
  EXPECT_EQ(relay(client, "GET").body, "unseen");  // nothing of the others stood in front of it
  EXPECT_EQ(client.raw("GET / HTTP/1.0\r\n\r\n")->body, "unseen");
}

// --- clients that do not take it ---

TEST(ReplyStream, AClientThatDoesNotReadHoldsTheWriterUpAndIsDropped) {
  constexpr std::uint64_t kPiece = 256u << 10;
  std::uint64_t taken = 0;
  int gone_calls = 0;
  Signal dropped;
  Status status;
  {
    ListenOptions options;
    options.write_limit = std::chrono::milliseconds(200);
    WorkServer server(
        [&](const HttpRequest&, const Exchange& exchange) {
          ReplyStream reply(exchange);
          reply.on_gone([&] { ++gone_calls; });
          reply.begin(event_head());
          while (taken < 1ull << 30 && reply.write(std::string(kPiece, 'x'))) taken += kPiece;
          EXPECT_TRUE(reply.is_gone());
          EXPECT_FALSE(reply.end());
          dropped.set();
        },
        options);
    HttpClient client(server.url(), kLimit);
    status = client.relay({"GET", "/", {}, {}}, take_head, [&](std::string_view) {
      dropped.wait();  // reads one piece
      return true;
    });
  }
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.to_string();
  EXPECT_LT(taken, 64u << 20) << "what the system's buffers take, and no more";
  EXPECT_EQ(gone_calls, 1);
}

TEST(ReplyStream, AClientThatLeavesIsNoticedWithoutAWrite) {
  Signal gone, is_over;
  WorkServer server([&](const HttpRequest&, const Exchange& exchange) {
    ReplyStream reply(exchange);
    reply.on_gone([&] { gone.set(); });
    reply.begin(event_head());
    EXPECT_TRUE(reply.write("data: 1\n\n"));
    gone.wait();
    EXPECT_TRUE(reply.is_gone());
    EXPECT_FALSE(reply.write("data: 2\n\n"));
    EXPECT_FALSE(reply.end());
    is_over.set();
  });
  HttpClient client(server.url(), kLimit);
  const Status status = client.relay({"GET", "/", {}, {}}, take_head, [](std::string_view) { return false; });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  is_over.wait();
}

TEST(ReplyStream, AClientMayLeaveBeforeTheHeadAndWhenItsFunctionComesLate) {
  Signal came, left, is_over;
  WorkServer server([&](const HttpRequest&, const Exchange& exchange) {
    ReplyStream reply(exchange);
    came.set();
    left.wait();
    const TimePoint end = real_clock().now() + kLimit;
    while (!reply.is_gone() && real_clock().now() < end) {}
    int calls = 0;
    reply.on_gone([&] { ++calls; });
    EXPECT_EQ(calls, 1) << "at once";
    reply.begin(event_head());
    EXPECT_FALSE(reply.write("data: 1\n\n"));
    is_over.set();
  });
  HttpClient client(server.url(), kLimit);
  ThreadPoolExecutor other("other", 1, 1);
  ASSERT_TRUE(other.post([&] {
    came.wait();
    client.cancel();
    left.set();
  }));
  EXPECT_EQ(relay(client, "GET").status.code(), StatusCode::kCancelled);
  is_over.wait();
}

TEST(ReplyStream, ClientsMayLeaveAtAnyMoment) {
  std::atomic<int> over{0};
  constexpr int kRounds = 200;
  {
    WorkServer server([&](const HttpRequest&, const Exchange& exchange) {
      std::atomic<int> calls{0};
      {
        ReplyStream reply(exchange);
        reply.on_gone([&] { ++calls; });
        reply.begin(event_head());
        for (int i = 0; i < 8 && reply.write(std::string(1000, 'x')); ++i) {}
        reply.end();
      }
      const int after = calls;
      EXPECT_LE(after, 1);
      ++over;
    });
    for (int round = 0; round < kRounds; ++round) {
      HttpClient client(server.url(), kLimit);
      std::size_t came = 0;
      const Status status = client.relay({"GET", "/", {}, {}}, take_head, [&](std::string_view piece) {
        came += piece.size();
        return came < static_cast<std::size_t>(round) * 50;
      });
      EXPECT_TRUE(status.is_ok() || status.code() == StatusCode::kCancelled) << status.to_string();
    }
  }
  EXPECT_EQ(over, kRounds);
}

// --- a listener that ends ---

TEST(ReplyStream, AListenerThatEndsWakesItsWriters) {
  Signal begun, is_woken;
  int gone_calls = 0;
  WorkServer server([&](const HttpRequest&, const Exchange& exchange) {
    ReplyStream reply(exchange);
    reply.on_gone([&] { ++gone_calls; });
    reply.begin(event_head());
    do {
      begun.set();
    } while (reply.write(std::string(256u << 10, 'x')));
    is_woken.set();
  });
  ThreadPoolExecutor other("other", 1, 1);
  ASSERT_TRUE(other.post([url = server.url(), &is_woken] {
    HttpClient client(url, kLimit);
    const Status status = client.relay({"GET", "/", {}, {}}, take_head, [&](std::string_view) {
      is_woken.wait();  // so that the writer waits
      return true;
    });
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.to_string();
  }));
  begun.wait();
  server.close();
  is_woken.wait();
  EXPECT_EQ(gone_calls, 1);
}

TEST(ReplyStream, AfterTheListenerTheClientIsGone) {
  Signal came;
  Exchange kept;
  HttpClient* asking = nullptr;
  {
    WorkServer server([&](const HttpRequest&, const Exchange& exchange) {
      kept = exchange;
      came.set();
    });
    HttpClient client(server.url(), kLimit);
    asking = &client;
    ThreadPoolExecutor other("other", 1, 1);
    ASSERT_TRUE(other.post([&] { EXPECT_EQ(relay(*asking, "GET").status.code(), StatusCode::kUnavailable); }));
    came.wait();
    server.close();
    other.wait_idle();
  }
  int calls = 0;
  ReplyStream reply(kept);
  reply.on_gone([&] { ++calls; });
  EXPECT_TRUE(reply.is_gone());
  EXPECT_EQ(calls, 1);
  reply.begin(event_head());
  EXPECT_FALSE(reply.write("x"));
  EXPECT_FALSE(reply.end());
  ReplyStream whole(kept);
  whole.respond({});
}

// --- what a request brings, and a relay from one server to another ---

TEST(HttpListenerRequest, TargetAndFieldsAreAsSent) {
  HttpRequest seen;
  WorkServer server([&](const HttpRequest& request, const Exchange& exchange) {
    seen = request;
    ReplyStream(exchange).respond({});
  });
  HttpClient client(server.url(), kLimit);
  const auto reply = client.raw(
      "PUT /a%20b/?x=%7B&y HTTP/1.1\r\nHost: here\r\nX-A: 1\r\nx-b:\t2  \r\nx-a: 3\r\nAuthorization: Bearer k\r\n"
      "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Late: 1\r\nX-A: 4\r\n\r\n");
  ASSERT_TRUE(reply.is_ok()) << reply.status().to_string();
  EXPECT_EQ(seen.method, "PUT");
  EXPECT_FALSE(seen.is_head);
  EXPECT_EQ(seen.target, "/a%20b/?x=%7B&y");
  EXPECT_EQ(seen.path, "/a b/");
  EXPECT_EQ(seen.body, "hello");
  EXPECT_EQ(seen.authorization, "Bearer k");
  const std::vector<HttpField> fields = {{"Host", "here"},
                                         {"X-A", "1"},
                                         {"x-a", "3"},
                                         {"x-b", "2"},
                                         {"Authorization", "Bearer k"},
                                         {"Transfer-Encoding", "chunked"}};
  EXPECT_EQ(seen.fields, fields);
}

TEST(HttpListenerRequest, AnAnswerThatIsGivenIsNotBrokenOff) {
  WorkServer server([&](const HttpRequest&, const Exchange& exchange) {
    HttpResponse response;
    response.body.assign(32u << 20, 'x');  // more than a socket takes at once
    exchange->respond(std::move(response));
    exchange->break_off();
    const ReplyStream unused(exchange);
  });
  HttpClient client(server.url(), kLimit);
  const Relayed got = relay(client, "GET");
  EXPECT_TRUE(got.status.is_ok()) << got.status.to_string();
  EXPECT_EQ(got.body.size(), 32u << 20);
}

// What stands between a client and `upstream`. The client of the upstream outlives the stream, which may cancel it.
void pass_on(const HttpUrl& upstream, const HttpRequest& request, const Exchange& exchange) {
  HttpClient client(upstream, kLimit);
  ReplyStream reply(exchange);
  reply.on_gone([&] { client.cancel(); });
  const Status status = client.relay(
      {request.is_head ? "HEAD" : request.method, request.target, request.fields, request.body},
      [&](const HttpReplyHead& head) {
        reply.begin(passed_head(head.status, head.fields));
        return !reply.is_gone();
      },
      [&](std::string_view piece) { return reply.write(std::string(piece)); });
  if (status.is_ok()) reply.end();
}

TEST(ReplyStreamRelay, FieldsAndBodiesPassThrough) {
  HttpRequest seen;
  const WorkServer upstream([&](const HttpRequest& request, const Exchange& exchange) {
    seen = request;
    ReplyStream reply(exchange);
    HttpResponse response;
    response.status = 429;
    response.content_type = "text/x";
    response.body = "later, " + request.body;
    response.headers = {{"Server", "upstream"}, {"Retry-After", "5"}, {"Set-Cookie", "a"}, {"Set-Cookie", "b"}};
    if (request.path == "/none") response = {304, {}, {}, {{"ETag", "\"x\""}}};
    reply.respond(std::move(response));
  });
  const WorkServer proxy(
      [&](const HttpRequest& request, const Exchange& exchange) { pass_on(upstream.url(), request, exchange); });
  HttpClient client(proxy.url(), kLimit);
  const auto raw = client.raw(
      "DELETE /a%20b?c=%20 HTTP/1.1\r\nHost: proxy\r\nX-Mine: 1\r\nConnection: X-Hop\r\nX-Hop: 1\r\n"
      "Content-Length: 4\r\n\r\nbody");
  ASSERT_TRUE(raw.is_ok()) << raw.status().to_string();
  EXPECT_EQ(raw->status, 429u);
  EXPECT_EQ(raw->content_type, "text/x");
  EXPECT_EQ(raw->body, "later, body");
  EXPECT_EQ(seen.method, "DELETE");
  EXPECT_EQ(seen.target, "/a%20b?c=%20");
  EXPECT_EQ(*find_field(seen.fields, "x-mine"), "1");
  EXPECT_EQ(find_field(seen.fields, "x-hop"), nullptr);
  EXPECT_NE(*find_field(seen.fields, "host"), "proxy");
  const std::vector<HttpField> fields = {{"Content-Type", "text/x"},
                                         {"Server", "upstream"},
                                         {"Retry-After", "5"},
                                         {"Set-Cookie", "a"},
                                         {"Set-Cookie", "b"}};
  std::vector<HttpField> passed = relay(client, "GET").head.fields;
  std::erase_if(passed, [](const HttpField& field) { return field.name == "X-Request-Id"; });  // the proxy's own
  EXPECT_EQ(passed, fields);
  EXPECT_EQ(relay(client, "HEAD").body, "");
  EXPECT_TRUE(seen.is_head);
  const Relayed none = relay(client, "GET", "/none");
  EXPECT_EQ(none.head.status, 304u);
  EXPECT_EQ(*find_field(none.head.fields, "etag"), "\"x\"");
  EXPECT_EQ(find_field(none.head.fields, "content-type"), nullptr);
}

TEST(ReplyStreamRelay, EventsPassOneByOneAndWhoLeavesIsHeardOfUpstream) {
  Signal came, is_told;
  const WorkServer upstream([&](const HttpRequest&, const Exchange& exchange) {
    ReplyStream reply(exchange);
    reply.on_gone([&] { is_told.set(); });
    reply.begin(event_head());
    EXPECT_TRUE(reply.write("data: 1\n\n"));
    came.wait();
    EXPECT_TRUE(reply.write("data: 2\n\n"));
    is_told.wait();
    EXPECT_FALSE(reply.write("data: 3\n\n"));
  });
  const WorkServer proxy(
      [&](const HttpRequest& request, const Exchange& exchange) { pass_on(upstream.url(), request, exchange); });
  HttpClient client(proxy.url(), kLimit);
  std::string body;
  const Status status = client.relay({"GET", "/", {}, {}}, take_head, [&](std::string_view piece) {
    body += piece;
    if (body == "data: 1\n\n") came.set();
    return body != "data: 1\n\ndata: 2\n\n";
  });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  is_told.wait();
}

TEST(ReplyStreamRelay, AnUpstreamThatBreaksOffIsSeenToHave) {
  const WorkServer upstream([](const HttpRequest&, const Exchange& exchange) {
    ReplyStream reply(exchange);
    reply.begin(event_head());
    EXPECT_TRUE(reply.write("data: 1\n\n"));
  });
  const WorkServer proxy(
      [&](const HttpRequest& request, const Exchange& exchange) { pass_on(upstream.url(), request, exchange); });
  HttpClient client(proxy.url(), kLimit);
  const Relayed got = relay(client, "GET");
  EXPECT_EQ(got.status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(got.body, "data: 1\n\n");
}

}  // namespace
}  // namespace larder
