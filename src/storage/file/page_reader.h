// SPDX-License-Identifier: Apache-2.0
// The file store's reads: look up -> runs of adjacent pages -> io queue -> verify. Pages of one request that lie next
// to each other are fetched together, straight into the caller's memory where that is aligned, and verified when they
// are there.
//
// Threads: any; completions on the io queues' threads.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/status.h"
#include "storage/file/damaged_pages.h"
#include "storage/file/segment_files.h"
#include "storage/file/store_state.h"

namespace larder::file_store {

class PageReader {
 public:
  PageReader(StoreState& state, SegmentFiles& files, DamagedPages& damage)
      : state_(state), files_(files), damage_(damage) {}

  [[nodiscard]] Status submit(ReadRequest request, StorageBackend::ReadDone done) LARDER_EXCLUDES(state_.mutex);

 private:
  struct Run;  // pages that one operation fetches
  struct Planned {
    std::size_t item = 0;
    PageLocation location;
    unsigned volume = 0;
    FilePtr file;             // null: its segment is closed
    bool was_unread = false;  // a read of it has failed
  };
  void start(const std::shared_ptr<ReadOperation>& op) LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] std::vector<Planned> look_up(ReadOperation& op) LARDER_EXCLUDES(state_.mutex);
  void submit_plan(const std::shared_ptr<ReadOperation>& op, std::vector<Planned> plan);
  void add_to_runs(const std::shared_ptr<ReadOperation>& op, const Planned& read,
                   std::vector<std::shared_ptr<Run>>& runs);
  [[nodiscard]] bool needs_tail(const Run& run) const;
  [[nodiscard]] IoOperation make_io(Run& run) const;
  void submit_runs(std::vector<std::shared_ptr<Run>> runs);
  void finish_run(Run& run, const Status& status) LARDER_EXCLUDES(state_.mutex);

  StoreState& state_;
  SegmentFiles& files_;
  DamagedPages& damage_;
};

}  // namespace larder::file_store
