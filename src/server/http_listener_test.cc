// SPDX-License-Identifier: Apache-2.0
// Who a request is from, and hosts without an address. What an answer is made of: reply_stream_test.cc.
#include "server/http_listener.h"

#include <gtest/gtest.h>
#include <netdb.h>

#include "base/http_client.h"
#include "base/metrics.h"

namespace larder {
namespace {

Result<std::unique_ptr<HttpListener>> listen_on(const std::string& host, MetricsRegistry& metrics) {
  ListenOptions options;
  options.host = host;
  options.port = 0;
  const auto tell_peer = [](const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
    HttpResponse response;
    response.content_type = "text/plain";
    response.body = request.peer + (request.is_loopback ? " is on this machine" : " is a stranger");
    exchange->respond(std::move(response));
  };
  return HttpListener::create(options, tell_peer, metrics);
}

TEST(HttpListener, ClientsOfIpv4AreThemselvesWhereItListensOnIpv6) {
  MetricsRegistry metrics;
  const auto listener = listen_on("::", metrics);
  if (!listener.is_ok()) GTEST_SKIP() << "no IPv6: " << listener.status().to_string();
  HttpUrl url;
  url.port = (*listener)->port();
  for (const char* host : {"127.0.0.1", "::1"}) {
    url.host = host;
    const auto reply = HttpClient(url, std::chrono::seconds(20)).request("GET", "/");
    if (!reply.is_ok()) GTEST_SKIP() << host << ": " << reply.status().to_string();  // it takes no IPv4, or has no ::1
    EXPECT_EQ(reply->body, std::string(host) + " is on this machine");
  }
}

// An exit code of 2 would tell systemd that a start anew is in vain.
TEST(HttpListener, AHostThatTheResolverCannotFindNowMayComeLater) {
  constexpr const char* kHost = "no-such-host.invalid";
  addrinfo* found = nullptr;
  const int said = ::getaddrinfo(kHost, nullptr, nullptr, &found);
  if (said == 0) {
    ::freeaddrinfo(found);
    GTEST_SKIP() << "this machine's resolver has an address for every name";
  }
  const bool is_answer = said == EAI_NONAME || said == EAI_NODATA;
  MetricsRegistry metrics;
  EXPECT_EQ(listen_on(kHost, metrics).status().code(),
            is_answer ? StatusCode::kInvalidArgument : StatusCode::kUnavailable)
      << ::gai_strerror(said);
}

}  // namespace
}  // namespace larder
