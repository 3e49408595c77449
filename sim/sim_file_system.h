// SPDX-License-Identifier: Apache-2.0
// Simulated files: in memory, with crashes, torn writes, failing operations and a full disk, all from a seed.
//
// The device promises what docs of real ones promise, and nothing more:
// | promise                                   | kept here                                                          |
// |-------------------------------------------|--------------------------------------------------------------------|
// | a 512-byte sector is written whole or not | a crash applies each sector of an unsynced write, or not, by chance |
// | unsynced writes have no order             | each one is kept, dropped or torn on its own                       |
// | sync_data / sync_all of a file            | all its earlier writes and truncations survive                     |
// | names change in order (a journal per disk)| a crash keeps a random prefix of each disk's unsynced name changes |
// | sync_dir                                  | all its disk's name changes up to the last one in it survive       |
// | sync of a file makes its *name* durable   | not promised: that takes sync_dir                                  |
//
// Threads: all calls, any thread (one lock, rank kFileSystem); the seed replays only if calls come in one order.
// Paths: taken as text; '/' separates; no "." or "..". The root "/" and "." exist from the start.
// Direct files: offset, length and address must be multiples of kDirectAlignment, else kInvalidArgument: stricter than
// some disks, so that a test on memory finds what only a real disk would.
// Memory: what was written, twice until the next crash (current and durable).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/ranked_mutex.h"
#include "base/rng.h"
#include "sim/sparse_bytes.h"

namespace larder::sim {

inline constexpr std::size_t kSectorBytes = 512;

// What an injected failure does to the operation it hits.
enum class FileFault : unsigned char {
  kIoError,    // EIO; nothing happened
  kNoSpace,    // ENOSPC; nothing happened
  kShort,      // reads and writes move half of the bytes and say so; other operations: EIO
  kWriteTorn,  // writes move half of the bytes and end with EIO; other operations: EIO
  // A sync ends with EIO and forgets what it should have written, as Linux does: reads find it up to the next crash,
  // and the next sync, which succeeds, does not bring it to the disk. Other operations: EIO.
  kSyncLost,
};
inline constexpr std::size_t kFileFaultCount = 5;

class SimFileSystem final : public FileSystem {
 public:
  explicit SimFileSystem(std::uint64_t seed, std::uint64_t capacity_bytes = std::uint64_t{1} << 40);
  ~SimFileSystem() override;

  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, const OpenOptions& options) override;
  [[nodiscard]] Status rename(const std::string& from, const std::string& to) override;
  [[nodiscard]] Status remove(const std::string& path) override;
  [[nodiscard]] Result<std::vector<std::string>> list(const std::string& directory) override;
  [[nodiscard]] Status make_dirs(const std::string& directory) override;
  [[nodiscard]] Status sync_dir(const std::string& directory) override;
  [[nodiscard]] Result<FileInfo> stat(const std::string& path) override;
  [[nodiscard]] Result<SpaceInfo> space(const std::string& path) override;
  [[nodiscard]] Result<std::unique_ptr<FileLock>> lock(const std::string& path) override;

  // `path` is a disk of its own from now on, with a journal and a device number of its own: an empty directory that
  // survives every crash. A path belongs to the disk that was added last of those it lies on. Before any other call.
  void add_disk(const std::string& path);

  // Power loss: unsynced writes and names are kept, dropped or torn as the table says; locks end; open Files are dead
  // (kUnavailable from every call). The file system itself goes on, as after a restart.
  void crash();

  // The n-th operation from now (1 = the next) fails with `fault`, and so do the `count` - 1 after it. Every call of
  // FileSystem and File counts as one, except stat, size_bytes, path and native_handle. Replaces an earlier order.
  // The Nth-failure loop: for n = 1, 2, ...: fail_nth(n), run the scenario, check; stop when fault_fired() stays false.
  void fail_nth(std::uint64_t n, FileFault fault, std::uint64_t count = 1);
  void clear_fault();
  // Has the last fail_nth() struck? False after clear_fault().
  [[nodiscard]] bool fault_fired() const;
  // Operations counted so far.
  [[nodiscard]] std::uint64_t operations() const;

  // Flips the bits of `mask` in one stored byte, durable and current: bit rot. kNotFound; kInvalidArgument if behind
  // the end.
  [[nodiscard]] Status corrupt_byte(const std::string& path, std::uint64_t offset, std::uint8_t mask);
  // Bytes of all files together.
  [[nodiscard]] std::uint64_t used_bytes() const;

 private:
  friend class SimFile;
  friend class SimFileLock;

  // A write or a change of size that no sync has covered.
  struct PendingWrite {
    std::uint64_t offset = 0;
    std::vector<std::byte> bytes;
    bool is_resize = false;  // then offset is the new size
  };
  struct Node {
    bool is_directory = false;
    SparseBytes current;
    SparseBytes durable;
    std::vector<PendingWrite> pending;
  };
  using NodePtr = std::shared_ptr<Node>;
  using Names = std::map<std::string, NodePtr>;
  // Names set to a node, or removed (null), at once.
  using NameChange = std::vector<std::pair<std::string, NodePtr>>;
  struct PendingNames {
    std::size_t disk = 0;
    NameChange change;
  };

  static void apply(Names& names, const NameChange& change);
  static bool touches(const NameChange& change, const std::string& directory);
  static void crash_file(Node& node, Rng& rng);

  // 0: none of those that add_disk() made.
  [[nodiscard]] std::size_t disk_of(const std::string& path) const LARDER_REQUIRES(mutex_);
  void change_names(std::size_t disk, NameChange change) LARDER_REQUIRES(mutex_);
  [[nodiscard]] NodePtr find(const std::string& path) const LARDER_REQUIRES(mutex_);
  [[nodiscard]] Status check_parent(const std::string& path) const LARDER_REQUIRES(mutex_);
  [[nodiscard]] bool has_children(const std::string& directory) const LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t used_bytes_locked() const LARDER_REQUIRES(mutex_);
  // Counts the operation; true if it must fail.
  [[nodiscard]] bool counts_and_fails() LARDER_REQUIRES(mutex_);
  [[nodiscard]] Status fault_status(const char* operation, const std::string& path) const LARDER_REQUIRES(mutex_);
  void resize(Node& node, std::uint64_t size_bytes) LARDER_REQUIRES(mutex_);

  const std::uint64_t capacity_bytes_;
  mutable RankedMutex mutex_{LockRank::kFileSystem};
  Rng rng_ LARDER_GUARDED_BY(mutex_);
  Names names_ LARDER_GUARDED_BY(mutex_);          // as the program sees them
  Names durable_names_ LARDER_GUARDED_BY(mutex_);  // as a crash would leave them at least
  std::vector<PendingNames> pending_names_ LARDER_GUARDED_BY(mutex_);
  std::vector<std::string> disks_ LARDER_GUARDED_BY(mutex_);
  std::set<std::string> locks_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t epoch_ LARDER_GUARDED_BY(mutex_) = 0;  // grows at each crash
  std::uint64_t operations_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint64_t fail_from_ LARDER_GUARDED_BY(mutex_) = 0;  // operation numbers [fail_from_, fail_until_)
  std::uint64_t fail_until_ LARDER_GUARDED_BY(mutex_) = 0;
  FileFault fault_ LARDER_GUARDED_BY(mutex_) = FileFault::kIoError;
  bool fault_fired_ LARDER_GUARDED_BY(mutex_) = false;
};

}  // namespace larder::sim
