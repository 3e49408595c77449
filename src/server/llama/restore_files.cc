// SPDX-License-Identifier: Apache-2.0
#include "server/llama/restore_files.h"

#include <fmt/format.h>

namespace larder::llama {
namespace {

Status write_over(FileSystem& files, const std::string& path, std::span<const std::byte> bytes) {
  auto file = files.open(path, {.write = true, .create = true, .for_others = true});
  if (!file.is_ok()) return file.status();
  LARDER_RETURN_IF_ERROR(write_fully(**file, bytes, 0));
  return (*file)->truncate(bytes.size());
}

}  // namespace

std::string restore_file_name(std::uint32_t slot) { return fmt::format("larder-restore-{}.slot", slot); }

Status write_restore_file(FileSystem& files, const std::string& path, std::span<const std::byte> bytes) {
  Status written = write_over(files, path, bytes);
  if (!written.is_ok()) (void)files.remove(path);
  return written;
}

std::uint64_t remove_restore_file(FileSystem& files, const std::string& path) {
  const Result<FileInfo> info = files.stat(path);
  return info.is_ok() && files.remove(path).is_ok() ? info->size_bytes : 0;
}

std::uint64_t slot_file_bytes(const SlotFormat& format, std::uint64_t tokens) {
  const std::uint64_t pages = (tokens + format.page_size() - 1) / format.page_size();
  std::uint64_t sum = tokens * sizeof(TokenId);
  for (std::size_t pool = 0; pool < format.pools.space.pools.size(); ++pool) {
    const bool is_window = format.pools.swa == pool;
    const std::uint64_t count = pool == format.pools.kv ? pages : is_window ? format.pools.window.pages : 1;
    sum += count * format.pools.space.pools[pool].page_bytes;
  }
  return sum;
}

}  // namespace larder::llama
