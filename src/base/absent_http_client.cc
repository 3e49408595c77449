// SPDX-License-Identifier: Apache-2.0
// In place of real_http_client.cc where the headers of Boost are not there.
#include "base/http_client.h"

namespace larder {
namespace {

Status no_client() {
  return unsupported("this build of Larder has no HTTP client: it was made without Boost's headers (libboost-dev)");
}

}  // namespace

HttpClient::HttpClient(HttpUrl url, Nanos timeout, std::string bearer)
    : url_(std::move(url)), timeout_(timeout), bearer_(std::move(bearer)) {}
HttpClient::~HttpClient() = default;
Result<HttpReply> HttpClient::request(std::string_view, std::string_view, std::string_view, std::string_view) {
  return no_client();
}
Result<HttpReply> HttpClient::stream(std::string_view, std::string_view, std::string_view,
                                     const std::function<bool(std::string_view line)>&) {
  return no_client();
}
Result<HttpReply> HttpClient::raw(std::string_view) { return no_client(); }
Status HttpClient::relay(const HttpRelayRequest&, const std::function<bool(const HttpReplyHead&)>&,
                         const std::function<bool(std::string_view)>&) {
  return no_client();
}
void HttpClient::disconnect() {}
void HttpClient::set_deadline(TimePoint) {}
void HttpClient::cancel() { is_cancelled_.store(true, std::memory_order_relaxed); }

}  // namespace larder
