// SPDX-License-Identifier: Apache-2.0
// The real Mooncake Store of tools/mooncake_env.sh on free ports of 127.0.0.1: a master, a client that lends memory.
//
// Threads: the test's. The processes end with the object, and with the test however that ends.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>

#include "server/real_child_process.h"
#include "storage/factory.h"
#include "tests/support/temporary_directory.h"

namespace larder::mooncake_test {

class RealStore {
 public:
  // "": it is there. Else why the test cannot run here; with LARDER_TEST_ALL_SERVERS that is a failed expectation.
  [[nodiscard]] static std::string why_not_here();
  // The interpreter that has the package.
  [[nodiscard]] static std::string python();

  // lease: of a page that was found; one that takes longer to read is a miss. (The master's own default is 10 s.)
  explicit RealStore(std::uint64_t megabytes, std::chrono::milliseconds lease = std::chrono::milliseconds(200));
  ~RealStore();
  RealStore(const RealStore&) = delete;
  RealStore& operator=(const RealStore&) = delete;
  // What a backend needs to reach it.
  [[nodiscard]] BackendOptions options() const;

  void start_master();
  void kill_master();
  void start_owner();
  void kill_owner();
  // SIGSTOP; waits until it stands still.
  void stop_master() const;
  void let_master_go_on() const { ::kill(master_->pid(), SIGCONT); }

 private:
  const std::uint64_t megabytes_;
  const std::chrono::milliseconds lease_;
  support::TemporaryDirectory directory_;  // for what they print
  std::uint16_t port_ = 0, metrics_port_ = 0;
  std::unique_ptr<ChildProcess> master_, owner_;
};

}  // namespace larder::mooncake_test
