// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/kept_gguf_hash.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

namespace larder::llama {
namespace {

using StatBuffer = struct ::stat;

std::int64_t nanoseconds_of(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + std::int64_t{time.tv_nsec};
}

}  // namespace

KeptGgufHash::Stamps KeptGgufHash::stamps_of(FileSystem& files, const GgufModel& model) {
  Stamps stamps;
  for (const std::string& path : model.paths) {
    const auto file = files.open(path, {});
    StatBuffer info{};
    if (!file || (*file)->native_handle() < 0 || ::fstat((*file)->native_handle(), &info) != 0) return {};
    stamps.push_back({path, info.st_dev, info.st_ino, static_cast<std::uint64_t>(info.st_size),
                      nanoseconds_of(info.st_mtim), nanoseconds_of(info.st_ctim)});
  }
  return stamps;
}

bool KeptGgufHash::are_settled(const Stamps& stamps) const {
  const std::int64_t now_ns = clock_.wall_unix_seconds() * 1'000'000'000;
  return std::ranges::all_of(stamps, [now_ns](const Stamp& stamp) {
    return std::max(stamp.written_ns, stamp.changed_ns) <= now_ns - kSettled.count();
  });
}

Result<Digest256> KeptGgufHash::of(FileSystem& files, const GgufModel& model) {
  const Stamps before = stamps_of(files, model);
  if (!before.empty() && before == stamps_) return digest_;
  const bool is_settled = are_settled(before);
  stamps_.clear();
  Result<Digest256> digest = hash_(files, model);
  if (!digest || !is_settled || stamps_of(files, model) != before) return digest;
  digest_ = *digest;
  stamps_ = before;
  return digest;
}

}  // namespace larder::llama
