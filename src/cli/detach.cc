// SPDX-License-Identifier: Apache-2.0
// `larder detach`: the storage of several servers, of all of them or of none.
#include <CLI/CLI.hpp>
#include <optional>

#include "cli/commands.h"
#include "cli/replica_options.h"
#include "server/command_line.h"

namespace larder {

int detach_command(int argc, char** argv) {
  CLI::App app("Detaches the storage of running servers: of all of them, or of none.", "larder detach");
  ReplicaOptions o;
  add_replica_options(app, o);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  return switch_replicas("detach", o, {});
}

}  // namespace larder
