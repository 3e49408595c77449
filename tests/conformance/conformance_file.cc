// SPDX-License-Identifier: Apache-2.0
// Backend `file` under the conformance suite: on simulated files step by step, and on real ones with threads.
#include <unistd.h>

#include <filesystem>

#include "sim/sim_file_system.h"
#include "storage/file/segment_format.h"
#include "tests/conformance/storage_conformance.h"

namespace larder::conformance {
namespace {

// Segments of 64 KiB, so that every test crosses several.
const BackendOptions kSmall = {{"segment_size", "64Ki"}, {"max_size", "64Mi"}, {"open_files", "3"}};

class SimFileHarness final : public HarnessBase {
 public:
  explicit SimFileHarness(std::uint64_t seed) : HarnessBase(0, seed), files_(seed) {}
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra) override {
    BackendOptions options = kSmall;
    options["directory"] = "/store";
    return create("file", std::move(options), extra, &files_);
  }
  std::size_t flip_stored_bits(Rng& rng, std::size_t flips) override {
    std::vector<std::pair<std::string, std::uint64_t>> segments;
    auto names = files_.list("/store");
    EXPECT_TRUE(names.is_ok());
    for (const std::string& name : *names) {
      if (!file_store::parse_segment_name(name)) continue;
      const std::string path = "/store/" + name;
      segments.emplace_back(path, files_.stat(path)->size_bytes);
    }
    for (std::size_t i = 0; i < flips; ++i) {
      const auto& [path, size] = segments[rng.below(segments.size())];
      const auto mask = static_cast<std::uint8_t>(1u << rng.below(8));
      EXPECT_TRUE(files_.corrupt_byte(path, rng.below(size), mask).is_ok());
    }
    return flips;
  }

 private:
  sim::SimFileSystem files_;
};

class RealFileHarness final : public HarnessBase {
 public:
  explicit RealFileHarness(std::uint64_t seed) : HarnessBase(3, seed) {
    directory_ = testing::TempDir() + "larder_conformance_XXXXXX";
    EXPECT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  ~RealFileHarness() override { std::filesystem::remove_all(directory_); }
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra) override {
    BackendOptions options = kSmall;
    options["directory"] = directory_ + "/made/by/the/store";
    return create("file", std::move(options), extra, &real_file_system());
  }
  std::size_t flip_stored_bits(Rng& rng, std::size_t flips) override {
    const std::string directory = directory_ + "/made/by/the/store/";
    const std::vector<std::string> names = real_file_system().list(directory).value();
    std::vector<std::string> segments;
    for (const std::string& name : names) {
      if (file_store::parse_segment_name(name)) segments.push_back(directory + name);
    }
    OpenOptions options;
    options.write = true;
    for (std::size_t i = 0; i < flips; ++i) {
      const std::unique_ptr<File> file = real_file_system().open(segments[rng.below(segments.size())], options).value();
      const std::uint64_t at = rng.below(file->size_bytes().value());
      std::byte byte{};
      EXPECT_TRUE(read_exactly(*file, {&byte, 1}, at).is_ok());
      byte ^= static_cast<std::byte>(1u << rng.below(8));
      EXPECT_TRUE(write_fully(*file, {&byte, 1}, at).is_ok());
    }
    return flips;
  }

 private:
  std::string directory_;
};

const BackendUnderTest kSim{"Sim", [](std::uint64_t seed) { return std::make_unique<SimFileHarness>(seed); }};
const BackendUnderTest kReal{"Real", [](std::uint64_t seed) { return std::make_unique<RealFileHarness>(seed); }};

INSTANTIATE_TEST_SUITE_P(File, StorageConformance, each_check({kSim, kReal}), test_name);

}  // namespace
}  // namespace larder::conformance
