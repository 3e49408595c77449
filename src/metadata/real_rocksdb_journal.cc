// SPDX-License-Identifier: Apache-2.0
#include "metadata/real_rocksdb_journal.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/slice_transform.h>
#include <rocksdb/write_batch.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/file_system.h"
#include "base/log.h"

namespace larder::metadata {
namespace {

constexpr std::size_t kNeighbourBytes = 8;  // of a page record's key: 256 pages have them in common

rocksdb::Slice slice(std::string_view text) { return {text.data(), text.size()}; }

Status translate(const rocksdb::Status& status, const std::string& what) {
  if (status.ok()) return Status::ok();
  const std::string message = "metadata journal: " + what + ": " + status.ToString();
  return status.IsCorruption() ? corrupt(message) : unavailable(message);
}

constexpr std::string_view kLogName = "metadata/rocksdb";
constexpr int kLinesPerMinute = 10;
constexpr std::size_t kLineBytes = 512;

// Warnings and errors of RocksDB, in our log. Given none, RocksDB writes a file LOG beside the journal, and a library
// with assertions (Debian's) ends the process at the first line after one that the disk refused.
class RocksdbLog final : public rocksdb::Logger {
 public:
  explicit RocksdbLog(Clock& clock) : Logger(rocksdb::InfoLogLevel::WARN_LEVEL), clock_(clock) {}
  using rocksdb::Logger::Logv;
  // From any thread, also under RocksDB's locks: throws nothing and needs no memory.
  void Logv(rocksdb::InfoLogLevel level, const char* format, va_list arguments) override {
    if (level < rocksdb::InfoLogLevel::WARN_LEVEL || level >= rocksdb::InfoLogLevel::HEADER_LEVEL) return;
    if (!may_write()) return;
    char line[kLineBytes];
    const int wanted = std::vsnprintf(line, sizeof line, format, arguments);
    std::string_view text(line, std::min(static_cast<std::size_t>(std::max(wanted, 0)), sizeof line - 1));
    while (text.ends_with('\n')) text.remove_suffix(1);
    log_line(level == rocksdb::InfoLogLevel::WARN_LEVEL ? LogLevel::kWarning : LogLevel::kError, kLogName, text);
  }

 private:
  bool may_write() {
    const std::int64_t minute = clock_.now().time_since_epoch() / std::chrono::minutes(1);
    if (minute_.exchange(minute) != minute) lines_ = 0;
    const int line = lines_.fetch_add(1);
    if (line == kLinesPerMinute) log_warning(kLogName, "more of RocksDB's lines are left out for up to a minute");
    return line < kLinesPerMinute;
  }

  Clock& clock_;
  std::atomic<std::int64_t> minute_{-1};  // these two are not changed together: a line more or less does no harm
  std::atomic<int> lines_{0};
};

rocksdb::Options options_of(std::shared_ptr<rocksdb::Logger> log) {
  rocksdb::Options options;
  options.compression = rocksdb::kNoCompression;  // keys are digests
  options.max_background_jobs = 2;
  options.allow_concurrent_memtable_write = false;  // there is one writer: metadata/commit_log.h
  options.write_buffer_size = 64 << 20;
  // The pages of one request are often neighbours: where one record went in, the next one goes in cheaply.
  options.memtable_insert_with_hint_prefix_extractor.reset(rocksdb::NewFixedPrefixTransform(kNeighbourBytes));
  options.max_total_wal_size = 256 << 20;  // what opening has to read again
  options.info_log = std::move(log);
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  return options;
}

// One journal has the directory, also while RocksDB is closed to be opened again.
class DirectoryLock {
 public:
  ~DirectoryLock() { release(); }
  DirectoryLock() = default;
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  // Anew, if it was taken before: the file may be another one by now.
  [[nodiscard]] rocksdb::Status take(const std::string& directory) {
    release();
    path_ = directory + "/LARDER_LOCK";
    rocksdb::Status status = rocksdb::Env::Default()->LockFile(path_, &lock_);
    if (status.ok() && ::stat(path_.c_str(), &taken_) != 0) taken_ = {};
    return status;
  }
  // False: the directory at that place may be another one by now, also one of the same content.
  [[nodiscard]] bool is_in_place() const {
    FileState now;
    return ::stat(path_.c_str(), &now) == 0 && now.st_ino == taken_.st_ino && now.st_dev == taken_.st_dev;
  }

