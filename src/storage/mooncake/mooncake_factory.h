// SPDX-License-Identifier: Apache-2.0
// Registers the backend "mooncake".
#pragma once

#include "storage/factory.h"

namespace larder {

// kConflict: registered already. Options: docs/mooncake.md; those that SGLang has, too, are spelled as there, and where
// one is not given, SGLang's environment variable counts.
[[nodiscard]] Status register_mooncake_backend(BackendFactory& factory);

}  // namespace larder
