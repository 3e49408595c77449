// SPDX-License-Identifier: Apache-2.0
#include "policy/admission.h"

namespace larder {

namespace {

class FromHits final : public Admission {
 public:
  explicit FromHits(std::uint32_t hits) : hits_(hits) {}
  [[nodiscard]] bool may_enter(const Facts& facts) const override {
    const bool was_resumed_at = !facts.restores || facts.uses + 0.5F >= static_cast<float>(hits_);  // uses fade
    return facts.hits >= hits_ && was_resumed_at;
  }

 private:
  const std::uint32_t hits_;
};

}  // namespace

AdmissionPtr admit_all() { return admit_from_hits(0); }
AdmissionPtr admit_from_hits(std::uint32_t hits) { return std::make_shared<FromHits>(hits); }

}  // namespace larder
