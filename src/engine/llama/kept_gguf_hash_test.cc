// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/kept_gguf_hash.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "sim/sim_file_system.h"
#include "tests/support/temporary_directory.h"

namespace larder::llama {
namespace {

void fill_file(FileSystem& files, const std::string& path, std::byte value) {
  const std::vector<std::byte> bytes(100, value);
  const auto file = files.open(path, {.write = true, .create = true});
  ASSERT_TRUE(file) << file.status().to_string();
  ASSERT_TRUE(write_fully(**file, bytes, 0).is_ok());
}

class KeptHash : public testing::Test {
 protected:
  KeptHash() {
    for (const std::string& path : model_.paths) {
      fill_file(files_, path, std::byte{1});
      // A change within the same tick of the system's clock would leave the same time.
      std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) - std::chrono::hours(1));
    }
  }
  [[nodiscard]] static GgufModel model_of(const std::string& directory) {
    GgufModel model;
    model.paths = {directory + "/a.gguf", directory + "/b.gguf"};
    return model;
  }
  [[nodiscard]] Digest256 hash() { return kept_.of(files_, model_).value_or({}); }

  FileSystem& files_ = real_file_system();
  const support::TemporaryDirectory directory_;
  const GgufModel model_ = model_of(directory_.path());
  // Long after the files were written.
  ManualClock clock_{std::chrono::seconds(real_clock().wall_unix_seconds()) + std::chrono::hours(1)};
  int reads_ = 0;
  KeptGgufHash kept_{clock_, [this](FileSystem& files, const GgufModel& model) {
                       ++reads_;
                       return hash_gguf(files, model);
                     }};
};

TEST_F(KeptHash, FilesThatAreTheSameAreReadOnce) {
  const Digest256 right = hash_gguf(files_, model_).value_or({});
  EXPECT_EQ(hash(), right);
  EXPECT_EQ(hash(), right);
  EXPECT_EQ(reads_, 1);
}

TEST_F(KeptHash, AnyFileThatIsChangedIsReadAgain) {
  for (const std::string& path : model_.paths) {
    const Digest256 before = hash();
    fill_file(files_, path, std::byte{2});  // of the same size
    EXPECT_NE(hash(), before);
    EXPECT_EQ(hash(), hash_gguf(files_, model_).value_or({}));
  }
  EXPECT_EQ(reads_, 3);
}

TEST_F(KeptHash, AnotherFileInItsPlaceIsReadAgain) {
  const Digest256 before = hash();
  fill_file(files_, directory_.path() + "/new", std::byte{3});
  ASSERT_TRUE(files_.rename(directory_.path() + "/new", model_.paths[1]).is_ok());
  EXPECT_NE(hash(), before);
}

TEST_F(KeptHash, FilesThatWereJustChangedAreReadAgain) {
  ManualClock clock(std::chrono::seconds(real_clock().wall_unix_seconds()));
  int reads = 0;
  KeptGgufHash kept(clock, [&reads](FileSystem& files, const GgufModel& model) {
    ++reads;
    return hash_gguf(files, model);
  });
  for (const int read : {1, 2}) {
    EXPECT_TRUE(kept.of(files_, model_));
    EXPECT_EQ(reads, read);
  }
  clock.advance(std::chrono::hours(1));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(kept.of(files_, model_));
  EXPECT_EQ(reads, 3);
}

TEST_F(KeptHash, NothingIsKeptOfAFailureNorOfFilesWithoutTimes) {
  EXPECT_TRUE(kept_.of(files_, model_));
  ASSERT_TRUE(files_.remove(model_.paths[1]).is_ok());
  EXPECT_EQ(kept_.of(files_, model_).status().code(), StatusCode::kNotFound);
  sim::SimFileSystem simulated(1);
  GgufModel model;
  model.paths = {"a.gguf"};
  fill_file(simulated, "a.gguf", std::byte{1});
  const int before = reads_;
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(kept_.of(simulated, model));
  EXPECT_EQ(reads_, before + 2);
}

}  // namespace
}  // namespace larder::llama
