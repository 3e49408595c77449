// SPDX-License-Identifier: Apache-2.0
// Where page i of a namespace lies: in which of its files, and at which byte.
//
//   slot   = head block (4 KiB: the envelope, then zeros) + payload, rounded up to 4 KiB
//   file k = slots of the pages k, k + files, k + 2 files, ...: neighbours lie in different files
//
// A server of 3FS replaces whole chunks. With chunk_bytes known, a slot never shares a chunk that it need not share:
// one as large as a chunk or larger is rounded up to whole chunks, a smaller one never crosses the border of a chunk.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "key/page_key.h"
#include "model/pool_spec.h"

namespace larder::hf3fs {

inline constexpr std::uint64_t kSlotAlignment = 4096;
inline constexpr std::uint64_t kHeadBytes = 4096;

struct SlotAddress {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;  // bytes
};

struct SlotGeometry {
  std::uint64_t slot_bytes = 0;
  std::uint64_t chunk_bytes = 0;  // 0: unknown; else a power of two >= kSlotAlignment
  std::uint32_t files = 1;

  [[nodiscard]] SlotAddress address_of(std::uint64_t page) const;
  // Whole pages in `bytes` of files, spread evenly.
  [[nodiscard]] std::uint64_t pages_in(std::uint64_t bytes) const;
};

// What is written and read of a page: head and payload, rounded up to kSlotAlignment.
[[nodiscard]] std::uint64_t transfer_bytes(std::uint64_t payload_bytes);
[[nodiscard]] SlotGeometry make_slot_geometry(std::uint64_t payload_bytes, std::uint64_t chunk_bytes,
                                              std::uint32_t files);

// A namespace's name says all that its pages must agree on: "kv-9f86d081884c7d65-b65536-c1048576-f4" (payload bytes,
// chunk bytes, files). Clients that disagree meet in no namespace, and in no file.
struct NamedGeometry {
  std::uint64_t payload_bytes = 0;
  SlotGeometry slots;
};
[[nodiscard]] std::string namespace_name(PoolName pool, const Digest256& layout_fingerprint,
                                         const NamedGeometry& geometry);
// "kv-9f86d081884c7d65-": what the names of a pool's namespaces begin with.
[[nodiscard]] std::string namespace_prefix(PoolName pool, const Digest256& layout_fingerprint);
// The same of a name that namespace_name() has made.
[[nodiscard]] std::string_view namespace_prefix_of(std::string_view name);
// kInvalidArgument: not a name that namespace_name() makes.
[[nodiscard]] Result<NamedGeometry> parse_namespace_name(std::string_view name);

}  // namespace larder::hf3fs
