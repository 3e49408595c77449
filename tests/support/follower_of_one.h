// SPDX-License-Identifier: Apache-2.0
// A rank of two, whose leader agrees with whatever it reports, until it is gone.
//
// Threads: confined to the test's thread.
#pragma once

#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "controller/rank_group.h"

namespace larder::test {

class FollowerOfOne final : public RankGroup {
 public:
  // From now on there is no plan: each wait for one lets `pass` that much time, and ends in vain.
  void lose_leader(std::function<void(Nanos)> pass) { pass_ = std::move(pass); }

  [[nodiscard]] std::uint32_t rank() const override { return 1; }
  [[nodiscard]] std::uint32_t size() const override { return 2; }
  [[nodiscard]] Status report(OpId op, OutcomeBits bits) override {
    reported_.push_back({op, std::move(bits)});
    return Status::ok();
  }
  [[nodiscard]] Status take(std::uint64_t /*step*/, bool pending, Nanos deadline,
                            std::vector<AgreedEvent>& out) override {
    if (pass_ && pending) {
      pass_(deadline);
      ++waits_;
      return deadline_exceeded("no plan");
    }
    std::move(reported_.begin(), reported_.end(), std::back_inserter(out));
    reported_.clear();
    return Status::ok();
  }
  [[nodiscard]] std::uint64_t waits() const { return waits_; }
  [[nodiscard]] std::size_t reported() const { return reported_.size(); }

 private:
  std::vector<AgreedEvent> reported_;
  std::function<void(Nanos)> pass_;
  std::uint64_t waits_ = 0;
};

}  // namespace larder::test
