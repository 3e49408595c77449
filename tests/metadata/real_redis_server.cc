// SPDX-License-Identifier: Apache-2.0
#include "tests/metadata/real_redis_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

namespace larder::conformance {
namespace {

constexpr const char* kProgram = "/usr/bin/redis-server";
constexpr Nanos kStartLimit = std::chrono::seconds(30);

// A port that was free a moment ago.
std::uint16_t free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool is_bound = ::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                        ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  ::close(socket);
  return is_bound ? ntohs(address.sin_port) : 0;
}

// In the child, between fork and exec: async-signal-safe calls only.
[[noreturn]] void become(const std::vector<char*>& arguments, int output, int parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

}  // namespace

bool RedisServer::is_installed() { return ::access(kProgram, X_OK) == 0; }

std::unique_ptr<RedisServer> RedisServer::start(std::vector<std::string> settings) {
  std::unique_ptr<RedisServer> server(new RedisServer(std::move(settings)));
  for (int attempt = 0; attempt < 5; ++attempt) {  // somebody may take the port first
    server->port_ = free_port();
    if (server->has_certificate()) server->tls_port_ = free_port();
    if (server->launch()) return server;
  }
  ADD_FAILURE() << "redis-server does not start: " << server->said_;
  return nullptr;
}

RedisServer::~RedisServer() { kill(); }

bool RedisServer::has_certificate() const {
  return std::find(settings_.begin(), settings_.end(), "--tls-cert-file") != settings_.end();
}

bool RedisServer::launch() {
  std::vector<std::string> words{
      kProgram, "--port", std::to_string(port_), "--bind", "127.0.0.1", "--dir", directory_.path(), "--daemonize", "no",
      "--save", "",       "--databases",         "4"};
  words.insert(words.end(), settings_.begin(), settings_.end());
  if (has_certificate()) words.insert(words.end(), {"--tls-port", std::to_string(tls_port_)});
  std::vector<char*> raw;
  for (std::string& word : words) raw.push_back(word.data());
  raw.push_back(nullptr);
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  const int parent = ::getpid();
  process_ = ::fork();
  if (process_ == 0) become(raw, ends[1], parent);
  ::close(ends[1]);
  output_ = ends[0];
  said_.clear();
  if (process_ > 0 && wait_until_ready()) return true;
  kill();
  return false;
}

bool RedisServer::wait_until_ready() {
  const TimePoint end = real_clock().now() + kStartLimit;
  while (said_.find("Ready to accept connections") == std::string::npos) {
    const Nanos left = end - real_clock().now();
    if (left <= Nanos{0}) return false;
    pollfd wanted{output_, POLLIN, 0};
    const auto millis = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    if (::poll(&wanted, 1, static_cast<int>(millis)) <= 0) continue;
    char piece[4096];
    const ssize_t got = ::read(output_, piece, sizeof piece);
    if (got <= 0) return false;  // it has ended
    said_.append(piece, static_cast<std::size_t>(got));
  }
  return true;
}

void RedisServer::kill() {
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {}
  }
  process_ = -1;
  if (output_ >= 0) ::close(output_);
  output_ = -1;
}

bool RedisServer::restart() {
  kill();
  if (launch()) return true;
  ADD_FAILURE() << "redis-server does not start again: " << said_;
  return false;
}

metadata::RedisReply RedisServer::command(const std::vector<std::string>& words) {
  const TimePoint deadline = real_clock().now() + std::chrono::seconds(10);
  metadata::RedisAddress address{"127.0.0.1", port_, {}, 0, {}};
  auto connection = metadata::RedisConnection::open(address, std::chrono::seconds(10), deadline);
  if (!connection.is_ok()) {
    ADD_FAILURE() << connection.status().to_string();
    return {};
  }
  const std::vector<std::string_view> views(words.begin(), words.end());
  auto reply = (*connection)->call(views, deadline);
  EXPECT_TRUE(reply.is_ok()) << words[0] << ": " << reply.status().to_string();
  return reply.is_ok() ? *reply : metadata::RedisReply{};
}

}  // namespace larder::conformance
