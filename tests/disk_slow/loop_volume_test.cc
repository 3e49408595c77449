// SPDX-License-Identifier: Apache-2.0
// A real ext4 volume of 1 GiB on a loop device that is filled, made read-only, deleted from, taken away and broken
// while conversations run. Without root, or without loop devices: skipped.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/disk/trouble.h"
#include "tests/disk_slow/real_loop_volume.h"

namespace larder::disk {
namespace {

constexpr std::uint64_t kVolumeBytes = std::uint64_t{1} << 30;

class LoopTrouble : public Trouble {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<LoopVolume>> made = LoopVolume::create(kVolumeBytes);
    if (made.status().code() == StatusCode::kUnsupported) GTEST_SKIP() << made.status().message();
    ASSERT_TRUE(made.is_ok()) << made.status().to_string();
    volume_ = std::move(made).value();
  }
  void TearDown() override { engine_.reset(); }  // before the volume

  // `extra` as for file_options.
  void start_on(const std::string& directory, const std::string& extra) {
    start(file_options(directory, extra), real_file_system());
  }
  [[nodiscard]] std::string path(const std::string& name) const { return join_path(volume_->path(), name); }
  [[nodiscard]] std::uint64_t free_bytes() const {
    const Result<SpaceInfo> space = real_file_system().space(volume_->path());
    return space.is_ok() ? space->free_bytes : 0;
  }

  std::unique_ptr<LoopVolume> volume_;
};

TEST_F(LoopTrouble, SomebodyElseFillsIt) {
  start_on(path("store"), R"(, "segment_size": "256Ki")");
  converse_through(
      *engine_,
      [&] {
        fill_up(real_file_system(), path("filler"));
        EXPECT_LT(free_bytes(), 4096u);
      },
      [&] { EXPECT_TRUE(real_file_system().remove(path("filler"))); });
  const BackendStats now = *engine_->stats().storage;
  EXPECT_GT(now.write_errors + now.evicted, 0u) << "it never was full";
  expect_counted(real_file_system(), path("store"));
}

TEST_F(LoopTrouble, TheStoreFillsIt) {
  fill_up(real_file_system(), path("filler"));
  {
    OpenOptions options;
    options.write = true;
    auto filler = real_file_system().open(path("filler"), options);
    ASSERT_TRUE(filler.is_ok());
    const Result<std::uint64_t> size = (*filler)->size_bytes();
    ASSERT_TRUE(size.is_ok());
    ASSERT_TRUE((*filler)->truncate(*size - (6 << 20)));
  }
  start_on(path("store"), R"(, "segment_size": "256Ki", "max_size": "unlimited")");
  std::uint64_t from_storage = 0;
  for (std::uint64_t i = 0; i < 24; ++i) {
    from_storage += converse(*engine_, Script::of(test_seed() + i, kClients, 3), "filling");
  }
  EXPECT_GT(engine_->stats().storage->evicted, 0u) << "it never was full";
  EXPECT_GT(from_storage, 0u);
  EXPECT_LT(free_bytes(), 1u << 20);
  expect_service(*engine_, clock_, "full");
  expect_counted(real_file_system(), path("store"));
}

TEST_F(LoopTrouble, TheDirectoryIsReadOnly) {
  start_on(path("store"), R"(, "segment_size": "128Ki")");
  converse_through(
      *engine_, [&] { EXPECT_TRUE(volume_->make_read_only(path("store"))); },
      [&] { EXPECT_TRUE(volume_->make_writable(path("store"))); });
  EXPECT_GT(engine_->stats().storage->write_errors, 0u) << "it never was read-only";
  expect_counted(real_file_system(), path("store"));
}

TEST_F(LoopTrouble, TheDirectoryIsDeleted) {
  // The volume's top directory cannot go, but all that is in it.
  for (const std::string& directory : {path("store"), volume_->path()}) {
    SCOPED_TRACE(directory);
    start_on(directory, R"(, "segment_size": "128Ki")");
    converse_through(
        *engine_,
        [&] {
          std::error_code error;
          for (const auto& entry : std::filesystem::directory_iterator(volume_->path(), error)) {
            for (int tries = 0; tries < 100 && std::filesystem::exists(entry, error); ++tries) {
              std::filesystem::remove_all(entry, error);
            }
          }
        },
        [] {});
    EXPECT_TRUE(real_file_system().stat(join_path(directory, "FORMAT")).is_ok());
    expect_counted(real_file_system(), directory);
    engine_.reset();
    std::filesystem::remove_all(path("store"));
  }
}

TEST_F(LoopTrouble, ItIsUnmountedAndComesBack) {
  for (const std::string& directory : {volume_->path(), path("a/store")}) {
    SCOPED_TRACE(directory);
    start_on(directory, R"(, "segment_size": "128Ki")");
    (void)converse(*engine_, Script::of(500, kClients, 1), "before");
    converse_through(
        *engine_, [&] { EXPECT_TRUE(volume_->unmount()); },
        [&] {
          EXPECT_TRUE(std::filesystem::is_empty(volume_->path())) << "the disk below was written to";
          EXPECT_TRUE(volume_->mount());
        });
    EXPECT_GT(engine_->stats().storage->write_errors, 0u) << "it never was away";
    EXPECT_GT(converse(*engine_, Script::of(500, kClients, 1), "what was stored before"), 0u);
    expect_counted(real_file_system(), directory);
    engine_.reset();
    for (const auto& entry : std::filesystem::directory_iterator(volume_->path())) std::filesystem::remove_all(entry);
  }
}

// EIO from everything, also through files that are open; then the disk is there again, as another device.
TEST_F(LoopTrouble, ItDiesAndComesBackAsAnotherDevice) {
  start_on(path("store"), R"(, "segment_size": "128Ki", "fsync": "group")");
  (void)converse(*engine_, Script::of(500, kClients, 2), "before");
  converse_through(
      *engine_, [&] { EXPECT_TRUE(volume_->shut_down()); }, [&] { EXPECT_TRUE(volume_->come_back()); });
  const BackendStats now = *engine_->stats().storage;
  EXPECT_GT(now.write_errors + now.read_errors, 0u) << "it never was dead";
  expect_old_content();
}

}  // namespace
}  // namespace larder::disk
