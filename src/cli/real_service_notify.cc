// SPDX-License-Identifier: Apache-2.0
#include "cli/real_service_notify.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/log.h"

namespace larder {
namespace {

// 0, or the errno.
int send_to_service_manager(std::string_view path, std::string_view state) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const bool is_abstract = path.starts_with('@');
  if (!is_abstract && !path.starts_with('/'))
    return EAFNOSUPPORT;  // vsock: for virtual machines, which are no services
  // An abstract name has no end but that of the address, and may use all of it.
  if (path.size() + (is_abstract ? 0 : 1) > sizeof(address.sun_path)) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (is_abstract) address.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (is_abstract ? 0 : 1));

  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return errno;
  ssize_t sent = 0;
  do {
    sent =
        ::sendto(socket, state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), length);
  } while (sent < 0 && errno == EINTR);
  const int error = sent < 0 ? errno : 0;
  ::close(socket);
  return error;
}

void tell_service_manager(std::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || *path == '\0') return;
  const int error = send_to_service_manager(path, state);
  if (error != 0) {
    log_warning("service",
                fmt::format("systemd was not told {}: NOTIFY_SOCKET {}: {}", state, path, std::strerror(error)));
  }
}

}  // namespace

void tell_service_is_ready() { tell_service_manager("READY=1"); }
void tell_service_is_stopping() { tell_service_manager("STOPPING=1"); }

}  // namespace larder
