// SPDX-License-Identifier: Apache-2.0
// `larder attach`: a storage for several servers, all of them or none.
#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/replica_options.h"
#include "server/command_line.h"

namespace larder {

int attach_command(int argc, char** argv) {
  CLI::App app("Attaches a storage to running servers: to all of them, or to none.", "larder attach");
  ReplicaOptions o;
  std::string name, config, prefetch, write;
  app.add_option("--backend", name, "file, hf3fs, mooncake ...")->required()->type_name("NAME");
  app.add_option("--extra-config", config, "its options, as the servers take them at their start; as it is")
      ->type_name("JSON");
  app.add_option("--prefetch-policy", prefetch, "best_effort, wait_complete or timeout; as it is")->type_name("NAME");
  app.add_option("--write-policy", write, "write_through, write_through_selective or write_back; as it is")
      ->type_name("NAME");
  add_replica_options(app, o);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  return switch_replicas("attach", o, {name, config, prefetch, write});
}

}  // namespace larder
