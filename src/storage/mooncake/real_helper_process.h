// SPDX-License-Identifier: Apache-2.0
// One run of the helper: its process, its socket, and what it prints.
//
// Threads: confined, but for staging memory. Errors: kUnavailable with errno's words.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "storage/shared/real_share_socket.h"

namespace larder::mooncake {

class HelperProcess {
 public:
  HelperProcess() = default;
  ~HelperProcess() { (void)end(Nanos(0)); }
  HelperProcess(const HelperProcess&) = delete;
  HelperProcess& operator=(const HelperProcess&) = delete;

  // `memory`: a descriptor of memory, for the helper as its number 0.
  [[nodiscard]] Status start(const std::string& python, int memory);
  [[nodiscard]] bool is_running() const { return pid_ > 0; }
  [[nodiscard]] int socket() const { return socket_.get(); }
  [[nodiscard]] int output() const { return output_.get(); }
  // Keeps the last of what it has printed. False: it has closed its output.
  bool read_output();
  // Closes the socket, and waits so long for the process to end by itself; then kills it. When this returns, it does
  // not run any more. Says how it ended, with its last words.
  std::string end(Nanos patience);

 private:
  [[nodiscard]] Status spawn(const std::string& python, int memory, int socket, int output);
  [[nodiscard]] bool has_ended_within(Nanos patience);

  pid_t pid_ = -1;
  share::Descriptor socket_, output_;
  std::string words_;
};

}  // namespace larder::mooncake
