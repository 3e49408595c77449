// SPDX-License-Identifier: Apache-2.0
// Which store the processes of one machine mean that share it, and where they may meet.
//
// Threads: pure, but for looks at the file system. Errors: kInvalidArgument names the option.
#pragma once

#include <string>

#include "base/status.h"
#include "key/page_key.h"
#include "storage/factory.h"

namespace larder {

struct SharePlace {
  // Equal of processes whose backend and directories are the same, however the paths are written, and what else tells
  // stores apart: hf3fs: the rank of its files and the metadata server; mooncake: the master; plugin: the library, and
  // all options that go to it.
  Digest256 store{};
  std::string text;  // the same, to be read by others: without passwords and values of a library's options
};

// share_directory: its files would be strange ones in a directory of the store, which refuses these; so it lies in
// none. Nothing is made or changed.
[[nodiscard]] Result<SharePlace> share_place(const std::string& backend, const BackendOptions& options,
                                             const std::string& share_directory);

}  // namespace larder
