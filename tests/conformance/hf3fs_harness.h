// SPDX-License-Identifier: Apache-2.0
// Backend `hf3fs` on the fake 3FS library with threads, for the conformance suite; the metadata service is the caller's
// choice.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "storage/hf3fs/metadata_service.h"
#include "tests/conformance/storage_conformance.h"
#include "tests/support/temporary_directory.h"

namespace larder::conformance {

class Hf3fsHarness : public HarnessBase {
 public:
  explicit Hf3fsHarness(std::uint64_t seed) : HarnessBase(3, seed) {
    std::filesystem::create_directories(directory_ + "/3fs-virt/iovs");
    std::filesystem::create_directories(directory_ + "/larder");
  }
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra) override {
    BackendOptions options = {{"file_path_prefix", directory_ + "/larder/pages"},
                              {"library", LARDER_FAKE_HF3FS},
                              {"file_size", "16Mi"},
                              {"files", "2"},
                              {"numjobs", "1"},
                              {"staging_size", "2Mi"}};
    BackendOptions more = extra;
    if (const auto size = more.find("max_size"); size != more.end()) {
      EXPECT_EQ(size->second, "512Ki");
      options["file_size"] = "256Ki";  // for each of two pools
      more.erase(size);
    }
    return create("hf3fs", std::move(options), more, &real_file_system());
  }
  // Leases of reads end as time goes by.
  void drain() override { clock_.advance(std::chrono::seconds(1)); }
  [[nodiscard]] bool evicts_whole_groups() const override { return false; }
  // In the head or in the payload of a page: what lies between is neither read nor checked.
  std::size_t flip_stored_bits(Rng& rng, std::size_t flips) override {
    std::vector<std::string> files;
    const std::vector<std::string> names = real_file_system().list(directory_ + "/larder").value();
    for (const std::string& name : names) {
      if (name.ends_with(".bin")) files.push_back(directory_ + "/larder/" + name);
    }
    return flip_bits(real_file_system(), files, rng, flips);
  }

 private:
  const support::TemporaryDirectory temporary_;
  const std::string directory_ = temporary_.path();
};

}  // namespace larder::conformance
