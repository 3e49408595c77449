// SPDX-License-Identifier: Apache-2.0
// GET /metrics?format=json: what a registry has, for programs such as `larder stat`. Prometheus takes the text.
//
//   {"larder_storage_reads_total": {"type": "counter", "help": "...", "series": [{"labels": {"op": "get"}, "value":
//   7}]},
//    "larder_wait_seconds": {"type": "histogram", "help": "...",
//        "series": [{"labels": {}, "count": 3, "sum": 7.6, "buckets": [[0.1, 1], [1.0, 2], [null, 3]]}]}}
//
// Buckets are [bound, observations <= bound]; null: infinity. A value that is no finite number is null.
// Threads: pure functions; a registry is read under its own lock.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/metrics.h"
#include "base/status.h"
#include "server/http_message.h"

namespace larder {

// The answer to GET /metrics: text, or JSON if the query says format=json. kInvalidArgument, as a response of 400: any
// other format.
[[nodiscard]] HttpResponse metrics_response(const HttpRequest& request, const MetricsRegistry& registry);

[[nodiscard]] std::string metrics_json(const MetricsRegistry& registry);

// Families sorted by name. Members that are not known are passed over, so that a tool works with a newer server.
// kCorrupt: no such document.
[[nodiscard]] Result<std::vector<MetricFamily>> parse_metrics_json(std::string_view text);

}  // namespace larder
