// SPDX-License-Identifier: Apache-2.0
// One run of the helper: its process, its sockets, and what it prints.
//
// Threads: confined, but for staging memory. Errors: kUnavailable with errno's words.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

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

  // `memory`: a descriptor of memory, for the helper as its number 0. lanes: sockets, one for each of its threads.
  [[nodiscard]] Status start(const std::string& python, int memory, std::size_t lanes);
  [[nodiscard]] bool is_running() const { return pid_ > 0; }
  // Of this side; they do not block. Who keeps one keeps it open.
  [[nodiscard]] const std::vector<std::shared_ptr<share::Descriptor>>& sockets() const { return sockets_; }
  [[nodiscard]] int output() const { return output_.get(); }
  // Keeps the last of what it has printed. False: it has closed its output.
  bool read_output();
  // Shuts the sockets down, and waits so long for the process to end by itself; then kills it. When this returns, it
  // does not run any more. Says how it ended, with its last words.
  std::string end(Nanos patience);

 private:
  [[nodiscard]] Status spawn(const std::string& python, int memory, const std::vector<share::Descriptor>& theirs,
                             int output);
  [[nodiscard]] bool has_ended_within(Nanos patience);

  pid_t pid_ = -1;
  std::vector<std::shared_ptr<share::Descriptor>> sockets_;
  share::Descriptor output_;
  std::string words_;
};

}  // namespace larder::mooncake
