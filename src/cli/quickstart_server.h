// SPDX-License-Identifier: Apache-2.0
// A `larder serve` of one's own: this executable again, as a child on a free port.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/real_child_process.h"

namespace larder {

class QuickstartServer {
 public:
  // log_path: where the server's standard error goes.
  QuickstartServer(std::string executable, std::string log_path)
      : executable_(std::move(executable)), log_path_(std::move(log_path)) {}

  // `larder serve --port 0 ARGUMENTS...`; returns when it listens. kUnavailable carries the end of its log.
  [[nodiscard]] Status start(const std::vector<std::string>& arguments);
  // SIGTERM, and a bounded wait for its backups.
  [[nodiscard]] Status stop();
  [[nodiscard]] const std::string& url() const { return url_; }

  // POST and GET that must answer 200. kUnavailable carries the answer.
  [[nodiscard]] Status post(const std::string& target) const;
  [[nodiscard]] Result<nlohmann::json> get_json(const std::string& target) const;
  // `status` with the end of the server's log behind it.
  [[nodiscard]] Status with_log(const Status& status) const;
  // Any thread.
  void kill_now() const { child_.kill_now(); }

 private:
  [[nodiscard]] Result<std::string> call(const std::string& method, const std::string& target) const;

  const std::string executable_, log_path_;
  ChildProcess child_;
  std::string url_;
};

}  // namespace larder
