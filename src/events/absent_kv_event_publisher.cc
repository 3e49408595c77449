// SPDX-License-Identifier: Apache-2.0
// In place of real_kv_event_publisher.cc in a build without ZeroMQ (CMake option LARDER_ZMQ).
#include "events/kv_event_publisher.h"

namespace larder {

Result<std::unique_ptr<KvEventPublisher>> open_kv_event_publisher(const KvEventConfig&, const KvEventShape&,
                                                                  MetricsRegistry*) {
  return unsupported(
      "--kv-events-config: this build of Larder has no ZeroMQ; install libzmq3-dev and cppzmq-dev and build with "
      "-DLARDER_ZMQ=ON");
}

}  // namespace larder
