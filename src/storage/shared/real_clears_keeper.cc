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
  FileKeeper(std::string directory, const Digest256& store) : directory_(std::move(directory)), store_(store) {}

  [[nodiscard]] Status save(const ClearHistory& history) override {
    const Status saved = write(history);
    if (saved.is_ok()) return saved;
    return {saved.code(), "nothing was cleared: " + saved.message() + ": mend that, and clear again"};
  }
  // By its path: the directory may have been deleted, and the host makes it again.
  [[nodiscard]] Status write(const ClearHistory& history) const {
    const Result<ShareDirectory> directory = ShareDirectory::open(directory_);
    if (!directory.is_ok()) return directory.status();
    return directory->replace_file(kClearsName, encode_clears(store_, history));
  }

 private:
  const std::string directory_;
  const Digest256 store_;
};

Result<ClearHistory> read_clears(const std::string& directory, const Digest256& store) {
  const Result<ShareDirectory> opened = ShareDirectory::open(directory);
  if (!opened.is_ok()) return opened.status();
  const Result<std::string> bytes = opened->read_file(kClearsName, kMaxClearsBytes);
  if (!bytes.is_ok()) return bytes.status();
  return decode_clears(store, *bytes);
}

}  // namespace

KeptClears open_clears(const std::string& directory, const Digest256& store, const Clock& clock) {
  KeptClears out;
  auto keeper = std::make_unique<FileKeeper>(directory, store);
  Result<ClearHistory> read = read_clears(directory, store);
  if (read.is_ok()) {
    out.history = std::move(*read);
    out.keeper = std::move(keeper);
    return out;
  }
  if (read.status().code() != StatusCode::kNotFound) {
    log_warning(kClearsComponent, "what processes kept for another try is not written to the store shared in " +
                                      directory + ", because its clears are not known: " + read.status().message());
  }
  out.history = ClearHistory::anew(clock, static_cast<std::uint64_t>(::getpid()));
  const Status saved = keeper->write(out.history);
  if (!saved.is_ok()) log_warning(kClearsComponent, "clears of a shared store will fail: " + saved.message());
  out.keeper = std::move(keeper);
  return out;
}

}  // namespace larder::share
