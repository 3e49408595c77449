// SPDX-License-Identifier: Apache-2.0
// What every implementation of MetadataService refuses before it does anything: kInvalidArgument says what is allowed.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder::metadata {

// Null is refused, too.
[[nodiscard]] Status check_namespace(const MetadataNamespace* name_space);
[[nodiscard]] Status check_pages(std::uint64_t pages);  // of a namespace
[[nodiscard]] Status check_key(std::string_view key);
// The key, and the key before it in its chain if it names one.
[[nodiscard]] Status check_item(const ReserveItem& item);

}  // namespace larder::metadata
