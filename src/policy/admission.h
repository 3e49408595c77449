// SPDX-License-Identifier: Apache-2.0
// Who may enter the host: which data on the device is copied there as soon as it is whole, and not only when it has to
// leave the device. A victim of the device is not asked about: the host is its last chance.
//
// Ownership, threads, ranks and cost: as EvictionOrder. Errors: none.
#pragma once

#include <cstdint>
#include <memory>

#include "policy/facts.h"

namespace larder {

class Admission {
 public:
  virtual ~Admission() = default;
  // facts: of full on the device, of the node that is about to be copied with all that it has. Asked again whenever a
  // request hands in what it computed beneath, until the answer is yes; what is above a node comes along with it, and
  // is not asked about.
  [[nodiscard]] virtual bool may_enter(const Facts& facts) const = 0;
};
using AdmissionPtr = std::shared_ptr<const Admission>;

[[nodiscard]] AdmissionPtr admit_all();  // write_through
// write_through_selective: used so often since. Where restore points are weighed (policy `value`, a model with
// recurrent state and without windows), what ends in one has been resumed at so often: each turn of a conversation uses
// all of the path, and resumes at the end of the last turn.
[[nodiscard]] AdmissionPtr admit_from_hits(std::uint32_t hits);

}  // namespace larder
