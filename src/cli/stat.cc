// SPDX-License-Identifier: Apache-2.0
// `larder stat`: the state of each tier, pool and backend of a running server. A client of /server_info, or of
// /larder/status, and of /metrics?format=json; what has the last alone, as SGLang's ranks, is shown by that.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/http_client.h"
#include "cli/commands.h"
#include "cli/real_interval.h"
#include "server/answer_hint.h"
#include "server/command_line.h"
#include "server/json_reader.h"
#include "server/key_file.h"
#include "server/metrics_json.h"
#include "server/stat_report.h"

namespace larder {
namespace {

constexpr auto kTimeout = std::chrono::seconds(30);

struct StatOptions {
  std::string url = "http://127.0.0.1:30000";
  std::string api_key, key_file, ca_file;
  bool as_json = false, with_zeros = false;
  double watch_seconds = 0;  // 0: once
};

constexpr const char* kInfo = "/server_info";
constexpr const char* kFrontStatus = "/larder/status";  // of `larder proxy` and of GGUF files

// Where the state of a server is; learned with its first answer.
enum class ServerKind { kServer, kFront, kMetricsAlone };

Result<std::string> body_of(const char* target, const Result<HttpReply>& reply) {
  if (!reply.is_ok()) return reply.status();
  if (reply->status == 200) return reply->body;
  constexpr const char* kServers =
      "`larder serve`, `larder proxy` or page of metrics (metrics_port of Larder in SGLang)";
  const std::string hint = answer_hint(reply->status, "--api-key-file FILE", kServers);
  return unavailable(fmt::format("GET {}: HTTP {}: {}{}", target, reply->status, reply->body.substr(0, 300), hint));
}

Result<std::string> get(HttpClient& client, const char* target) {
  return body_of(target, client.request("GET", target));
}

Result<std::vector<MetricFamily>> read_metrics(HttpClient& client) {
  constexpr const char* kTarget = "/metrics?format=json";
  LARDER_ASSIGN_OR_RETURN(const std::string text, get(client, kTarget));
  Result<std::vector<MetricFamily>> metrics = parse_metrics_json(text);
  if (metrics.is_ok()) return metrics;
  return corrupt(
      fmt::format("GET {}: {}; is the server older than this program? SGLang's own page has other numbers than the one "
                  "at Larder's metrics_port",
                  kTarget, metrics.status().message()));
}

Result<nlohmann::json> object_of(const char* target, const Result<std::string>& body) {
  if (!body.is_ok()) return body.status();
  nlohmann::json parsed = nlohmann::json::parse(*body, nullptr, false);
  if (!parsed.is_object()) return corrupt(fmt::format("GET {}: the answer is not a JSON object", target));
  return parsed;
}

// kind: learns what the server has. Null: metrics alone.
Result<nlohmann::json> read_info(HttpClient& client, ServerKind& kind) {
  if (kind == ServerKind::kMetricsAlone) return nlohmann::json();
  if (kind == ServerKind::kServer) {
    const Result<HttpReply> reply = client.request("GET", kInfo);
    // A proxy passes the question on, and llama-server does not know it, asks for its key, loads, is down or hangs.
    const bool may_be_front =
        reply.is_ok() ? reply->status != 200 : reply.status().code() == StatusCode::kDeadlineExceeded;
    if (may_be_front) {
      const Result<HttpReply> status = client.request("GET", kFrontStatus);
      if (status.is_ok() && (status->status == 200 || status->status == 403)) kind = ServerKind::kFront;
    }
    const bool is_unknown = kind == ServerKind::kServer && reply.is_ok() && reply->status == 404;
    if (is_unknown && read_metrics(client).is_ok()) {
      kind = ServerKind::kMetricsAlone;
      return nlohmann::json();
    }
    if (kind == ServerKind::kServer) return object_of(kInfo, body_of(kInfo, reply));
  }
  LARDER_ASSIGN_OR_RETURN(const nlohmann::json status, object_of(kFrontStatus, get(client, kFrontStatus)));
  return info_of_front(status);
}

Result<StatSample> take_sample(HttpClient& client, ServerKind& kind) {
  LARDER_ASSIGN_OR_RETURN(nlohmann::json info, read_info(client, kind));
  StatSample sample;
  sample.info = std::move(info);
  Result<std::vector<MetricFamily>> metrics = read_metrics(client);
  if (metrics.is_ok()) {
    sample.metrics = std::move(*metrics);
  } else if (kind == ServerKind::kMetricsAlone) {
    return metrics.status();
  } else {  // the rest is worth showing, too
    std::fprintf(stderr, "larder stat: without metrics: %s\n", metrics.status().message().c_str());
  }
  return sample;
}

// seconds: since `before`.
void print_sample(const StatOptions& o, const StatSample& now, const StatSample* before, double seconds) {
  if (o.as_json) {
    std::printf("%s\n", dump_json(stat_json(now), o.watch_seconds > 0 ? -1 : 2).c_str());  // watched: a line each
  } else {
    if (o.watch_seconds > 0 && ::isatty(STDOUT_FILENO) == 1) std::printf("\x1b[H\x1b[2J");
    std::printf("%s", stat_text(now, before, seconds, o.with_zeros).c_str());
  }
  std::fflush(stdout);
}

Status run_stat(const StatOptions& o) {
  LARDER_ASSIGN_OR_RETURN(const HttpUrl url, parse_http_url(o.url, o.ca_file));
  std::string key = o.api_key;
  LARDER_RETURN_IF_ERROR(fill_key(key, o.key_file, {"--api-key", "LARDER_API_KEY"}, EmptyVariable::kNoKey));
  HttpClient client(url, kTimeout, key);
  std::optional<Interval> interval;
  if (o.watch_seconds > 0) interval.emplace([&client] { client.cancel(); });
  std::optional<StatSample> before;
  TimePoint before_at;
  ServerKind kind = ServerKind::kServer;
  for (;;) {
    Result<StatSample> now = take_sample(client, kind);
    if (interval && interval->is_over()) return Status::ok();
    if (!now.is_ok() && !before) return now.status();
    if (now.is_ok()) {
      const TimePoint now_at = real_clock().now();  // a slow server answers late
      const double seconds = std::chrono::duration<double>(now_at - before_at).count();
      print_sample(o, *now, before ? &*before : nullptr, seconds);
      before = std::move(*now);
      before_at = now_at;
    } else {  // it may come back: somebody watches a restart
      std::fprintf(stderr, "larder stat: %s; asking again\n", now.status().message().c_str());
    }
    if (!interval) return Status::ok();
    const auto pause = std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(o.watch_seconds));
    if (!interval->wait(pause)) return Status::ok();
  }
}

}  // namespace

