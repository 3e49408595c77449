// SPDX-License-Identifier: Apache-2.0
// Backend `hf3fs` on the fake 3FS library with threads, for the conformance suite; the metadata service is the caller's
// choice.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "storage/hf3fs/metadata_service.h"
#include "tests/conformance/storage_conformance.h"

namespace larder::conformance {

class Hf3fsHarness : public HarnessBase {
 public:
  explicit Hf3fsHarness(std::uint64_t seed) : HarnessBase(3, seed) {
    directory_ = testing::TempDir() + "larder_hf3fs_XXXXXX";
    EXPECT_NE(::mkdtemp(directory_.data()), nullptr);
    std::filesystem::create_directories(directory_ + "/3fs-virt/iovs");
    std::filesystem::create_directories(directory_ + "/larder");
  }
  ~Hf3fsHarness() override { std::filesystem::remove_all(directory_); }
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
    OpenOptions options;
    options.write = true;
    for (std::size_t i = 0; i < flips;) {
      const std::unique_ptr<File> file = real_file_system().open(files[rng.below(files.size())], options).value();
      const std::uint64_t size = file->size_bytes().value();
      if (size == 0) continue;
      const std::uint64_t at = rng.below(size);
      std::byte byte{};
      EXPECT_TRUE(read_exactly(*file, {&byte, 1}, at).is_ok());
      byte ^= static_cast<std::byte>(1u << rng.below(8));
      EXPECT_TRUE(write_fully(*file, {&byte, 1}, at).is_ok());
      ++i;
    }
    return flips;
  }

 private:
  std::string directory_;
};

}  // namespace larder::conformance
