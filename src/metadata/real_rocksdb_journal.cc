// SPDX-License-Identifier: Apache-2.0
#include "metadata/real_rocksdb_journal.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/slice_transform.h>
#include <rocksdb/write_batch.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/file_system.h"

namespace larder::metadata {
namespace {

constexpr std::size_t kNeighbourBytes = 8;  // of a page record's key: 256 pages have them in common

rocksdb::Slice slice(std::string_view text) { return {text.data(), text.size()}; }

Status translate(const rocksdb::Status& status, const std::string& what) {
  if (status.ok()) return Status::ok();
  const std::string message = "metadata journal: " + what + ": " + status.ToString();
  return status.IsCorruption() ? corrupt(message) : unavailable(message);
}

rocksdb::Options options_of() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;  // keys are digests
  options.max_background_jobs = 2;
  options.allow_concurrent_memtable_write = false;  // there is one writer: metadata/commit_log.h
  options.write_buffer_size = 64 << 20;
  // The pages of one request are often neighbours: where one record went in, the next one goes in cheaply.
  options.memtable_insert_with_hint_prefix_extractor.reset(rocksdb::NewFixedPrefixTransform(kNeighbourBytes));
  options.max_total_wal_size = 256 << 20;  // what opening has to read again
  options.keep_log_file_num = 2;
  options.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  return options;
}

// One journal has the directory, also while RocksDB is closed to be opened again.
class DirectoryLock {
 public:
  ~DirectoryLock() {
    if (lock_ != nullptr) rocksdb::Env::Default()->UnlockFile(lock_).PermitUncheckedError();
  }
  DirectoryLock() = default;
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  [[nodiscard]] rocksdb::Status take(const std::string& directory) {
    return rocksdb::Env::Default()->LockFile(directory + "/LARDER_LOCK", &lock_);
  }

 private:
  rocksdb::FileLock* lock_ = nullptr;
};

class RocksdbJournal final : public Journal {
 public:
  explicit RocksdbJournal(std::string directory) : directory_(std::move(directory)) {}

  // Once, first. kConflict: another one has the directory.
  [[nodiscard]] Status open() {
    rocksdb::Status status = lock_.take(directory_);
    if (status.ok()) status = open_db();
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
    rocksdb::WriteBatch all(batch.bytes());
    rocksdb::Status status;
    const auto keep_first_error = [&](const rocksdb::Status& next) {
      if (status.ok()) status = next;
    };
    batch.for_each(
        [&](std::string_view key, std::string_view value) { keep_first_error(all.Put(slice(key), slice(value))); },
        [&](std::string_view key) { keep_first_error(all.Delete(slice(key))); });
    rocksdb::WriteOptions options;
    options.sync = synced;
    if (status.ok()) status = mend();
    if (status.ok()) status = db_->Write(options, &all);
    return finish(translate(status, "writing to '" + directory_ + "'"));
  }

  [[nodiscard]] Status sync() override {
    rocksdb::Status status = mend();
    if (status.ok()) status = db_->SyncWAL();
    return finish(translate(status, "syncing '" + directory_ + "'"));
  }

 private:
  [[nodiscard]] rocksdb::Status open_db() {
    rocksdb::DB* raw = nullptr;
    rocksdb::Status status = rocksdb::DB::Open(options_of(), directory_, &raw);
    db_.reset(raw);
    return status;
  }
  // After an error RocksDB refuses everything. After a full disk it goes on when it is told that there may be room
  // again; after any other error of the disk only when it is opened anew. What was written is in its log.
  [[nodiscard]] rocksdb::Status mend() {
    if (!has_failed_ || (db_ && db_->Resume().ok())) return rocksdb::Status::OK();
    db_.reset();
    return open_db();
  }
  Status finish(Status status) {
    has_failed_ = !status.is_ok();
    return status;
  }

  const std::string directory_;
  DirectoryLock lock_;
  std::unique_ptr<rocksdb::DB> db_;  // null: it could not be opened again yet
  bool has_failed_ = false;          // of the one writer
};

}  // namespace

Result<std::unique_ptr<Journal>> open_rocksdb_journal(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return status_from_errno(error.value(), "metadata journal: mkdir", directory);
  auto journal = std::make_unique<RocksdbJournal>(directory);
  LARDER_RETURN_IF_ERROR(journal->open());
  return std::unique_ptr<Journal>(std::move(journal));
}

}  // namespace larder::metadata
