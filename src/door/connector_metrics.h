// SPDX-License-Identifier: Apache-2.0
// What a connector counts, for Prometheus. What means the same as in `larder serve` has the same name, so that its
// alerts and dashboards see a connector, too.
//
// Threads: those of the connector.
#pragma once

#include <string>

#include "base/metrics.h"
#include "controller/connector.h"
#include "pool/host_pools.h"

namespace larder {

// Takes over what connector and host have counted until now.
void export_connector(MetricsRegistry& registry, const Connector& connector, const HostPools& host);
// The registry's text without the one family that each registry has, so that it can follow another one's on a page.
[[nodiscard]] std::string text_beside_others(const MetricsRegistry& registry);

}  // namespace larder
