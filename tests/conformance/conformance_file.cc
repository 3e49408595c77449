// SPDX-License-Identifier: Apache-2.0
// Backend `file` under the conformance suite: on simulated files step by step, and on real ones with threads.
#include "sim/sim_file_system.h"
#include "tests/conformance/storage_conformance.h"
#include "tests/support/temporary_directory.h"

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
    return flip_bits_of_segments(files_, "/store", rng, flips);
  }

 private:
  sim::SimFileSystem files_;
};

class RealFileHarness final : public HarnessBase {
 public:
  explicit RealFileHarness(std::uint64_t seed) : HarnessBase(3, seed) {}
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra) override {
    BackendOptions options = kSmall;
    options["directory"] = directory();
    return create("file", std::move(options), extra, &real_file_system());
  }
  std::size_t flip_stored_bits(Rng& rng, std::size_t flips) override {
    return flip_bits_of_segments(real_file_system(), directory(), rng, flips);
  }

 private:
  [[nodiscard]] std::string directory() const { return directory_.path() + "/made/by/the/store"; }
  const support::TemporaryDirectory directory_;
};

const BackendUnderTest kSim{"Sim", [](std::uint64_t seed) { return std::make_unique<SimFileHarness>(seed); }};
const BackendUnderTest kReal{"Real", [](std::uint64_t seed) { return std::make_unique<RealFileHarness>(seed); }};

INSTANTIATE_TEST_SUITE_P(File, StorageConformance, each_check({kSim, kReal}), test_name);

}  // namespace
}  // namespace larder::conformance
