// SPDX-License-Identifier: Apache-2.0
// What `larder stat` shows of a server: the tables, from the answers of GET /server_info (of `larder proxy` and of
// GGUF files GET /larder/status) and GET /metrics?format=json.
//
// Metrics are taken generically: every family whose name says storage (or prefetch, backup, breaker, host, pool, ...)
// is shown, histograms with their quantiles, so that a new metric of the server is seen without a change here. Of a
// page of metrics without a server's state (a rank of SGLang) every family is shown. Threads: pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/metrics.h"

namespace larder {

// The answer of GET /larder/status in the shape of /server_info's. What it lacks is left out.
[[nodiscard]] nlohmann::json info_of_front(const nlohmann::json& status);

struct StatSample {
  nlohmann::json info;                // of /server_info, or info_of_front(); null: there are metrics alone
  std::vector<MetricFamily> metrics;  // sorted by name
};

// For people. `before`: an earlier sample, `seconds` ago, for rates per second; null: none.
// `with_zeros`: also what is zero, and what the server tells twice.
[[nodiscard]] std::string stat_text(const StatSample& now, const StatSample* before, double seconds, bool with_zeros);
// The same as one document: {"model", ..., "tiers": [...], "cache": {...}, "storage": {...}, "metrics": {name: {...}}}.
[[nodiscard]] nlohmann::ordered_json stat_json(const StatSample& now);

}  // namespace larder
