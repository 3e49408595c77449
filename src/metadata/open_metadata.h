// SPDX-License-Identifier: Apache-2.0
// Which page-index service a backend's options ask for: in this process, over HTTP, or on Redis.
#pragma once

#include <memory>

#include "base/clock.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder {

// `clock` outlives the service. kInvalidArgument: a url that is none of "", http://, https://, redis://, rediss://;
// kUnsupported: RocksDB (for options.directory) or hiredis is not in this build, and the message names the CMake
// option; others as the services say. A service elsewhere is reached by its first call, not here.
[[nodiscard]] Result<std::shared_ptr<MetadataService>> open_metadata(const MetadataOptions& options, Clock& clock);

}  // namespace larder
