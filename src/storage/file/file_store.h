// SPDX-License-Identifier: Apache-2.0
// The file backend itself. Options and defaults: file_backend.h; bytes: docs/formats.md section 5.
//
//   submit_read   -> look up -> runs of adjacent pages -> io queue -> verify -> done        page_reader.h
//   submit_write  -> checksums -> plan -> place in a segment -> io queue -> publish -> done page_writer.h
//                                   |        |                                  \-> sync -> done (durable)
//                                   |        +-> no room: maintenance, then again
//                                   +-> small, and the disk is busy: wait, and go together  write_gather.h
//   what is on disk, in memory                                                              store_state.h
//     pages; segments; which of two copies counts; what was cleared        page_index.h, segment_table.h,
//                                                                           page_copies.h, cleared_list.h
//     how much there may be, in all and on each disk                                        store_room.h
//   roll (ahead of need, if it can), seal, sync                                             segment_log.h
//   evict, clean, remove: keeps the store below its budget          maintenance.h, segment_cleaner.h, segment_files.h
//   a page that turned out damaged is dropped, and its segment's footer told                damaged_pages.h
//   one that cannot be read stays, and is written anew when it is computed anew             page_copies.h
//   clear                                                                                   store_clears.h
//   open                                                                                    file_store_open.h
//
// Nothing waits for the disk under the mutex, and no task waits for another: each step ends by posting or submitting
// the next, so that the whole store runs on one simulated thread as well as on many.
//
// Threads: the port's methods from any thread. Completions run on the io queues' threads; what may block (making,
// sealing and removing files) runs on the executor. (But for a statvfs after a write that found the disk full.)
#pragma once

#include <chrono>
#include <memory>
#include <span>

#include "storage/backend.h"
#include "storage/factory.h"
#include "storage/file/damaged_pages.h"
#include "storage/file/file_store_open.h"
#include "storage/file/maintenance.h"
#include "storage/file/page_reader.h"
#include "storage/file/page_writer.h"
#include "storage/file/segment_cleaner.h"
#include "storage/file/segment_files.h"
#include "storage/file/segment_log.h"
#include "storage/file/store_clears.h"
#include "storage/file/store_options.h"
#include "storage/file/store_state.h"

namespace larder::file_store {

class FileStore final : public StorageBackend, private StoreSteps {
 public:
  FileStore(const FileStoreOptions& options, const BackendEnvironment& environment, OpenedStore opened);
  ~FileStore() override;

  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override;
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override;
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override;
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override;
  [[nodiscard]] BackendStats stats() const override;
  [[nodiscard]] Status register_memory(std::span<const Segment> regions) override;
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override;

 private:
  void place_waiting() override { writer_.place_waiting(); }
  void start_maintenance() override { maintenance_.start(); }
  void start_maintenance_if_high() override { maintenance_.start_if_high(); }
  void go_on_with_maintenance() override { maintenance_.go_on(); }
  void tell_damage(SegmentId segment) override { damage_.tell(segment); }
  static void keep_files(FileSystem& files, const Volume& volume, std::span<const Cleared> cleared);
  void write_cleared() override { clears_.write_again(); }
  void try_clears_again() override { clears_.try_again(); }

  void finish() LARDER_EXCLUDES(state_.mutex);

  // Each knows those above it; what it asks of one below goes through StoreSteps.
  StoreState state_;
  SegmentFiles files_{state_};
  SegmentLog log_{state_, files_, *this};
  DamagedPages damage_{state_, log_};
  PageReader reader_{state_, files_, damage_};
  PageWriter writer_{state_, log_, *this};
  SegmentCleaner cleaner_{state_, files_, damage_, writer_};
  Maintenance maintenance_{state_, files_, log_, writer_, cleaner_, *this};
  StoreClears clears_{state_, files_, log_, *this};
  BackendInfo info_;  // constant after construction
};

}  // namespace larder::file_store
