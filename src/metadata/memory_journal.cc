// SPDX-License-Identifier: Apache-2.0
#include "metadata/memory_journal.h"

#include <algorithm>
#include <utility>

namespace larder::metadata {
namespace {

class MemoryJournal final : public Journal {
 public:
  explicit MemoryJournal(std::shared_ptr<MemoryDisk> disk) : disk_(std::move(disk)) {}
  [[nodiscard]] Status replay(const Visitor& each) override { return disk_->replay(each); }
  [[nodiscard]] Status write(const JournalBatch& batch, bool synced) override { return disk_->write(batch, synced); }
  [[nodiscard]] Status sync() override { return disk_->sync(); }

 private:
  const std::shared_ptr<MemoryDisk> disk_;
};

}  // namespace

std::unique_ptr<Journal> open_memory_journal(std::shared_ptr<MemoryDisk> disk) {
  return std::make_unique<MemoryJournal>(std::move(disk));
}

void MemoryDisk::apply(const JournalBatch& batch, Records& records) {
  batch.for_each([&](std::string_view key,
                     std::string_view value) { records.insert_or_assign(std::string(key), std::string(value)); },
                 [&](std::string_view key) { records.erase(std::string(key)); });
}

void MemoryDisk::sync_all() {
  for (const JournalBatch& batch : unsynced_) apply(batch, synced_);
  unsynced_.clear();
}

void MemoryDisk::set_mood(Mood mood) {
  LockGuard guard(mutex_);
  mood_ = mood;
}

void MemoryDisk::cut_power(std::size_t kept) {
  LockGuard guard(mutex_);
  for (std::size_t i = 0; i < std::min(kept, unsynced_.size()); ++i) apply(unsynced_[i], synced_);
  unsynced_.clear();
  written_ = synced_;
}

std::size_t MemoryDisk::unsynced_writes() const {
  LockGuard guard(mutex_);
  return unsynced_.size();
}

void MemoryDisk::plant(std::string_view key, std::string_view value) {
  LockGuard guard(mutex_);
  for (Records* records : {&written_, &synced_}) records->insert_or_assign(std::string(key), std::string(value));
}

Status MemoryDisk::replay(const Journal::Visitor& each) {
  Records records;
  {
    LockGuard guard(mutex_);
    records = written_;
  }
  for (const auto& [key, value] : records) LARDER_RETURN_IF_ERROR(each(key, value));
  return Status::ok();
}

Status MemoryDisk::write(const JournalBatch& batch, bool synced) {
  LockGuard guard(mutex_);
  if (mood_ == Mood::kRefusing) return unavailable("the memory disk refuses");
  apply(batch, written_);
  unsynced_.push_back(batch);
  if (mood_ == Mood::kPartAnswers) return unavailable("the memory disk has done it, but does not say so");
  if (!synced) return Status::ok();
  sync_all();
  return Status::ok();
}

Status MemoryDisk::sync() {
  LockGuard guard(mutex_);
  if (mood_ != Mood::kWell) return unavailable("the memory disk refuses");
  sync_all();
  return Status::ok();
}

}  // namespace larder::metadata
