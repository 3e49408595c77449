// SPDX-License-Identifier: Apache-2.0
// The fixture of tests in which a disk gives trouble for a while: conversations before, during and after it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/disk/disk_rig.h"
#include "tests/support/rest.h"

namespace larder::disk {

inline constexpr std::size_t kClients = 3, kTurns = 6;

// Bytes of the files of a store.
inline std::uint64_t bytes_in(FileSystem& files, const std::string& directory) {
  std::uint64_t bytes = 0;
  const Result<std::vector<std::string>> names = files.list(directory);
  if (!names.is_ok()) return 0;
  for (const std::string& name : *names) {
    const Result<FileInfo> info = files.stat(join_path(directory, name));
    if (info.is_ok()) bytes += info->size_bytes;
  }
  return bytes;
}

class Trouble : public testing::Test {
 protected:
  // Trouble begins when the requests of turn 2 are under way, and ends with those of turn 4.
  void converse_through(Engine& engine, const std::function<void()>& begin, const std::function<void()>& end) {
    const std::uint64_t seed = test_seed();
    const std::string where = "LARDER_TEST_SEED=" + std::to_string(seed);
    (void)converse(engine, Script::of(seed, kClients, kTurns), where, [&](std::size_t turn) {
      if (turn == 2) engine.on_submitted = begin;
      if (turn == 4) engine.on_submitted = end;
    });
    engine.check_sound();
    expect_service(engine, clock_, where);
    engine.check_sound();
  }
  // What script 500 stored before all open files died. The first reads may meet a dead file, and then nobody asks for
  // these pages for a while; after it they are there, and what must be durable can be.
  void expect_old_content() {
    const Script& before = Script::of(500, kClients, 2);
    (void)converse(*engine_, before, "dead files");
    clock_.jump(kBeyondBackOff);
    (void)converse(*engine_, Script::of(501, kClients, 1), "a probe");
    const std::uint64_t errors = engine_->stats().storage->write_errors;
    EXPECT_GT(converse(*engine_, before, "what was stored before"), 0u);
    EXPECT_EQ(engine_->stats().storage->write_errors, errors);
    engine_->check_sound();
  }
  // What lies in the store's directory is what the store counts; but for FORMAT and the like, and for what is being
  // sealed or removed right now.
  void expect_counted(FileSystem& files, const std::string& directory) {
    constexpr std::uint64_t kSlack = 32'768;
    engine_->check_sound();
    const TimePoint give_up = real_clock().now() + std::chrono::seconds(10);
    std::uint64_t counted = 0, there = 0;
    do {
      counted = engine_->stats().storage->physical_bytes;
      there = bytes_in(files, directory);
      if (there <= counted + kSlack && counted <= there + kSlack) return;
      rest();
    } while (real_clock().now() < give_up);
    ADD_FAILURE() << counted << " bytes are counted, " << there << " lie in " << directory;
  }
  void start(const Options& options, FileSystem& files) {
    auto made = LiveEngine::create(options, files, clock_);
    ASSERT_TRUE(made.is_ok()) << made.status().to_string();
    engine_ = std::move(made).value();
  }

  // Files that live as long as the engine.
  template <class Files, class... Arguments>
  Files& own(Arguments&&... arguments) {
    engine_.reset();
    auto made = std::make_unique<Files>(std::forward<Arguments>(arguments)...);
    Files& files = *made;
    files_ = std::move(made);
    return files;
  }

  FastClock clock_;
  std::unique_ptr<FileSystem> files_;
  std::unique_ptr<LiveEngine> engine_;
};

// Takes all the room there is, but for less than a block.
inline void fill_up(FileSystem& files, const std::string& path) {
  OpenOptions options;
  options.write = options.create = true;
  Result<std::unique_ptr<File>> file = files.open(path, options);
  ASSERT_TRUE(file.is_ok()) << file.status().to_string();
  std::uint64_t end = 0;
  for (std::uint64_t step = std::uint64_t{1} << 26; step >= 512;) {
    if ((*file)->allocate(end, step).is_ok()) {
      end += step;
    } else {
      step /= 2;
    }
  }
  EXPECT_GT(end, 0u);
}

}  // namespace larder::disk
