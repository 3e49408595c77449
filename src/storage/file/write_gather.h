// SPDX-License-Identifier: Apache-2.0
// The file store's small writes: they do not change threads, and go together when the disk is busy.
//
// But a lone one on an idle disk changes threads once, to one that may wait for the disk: it writes and ends there,
// which is a change less than through the queue.
//
// A record costs a head of a block, a system call and a wake-up, whatever it carries. While enough writes are under
// way, a further small record gains nothing by going alone, so it waits; when a write ends, what has gathered becomes
// one record. Nothing waits for more to come: an idle disk gets each record at once.
//
// Joined records keep their order, and their groups stay groups: each has its own status, and after a crash all of its
// pages or none. Durable ones and others are not joined: nobody waits for a sync that he did not ask for.
//
// Invariant: if anything has gathered, then a write is under way, or somebody is placing what has gathered.
//
// Threads: confined (the store's mutex).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "storage/backend.h"
#include "storage/file/write_record.h"

namespace larder::file_store {

class WriteGather {
 public:
  explicit WriteGather(std::size_t volumes) : enough_(kEnoughWrites * volumes) {}

  // So little that the caller's thread plans it: about 10 us of checksum and copies.
  [[nodiscard]] static bool is_quick(const WriteRequest& request);
  // True: nothing is being written, and the caller's write is the one to go alone.
  [[nodiscard]] bool claim_idle_disk();
  void give_up_claim() { is_lone_coming_ = false; }

  void write_begun(bool is_new) {
    if (is_new) ++writing_;
    is_lone_coming_ = false;
  }
  void write_ended() { --writing_; }
  [[nodiscard]] bool is_one_being_written() const { return writing_ == 1; }

  // True: the record was taken, and goes with others when a write has ended. `segment_bytes`: of the smallest segment.
  [[nodiscard]] bool take(RecordPtr& record, std::uint64_t segment_bytes);
  // A write has ended. True: the caller places what next() gives, until that is empty.
  [[nodiscard]] bool begin_placing();
  // The oldest, and those behind it that can go with it. Empty: enough is being written, or nothing is left.
  [[nodiscard]] std::vector<RecordPtr> next(std::uint64_t segment_bytes);

 private:
  // Writes under way per volume before small ones gather. Two keep the disk busy while one of them ends; more make the
  // gathered ones smaller, and each costs a head, a wake-up and a submission.
  static constexpr std::size_t kEnoughWrites = 2;

  const std::size_t enough_;
  std::deque<RecordPtr> gathered_;
  std::uint64_t gathered_bytes_ = 0;
  std::size_t writing_ = 0;      // records of new pages under way
  bool is_lone_coming_ = false;  // on its way to the executor
  bool is_placing_ = false;
};

}  // namespace larder::file_store