 private:
  void release() {
    if (lock_ != nullptr) rocksdb::Env::Default()->UnlockFile(std::exchange(lock_, nullptr)).PermitUncheckedError();
  }

  using FileState = struct stat;
  std::string path_;
  FileState taken_ = {};
  rocksdb::FileLock* lock_ = nullptr;
};

constexpr Nanos kFirstWait = std::chrono::seconds(1);
constexpr Nanos kLongestWait = std::chrono::seconds(30);
constexpr Nanos kBetweenLooks = std::chrono::seconds(1);

class RocksdbJournal final : public Journal {
 public:
  RocksdbJournal(std::string directory, Clock& clock)
      : directory_(std::move(directory)), clock_(clock), log_(std::make_shared<RocksdbLog>(clock)) {}

  // Once, first. kConflict: another one has the directory.
  [[nodiscard]] Status open() {
    rocksdb::Status status = lock_.take(directory_);
    if (status.ok()) status = open_db(true);
    if (status.ok()) status = db_->GetDbIdentity(identity_);
    if (status.ok()) note_written();
    const std::string text = status.ToString();
    const bool is_locked = status.IsIOError() && text.find("LOCK") != std::string::npos;
    if (is_locked && (text.find("lock file") != std::string::npos || text.find("lock hold") != std::string::npos)) {
      return conflict("metadata journal: '" + directory_ + "' is in use by another process: " + text);
    }
    return translate(status, "opening '" + directory_ + "'");
  }

  [[nodiscard]] Status replay(const Visitor& each) override {
    rocksdb::ReadOptions options;
    options.fill_cache = false;
    options.readahead_size = 2 << 20;
    const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(options));
    for (at->SeekToFirst(); at->Valid(); at->Next()) {
      LARDER_RETURN_IF_ERROR(each(at->key().ToStringView(), at->value().ToStringView()));
    }
    return translate(at->status(), "reading '" + directory_ + "'");
  }

  [[nodiscard]] Status write(const JournalBatch& batch, bool synced) override {
    LARDER_RETURN_IF_ERROR(check_pause());
    look_at_folder();
    rocksdb::WriteBatch all(batch.bytes());
    rocksdb::Status status;
    const auto keep_first_error = [&](const rocksdb::Status& next) {
      if (status.ok()) status = next;
    };
    batch.for_each(
        [&](std::string_view key, std::string_view value) { keep_first_error(all.Put(slice(key), slice(value))); },
        [&](std::string_view key) { keep_first_error(all.Delete(slice(key))); });
    if (status.ok()) {
      const Status mended = mend();
      if (!mended.is_ok()) return finish(mended);
      rocksdb::WriteOptions options;
      options.sync = synced;
      most_written_ += all.Count();
      status = db_->Write(options, &all);
    }
    if (status.ok()) note_written();
    return finish(translate(status, "writing to '" + directory_ + "'"));
  }

  [[nodiscard]] Status sync() override {
    LARDER_RETURN_IF_ERROR(check_pause());
    const Status mended = mend();
    if (!mended.is_ok()) return finish(mended);
    return finish(translate(db_->SyncWAL(), "syncing '" + directory_ + "'"));
  }

