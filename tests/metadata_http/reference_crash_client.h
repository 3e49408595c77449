// SPDX-License-Identifier: Apache-2.0
// A client of the reference's JSON calls, for a server that is killed (tests/metadata/crash_client.h): it has no
// sessions and sees no generations.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/http_client.h"
#include "tests/metadata/crash_client.h"

namespace larder::conformance {

class ReferenceCrashClient final : public CrashLoad {
 public:
  using CrashLoad::CrashLoad;  // number kCrashClients; alone in its namespace
  void connect(const HttpUrl& url) {
    client_ = std::make_unique<HttpClient>(url, std::chrono::seconds(20));
    begin_service();
  }

 private:
  [[nodiscard]] Status reserve() override;
  [[nodiscard]] Status confirm() override;
  [[nodiscard]] Status remove() override;
  [[nodiscard]] Status clear() override;
  [[nodiscard]] Status find() override;
  [[nodiscard]] Result<nlohmann::json> post(const std::string& call, const nlohmann::json& body);
  [[nodiscard]] Status forget(const std::string& call, const nlohmann::json& body,
                              const std::vector<std::string>& keys);

  std::unique_ptr<HttpClient> client_;
};

}  // namespace larder::conformance
