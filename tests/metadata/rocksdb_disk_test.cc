// SPDX-License-Identifier: Apache-2.0
// The journal on RocksDB, where its disk is full or refuses, and where its folder is lost.
//
// Each of them in a process of its own: the limit of files is the process's, and a mount is gone with its namespace.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "base/log.h"
#include "metadata/real_rocksdb_journal.h"
#include "tests/metadata/embedded_harness.h"
#include "tests/support/temporary_directory.h"

namespace larder::conformance {
namespace {

namespace fs = std::filesystem;

constexpr int kMostRecords = 200;
constexpr std::size_t kRecordBytes = 8000;
constexpr Nanos kLongestPause = std::chrono::seconds(30);
constexpr int kNoMount = 77;  // a child's exit code

// What is wrong; empty: nothing.
using Story = std::function<std::string()>;

[[noreturn]] void tell_story(const Story& story) {
  (void)::signal(SIGXFSZ, SIG_IGN);
  const std::string wrong = story();
  std::fprintf(stderr, "%s\n", wrong.c_str());
  std::_Exit(wrong.empty() ? 0 : 1);
}

void expect_well(const Story& story) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(tell_story(story), testing::ExitedWithCode(0), "");
}

// Files may have `bytes`, or as many as they like.
bool limit_files(rlim_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
  limit.rlim_cur = std::min(bytes, limit.rlim_max);
  return ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

Status write_record(metadata::Journal& journal, int number) {
  metadata::JournalBatch batch;
  batch.put("k" + std::to_string(number), std::string(kRecordBytes, 'v'));
  return journal.write(batch, number % 2 == 0);
}

// A journal in <place>/journal; `count` records of it were answered.
struct JournalRig {
  explicit JournalRig(const std::string& place) : directory(place + "/journal") { open(); }
  void open() {
    journal.reset();
    auto opened = metadata::open_rocksdb_journal(directory, clock);
    if (opened.is_ok()) journal = std::move(*opened);
    if (!opened.is_ok()) wrong = opened.status().to_string();
  }
  Status write_next() {
    Status status = write_record(*journal, count);
    if (status.is_ok()) ++count;
    return status;
  }
  // Until one is refused.
  Status write_all() {
    Status status;
    while (status.is_ok() && count < kMostRecords) status = write_next();
    return status;
  }
  // From here on no file takes another byte.
  bool refuse() { return write_next().is_ok() && limit_files(1) && !write_next().is_ok(); }
  // Everything that was answered is there, in a journal that is opened anew.
  std::string check_records() {
    open();
    if (!journal) return wrong;
    std::vector<bool> found(kMostRecords);
    const Status status = journal->replay([&](std::string_view key, std::string_view value) {
      const int number = std::atoi(std::string(key.substr(1)).c_str());
      if (value.size() == kRecordBytes) found.at(static_cast<std::size_t>(number)) = true;
      return Status::ok();
    });
    if (!status.is_ok()) return status.to_string();
    const auto all = std::count(found.begin(), found.begin() + count, true);
    return all == count ? "" : std::to_string(all) + " records of " + std::to_string(count);
  }

  const std::string directory;
  ManualClock clock;
  std::unique_ptr<metadata::Journal> journal;
  int count = 0;
  std::string wrong;
};

std::string write_beyond_the_limit_and_after() {
  support::TemporaryDirectory place;
  JournalRig rig(place.path());
  if (!rig.journal) return rig.wrong;
  if (!limit_files(200'000)) return "the limit of files cannot be set";
  const Status refused = rig.write_all();
  for (int again = 0; again < 3; ++again) (void)write_record(*rig.journal, rig.count);
  if (!limit_files(RLIM_INFINITY)) return "the limit of files cannot be taken back";
  if (refused.code() != StatusCode::kUnavailable) return "not refused, but " + refused.to_string();
  rig.clock.advance(kLongestPause);
  Status status = rig.write_next();
  if (status.is_ok()) status = rig.write_next();
  if (status.is_ok()) status = rig.journal->sync();
  if (!status.is_ok()) return "there is room again, but " + status.to_string();
  return rig.check_records();
}

// RocksDB goes on after a full disk when it is told to, and after no other error (here EFBIG).
TEST(RocksdbDiskTest, AfterAnErrorOfTheDiskItMendsItself) { expect_well(write_beyond_the_limit_and_after); }

// Mending reads the whole log, so it is not tried for every call that comes while the disk refuses.
std::string count_the_pauses() {
  support::TemporaryDirectory place;
  JournalRig rig(place.path());
  if (!rig.journal) return rig.wrong;
  for (int round = 0; round < 2; ++round) {
    if (!rig.refuse()) return "not refused";
    for (const int seconds : {1, 2, 4, 8, 16, 30, 30}) {
      const auto is_early = [&](const Status& status) {
        return status.code() == StatusCode::kUnavailable &&
               status.message().find("asked again in") != std::string::npos;
      };
      if (is_early(rig.write_next())) return "was not tried when it was time, before " + std::to_string(seconds);
      if (!limit_files(RLIM_INFINITY)) return "the limit of files cannot be taken back";
      if (!is_early(rig.write_next())) return "was tried at once";
      rig.clock.advance(std::chrono::seconds(seconds) - Nanos{1});
      if (!is_early(rig.journal->sync())) return "was tried too early, before " + std::to_string(seconds);
      if (!limit_files(1)) return "the limit of files cannot be set";
      rig.clock.advance(Nanos{1});
    }
    if (!limit_files(RLIM_INFINITY)) return "the limit of files cannot be taken back";
    const Status status = rig.write_next();
    if (!status.is_ok()) return "the disk is well again, but " + status.to_string();
  }
  return rig.check_records();
}

TEST(RocksdbDiskTest, ADiskThatRefusesIsAskedLessAndLess) { expect_well(count_the_pauses); }

// RocksDB says a line or more for each failure.
std::string count_the_lines() {
  support::TemporaryDirectory place;
  JournalRig rig(place.path());
  if (!rig.journal) return rig.wrong;
  std::atomic<int> lines{0};
  set_log_sink([&](LogLevel, std::string_view component, std::string_view) {
    lines += component == "metadata/rocksdb" ? 1 : 0;
  });
  const auto fail_and_mend = [&rig] { return rig.refuse() && limit_files(RLIM_INFINITY) && rig.write_next().is_ok(); };
  for (int again = 0; again < 20; ++again) {
    if (!fail_and_mend()) return "not refused, or not mended";
  }
  const int first = lines;
  rig.clock.advance(std::chrono::minutes(1));
  if (!fail_and_mend()) return "not refused, or not mended";
  set_log_sink({});
  if (first < 10 || first > 11) return std::to_string(first) + " lines in a minute";
  return lines > first ? "" : "nothing is said in the next minute";
}

TEST(RocksdbDiskTest, WhatRocksdbSaysIsInOurLogAndBounded) { expect_well(count_the_lines); }

// What the folder's place has after the loss.
using Loss = std::function<void(const std::string& directory)>;

std::string other_journal(const std::string& directory) {
  auto other = metadata::open_rocksdb_journal(directory);
  return other.is_ok() ? write_record(**other, 0).message() : other.status().message();
}

// For minutes, whatever is asked.
std::string check_all_are_refused(JournalRig& rig) {
  for (int again = 0; again < 5; ++again) {
    for (const Status& status : {rig.write_next(), rig.journal->sync()}) {
      if (status.code() != StatusCode::kUnavailable) return "the folder is lost, but " + status.to_string();
      if (status.message().find("'" + rig.directory + "'") == std::string::npos) return "where? " + status.message();
      if (status.message().find("To mend it") == std::string::npos) return "what now? " + status.message();
    }
    rig.clock.advance(kLongestPause);
  }
  return "";
}

// is_refused: the disk was refusing when the folder went; else RocksDB has had no error.
std::string lose_the_folder(const Loss& lose, bool is_refused) {
  support::TemporaryDirectory place;
  JournalRig rig(place.path());
  if (!rig.journal) return rig.wrong;
  if (!rig.write_next().is_ok()) return "the first record is refused";
  fs::copy(rig.directory, place.path() + "/older", fs::copy_options::recursive);
  const std::string failed = other_journal(place.path() + "/other");
  if (!failed.empty()) return failed;
  if (is_refused ? !rig.refuse() : !rig.write_next().is_ok()) return "not refused, or refused too early";
  lose(rig.directory);
  if (!limit_files(RLIM_INFINITY)) return "the limit of files cannot be taken back";
  rig.clock.advance(std::chrono::seconds(1));
  std::atomic<int> errors{0};
  set_log_sink([&](LogLevel level, std::string_view, std::string_view message) {
    errors += level == LogLevel::kError && message.find("To mend it") != std::string_view::npos ? 1 : 0;
  });
  const bool was_there = fs::exists(rig.directory);
  const std::string answered = check_all_are_refused(rig);
  set_log_sink({});
  if (!answered.empty()) return answered;
  if (fs::exists(rig.directory) != was_there) return "the folder was made anew";
  return errors == 1 ? "" : std::to_string(errors) + " errors in the log";
}

void put_in_place(const std::string& directory, const std::string& name) {
  fs::remove_all(directory);
  fs::rename(fs::path(directory).parent_path() / name, directory);
}

TEST(RocksdbDiskTest, NothingIsAnsweredOkAfterItsFolderIsLost) {
  const std::array<std::pair<const char*, Loss>, 5> losses{{
      {"gone", [](const std::string& directory) { fs::remove_all(directory); }},
      {"empty",
       [](const std::string& directory) {
         for (const auto& file : fs::directory_iterator(directory)) fs::remove_all(file.path());
       }},
      {"another folder",
       [](const std::string& directory) {
         fs::remove_all(directory);
         fs::create_directory(directory);
       }},
      {"another journal", [](const std::string& directory) { put_in_place(directory, "other"); }},
      {"an older copy", [](const std::string& directory) { put_in_place(directory, "older"); }},
  }};
  for (const auto& [name, lose] : losses) {
    SCOPED_TRACE(name);
    for (const bool is_refused : {true, false}) {
      expect_well([&lose = lose, is_refused] { return lose_the_folder(lose, is_refused); });
    }
  }
}

// How the folder comes back. A copy only after a call was refused: until then RocksDB removes old files by their names.
enum class Return { kUnnoticed, kItself, kCopy };

std::string mend_the_folder(Return how) {
  support::TemporaryDirectory place;
  JournalRig rig(place.path());
  if (!rig.journal) return rig.wrong;
  for (int round = 0; round < 2; ++round) {
    if (!rig.refuse()) return "not refused";
    if (!limit_files(RLIM_INFINITY)) return "the limit of files cannot be taken back";
    const std::string kept = place.path() + "/kept";
    fs::rename(rig.directory, kept);
    if (how != Return::kUnnoticed && rig.write_next().is_ok()) return "the folder is gone, but a write is answered";
    if (how == Return::kCopy) {
      fs::copy(kept, rig.directory, fs::copy_options::recursive);
      fs::remove_all(kept);
    } else {
      fs::rename(kept, rig.directory);
    }
    rig.clock.advance(kLongestPause);
    Status status = rig.write_next();
    if (status.is_ok()) status = rig.journal->sync();
    if (!status.is_ok()) return "the folder is back, but " + status.to_string();
  }
  return rig.check_records();
}

TEST(RocksdbDiskTest, AFolderThatIsBackGoesOn) {
  for (const Return how : {Return::kUnnoticed, Return::kItself, Return::kCopy}) {
    SCOPED_TRACE(static_cast<int>(how));
    expect_well([how] { return mend_the_folder(how); });
  }
}

// As cleaners of old files do.
std::string remove_the_lock() {
  support::TemporaryDirectory place;
  JournalRig rig(place.path());
  if (!rig.journal) return rig.wrong;
  for (int round = 0; round < 2; ++round) {
    if (!rig.write_next().is_ok()) return "a record is refused";
    fs::remove(rig.directory + "/LARDER_LOCK");
    rig.clock.advance(std::chrono::seconds(1));
    const Status status = rig.write_next();
    if (!status.is_ok()) return "nothing is lost, but " + status.to_string();
    const auto second = metadata::open_rocksdb_journal(rig.directory);
    if (second.status().code() != StatusCode::kConflict) return "another one opens it: " + second.status().to_string();
  }
  return rig.check_records();
}

TEST(RocksdbDiskTest, ItsLockIsTakenAgainWhereItWasRemoved) { expect_well(remove_the_lock); }

// The rest of the disk becomes a part of that file.
Status fill_up(const std::string& path) {
  auto file = real_file_system().open(path, {.write = true, .create = true});
  if (!file.is_ok()) return file.status();
  Status status;
  std::uint64_t offset = (*file)->size_bytes().value_or(0);
  for (std::size_t bytes = 1 << 16; bytes > 0; bytes /= 2) {
    const std::vector<std::byte> zeros(bytes);
    while ((status = write_fully(**file, zeros, offset)).is_ok()) offset += bytes;
  }
  return status.code() == StatusCode::kOverloaded ? Status::ok() : status;
}

std::string fill_the_disk(const std::string& mounted) {
  JournalRig rig(mounted);
  if (!rig.journal) return rig.wrong;
  const std::string filler = mounted + "/filler";
  for (int round = 0; round < 3; ++round) {
    if (!rig.write_next().is_ok()) return "a record is refused";
    const Status full = fill_up(filler);
    if (!full.is_ok()) return full.to_string();
    const Status refused = rig.write_all();
    if (refused.code() != StatusCode::kUnavailable) return "not refused, but " + refused.to_string();
    for (int again = 0; again < 10; ++again) {
      const Status status = rig.write_next();  // opening it again may make room for one more
      if (!status.is_ok() && status.code() != StatusCode::kUnavailable) return "a full disk is " + status.to_string();
      rig.clock.advance(kLongestPause);
      if (!fill_up(filler).is_ok()) return "the disk cannot be filled again";
    }
    for (const auto& file : fs::directory_iterator(rig.directory)) {
      if (file.path().filename().string().starts_with("LOG")) return "there is a file " + file.path().string();
    }
    fs::remove(filler);
    const Status status = rig.write_next();
    if (!status.is_ok()) return "there is room again, but " + status.to_string();
  }
  return rig.check_records();
}

// RocksDB, told that there is room again, would go on with files that have no name in the folder.
std::string lose_on_a_full_disk(const std::string& mounted) {
  JournalRig rig(mounted);
  if (!rig.journal) return rig.wrong;
  if (!rig.write_next().is_ok()) return "a record is refused";
  const Status full = fill_up(mounted + "/filler");
  if (!full.is_ok()) return full.to_string();
  if (rig.write_all().is_ok()) return "not refused";
  fs::rename(rig.directory, mounted + "/elsewhere");
  fs::create_directory(rig.directory);
  // It goes on only where a whole buffer of its own is free, so the disk grows.
  if (::mount("none", mounted.c_str(), "tmpfs", MS_REMOUNT, "size=96m") != 0) return "the disk cannot grow";
  return check_all_are_refused(rig);
}

[[noreturn]] void tell_on_a_small_disk(std::string (*story)(const std::string& mounted)) {
  support::TemporaryDirectory place;
  const bool is_mounted = ::unshare(CLONE_NEWNS) == 0 &&
                          ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                          ::mount("none", place.path().c_str(), "tmpfs", 0, "size=8m") == 0;
  if (!is_mounted) {
    std::fprintf(stderr, "no mount: %s\n", std::strerror(errno));
    fs::remove(place.path());
    std::_Exit(kNoMount);
  }
  const std::string wrong = story(place.path());
  (void)::umount2(place.path().c_str(), MNT_DETACH);
  fs::remove(place.path());
  tell_story([&] { return wrong; });
}

// False: this process may not mount.
bool expect_well_on_a_small_disk(std::string (*story)(const std::string& mounted)) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  bool has_mount = true;
  const auto is_well = [&](int state) {
    has_mount = !(WIFEXITED(state) && WEXITSTATUS(state) == kNoMount);
    return !has_mount || (WIFEXITED(state) && WEXITSTATUS(state) == 0);
  };
  EXPECT_EXIT(tell_on_a_small_disk(story), is_well, "");
  return has_mount;
}

constexpr const char* kWhyNoMount = "needs root with leave to mount: a small tmpfs is filled";

// RocksDB's own file LOG, once the disk refused a line of it, ended the process.
TEST(RocksdbDiskTest, AFullDiskIsUnavailableAndEndsNoProcess) {
  if (!expect_well_on_a_small_disk(fill_the_disk)) GTEST_SKIP() << kWhyNoMount;
}

TEST(RocksdbDiskTest, AFullDiskThatIsLostIsNotTakenForMended) {
  if (!expect_well_on_a_small_disk(lose_on_a_full_disk)) GTEST_SKIP() << kWhyNoMount;
}

}  // namespace
}  // namespace larder::conformance
