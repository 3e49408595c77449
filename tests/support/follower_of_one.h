// SPDX-License-Identifier: Apache-2.0
// A rank of two, whose leader agrees with whatever it reports, until it is gone.
//
// Threads: confined to the test's thread.
#pragma once

#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "controller/rank_group.h"

namespace larder::test {

class FollowerOfOne final : public RankGroup {
 public:
  // From now on there is no plan: each wait for one lets `pass` that much time, and ends in vain.
  void lose_leader(std::function<void(Nanos)> pass) { pass_ = std::move(pass); }

  // From now on each report is answered so; ok: it is taken again.
  void refuse_reports(const Status& refusal) { refusal_ = refusal; }

  [[nodiscard]] std::uint32_t rank() const override { return 1; }
  [[nodiscard]] std::uint32_t size() const override { return 2; }
  [[nodiscard]] Status report(OpId op, OutcomeBits bits) override {
    if (refusal_.is_ok()) reported_.push_back({op, std::move(bits)});
    return refusal_;
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
  void give_up(const std::string& why) override { given_up_ += why; }
  [[nodiscard]] const std::string& given_up() const { return given_up_; }
  [[nodiscard]] std::uint64_t waits() const { return waits_; }
  [[nodiscard]] std::size_t reported() const { return reported_.size(); }

 private:
  std::vector<AgreedEvent> reported_;
  Status refusal_;
  std::function<void(Nanos)> pass_;
  std::uint64_t waits_ = 0;
  std::string given_up_;
};

}  // namespace larder::test
