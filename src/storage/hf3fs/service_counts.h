// SPDX-License-Identifier: Apache-2.0
// Statistics of a metadata service for callers that must not wait for it (a snapshot on the loop thread).
//
// A service in this process is simply asked. A remote one is asked on an executor thread: the caller waits a moment for
// the answer and otherwise gets the last one that came, so a service that hangs costs each caller nothing and the first
// one that moment.
// Threads: any. Lifetime: a question may outlive this object; it keeps the service alive.
#pragma once

#include <map>
#include <memory>

#include "base/executor.h"
#include "base/ranked_mutex.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder::hf3fs {

class ServiceCounts {
 public:
  using Counts = std::map<MetadataNamespace, NamespaceStats>;
  static constexpr Nanos kPatience = std::chrono::milliseconds(250);

  ServiceCounts(std::shared_ptr<MetadataService> service, Executor& executor);
  // Empty until the service has answered once.
  [[nodiscard]] Counts read();

 private:
  struct State {
    RankedMutex mutex{LockRank::kStorage};
    RankedCondition answered;
    bool is_asked LARDER_GUARDED_BY(mutex) = false;  // at most one question is under way
    Counts last LARDER_GUARDED_BY(mutex);
  };
  [[nodiscard]] Status ask();

  const std::shared_ptr<MetadataService> service_;
  Executor& executor_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace larder::hf3fs
