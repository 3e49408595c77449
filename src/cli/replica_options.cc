// SPDX-License-Identifier: Apache-2.0
#include "cli/replica_options.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <utility>

#include "cli/real_interval.h"
#include "server/command_line.h"
#include "server/key_file.h"

namespace larder {
namespace {

constexpr auto kAnswerLimit = std::chrono::seconds(120);  // a server tries the storage, or writes what is left
constexpr auto kBusyPause = std::chrono::seconds(1);      // while a server is busy

int fail_switch(const char* command, const Status& status, int exit_code) {
  std::fprintf(stderr, "larder %s: %s\n", command, status.message().c_str());
  return exit_code;
}

}  // namespace

void add_replica_options(CLI::App& app, ReplicaOptions& o) {
  app.get_formatter()->column_width(34);
  app.add_option("URL", o.urls, "servers: `larder serve`, or SGLang")->required()->type_name("URL");
  app.add_option("--admin-api-key", o.admin_key, "the servers' key for administration")->type_name("KEY");
  app.add_option("--admin-api-key-file", o.key_file, "holds that key; or the variable LARDER_ADMIN_API_KEY")
      ->type_name("FILE");
  app.add_option("--cacert", o.ca_file, "to https:// URLs: who may have issued the certificates, PEM")
      ->type_name("FILE");
  app.add_option("--wait", o.wait_seconds, "for each change of a server that, as SGLang, does it only without requests")
      ->type_name("SECONDS")
      ->check(whole_number())
      ->capture_default_str();
  app.footer(
      "\nExit codes: 0 all have what was asked for; 1 each has what it had; 2 wrong arguments; 3 one could not be put "
      "back.");
}

int switch_replicas(const char* command, const ReplicaOptions& o, const AttachedStorage& wanted) {
  std::string key = o.admin_key;
  const Status filled = fill_key(key, o.key_file, {"--admin-api-key", "LARDER_ADMIN_API_KEY"}, EmptyVariable::kNoKey);
  if (!filled.is_ok()) return fail_switch(command, filled, 2);
  std::vector<std::unique_ptr<StorageDoor>> doors;
  for (const std::string& text : o.urls) {
    Result<HttpUrl> url = parse_http_url(text, o.ca_file);
    if (!url.is_ok()) return fail_switch(command, url.status(), 2);
    doors.push_back(http_storage_door(text, std::move(*url), kAnswerLimit, key));
  }
  Interval interval;
  ReplicaSwitch all(doors, [&](std::size_t tried) { return tried <= o.wait_seconds && interval.wait(kBusyPause); });
  const SwitchReport report = wanted.backend.empty() ? all.detach_storage() : all.attach_storage(wanted);
  std::fputs(switch_text(report).c_str(), report.status.is_ok() ? stdout : stderr);
  if (report.status.is_ok()) return 0;
  if (report.is_clean()) return 1;  // the reason stands with its server
  return fail_switch(command, report.status, 3);
}

}  // namespace larder
