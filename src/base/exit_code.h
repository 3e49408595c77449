// SPDX-License-Identifier: Apache-2.0
// With what a command ends that could not do what it was asked (docs/errors.md).
#pragma once

#include "base/status.h"

namespace larder {

// 2: what was asked for has to be mended, the command line or what it names; 1: it failed. Precondition: not ok.
[[nodiscard]] inline int exit_code_of(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kNotFound ? 2 : 1;
}

}  // namespace larder
