// SPDX-License-Identifier: Apache-2.0
// Which storage backends this build has: the one place that names them.
#pragma once

#include "base/status.h"
#include "storage/factory.h"

namespace larder {

[[nodiscard]] Status register_backends(BackendFactory& factory);

}  // namespace larder
