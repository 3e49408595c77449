// SPDX-License-Identifier: Apache-2.0
// hash_gguf() of a model that is asked for again and again, and read again only when its files were changed.
//
// Files are the same ones by path, device, inode, size, and the times of their contents and of their inode. None is
// kept of files that were changed in the last kSettled before they were read, as a further change could leave the same
// times; nor of those that changed meanwhile, nor where there are no times (simulated files). Threads: one at a time.
// Lifetime: the clock outlives it. Cost: of files that are the same, an open of each.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "engine/llama/gguf_file.h"

namespace larder::llama {

class KeptGgufHash {
 public:
  using Hash = std::function<Result<Digest256>(FileSystem& files, const GgufModel& model)>;
  static constexpr Nanos kSettled = std::chrono::minutes(1);  // clocks of file servers may be behind ours

  explicit KeptGgufHash(const Clock& clock, Hash hash = hash_gguf) : clock_(clock), hash_(std::move(hash)) {}

  [[nodiscard]] Result<Digest256> of(FileSystem& files, const GgufModel& model);

 private:
  struct Stamp {
    std::string path;
    std::uint64_t device = 0, inode = 0, size_bytes = 0;
    std::int64_t written_ns = 0, changed_ns = 0;  // since 1970
    bool operator==(const Stamp&) const = default;
  };
  using Stamps = std::vector<Stamp>;
  // Empty: they cannot be told apart from others.
  [[nodiscard]] static Stamps stamps_of(FileSystem& files, const GgufModel& model);
  [[nodiscard]] bool are_settled(const Stamps& stamps) const;

  const Clock& clock_;
  const Hash hash_;
  Stamps stamps_;  // empty: none is kept
  Digest256 digest_;
};

}  // namespace larder::llama
