// SPDX-License-Identifier: Apache-2.0
// A peer that says what it likes to the host of a shared store.
//
// Threads: confined; waits block, with a limit that only a failure reaches.
#pragma once

#include <memory>
#include <string>

#include "storage/shared/real_share_socket.h"

namespace larder::shared_tests {

class RawPeer {
 public:
  // Connected to whoever listens in the directory.
  [[nodiscard]] static Result<RawPeer> connect(const std::string& directory);
  void send(std::string bytes) { connection_->send(std::move(bytes)); }
  void pass(share::Descriptor descriptor) { connection_->pass(std::move(descriptor)); }
  // What was sent has gone, and the host has ended the connection. False: it has not.
  [[nodiscard]] bool is_dropped();
  // What was sent has gone; the next frame of the host: its kind and its body. Empty: none came.
  [[nodiscard]] std::string next_frame();

 private:
  explicit RawPeer(share::Descriptor socket)
      : connection_(std::make_unique<share::ShareConnection>(std::move(socket))) {}
  [[nodiscard]] bool wait_readable();
  std::unique_ptr<share::ShareConnection> connection_;
};

// Memory of so many bytes, not sealed: it may shrink at any time.
[[nodiscard]] share::Descriptor unsealed_memory(std::size_t bytes);
// A file that is no memory at all.
[[nodiscard]] share::Descriptor no_memory();

}  // namespace larder::shared_tests
