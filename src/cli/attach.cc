// SPDX-License-Identifier: Apache-2.0
// `larder attach` and `larder detach`: the storage of several servers, all of them or none.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/real_interval.h"
#include "server/command_line.h"
#include "server/replica_switch.h"

namespace larder {
namespace {

constexpr auto kAnswerLimit = std::chrono::seconds(120);  // a server tries the storage, or writes what is left
constexpr auto kPause = std::chrono::seconds(1);          // while a server is busy

struct SwitchOptions {
  std::vector<std::string> urls;
  AttachedStorage wanted;
  std::string admin_key, ca_file;
  std::size_t wait_seconds = 30;
};

void add_shared_options(CLI::App& app, SwitchOptions& o) {
  app.get_formatter()->column_width(34);
  app.add_option("URL", o.urls, "servers: `larder serve`, or SGLang")->required()->type_name("URL");
  app.add_option("--admin-api-key", o.admin_key, "the servers' key for administration")
      ->envname("LARDER_ADMIN_API_KEY")
      ->type_name("KEY");
  app.add_option("--cacert", o.ca_file, "to https:// URLs: who may have issued the certificates, PEM")
      ->type_name("FILE");
  app.add_option("--wait", o.wait_seconds, "for each change of a server that does it only without requests (SGLang)")
      ->type_name("SECONDS")
      ->check(whole_number())
      ->capture_default_str();
  app.footer(
      "\nExit codes: 0 all servers have changed; 1 none has; 2 wrong arguments; 3 one has and could not be put back.");
}

int run_switch(const char* command, const SwitchOptions& o) {
  std::vector<std::unique_ptr<StorageDoor>> doors;
  for (const std::string& text : o.urls) {
    Result<HttpUrl> url = parse_http_url(text, o.ca_file);
    if (!url.is_ok()) {
      std::fprintf(stderr, "larder %s: %s\n", command, url.status().message().c_str());
      return 2;
    }
    doors.push_back(http_storage_door(text, std::move(*url), kAnswerLimit, o.admin_key));
  }
  Interval interval;
  ReplicaSwitch all(doors, [&](std::size_t tried) { return tried <= o.wait_seconds && interval.wait(kPause); });
  const SwitchReport report = o.wanted.backend.empty() ? all.detach() : all.attach(o.wanted);
  std::fputs(switch_text(report).c_str(), report.status.is_ok() ? stdout : stderr);
  if (report.status.is_ok()) return 0;
  std::fprintf(stderr, "larder %s: %s\n", command, report.status.message().c_str());
  return report.is_clean() ? 1 : 3;
}

}  // namespace

int attach_command(int argc, char** argv) {
  CLI::App app("Attaches a storage to running servers: to all of them, or to none.", "larder attach");
  SwitchOptions o;
  app.add_option("--backend", o.wanted.backend, "file, hf3fs, mooncake ...")->required()->type_name("NAME");
  app.add_option("--extra-config", o.wanted.extra_config, "its options, as the servers take them at their start")
      ->type_name("JSON");
  app.add_option("--prefetch-policy", o.wanted.prefetch_policy, "best_effort, wait_complete or timeout")
      ->type_name("NAME");
  app.add_option("--write-policy", o.wanted.write_policy, "write_through, write_through_selective or write_back")
      ->type_name("NAME");
  add_shared_options(app, o);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  return run_switch("attach", o);
}

int detach_command(int argc, char** argv) {
  CLI::App app("Detaches the storage of running servers: of all of them, or of none.", "larder detach");
  SwitchOptions o;
  add_shared_options(app, o);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  return run_switch("detach", o);
}

}  // namespace larder
