// SPDX-License-Identifier: Apache-2.0
// The example backend library, in C, under the conformance suite: step by step and with threads.
#include <unistd.h>

#include <filesystem>

#include "tests/conformance/storage_conformance.h"

namespace larder::conformance {
namespace {

class PluginHarness final : public HarnessBase {
 public:
  PluginHarness(std::size_t threads, std::uint64_t seed) : HarnessBase(threads, seed) {
    directory_ = testing::TempDir() + "larder_plugin_XXXXXX";
    EXPECT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  ~PluginHarness() override { std::filesystem::remove_all(directory_); }
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra) override {
    return create("plugin", {{"library", LARDER_EXAMPLE_BACKEND}, {"directory", directory_ + "/store"}}, extra,
                  nullptr);
  }
  [[nodiscard]] bool is_bounded() const override { return false; }
  std::size_t flip_stored_bits(Rng& rng, std::size_t flips) override {
    std::vector<std::string> objects;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_ + "/store")) {
      if (entry.is_regular_file() && entry.path().filename() != "LOCK") objects.push_back(entry.path().string());
    }
    OpenOptions options;
    options.write = true;
    for (std::size_t i = 0; i < flips && !objects.empty(); ++i) {
      const std::unique_ptr<File> file = real_file_system().open(objects[rng.below(objects.size())], options).value();
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

const BackendUnderTest kPluginManual{"Manual",
                                     [](std::uint64_t seed) { return std::make_unique<PluginHarness>(0, seed); }};
const BackendUnderTest kPluginThreads{"Threads",
                                      [](std::uint64_t seed) { return std::make_unique<PluginHarness>(3, seed); }};

INSTANTIATE_TEST_SUITE_P(Plugin, StorageConformance, each_check({kPluginManual, kPluginThreads}), test_name);

}  // namespace
}  // namespace larder::conformance
