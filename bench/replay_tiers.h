// SPDX-License-Identifier: Apache-2.0
// What is under the cache in a replay: pages without memory, copies and a storage that take simulated time.
//
// Threads: confined. Lifetime: the clock outlives both; events of both may be on it when they end, and do nothing then.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "base/status.h"
#include "pool/host_pools.h"
#include "sim/sim_clock.h"
#include "storage/backend.h"
#include "transfer/transfer.h"

namespace larder {

// No replay lasts longer: there the clock would overflow before long.
inline constexpr TimePoint kReplayEnd{std::chrono::hours(24 * 365 * 250)};
// When work of so many seconds ends that begins then; kReplayEnd at the latest.
[[nodiscard]] TimePoint end_of_work(TimePoint begin, double seconds);

// One way of a link: what is given to it goes one after another. 0 bytes a second: everything at once.
class ReplayLink {
 public:
  ReplayLink(sim::SimClock& clock, double bytes_per_second) : clock_(clock), rate_(bytes_per_second) {}
  void send(std::uint64_t bytes, Task done);
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  sim::SimClock& clock_;
  const double rate_;
  TimePoint free_at_{};
  std::uint64_t bytes_ = 0;  // sent so far
};

class ReplayTransfer final : public TransferEngine {
 public:
  // bytes_per_second: of each way between device and host; copies on the device take no time.
  ReplayTransfer(const ModelSpec& model, sim::SimClock& clock, double bytes_per_second);
  [[nodiscard]] Status submit(TransferRequest request, Done done) override;
  [[nodiscard]] std::size_t in_flight() const override { return *in_flight_; }
  [[nodiscard]] std::uint64_t down_bytes() const { return down_.bytes(); }
  [[nodiscard]] std::uint64_t up_bytes() const { return up_.bytes(); }

 private:
  const std::uint32_t layers_;
  std::array<std::uint64_t, kComponentCount> slot_bytes_{};
  ReplayLink down_, up_;
  std::shared_ptr<std::size_t> in_flight_ = std::make_shared<std::size_t>(0);
};

// An index of pages with their sizes; the least recently used goes when there are more bytes than fit.
class ReplayStorage final : public StorageBackend {
 public:
  ReplayStorage(sim::SimClock& clock, std::uint64_t capacity_bytes, double bytes_per_second);
  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override;
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override;
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override;
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override;
  [[nodiscard]] BackendStats stats() const override { return {}; }
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override;
  [[nodiscard]] std::uint64_t written_bytes() const { return in_.bytes(); }
  [[nodiscard]] std::uint64_t read_bytes() const { return out_.bytes(); }

 private:
  struct Page {
    PageKey key;  // with the pool's number mixed in
    std::uint64_t bytes = 0;
  };
  [[nodiscard]] static PageKey name_of(PoolName pool, PageKey key);
  [[nodiscard]] bool use(const PageKey& name);
  void keep(const PageKey& name, std::uint64_t bytes);

  BackendInfo info_{.name = "replay"};
  const std::uint64_t capacity_;
  ReplayLink in_, out_;
  std::list<Page> pages_;  // the least recently used first
  std::unordered_map<PageKey, std::list<Page>::iterator> index_;
  std::uint64_t bytes_ = 0;
};

}  // namespace larder
