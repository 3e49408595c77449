// SPDX-License-Identifier: Apache-2.0
// Reads the head of GGUF files, versions 2 and 3: metadata, and what tensors there are.
//
// Picture (little-endian):
//
//   "GGUF", u32 version, u64 tensors, u64 keys
//   per key:    string name, u32 type, value           string: u64 bytes, bytes; array: u32 type, u64 count, values
//   per tensor: string name, u32 dims, u64 sizes[dims], u32 type, u64 offset in the data
//   padding to general.alignment (32), data
//
// A model may be cut into files name-00001-of-00003.gguf (split.count); all of them are then part of its identity.
// Kept: all single values, and arrays of up to kGgufArrayMax numbers or truths. Longer arrays and those of strings (the
// vocabulary) are walked and counted.
// Errors: kCorrupt: not such a file, or a damaged one; the message names the key or tensor and the byte. kUnsupported:
// another version, big-endian. Limits: kGgufHeadBytesMax, kGgufItemsMax keys and tensors, names of 64 KiB.
// Threads: pure, except for read_gguf and hash_gguf, which read from the disk. Cost: tens of milliseconds for a large
// vocabulary; hash_gguf: all bytes of the model (2 GB/s).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/file_system.h"
#include "base/status.h"

namespace larder::llama {

inline constexpr std::size_t kGgufHeadBytesMax = std::size_t{1} << 29;
inline constexpr std::uint64_t kGgufItemsMax = 1 << 20;
inline constexpr std::uint64_t kGgufArrayMax = 4096;
inline constexpr std::uint32_t kGgufPartsMax = 1024;

// Numbers of one sign are kept as what they are, truths as 0 and 1.
struct GgufArray {
  std::uint64_t count = 0;
  std::vector<std::int64_t> numbers;  // empty: too long, or no whole numbers
};
using GgufValue = std::variant<std::uint64_t, std::int64_t, double, bool, std::string, GgufArray>;

struct GgufTensor {
  std::string name;
  std::vector<std::uint64_t> sizes;
  std::uint32_t type = 0;
  std::uint64_t offset = 0;
};

struct GgufFile {
  std::uint32_t version = 0;
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensor> tensors;
  std::uint64_t data_offset = 0;
  Digest256 head_digest;  // SHA-256 of all bytes before the data, and of the file's size

  // A whole number that is not negative and fits; from a truth 0 or 1.
  [[nodiscard]] std::optional<std::uint64_t> number(std::string_view key) const;
  [[nodiscard]] std::optional<std::string> text(std::string_view key) const;
  // Per layer: of an array its elements, which must be `count` or more; of one number the number for each.
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> per_layer(std::string_view key, std::size_t count) const;
};

// The head, if `bytes` hold all of it. kNotFound: they are its beginning only, and the file has more.
[[nodiscard]] Result<GgufFile> parse_gguf(std::span<const std::byte> bytes, std::uint64_t file_bytes);

struct GgufModel {
  GgufFile first;
  std::vector<std::string> paths;  // of all files, the first one first
  Digest256 identity;              // of the heads of all files: another model, another quantisation, another identity
  std::vector<std::string> tensor_names{};  // of all files
};

// Opens the file that is named, and the others of its model. kUnsupported, too: all files together have more than
// kGgufItemsMax tensors, or names of more than kGgufHeadBytesMax.
[[nodiscard]] Result<GgufModel> read_gguf(FileSystem& files, const std::string& path);

// SHA-256 over all bytes of all files: whatever differs shows.
[[nodiscard]] Result<Digest256> hash_gguf(FileSystem& files, const GgufModel& model);
// SHA-256 over kGgufSamples blocks of 4 KiB of each file, evenly spread (a small file is read whole). Two trainings of
// one model may have the same head: this tells them apart unless they differ in small tensors alone. A second at most,
// on a disk that seeks fast.
inline constexpr std::uint64_t kGgufSamples = 2048;
[[nodiscard]] Result<Digest256> sample_gguf(FileSystem& files, const GgufModel& model);

}  // namespace larder::llama
