// SPDX-License-Identifier: Apache-2.0
// The files through which slots are given prefixes, in llama-server's --slot-save-path.
//
// A slot has a file of its own, which stays and is written over: memory that a file system touches for the first time
// costs more than the copy. Where the folder is full, those of free slots make room for what is needed now.
//
// Threads: any, for other slots. Errors: as the file system's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/file_system.h"
#include "base/status.h"
#include "server/llama/slot_pages.h"

namespace larder::llama {

[[nodiscard]] std::string restore_file_name(std::uint32_t slot);
// Not ok: it is not there, nor a part of it.
[[nodiscard]] Status write_restore_file(FileSystem& files, const std::string& path, std::span<const std::byte> bytes);
// The bytes that it had; 0: it was not there, or stays.
[[nodiscard]] std::uint64_t remove_restore_file(FileSystem& files, const std::string& path);
// About what the file of a slot with so many tokens takes.
[[nodiscard]] std::uint64_t slot_file_bytes(const SlotFormat& format, std::uint64_t tokens);

}  // namespace larder::llama
