// SPDX-License-Identifier: Apache-2.0
// What a storage has said of its pages, and whether it keeps its word. A page's bytes follow from its tokens, so a page
// that came back after a clear looks like one that was written anew, and one that is lost like one that never was:
// patterns find neither.
//
//   StoreRecord    of one directory; lives through the processes that open it
//   StoreWitness   between the cache and the pipeline: writes down what passes
//
// Rules
//   always         what ended before a clear began is not read after that clear's good end, unless it was written again
//   calm worlds    what was acknowledged is there when it is asked for; also after the power went, if it was to be
//                  durable
// A world is calm while nothing was broken and no storage has evicted or declined a page: the world says so.
//
// Threads: confined to one thread. The pipeline outlives the witness's calls; completions need the record alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "storage/backend.h"

namespace larder::sim {

class StoreRecord {
 public:
  // The power went: what is not durable may be gone. Nothing is under way any more.
  void power_went();
  // Pages of the pool that were acknowledged, and not cleared since.
  [[nodiscard]] std::uint64_t stored(PoolName pool) const;
  // Empty, or how a clear was broken.
  [[nodiscard]] const std::string& came_back() const { return came_back_; }
  // Empty, or what was acknowledged and was not there. Only counts in a calm world.
  [[nodiscard]] const std::string& lost() const { return lost_; }

 private:
  friend class StoreWitness;
  // Moments of this record; 0: never.
  struct Page {
    std::uint64_t begun = 0, ended = 0;  // the last write
    std::uint64_t acknowledged = 0, taken = 0;
    std::size_t writes = 0;  // under way
    bool is_durable = false;
  };
  using Name = std::tuple<Digest256, PoolName, PageKey>;

  [[nodiscard]] static Name name_of(const StoreScope& scope, PoolName pool, const PageKey& key) {
    return {scope.namespace_digest, pool, key};
  }
  void write_begins(const WriteRequest& request);
  void write_ends(const WriteRequest& request, const WriteResult& result, std::uint64_t begun, bool is_durable);
  void clear_takes();
  void clear_ends(std::uint64_t begun, bool is_ok);
  void read_ends(const ReadRequest& request, const ReadResult& result, std::uint64_t begun);
  void exists_ends(const ExistsRequest& request, const ExistsResult& result, std::uint64_t begun);

  std::map<Name, Page> pages_;
  std::uint64_t now_ = 0, last_clear_ = 0;
  std::string came_back_, lost_;
};

class StoreWitness final : public StorageBackend {
 public:
  // is_durable: all writes should be.
  StoreWitness(StorageBackend& inner, std::shared_ptr<StoreRecord> record, bool is_durable)
      : inner_(inner), record_(std::move(record)), is_durable_(is_durable) {}

  [[nodiscard]] const StoreRecord& record() const { return *record_; }

  [[nodiscard]] const BackendInfo& info() const override { return inner_.info(); }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override;
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override;
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override;
  // Of the whole store.
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override;
  [[nodiscard]] BackendStats stats() const override { return inner_.stats(); }
  [[nodiscard]] ClearMark clear_mark() const override { return inner_.clear_mark(); }
  [[nodiscard]] ClearMark emptied_mark() const override { return inner_.emptied_mark(); }
  [[nodiscard]] Status register_memory(std::span<const Segment> regions) override {
    return inner_.register_memory(regions);
  }
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override { return inner_.close(limit); }

 private:
  StorageBackend& inner_;
  const std::shared_ptr<StoreRecord> record_;
  const bool is_durable_;
};

}  // namespace larder::sim
