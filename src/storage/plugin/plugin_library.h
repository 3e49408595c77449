// SPDX-License-Identifier: Apache-2.0
// Loads a backend library and looks at its table before anything is called.
//
// Threads: any. Lifetime: a loaded library stays loaded until the process ends (it may have threads and static tables).
// Cost: a dlopen.
#pragma once

#include <string>

#include "base/status.h"
#include "storage/plugin/larder_backend.h"

namespace larder::plugin {

// A library's table, taken over: entries that its struct_size does not reach are null.
// kUnavailable: cannot be loaded, or says that it cannot be used here. kUnsupported: no backend library, another
// version of the interface, a needed entry is null. kInvalidArgument: `path` has no '/' (no search along the loader's
// path).
[[nodiscard]] Result<LarderBackendTable> load_library(const std::string& path);

// The checks of a table that `path` gave; the part of load_library() that needs no library.
[[nodiscard]] Result<LarderBackendTable> take_table(const std::string& path, const LarderBackendTable* table);

}  // namespace larder::plugin
