// SPDX-License-Identifier: Apache-2.0
// The page store of backend hf3fs (storage/hf3fs/page_store.h) on simulated files and time: what the rings and the
// mount are on a machine. Some transfers are late: they end by their deadline, and land all the same, long after.
//
// Threads: confined to one thread. Files and clock outlive the store; what lands late outlives it, too.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/executor.h"
#include "base/file_system.h"
#include "base/rng.h"
#include "sim/sim_clock.h"
#include "storage/hf3fs/page_store.h"

namespace larder::sim {

class SimPageStore final : public hf3fs::PageStore {
 public:
  // Makes `directory`.
  [[nodiscard]] static Result<std::unique_ptr<SimPageStore>> create(FileSystem& files, const std::string& directory,
                                                                    Executor& executor, SimClock& clock,
                                                                    std::uint64_t seed);
  [[nodiscard]] Result<std::shared_ptr<hf3fs::PageFiles>> open_files(const std::string& base, std::uint32_t count,
                                                                     hf3fs::PageTransfer::Kind purpose) override;
  [[nodiscard]] bool has_open(const std::string& base, hf3fs::PageTransfer::Kind purpose) const override {
    return open_.contains({base, purpose});
  }
  [[nodiscard]] Status submit(hf3fs::PageTransfer transfer) override;
  [[nodiscard]] hf3fs::PageStoreStats stats() const override { return stats_; }
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override;

 private:
  SimPageStore(FileSystem& files, Executor& executor, SimClock& clock, std::uint64_t seed)
      : files_(files), executor_(executor), clock_(clock), rng_(seed) {}
  void run(hf3fs::PageTransfer& transfer);
  [[nodiscard]] Status read(const hf3fs::PageTransfer& transfer, File& file);

  FileSystem& files_;
  Executor& executor_;
  SimClock& clock_;
  Rng rng_;
  std::map<std::pair<std::string, hf3fs::PageTransfer::Kind>, std::shared_ptr<hf3fs::PageFiles>> open_;
  hf3fs::PageStoreStats stats_;
  bool is_closed_ = false;
};

}  // namespace larder::sim