 private:
  [[nodiscard]] rocksdb::Status open_db(bool may_create) {
    rocksdb::Options options = options_of(log_);
    options.create_if_missing = may_create;
    rocksdb::DB* raw = nullptr;
    rocksdb::Status status = rocksdb::DB::Open(options, directory_, &raw);
    db_.reset(raw);
    return status;
  }
  // RocksDB writes on into files that have lost their names, and says nothing.
  void look_at_folder() {
    if (has_failed_ || clock_.now() < next_look_) return;
    next_look_ = clock_.now() + kBetweenLooks;
    if (lock_.is_in_place() && has_files().ok()) return;
    has_failed_ = true;
    db_.reset();
  }
  // RocksDB needs the file CURRENT to open the folder again.
  [[nodiscard]] rocksdb::Status has_files() const {
    return rocksdb::Env::Default()->FileExists(directory_ + "/CURRENT");
  }
  // Not ok: it is too early to try again. Mending reads the log again, and fails as long as the disk refuses.
  [[nodiscard]] Status check_pause() const {
    const Nanos left = wait_ == Nanos{0} ? wait_ : retry_at_ - clock_.now();
    if (left <= Nanos{0}) return Status::ok();
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(left).count();
    return {failure_.code(), failure_.message() + "; the disk is asked again in " + std::to_string(seconds) + " s"};
  }
  // After an error RocksDB refuses everything. After a full disk it goes on when it is told that there may be room
  // again; after any other error of the disk only when it is opened anew. What was written is in its log. Where
  // another folder may have taken the place of the first, what RocksDB has open is in none: it is not told to go on.
  [[nodiscard]] Status mend() {
    if (!has_failed_) return Status::ok();
    if (lock_.is_in_place() && db_ && db_->Resume().ok()) return Status::ok();
    db_.reset();
    LARDER_RETURN_IF_ERROR(check_folder());
    rocksdb::Status status = lock_.is_in_place() ? rocksdb::Status::OK() : lock_.take(directory_);
    if (status.ok()) status = open_db(false);
    if (!status.ok()) return translate(status, "opening '" + directory_ + "' again");
    return check_content();
  }
  // Before RocksDB opens it: that would write into a folder that is another journal's, and make one that is missing.
  [[nodiscard]] Status check_folder() {
    std::string identity;
    rocksdb::Status status = rocksdb::ReadFileToString(rocksdb::Env::Default(), directory_ + "/IDENTITY", &identity);
    if (status.ok()) status = has_files();
    if (status.IsPathNotFound() || status.IsNotFound()) return lost("is gone, or its files are");
    if (!status.ok()) return translate(status, "looking at '" + directory_ + "'");
    while (identity.ends_with('\n')) identity.pop_back();
    return identity == identity_ ? Status::ok() : lost("is that of another journal");
  }
  // RocksDB numbers all changes: an old copy has fewer than were answered, and what somebody else wrote is more.
  [[nodiscard]] Status check_content() {
    const std::uint64_t found = db_->GetLatestSequenceNumber();
    if (found >= written_ && found <= most_written_) return Status::ok();
    db_.reset();
    return lost(found < written_ ? "has lost changes (is it an older copy?)" : "was written to by another process");
  }
  Status lost(const std::string& how) {
    Status status = unavailable(
        "metadata journal: '" + directory_ + "' " + how +
        ", so it does not have what was answered, and changes are refused. To mend it put the folder back as it was " +
        "(mount its disk again): the journal goes on within 30 s. Or restart what opened it, which then begins with " +
        "what is in the folder");
    if (lost_ != how) log_error(kLogName, status.message());
    lost_ = how;
    return status;
  }
  void note_written() { written_ = most_written_ = db_->GetLatestSequenceNumber(); }
  // The first failure may be mended at once; each one after it takes twice as long.
  Status finish(Status status) {
    if (status.is_ok()) {
      has_failed_ = false;
      lost_.clear();
      wait_ = Nanos{0};
      return status;
    }
    if (std::exchange(has_failed_, true)) {
      wait_ = std::clamp(2 * wait_, kFirstWait, kLongestWait);
      retry_at_ = clock_.now() + wait_;
    }
    failure_ = status;
    return status;
  }

  const std::string directory_;
  Clock& clock_;
  const std::shared_ptr<rocksdb::Logger> log_;
  DirectoryLock lock_;
  std::unique_ptr<rocksdb::DB> db_;  // null: it could not be opened again yet
  std::string identity_;             // RocksDB's name for this journal, constant after open()

  // of the one writer
  bool has_failed_ = false;
  std::string lost_;                // how the folder is lost, once that was logged
  Status failure_;                  // the last one
  Nanos wait_{0};                   // 0: mending may be tried now
  TimePoint retry_at_;              // else from here
  TimePoint next_look_;             // at the folder, not before
  std::uint64_t written_ = 0;       // RocksDB's number of the last change that was answered
  std::uint64_t most_written_ = 0;  // the same, if everything that failed was written all the same
};

}  // namespace

Result<std::unique_ptr<Journal>> open_rocksdb_journal(const std::string& directory, Clock& clock) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return status_from_errno(error.value(), "metadata journal: mkdir", directory);
  auto journal = std::make_unique<RocksdbJournal>(directory, clock);
  LARDER_RETURN_IF_ERROR(journal->open());
  return std::unique_ptr<Journal>(std::move(journal));
}

}  // namespace larder::metadata
