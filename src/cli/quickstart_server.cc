// SPDX-License-Identifier: Apache-2.0
#include "cli/quickstart_server.h"

#include <fmt/format.h>

#include "base/http_client.h"

namespace larder {
namespace {

constexpr Nanos kStartLimit = std::chrono::seconds(60);
constexpr Nanos kStopLimit = std::chrono::seconds(90);  // more than serve itself waits for its backups
constexpr Nanos kCallLimit = std::chrono::seconds(150);

}  // namespace

Status QuickstartServer::with_log(const Status& status) const {
  const std::string log = tail_of_file(log_path_, 20);
  return Status(status.code(), log.empty() ? status.message() : status.message() + "\nthe server said:\n" + log);
}

Status QuickstartServer::start(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {executable_, "serve", "--port", "0"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  LARDER_RETURN_IF_ERROR(child_.start(all, log_path_));
  const Result<std::string> line = child_.read_line(kStartLimit);
  if (!line.is_ok()) return with_log(unavailable("the server did not start: " + line.status().message()));
  const std::size_t begin = line->find("http://");
  if (begin == std::string::npos) return with_log(unavailable("the server's first line names no URL: " + *line));
  url_ = line->substr(begin, line->find(' ', begin) - begin);
  return Status::ok();
}

Status QuickstartServer::stop() {
  const Result<int> code = child_.stop(kStopLimit);
  if (!code.is_ok()) return with_log(code.status());
  if (*code != 0) return with_log(unavailable(fmt::format("the server ended with exit code {}", *code)));
  return Status::ok();
}

Result<std::string> QuickstartServer::call(const std::string& method, const std::string& target) const {
  LARDER_ASSIGN_OR_RETURN(const HttpUrl url, parse_http_url(url_));
  HttpClient client(url, kCallLimit);
  const Result<HttpReply> reply = client.request(method, target);
  if (!reply.is_ok()) return with_log(reply.status());
  if (reply->status != 200) {
    return with_log(unavailable(fmt::format("{} {}: HTTP {}: {}", method, target, reply->status, reply->body)));
  }
  return reply->body;
}

Status QuickstartServer::post(const std::string& target) const { return call("POST", target).status(); }

Result<nlohmann::json> QuickstartServer::get_json(const std::string& target) const {
  LARDER_ASSIGN_OR_RETURN(const std::string body, call("GET", target));
  nlohmann::json document = nlohmann::json::parse(body, nullptr, false);
  if (document.is_discarded()) return corrupt(target + ": the answer is not JSON");
  return document;
}

}  // namespace larder