int stat_command(int argc, char** argv) {
  CLI::App app(
      "Shows the state of each tier, pool and storage backend of a running `larder serve` or `larder proxy`; of Larder "
      "in SGLang what its page of metrics has (metrics_port).",
      "larder stat");
  app.get_formatter()->column_width(30);
  StatOptions o;
  app.add_option("--url", o.url, "server to ask")->type_name("URL")->capture_default_str();
  app.add_option("--api-key", o.api_key, "bearer key, if the server wants one")->type_name("KEY");
  app.add_option("--api-key-file", o.key_file, "holds that key; or the variable LARDER_API_KEY")->type_name("FILE");
  app.add_option("--cacert", o.ca_file, "to an https:// URL: who may have issued the certificate, PEM")
      ->type_name("FILE");
  app.add_flag("--all", o.with_zeros, "rows that are zero, too, and what is there twice");
  app.add_flag("--json", o.as_json, "print JSON; with --watch one line each time");
  app.add_option("--watch", o.watch_seconds,
                 "again every so often, with rates, until interrupted; a server that has gone is asked again")
      ->type_name("SECONDS")
      ->check(number_in(0.1, 86400));
  app.footer("\nExit codes: 0 done; 1 the server cannot be asked; 2 wrong arguments, or no such file.");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  Status status = run_stat(o);
  if (app.count("--url") == 0) status = with_url_hint(status, "larder proxy: http://127.0.0.1:8080");
  return status.is_ok() ? 0 : fail_command("larder stat", status);
}

}  // namespace larder
