// SPDX-License-Identifier: Apache-2.0
// A storage that does one operation after another, so many bytes a second of a clock that the test moves. What it has
// not got to waits, as long as that takes; at speed 0 for ever. Some calls are refused, some operations fail.
//
// Threads: confined to the test's thread. The clock outlives its operations. With its end, what waits is cancelled.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/support/passing_backend.h"

namespace larder::test {

class PacedBackend final : public support::PassingBackend {
 public:
  PacedBackend(std::unique_ptr<StorageBackend> inner, std::uint64_t seed)
      : PassingBackend(std::move(inner)), rng_(seed) {}
  ~PacedBackend() override {
    for (Waiting& one : std::exchange(queue_, {})) one.run(false);
  }

  const Clock* clock = nullptr;  // before the first operation
  static constexpr double kInstant = -1;
  double bytes_per_second = kInstant;  // 0: it hangs
  unsigned refuse_percent = 0, fail_percent = 0;

  // Does what is due by now. True: there was something.
  bool work() {
    bool any = false;
    for (; !queue_.empty() && is_due(queue_.front()); any = true) {
      Waiting one = std::move(queue_.front());
      queue_.pop_front();
      if (!queue_.empty()) queue_.front().begun = std::max(queue_.front().begun, clock->now());
      one.run(rng_.below(100) >= fail_percent);
    }
    return any;
  }

  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    return take(request.keys.size(), [this, request, done](bool is_well) {
      const Status s = is_well ? inner_->submit_exists(request, done) : unavailable("paced");
      if (!s.is_ok()) done({s, {}});
    });
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    std::uint64_t bytes = 0;
    for (const ReadItem& item : request.items) bytes += payload_bytes(item.payload);
    return take(bytes, [this, request, done](bool is_well) {
      const Status s = is_well ? inner_->submit_read(request, done) : unavailable("paced");
      if (!s.is_ok()) done({std::vector<Status>(request.items.size(), s)});
    });
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    std::uint64_t bytes = 0;
    for (const PageGroup& group : request.groups) {
      for (const WriteItem& item : group.items) bytes += payload_bytes(item.payload);
    }
    return take(bytes, [this, request, done](bool is_well) {
      const Status s = is_well ? inner_->submit_write(request, done) : unavailable("paced");
      if (!s.is_ok()) done({std::vector<Status>(request.groups.size(), s)});
    });
  }

 private:
  struct Waiting {
    double bytes = 0;
    TimePoint begun;
    std::function<void(bool is_well)> run;
  };
  [[nodiscard]] bool is_due(const Waiting& one) const {
    if (bytes_per_second < 0) return true;
    const double had = std::chrono::duration<double>(clock->now() - one.begun).count() * bytes_per_second;
    return bytes_per_second > 0 && had >= one.bytes;
  }
  Status take(std::uint64_t bytes, std::function<void(bool)> run) {
    if (rng_.below(100) < refuse_percent) return overloaded("paced");
    if (bytes_per_second < 0 && queue_.empty()) {
      run(rng_.below(100) >= fail_percent);
    } else {
      queue_.push_back({static_cast<double>(bytes), clock->now(), std::move(run)});
    }
    return Status::ok();
  }

  Rng rng_;
  std::deque<Waiting> queue_;
};

}  // namespace larder::test
