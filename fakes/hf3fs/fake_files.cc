// SPDX-License-Identifier: Apache-2.0
#include "fakes/hf3fs/fake_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "storage/hf3fs/usrbio_abi.h"

namespace larder::hf3fs {
namespace {

constexpr std::uint32_t kUnknown = 0;
constexpr std::uint32_t kMissing = 1;
constexpr std::uint64_t kBlock = 4096;  // of the file system beneath

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Whole transfers; the count of pread / pwrite that ends early, or -errno.
std::int64_t pread_all(int fd, std::uint8_t* to, std::uint64_t bytes, std::uint64_t offset) {
  std::uint64_t done = 0;
  while (done < bytes) {
    const ssize_t moved = ::pread(fd, to + done, bytes - done, static_cast<off_t>(offset + done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return -errno;
    if (moved == 0) break;
    done += static_cast<std::uint64_t>(moved);
  }
  return static_cast<std::int64_t>(done);
}

int pwrite_all(int fd, const std::uint8_t* from, std::uint64_t bytes, std::uint64_t offset) {
  std::uint64_t done = 0;
  while (done < bytes) {
    const ssize_t moved = ::pwrite(fd, from + done, bytes - done, static_cast<off_t>(offset + done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved == 0 ? -EIO : -errno;
    done += static_cast<std::uint64_t>(moved);
  }
  return 0;
}

// Memory for direct I/O, one huge page of each thread. An iov lies in small pages, of which a disk takes only a part
// at once; a copy is faster than that.
class Bounce {
 public:
  static constexpr std::uint64_t kBytes = std::uint64_t{2} << 20;
  Bounce() {
    void* const made =
        ::mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) return;
    mapping_ = made;
    const auto address = reinterpret_cast<std::uintptr_t>(made);
    data_ = reinterpret_cast<std::uint8_t*>(round_up(address, kBytes));
    (void)::madvise(data_, kBytes, MADV_HUGEPAGE);
  }
  ~Bounce() {
    if (mapping_ != nullptr) ::munmap(mapping_, 2 * kBytes);
  }
  Bounce(const Bounce&) = delete;
  Bounce& operator=(const Bounce&) = delete;
  [[nodiscard]] std::uint8_t* data() const { return data_; }

  static Bounce& mine() {
    thread_local Bounce bounce;
    return bounce;
  }

 private:
  void* mapping_ = nullptr;
  std::uint8_t* data_ = nullptr;
};

std::int64_t pread_direct(int fd, std::uint8_t* to, std::uint64_t bytes, std::uint64_t offset) {
  std::uint8_t* const memory = Bounce::mine().data();
  std::uint64_t done = 0;
  while (done < bytes) {
    const std::uint64_t part = std::min(bytes - done, Bounce::kBytes);
    const std::int64_t moved = pread_all(fd, memory, part, offset + done);
    if (moved < 0) return moved;
    std::memcpy(to + done, memory, static_cast<std::size_t>(moved));
    done += static_cast<std::uint64_t>(moved);
    if (static_cast<std::uint64_t>(moved) < part) break;
  }
  return static_cast<std::int64_t>(done);
}

int pwrite_direct(int fd, const std::uint8_t* from, std::uint64_t bytes, std::uint64_t offset) {
  std::uint8_t* const memory = Bounce::mine().data();
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t part = std::min(bytes - done, Bounce::kBytes);
    std::memcpy(memory, from + done, part);
    const int failed = pwrite_all(fd, memory, part, offset + done);
    if (failed != 0) return failed;
    done += part;
  }
  return 0;
}

std::uint64_t size_of(int fd) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

bool has_virtual_directory(const std::string& directory) {
  struct stat info = {};
  const std::string path = (directory == "/" ? "" : directory) + "/" + kVirtualDirectory;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// The nearest ancestor of canonical `path`, itself included, that is a mount.
std::string mount_above(std::string path) {
  while (!path.empty()) {
    if (has_virtual_directory(path)) return path;
    const std::size_t slash = path.find_last_of('/');
    if (slash == std::string::npos) break;
    path.resize(slash);
  }
  return {};
}

}  // namespace

bool FakeSpace::take(std::uint64_t bytes, std::uint64_t limit) {
  const std::uint64_t before = used_.fetch_add(bytes, std::memory_order_relaxed);
  if (limit == 0 || before + bytes <= limit) return true;
  used_.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

void FakeSpace::give(std::uint64_t bytes) {
  // Chunks of earlier processes were never taken here.
  std::uint64_t now = used_.load(std::memory_order_relaxed);
  while (!used_.compare_exchange_weak(now, now - std::min(now, bytes), std::memory_order_relaxed)) {}
}

FakeFile::FakeFile(int fd, int direct_fd, std::uint64_t chunk_bytes, FakeSpace& space)
    : fd_(fd), direct_fd_(direct_fd), chunk_bytes_(chunk_bytes), space_(space), synced_length_(size_of(fd)) {}

FakeFile::~FakeFile() {
  struct stat info = {};
  if (::fstat(fd_, &info) == 0 && info.st_nlink == 0) forget_from(0);  // the space of an unlinked file comes back
  for (auto& segment : segments_) delete segment.load(std::memory_order_relaxed);
  if (direct_fd_ >= 0) ::close(direct_fd_);
  ::close(fd_);
}

bool FakeFile::is_direct(std::uint64_t bytes, std::uint64_t offset) const {
  return direct_fd_ >= 0 && (bytes | offset) % kBlock == 0 && Bounce::mine().data() != nullptr;
}

std::atomic<std::uint32_t>* FakeFile::entry(std::uint64_t chunk) {
  if (chunk / kChunksPerSegment >= kSegments) return nullptr;
  std::atomic<Segment*>& place = segments_[chunk / kChunksPerSegment];
  Segment* segment = place.load(std::memory_order_acquire);
  if (segment == nullptr) {
    auto made = std::make_unique<Segment>();
    if (place.compare_exchange_strong(segment, made.get(), std::memory_order_acq_rel)) segment = made.release();
  }
  return &(*segment)[chunk % kChunksPerSegment];
}

void FakeFile::set_length(std::uint64_t chunk, std::optional<std::uint64_t> length) {
  if (auto* place = entry(chunk)) {
    place->store(length ? static_cast<std::uint32_t>(*length + 2) : kMissing, std::memory_order_release);
  }
}

std::optional<std::uint64_t> FakeFile::discover(std::uint64_t chunk) const {
  const std::uint64_t begin = chunk * chunk_bytes_;
  const std::uint64_t end = std::min(begin + chunk_bytes_, size_of(fd_));
  std::optional<std::uint64_t> found;
  std::uint64_t at = begin;
  while (at < end) {
    const off_t data = ::lseek(fd_, static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 || static_cast<std::uint64_t>(data) >= end) break;
    const off_t hole = ::lseek(fd_, data, SEEK_HOLE);
    if (hole <= data) break;
    at = std::min(static_cast<std::uint64_t>(hole), end);
    found = at - begin;
  }
  return found;
}

std::optional<std::uint64_t> FakeFile::chunk_length(std::uint64_t chunk, std::uint64_t wanted) {
  auto* place = entry(chunk);
  if (place == nullptr) return std::nullopt;
  const std::uint32_t value = place->load(std::memory_order_acquire);
  if (value > kMissing && value - 2 >= wanted) return value - 2;
  const std::optional<std::uint64_t> found = discover(chunk);
  if (value > kMissing) {
    // What this process knows is exact; what lies beneath is in blocks.
    if (found && *found > round_up(value - 2, kBlock)) {
      set_length(chunk, found);
      return found;
    }
    return value - 2;
  }
  // Only an unknown chunk is remembered here, and it stays unknown when it is not there: someone else may write it.
  if (found) set_length(chunk, found);
  return found;
}

std::int64_t FakeFile::read(std::uint8_t* to, std::uint64_t offset, std::uint64_t length, bool forbid_holes) {
  std::uint64_t filled = 0;  // everything before is delivered
  for (std::uint64_t at = 0; at < length;) {
    const std::uint64_t chunk = (offset + at) / chunk_bytes_;
    const std::uint64_t in_chunk = (offset + at) % chunk_bytes_;
    const std::uint64_t want = std::min(chunk_bytes_ - in_chunk, length - at);
    const std::shared_lock lock(lock_of(chunk));
    const std::uint64_t has = chunk_length(chunk, in_chunk + want).value_or(0);
    if (has > in_chunk) {
      const std::uint64_t bytes = std::min(has - in_chunk, want);
      if (at > filled) {
        if (forbid_holes) return -ENODATA;
        std::memset(to + filled, 0, at - filled);
      }
      const std::int64_t moved = is_direct(bytes, offset + at) ? pread_direct(direct_fd_, to + at, bytes, offset + at)
                                                               : pread_all(fd_, to + at, bytes, offset + at);
      if (moved < 0) return moved;
      if (moved > 0) filled = at + static_cast<std::uint64_t>(moved);  // fewer: another process cut the file
    }
    at += want;
  }
  return static_cast<std::int64_t>(filled);
}

int FakeFile::write_chunk(const std::uint8_t* from, std::uint64_t chunk, std::uint64_t in_chunk, std::uint64_t bytes,
                          std::uint64_t capacity) {
  if (entry(chunk) == nullptr) return -EFBIG;
  const std::unique_lock lock(lock_of(chunk));
  const std::uint64_t before = chunk_length(chunk, in_chunk + bytes).value_or(0);
  const std::uint64_t after = std::max(before, in_chunk + bytes);
  if (!space_.take(after - before, capacity)) return -ENOSPC;
  const std::uint64_t offset = chunk * chunk_bytes_ + in_chunk;
  const bool goes_direct = is_direct(bytes, offset);
  if (goes_direct && before == 0) {  // a place for all of the chunk at once; it reads as a hole until it is written
    (void)::fallocate(fd_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset - in_chunk),
                      static_cast<off_t>(chunk_bytes_));
  }
  const int failed =
      goes_direct ? pwrite_direct(direct_fd_, from, bytes, offset) : pwrite_all(fd_, from, bytes, offset);
  if (failed != 0) {
    space_.give(after - before);
    return failed;
  }
  if (after != before) set_length(chunk, after);
  return 0;
}

std::int64_t FakeFile::write(const std::uint8_t* from, std::uint64_t offset, std::uint64_t length,
                             const ChunkFilter& filter, std::uint64_t capacity) {
  std::int64_t outcome = static_cast<std::int64_t>(length);
  const std::uint64_t first = offset / chunk_bytes_;
  for (std::uint64_t at = 0; at < length;) {
    const std::uint64_t chunk = (offset + at) / chunk_bytes_;
    const std::uint64_t in_chunk = (offset + at) % chunk_bytes_;
    const std::uint64_t bytes = std::min(chunk_bytes_ - in_chunk, length - at);
    if (!filter || filter(chunk - first)) {
      const int failed = write_chunk(from + at, chunk, in_chunk, bytes, capacity);
      if (failed != 0 && outcome >= 0) outcome = failed;
    }
    at += bytes;
  }
  return outcome;
}

int FakeFile::punch(std::uint64_t start, std::uint64_t end) {
  if (start % chunk_bytes_ != 0 || end % chunk_bytes_ != 0 || start > end) return -EINVAL;
  const std::uint64_t size = size_of(fd_);
  for (std::uint64_t chunk = start / chunk_bytes_; chunk < end / chunk_bytes_ && chunk * chunk_bytes_ < size; ++chunk) {
    const std::unique_lock lock(lock_of(chunk));
    const std::uint64_t had = chunk_length(chunk, 1).value_or(0);
    if (had == 0) continue;
    if (::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(chunk * chunk_bytes_),
                    static_cast<off_t>(chunk_bytes_)) != 0) {
      return -EIO;
    }
    space_.give(had);
    set_length(chunk, std::nullopt);
  }
  return 0;
}

void FakeFile::forget_from(std::uint64_t first_chunk) {
  for (std::uint64_t index = first_chunk / kChunksPerSegment; index < kSegments; ++index) {
    Segment* segment = segments_[index].load(std::memory_order_acquire);
    if (segment == nullptr) continue;
    const std::uint64_t base = index * kChunksPerSegment;
    for (std::uint64_t i = first_chunk > base ? first_chunk - base : 0; i < kChunksPerSegment; ++i) {
      const std::uint32_t value = (*segment)[i].exchange(kUnknown, std::memory_order_acq_rel);
      if (value > kMissing) space_.give(value - 2);
    }
  }
}

int FakeFile::truncate(std::uint64_t length) {
  const std::uint64_t before = size_of(fd_);
  if (::ftruncate(fd_, static_cast<off_t>(length)) != 0) return -errno;
  if (length < before) forget_from(length / chunk_bytes_);
  if (length > 0 && length != before) {
    const std::uint64_t last = (length - 1) / chunk_bytes_;
    const std::unique_lock lock(lock_of(last));
    // A block of data makes the last chunk visible to other processes as well; it must not overwrite a byte.
    std::uint8_t byte = 0;
    if (::pread(fd_, &byte, 1, static_cast<off_t>(length - 1)) == 1) {
      const int failed = pwrite_all(fd_, &byte, 1, length - 1);
      if (failed != 0) return failed;
    }
    set_length(last, length - last * chunk_bytes_);
  }
  const FakeGuard guard(length_mutex_);
  synced_length_ = written_length_ = length;
  return 0;
}

std::uint64_t FakeFile::length(std::uint64_t now_ms, std::uint64_t lag_ms) {
  const FakeGuard guard(length_mutex_);
  if (written_length_ > synced_length_ && now_ms >= last_write_ms_ + lag_ms) synced_length_ = written_length_;
  return synced_length_;
}

void FakeFile::note_written(std::uint64_t end, std::uint64_t now_ms) {
  const FakeGuard guard(length_mutex_);
  written_length_ = std::max(written_length_, end);
  last_write_ms_ = now_ms;
}

void FakeFile::sync_length() {
  const FakeGuard guard(length_mutex_);
  synced_length_ = std::max(synced_length_, written_length_);
}

std::shared_ptr<FakeFile> FakeFiles::find(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return nullptr;
  const FakeGuard guard(mutex_);
  const auto found = files_.find({info.st_dev, info.st_ino});
  return found == files_.end() ? nullptr : found->second.lock();
}

std::shared_ptr<FakeFile> FakeFiles::of_fd(int fd, std::uint64_t chunk_bytes) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return nullptr;
  const FakeGuard guard(mutex_);
  std::erase_if(files_, [](const auto& item) { return item.second.expired(); });
  std::weak_ptr<FakeFile>& known = files_[{info.st_dev, info.st_ino}];
  if (auto file = known.lock()) return file;
  // A descriptor of our own: the caller's may be closed, append, be direct or one way only.
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const int own = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (own < 0) return nullptr;
  const int direct = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT);  // -1: not on this file system
  auto file = std::make_shared<FakeFile>(own, direct, chunk_bytes, space_);
  known = file;
  return file;
}

bool is_on_fake_mount(int fd) {
  char buffer[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), buffer, sizeof buffer);
  if (length <= 0 || buffer[0] != '/') return false;
  return !mount_above(std::string(buffer, static_cast<std::size_t>(length))).empty();
}

std::optional<std::string> fake_mount_of(const std::string& path) {
  char* resolved = ::realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return std::nullopt;
  std::string canonical = resolved;
  std::free(resolved);  // NOLINT: realpath's contract
  return mount_above(std::move(canonical));
}

}  // namespace larder::hf3fs
