// SPDX-License-Identifier: Apache-2.0
// A TCP server that reads Redis commands and answers whatever the test wants.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "tests/support/loopback_listener.h"

namespace larder::conformance {

class ScriptedServer {
 public:
  struct Answer {
    std::string bytes;    // empty: silence
    bool closes = false;  // afterwards
  };
  // Gets the words of a command. Runs on the server's thread, one command at a time.
  using Script = std::function<Answer(const std::vector<std::string>& words)>;

  explicit ScriptedServer(Script script);
  ~ScriptedServer();
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;
  [[nodiscard]] std::string url() const { return "redis://127.0.0.1:" + std::to_string(listener_.port()); }

 private:
  struct Client {
    int socket = -1;
    std::string received;
  };
  void serve();
  [[nodiscard]] bool read_from(Client& client);  // false: the connection has ended

  const Script script_;
  const support::LoopbackListener listener_{16};
  int wake_[2] = {-1, -1};  // closing the second ends the thread
  std::jthread thread_;     // last
};

}  // namespace larder::conformance
