// SPDX-License-Identifier: Apache-2.0
// One append to a segment on its way through a file store: the new pages of one or several groups, or what cleaning
// moves.
//
// Threads: confined to whoever has it. What cleaning moves is also read by others, under the store's mutex, between
// PageCopies::begin_move() and end_move(): `pages`, `moved_from` and `segment` do not change then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "storage/file/io_queue.h"
#include "storage/file/page_index.h"
#include "storage/file/segment_format.h"
#include "storage/file/volume.h"
#include "storage/operation.h"

namespace larder::file_store {

struct WriteRecord {
  struct GroupRef {  // a group of an operation
    std::shared_ptr<WriteOperation> op;
    std::size_t group = 0;
    std::size_t begin = 0, end = 0;  // of the record's pages; empty: nothing of it that a group before has not
    bool is_here = false;            // all of it was in the index already
  };
  std::shared_ptr<WriteOperation> op;  // the first one of `groups`; null: cleaning
  std::vector<ListedPage> pages;
  std::vector<std::vector<Segment>> payloads;  // one per page
  std::vector<GroupRef> groups;
  std::vector<SegmentId> duplicates_in;                  // segments that hold pages of the groups already
  std::map<PoolName, std::unordered_set<PageKey>> seen;  // what `pages` holds already
  std::uint64_t returns = 0;                             // PageCopies::returns(), when it was planned
  std::optional<unsigned> avoids;                        // a volume where a page of it could not be read
  bool is_durable = false;
  bool may_wait = false;                     // all of its operation, on a thread that may wait for the disk
  bool is_alone = false;                     // and nothing else is being written: so that thread does write it
  std::vector<PageLocation> moved_from;      // cleaning: where each page was
  std::shared_ptr<void> keep;                // cleaning: what the payloads lie in
  std::function<void(const Status&)> moved;  // cleaning: called at the end
  bool is_cleared = false;                   // cleaning: not written, because some of it was cleared meanwhile
  bool lacks_room = false;                   // cleaning: not written, because there is no room to move it to
  RecordLayout layout;
  unsigned volume = 0;
  std::shared_ptr<ActiveSegment> segment;
  std::uint64_t start = 0, synced_bytes = 0;
  AlignedBuffer staging;  // head, small payloads, padding

  [[nodiscard]] LogKind log() const { return moved_from.empty() ? LogKind::kNew : LogKind::kMoved; }
  // Lets its groups and their operations go.
  void let_go() {
    groups.clear();
    op.reset();
  }
};
using RecordPtr = std::shared_ptr<WriteRecord>;

// The bytes of a placed record, in file order: large payloads as they lie in memory, the rest copied into `staging`.
[[nodiscard]] std::vector<Segment> encode_record(WriteRecord& record, const StoreId& store);

// May they become one? Durable and others do not go together, nor do durable ones of which one waits for other
// segments, too.
[[nodiscard]] bool may_share(const WriteRecord& a, const WriteRecord& b);
// One record of all their groups, in order.
[[nodiscard]] RecordPtr join_records(std::vector<RecordPtr> parts);

}  // namespace larder::file_store
