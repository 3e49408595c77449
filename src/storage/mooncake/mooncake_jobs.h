// SPDX-License-Identifier: Apache-2.0
// What a MooncakeBackend keeps of the operations under way.
//
// Threads: a batch and a job are one thread's at a time, handed on with their calls.
#pragma once

#include <string>
#include <vector>

#include "storage/mooncake/mooncake_backend.h"

namespace larder::mooncake {

// An object is the page's envelope, then its payload. So none is ever empty, which the store refuses.
[[nodiscard]] constexpr std::uint64_t object_bytes(std::uint64_t payload) { return kEnvelopeBytes + payload; }
// Where objects begin in staging memory: on a cache line, so that copies are fast.
[[nodiscard]] constexpr std::uint64_t room_of(std::uint64_t payload) { return (object_bytes(payload) + 63) / 64 * 64; }

struct MooncakeBackend::ReadBatch {
  std::shared_ptr<ReadOperation> op;  // null: it has its answer, and the batch is late
  std::vector<std::size_t> items;
  std::vector<NamedObject> objects;  // of the items; places once it has begun
  std::uint64_t number = 0;
  bool is_short = false;  // taken out on the link's thread
};

// Its batches run one after another, since parents come before children.
struct MooncakeBackend::WriteJob {
  struct Object {
    std::size_t group = 0;
    const WriteItem* item = nullptr;
    bool is_anchor = false;
    std::string name;
  };
  struct Group {
    std::size_t group = 0, objects = 0;
    std::string tag;
  };
  std::shared_ptr<WriteOperation> op;  // null: as above
  std::size_t next_group = 0;
  // the batch's
  std::vector<Object> objects;
  std::vector<Group> groups;
  std::uint64_t number = 0, offset = 0;
  std::uint64_t twins = 0;  // pages that a group has twice
  [[nodiscard]] bool has_more() const { return next_group < op->request.groups.size(); }
};

}  // namespace larder::mooncake
