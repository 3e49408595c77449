// SPDX-License-Identifier: Apache-2.0
// A llama-server of our own: started with what `larder proxy` needs of it, and started again when it dies.
//
// Threads: start() and stop() on one thread; it watches on one of its own. Lifetime: the destructor ends it; it also
// ends when this process dies. Its output goes to our standard error.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "server/real_child_process.h"

namespace larder {

class LlamaServerProcess {
 public:
  // given_up: called once, on the watching thread, when it has died too often to be started again.
  explicit LlamaServerProcess(std::function<void()> given_up);
  ~LlamaServerProcess();
  LlamaServerProcess(const LlamaServerProcess&) = delete;
  LlamaServerProcess& operator=(const LlamaServerProcess&) = delete;

  // command: the executable and its options, which becomes a llama::proxied_command().
  [[nodiscard]] Status start(const std::vector<std::string>& command, const std::string& slot_directory);
  [[nodiscard]] std::string url() const;
  // How often it was started so far; counted before it can answer. Any thread.
  [[nodiscard]] std::uint64_t starts() const { return starts_.load(); }
  // It has answered once, so its command line is right: from here on it is started again when it dies.
  void has_served() { has_served_.store(true); }
  // It ended before it served, and is not started again. kInvalidArgument: it could not be executed. kUnavailable:
  // else.
  [[nodiscard]] Status check_start() const;
  void stop();
  [[nodiscard]] bool has_given_up() const { return has_given_up_.load(); }

 private:
  static constexpr int kNone = -1;
  [[nodiscard]] Status start_once();
  void watch();

  const std::function<void()> given_up_;
  // constant once started
  std::string program_;
  std::vector<std::string> arguments_;
  std::uint16_t port_ = 0;
  std::atomic<bool> is_stopping_{false}, has_served_{false}, has_given_up_{false};
  std::atomic<std::uint64_t> starts_{0};
  std::atomic<int> early_end_{kNone};  // the exit code before it served
  ChildProcess child_;                 // of the watching thread; kill_now() from any
  RankedMutex mutex_{LockRank::kServer};
  RankedCondition stopped_;
  ThreadPoolExecutor thread_;
};

}  // namespace larder
