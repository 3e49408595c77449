// SPDX-License-Identifier: Apache-2.0
// The example backend library, in C, under the conformance suite: step by step and with threads.
#include <filesystem>

#include "tests/conformance/storage_conformance.h"
#include "tests/support/temporary_directory.h"

namespace larder::conformance {
namespace {

class PluginHarness final : public HarnessBase {
 public:
  using HarnessBase::HarnessBase;
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra) override {
    return create("plugin", {{"library", LARDER_EXAMPLE_BACKEND}, {"directory", directory_.path() + "/store"}}, extra,
                  nullptr);
  }
  [[nodiscard]] bool is_bounded() const override { return false; }
  std::size_t flip_stored_bits(Rng& rng, std::size_t flips) override {
    return flip_bits(real_file_system(), stored_objects(), rng, flips);
  }
  void cut_stored_objects() const {
    for (const std::string& object : stored_objects()) std::filesystem::resize_file(object, 0);
  }

 private:
  [[nodiscard]] std::vector<std::string> stored_objects() const {
    std::vector<std::string> objects;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path() + "/store")) {
      if (entry.is_regular_file() && entry.path().filename() != "LOCK") objects.push_back(entry.path().string());
    }
    return objects;
  }

  const support::TemporaryDirectory directory_;
};

// A write without durability, and then a power cut: the file is there, but not all of its bytes.
TEST(PluginExample, AnObjectThatWasCutShortIsReplaced) {
  PluginHarness harness(0, 1);
  const auto backend = harness.open({}).value();
  Rng rng(1);
  PageBuffer page(5000, 3, rng), found(5000, 2, rng);
  const PageKey key = check_key(1, 1);
  page.fill(key, PoolName::kKv);
  const auto put = [&] {
    WriteResult result;
    WriteRequest request{check_scope(1, 1), {{{{PoolName::kKv, key, page.segments()}}}}};
    EXPECT_TRUE(backend->submit_write(std::move(request), [&](const WriteResult& out) { result = out; }).is_ok());
    harness.drain();
    return result.groups.at(0);
  };
  ASSERT_TRUE(put().is_ok());
  harness.cut_stored_objects();
  ASSERT_TRUE(put().is_ok());
  ReadResult read;
  ReadRequest request{check_scope(1, 1), {{PoolName::kKv, key, found.segments()}}};
  ASSERT_TRUE(backend->submit_read(std::move(request), [&](const ReadResult& out) { read = out; }).is_ok());
  harness.drain();
  EXPECT_TRUE(read.items.at(0).is_ok()) << read.items.at(0).to_string();
  EXPECT_TRUE(found.holds(key, PoolName::kKv));
  EXPECT_EQ(backend->stats().pages, 1u);
}

const BackendUnderTest kPluginManual{"Manual",
                                     [](std::uint64_t seed) { return std::make_unique<PluginHarness>(0, seed); }};
const BackendUnderTest kPluginThreads{"Threads",
                                      [](std::uint64_t seed) { return std::make_unique<PluginHarness>(3, seed); }};

INSTANTIATE_TEST_SUITE_P(Plugin, StorageConformance, each_check({kPluginManual, kPluginThreads}), test_name);

}  // namespace
}  // namespace larder::conformance
