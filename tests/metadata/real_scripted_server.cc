// SPDX-License-Identifier: Apache-2.0
#include "tests/metadata/real_scripted_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>

namespace larder::conformance {
namespace {

// Takes one whole command ("*2\r\n$4\r\nINFO\r\n...") off the front.
std::optional<std::vector<std::string>> take_command(std::string& bytes) {
  std::size_t at = 0;
  const auto number = [&](char mark) -> long {
    const std::size_t end = bytes.find("\r\n", at);
    if (end == std::string::npos || bytes[at] != mark) return -1;
    const long value = std::strtol(bytes.c_str() + at + 1, nullptr, 10);
    at = end + 2;
    return value;
  };
  const long count = number('*');
  if (count < 0) return std::nullopt;
  std::vector<std::string> words;
  for (long i = 0; i < count; ++i) {
    const long size = at < bytes.size() ? number('$') : -1;
    if (size < 0 || at + static_cast<std::size_t>(size) + 2 > bytes.size()) return std::nullopt;
    words.push_back(bytes.substr(at, static_cast<std::size_t>(size)));
    at += static_cast<std::size_t>(size) + 2;
  }
  bytes.erase(0, at);
  return words;
}

}  // namespace

ScriptedServer::ScriptedServer(Script script) : script_(std::move(script)) {
  EXPECT_EQ(::pipe2(wake_, O_CLOEXEC), 0);
  thread_ = std::jthread([this] { serve(); });
}

ScriptedServer::~ScriptedServer() {
  ::close(wake_[1]);
  thread_.join();
  ::close(wake_[0]);
}

bool ScriptedServer::read_from(Client& client) {
  char piece[16384];
  const ssize_t got = ::recv(client.socket, piece, sizeof piece, 0);
  if (got <= 0) return false;
  client.received.append(piece, static_cast<std::size_t>(got));
  while (const auto words = take_command(client.received)) {
    const Answer answer = script_(*words);
    (void)::send(client.socket, answer.bytes.data(), answer.bytes.size(), MSG_NOSIGNAL);
    if (answer.closes) return false;
  }
  return true;
}

void ScriptedServer::serve() {
  std::vector<Client> clients;
  for (;;) {
    std::vector<pollfd> wanted{{wake_[0], POLLIN, 0}, {listener_.socket(), POLLIN, 0}};
    for (const Client& client : clients) wanted.push_back({client.socket, POLLIN, 0});
    if (::poll(wanted.data(), wanted.size(), -1) <= 0) continue;
    if (wanted[0].revents != 0) break;
    for (std::size_t i = clients.size(); i-- > 0;) {
      if (wanted[i + 2].revents == 0 || read_from(clients[i])) continue;
      ::close(clients[i].socket);
      clients.erase(clients.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (wanted[1].revents != 0) clients.push_back({listener_.accept(), {}});
  }
  for (const Client& client : clients) ::close(client.socket);
}

}  // namespace larder::conformance
