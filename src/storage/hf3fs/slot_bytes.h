// SPDX-License-Identifier: Apache-2.0
// The bytes of a page as they lie in its slot: head with the envelope, payload, zeros up to the slot's end.
// Threads: plain functions. Cost: one copy and one pass of XXH3 over the payload.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "storage/hf3fs/page_store.h"

namespace larder::hf3fs {

// `slot`: transfer_bytes(payload) of them, or more. The checksum is that of the copy.
void fill_slot(const PageTransfer& transfer, std::byte* slot, std::uint64_t slot_bytes);

// Copies the payload out of a slot that was read into `slot`, transfer_bytes(payload) or more. The transfer's segments
// have envelope.payload_bytes in all. kNotFound: another generation; kCorrupt: another page (of neither is anything
// copied), or wrong bytes (then the segments have some of them).
[[nodiscard]] Status take_out(const PageTransfer& transfer, const std::byte* slot);

}  // namespace larder::hf3fs
