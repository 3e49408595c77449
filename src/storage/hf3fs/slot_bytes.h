// The bytes of a page as they lie in its slot: head with the envelope, payload, zeros up to the slot's end.
// Threads: plain functions. Cost: one copy and one pass of XXH3 over the payload.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "storage/hf3fs/page_store.h"

namespace larder::hf3fs {

// `slot`: transfer_bytes(payload) of them, or more.
void fill_slot(const PageTransfer& transfer, std::byte* slot, std::uint64_t slot_bytes);
// Copies the payload out if the slot holds the page that was asked for, and nothing of it otherwise. kNotFound: another
// generation; kCorrupt: another page, or wrong bytes.
[[nodiscard]] Status take_out(const PageTransfer& transfer, std::byte* slot);

}  // namespace larder::hf3fs
