// SPDX-License-Identifier: Apache-2.0
// Events of pages on ZeroMQ sockets, as SGLang and vLLM publish theirs.
//
//   cache thread ── take() ──► queue ──► publisher's thread ──► XPUB   frames: topic, number (u64, big-endian), batch
//                                             │ keeps batches
//                                             └──────────────► ROUTER  asked with a number: the batches from there on
//                                             as
//                                                                      topic, number, batch; at the end number -1
//                                                                      (KvEventForm::kArrays: without the topic)
//
// Batches are numbered one after another, from the microseconds since 1970 at the start: after a start anew readers see
// a gap (or, if the clock was set back, a number that is not above the last). Who sees a gap asks for what is missing;
// who asks for what is not kept any more, or for more than there was, gets what there is, and soon a batch for
// everybody that begins with AllBlocksCleared and then tells all that is there. The same after events were dropped
// because the queue was full, and, where nobody can ask (no replay endpoint), after each new subscription. So a router
// that starts late subscribes, asks from 0, and knows.
//
// Threads: take() and wish() on the cache thread; one thread of its own, and one of ZeroMQ's. The destructor publishes
// what waits and gives subscribers a second to take it.
// Errors: a subscriber that is too slow loses batches and sees a gap. Bytes from outside that are no request are
// dropped.
// Limits: KvEventConfig's, and 256 MiB each for what waits (a beginning of a large tree may pass that) and for what is
// kept. A subscriber that does not read holds up to `hwm` batches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/metrics.h"
#include "base/status.h"
#include "controller/kv_events.h"
#include "events/kv_event_config.h"
#include "events/kv_event_wire.h"

namespace larder {

class KvEventPublisher : public KvEventSink {
 public:
  // Where subscribers connect, and where they ask for a replay ("": nowhere). A port that the system chose is named.
  [[nodiscard]] virtual const std::string& endpoint() const = 0;
  [[nodiscard]] virtual const std::string& replay_endpoint() const = 0;
  [[nodiscard]] virtual const std::string& topic() const = 0;
};

// metrics: outlives it; may be null. Errors: kUnsupported: a build without ZeroMQ. kInvalidArgument: an endpoint that
// cannot be bound or connected to; the message names the key.
[[nodiscard]] Result<std::unique_ptr<KvEventPublisher>> open_kv_event_publisher(const KvEventConfig& config,
                                                                                const KvEventShape& shape,
                                                                                MetricsRegistry* metrics);

}  // namespace larder
