// SPDX-License-Identifier: Apache-2.0
#include "tests/shared/real_raw_peer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

namespace larder::shared_tests {
namespace {

constexpr int kLimitMs = 60'000;

}  // namespace

Result<RawPeer> RawPeer::connect(const std::string& directory) {
  const Result<share::ShareDirectory> opened = share::ShareDirectory::open(directory);
  if (!opened.is_ok()) return opened.status();
  Result<share::Descriptor> socket = opened->connect();
  if (!socket.is_ok()) return socket.status();
  return RawPeer(std::move(*socket));
}

bool RawPeer::wait_readable() {
  while (connection_->queued_bytes() > 0) {
    if (!connection_->flush().is_ok()) return true;  // the end can be read
    pollfd wanted{connection_->descriptor(), POLLIN | POLLOUT, 0};
    if (connection_->queued_bytes() > 0 && ::poll(&wanted, 1, kLimitMs) <= 0) return false;
  }
  pollfd wanted{connection_->descriptor(), POLLIN, 0};
  return ::poll(&wanted, 1, kLimitMs) > 0;
}

bool RawPeer::is_dropped() {
  while (wait_readable()) {
    if (!connection_->receive().is_ok()) return true;
  }
  return false;
}

std::string RawPeer::next_frame() {
  while (true) {
    const auto frame = connection_->next();
    if (!frame.is_ok()) return {};
    if (frame.value()) {
      const share::Head& head = frame.value()->head;
      return std::string(1, static_cast<char>(head.kind)) + std::string(frame.value()->body);
    }
    if (!wait_readable() || !connection_->receive().is_ok()) return {};
  }
}

share::Descriptor unsealed_memory(std::size_t bytes) {
  share::Descriptor memory(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) memory.reset();
  return memory;
}

share::Descriptor no_memory() { return share::Descriptor(::open("/dev/null", O_RDWR | O_CLOEXEC)); }

}  // namespace larder::shared_tests
