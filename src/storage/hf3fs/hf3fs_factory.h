// SPDX-License-Identifier: Apache-2.0
// Registers storage backend "hf3fs" (hf3fs_backend.h has the picture, docs/3fs.md the guide).
#pragma once

#include "storage/factory.h"

namespace larder {

[[nodiscard]] Status register_hf3fs_backend(BackendFactory& factory);

}  // namespace larder
