// SPDX-License-Identifier: Apache-2.0
#include "storage/shared/real_clears_keeper.h"

#include <unistd.h>

#include <utility>

#include "base/log.h"
#include "storage/shared/clears_file.h"
#include "storage/shared/real_share_socket.h"

namespace larder::share {
namespace {

constexpr std::string_view kClearsComponent = "storage/shared";

class FileKeeper final : public ClearKeeper {
 public:
  explicit FileKeeper(std::shared_ptr<ClearsFile> file) : file_(std::move(file)) {}

  [[nodiscard]] Status save(const ClearHistory& history) override {
    const Status saved = file_->write(history);
    if (saved.is_ok()) return saved;
    return {saved.code(), "nothing was cleared: " + saved.message() + ": mend that, and clear again"};
  }

 private:
  const std::shared_ptr<ClearsFile> file_;
};

}  // namespace

Result<ClearHistory> ClearsFile::read() const {
  LARDER_ASSIGN_OR_RETURN(const ShareDirectory opened, ShareDirectory::open(directory_));
  LARDER_ASSIGN_OR_RETURN(const std::string bytes, opened.read_file(kClearsName, kMaxClearsBytes));
  return decode_clears(store_, bytes);
}

Status ClearsFile::write(const ClearHistory& history) {
  std::string bytes = encode_clears(store_, history);
  LockGuard guard(mutex_);  // beside keep() an older history could stay
  LARDER_ASSIGN_OR_RETURN(const ShareDirectory directory, ShareDirectory::open(directory_));
  Status written = directory.replace_file(kClearsName, bytes);
  if (written.code() == StatusCode::kOverloaded && directory.overwrite_file(kClearsName, bytes).is_ok()) {
    written = Status::ok();
  }
  if (written.is_ok()) bytes_.swap(bytes);
  return written;
}

void ClearsFile::remember(const ClearHistory& history) {
  std::string bytes = encode_clears(store_, history);
  LockGuard guard(mutex_);
  bytes_.swap(bytes);
}

Status ClearsFile::keep() const {
  LockGuard guard(mutex_);
  if (bytes_.empty()) return Status::ok();
  const Result<ShareDirectory> directory = ShareDirectory::open(directory_);
  return directory.is_ok() ? directory->add_file(kClearsName, bytes_) : directory.status();
}

KeptClears open_clears(const std::string& directory, const Digest256& store, const Clock& clock) {
  KeptClears out;
  out.file = std::make_shared<ClearsFile>(directory, store);
  out.keeper = std::make_unique<FileKeeper>(out.file);
  Result<ClearHistory> read = out.file->read();
  if (read.is_ok()) {
    out.history = std::move(*read);
    out.file->remember(out.history);
    return out;
  }
  if (read.status().code() != StatusCode::kNotFound) {
    log_warning(kClearsComponent, "what processes kept for another try is not written to the store shared in " +
                                      directory + ", because its clears are not known: " + read.status().message());
  }
  out.history = ClearHistory::anew(clock, static_cast<std::uint64_t>(::getpid()));
  out.file->remember(out.history);
  const Status saved = out.file->write(out.history);
  if (!saved.is_ok()) log_warning(kClearsComponent, "clears of a shared store will fail: " + saved.message());
  return out;
}

}  // namespace larder::share
