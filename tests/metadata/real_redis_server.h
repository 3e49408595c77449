// SPDX-License-Identifier: Apache-2.0
// A redis-server of our own on a free port of 127.0.0.1, with its files in a directory of its own.
//
// Threads: confined to the test's thread. The process ends with the object, and with the test however that ends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "metadata/real_redis_connection.h"
#include "tests/support/temporary_directory.h"

namespace larder::conformance {

class RedisServer {
 public:
  // Is there a redis-server to start? Debian's package redis-server has it (tools/install_deps.sh).
  [[nodiscard]] static bool is_installed();
  // `settings` as in redis.conf, e.g. {"--appendonly", "yes"}; without any nothing is kept over a restart.
  // Null with a failed expectation: it did not start.
  [[nodiscard]] static std::unique_ptr<RedisServer> start(std::vector<std::string> settings = {});
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  [[nodiscard]] std::string url() const { return "redis://127.0.0.1:" + std::to_string(port_); }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  // With {"--tls-cert-file", ...} among the settings it listens on a second port, over TLS.
  [[nodiscard]] std::string tls_url() const { return "rediss://127.0.0.1:" + std::to_string(tls_port_); }
  // kill -9, and waits until it is gone.
  void kill();
  // Starts it again on the same port and directory; false with a failed expectation if it does not come up.
  bool restart();
  // One command on a connection of its own.
  [[nodiscard]] metadata::RedisReply command(const std::vector<std::string>& words);

 private:
  explicit RedisServer(std::vector<std::string> settings) : settings_(std::move(settings)) {}
  [[nodiscard]] bool has_certificate() const;
  [[nodiscard]] bool launch();
  [[nodiscard]] bool wait_until_ready();

  const std::vector<std::string> settings_;
  support::TemporaryDirectory directory_;
  std::string said_;  // what it wrote since the start
  std::uint16_t port_ = 0, tls_port_ = 0;
  int process_ = -1;
  int output_ = -1;
};

}  // namespace larder::conformance
