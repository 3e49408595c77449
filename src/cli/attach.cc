// SPDX-License-Identifier: Apache-2.0
// `larder attach`: a storage for several servers, all of them or none.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/replica_options.h"
#include "server/command_line.h"

namespace larder {
namespace {

// Before any server is asked. Which keys there are is for the server to say; so is what a file of its machine holds.
Status check_config(const std::string& text) {
  if (text.empty() || text.starts_with('@')) return Status::ok();
  if (nlohmann::json::parse(text, nullptr, false).is_object()) return Status::ok();
  return invalid_argument("--extra-config: a JSON object is expected, for example {\"directory\": \"/mnt/cache\"}");
}

}  // namespace

int attach_command(int argc, char** argv) {
  CLI::App app("Attaches a storage to running servers: to all of them, or to none.", "larder attach");
  ReplicaOptions o;
  std::string new_backend, new_config, new_prefetch, new_write;
  app.add_option("--backend", new_backend, "file, hf3fs, mooncake ...")->required()->type_name("NAME");
  app.add_option("--extra-config", new_config,
                 "its options, as a server takes them at its start; left out: those of the attached backend, or those "
                 "it was detached with (SGLang forgets the latter)")
      ->type_name("JSON");
  app.add_option("--prefetch-policy", new_prefetch, "best_effort, wait_complete or timeout; left out: unchanged")
      ->type_name("NAME");
  app.add_option("--write-policy", new_write, "write_through, write_through_selective, write_back; left out: unchanged")
      ->type_name("NAME");
  add_replica_options(app, o);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  const Status checked = check_config(new_config);
  if (!checked.is_ok()) return fail_command("larder attach", checked);
  return switch_replicas("attach", o, {new_backend, new_config, new_prefetch, new_write});
}

}  // namespace larder
