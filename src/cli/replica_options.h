// SPDX-License-Identifier: Apache-2.0
// What `larder attach` and `larder detach` share: which servers, and the switch.
#pragma once

#include <string>
#include <vector>

#include "server/replica_switch.h"

namespace CLI {
class App;
}

namespace larder {

struct ReplicaOptions {
  std::vector<std::string> urls;
  std::string admin_key, key_file, ca_file;
  std::size_t wait_seconds = 30;
};
void add_replica_options(CLI::App& app, ReplicaOptions& o);
// Attaches what is wanted, or detaches what there is if that has no backend; tells how it went. The exit code.
[[nodiscard]] int switch_replicas(const char* command, const ReplicaOptions& o, const AttachedStorage& wanted);

}  // namespace larder
