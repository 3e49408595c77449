// SPDX-License-Identifier: Apache-2.0
// The loader and the one place where signs and errno become Status.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <utility>

#include "storage/hf3fs/usrbio_library.h"

namespace larder::hf3fs {

struct FunctionTable {
  void* handle = nullptr;
#define LARDER_HF3FS_MEMBER(name) name##_fn* name = nullptr;  // NOLINT(bugprone-macro-parentheses): a name
  LARDER_HF3FS_SYMBOLS(LARDER_HF3FS_MEMBER)
#undef LARDER_HF3FS_MEMBER
  // What stands in for the operating system: the library's own functions, or the ones below.
#define LARDER_HF3FS_MEMBER(name) posix_##name##_fn* posix_##name = nullptr;
  LARDER_HF3FS_POSIX(LARDER_HF3FS_MEMBER)
#undef LARDER_HF3FS_MEMBER
};

namespace {

// Grows in each child of a fork, so that a handle knows whether it is at home.
std::atomic<std::uint64_t> fork_generation{0};

void watch_forks() {
  static std::once_flag once;
  std::call_once(
      once, [] { pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1, std::memory_order_relaxed); }); });
}

std::string errno_text(int error) {
  return std::generic_category().message(error) + " (errno " + std::to_string(error) + ")";
}

// What EBADF, EACCES and EPERM mean differs: a call was wrong, a completion lost its ground.
StatusCode code_of(int error, StatusCode lost_ground) {
  switch (error) {
    case EAGAIN:
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM: return StatusCode::kOverloaded;
    case ENOENT:
    case ENODATA: return StatusCode::kNotFound;
    case EEXIST: return StatusCode::kConflict;
    case EINVAL:
    case ENAMETOOLONG:
    case EISDIR:
    case ENOTDIR: return StatusCode::kInvalidArgument;
    case EBADF:
    case EACCES:
    case EPERM: return lost_ground;
    case EROFS:
    case ENOTSUP:
    case ENOSYS: return StatusCode::kUnsupported;
    case EINTR:
    case ECANCELED: return StatusCode::kCancelled;
    case ETIMEDOUT: return StatusCode::kDeadlineExceeded;
    default: return StatusCode::kUnavailable;
  }
}

// Status of a call that gave `error` (positive; 0 is ok).
Status call_status(std::string_view operation, int error) {
  if (error == 0) return Status::ok();
  return {code_of(error, StatusCode::kInvalidArgument), std::string(operation) + ": " + errno_text(error)};
}

Status call_status(std::string_view operation, const std::string& subject, int error) {
  if (error == 0) return Status::ok();
  return call_status(std::string(operation) + " '" + subject + "'", error);
}

// Functions that return -errno. A positive answer where only 0 is success is no error number: taken as it is.
int negated(int answer) { return answer < 0 ? -answer : 0; }

int posix_open(const char* path, int flags, mode_t mode) {
  const int fd = ::open(path, flags, mode);
  return fd >= 0 ? fd : -errno;
}
int posix_close(int fd) { return ::close(fd) == 0 ? 0 : -errno; }
int posix_unlink(const char* path) { return ::unlink(path) == 0 ? 0 : -errno; }

template <class Function>
bool find_symbol(void* handle, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(handle, name));
  return function != nullptr;
}

// Fills the table. The first required symbol that is missing is named.
Status find_symbols(const std::string& path, FunctionTable& table) {
  const char* missing = nullptr;
#define LARDER_HF3FS_FIND(name) \
  if (!find_symbol(table.handle, "hf3fs_" #name, table.name) && missing == nullptr) missing = "hf3fs_" #name;
  LARDER_HF3FS_SYMBOLS(LARDER_HF3FS_FIND)
#undef LARDER_HF3FS_FIND
  if (missing != nullptr) {
    return unsupported("'" + path + "' has no symbol " + missing + ": not a 3FS client library, or too old a one");
  }
  bool has_own_files = true;
#define LARDER_HF3FS_FIND(name) \
  if (!find_symbol(table.handle, "larder_hf3fs_posix_" #name, table.posix_##name)) has_own_files = false;
  LARDER_HF3FS_POSIX(LARDER_HF3FS_FIND)
#undef LARDER_HF3FS_FIND
  if (has_own_files) return Status::ok();
#define LARDER_HF3FS_FIND(name) table.posix_##name = posix_##name;
  LARDER_HF3FS_POSIX(LARDER_HF3FS_FIND)
#undef LARDER_HF3FS_FIND
  return Status::ok();
}

// There is no version symbol; a ring's size shows a changed layout early.
Status probe_layout(const std::string& path, const FunctionTable& table) {
  for (const int entries : {1, 8, 512}) {
    const std::size_t step = table.ior_size(entries + 1) - table.ior_size(entries);
    if (step == kRingBytesPerEntry) continue;
    return unsupported("'" + path + "' uses " + std::to_string(step) + " bytes a ring entry, this build knows " +
                       std::to_string(kRingBytesPerEntry) + ": another version of 3FS");
  }
  return Status::ok();
}

Status check_own_file_limit() {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return call_status("getrlimit(RLIMIT_NOFILE)", errno);
  return check_file_limit(limit.rlim_max);
}

std::string path_from(const LibraryOptions& options) {
  if (!options.path.empty()) return options.path;
  const char* variable = std::getenv(kLibraryVariable);
  return variable != nullptr && *variable != '\0' ? variable : kDefaultLibraryName;
}

}  // namespace

Status check_file_limit(std::uint64_t hard_limit) {
  if (hard_limit <= kMaxHardFileLimit) return Status::ok();
  const std::string shown = hard_limit == RLIM_INFINITY ? "unlimited" : std::to_string(hard_limit);
  return unavailable("the hard limit of open files is " + shown + ": the 3FS library would make a table of that size " +
                     "while it is loaded. Lower it to at most " + std::to_string(kMaxHardFileLimit) +
                     " (ulimit -Hn 1048576)");
}

Result<std::uint64_t> completion_result(std::int64_t result) {
  if (result >= 0) return static_cast<std::uint64_t>(result);
  const int error = static_cast<int>(-result);
  return Status(code_of(error, StatusCode::kUnavailable), "3FS I/O: " + errno_text(error));
}

bool leaves_open(std::int64_t result) {
  if (result >= 0) return false;
  const int error = static_cast<int>(-result);
  switch (code_of(error, StatusCode::kInvalidArgument)) {
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kCancelled: return true;
    default: return false;
  }
}

UsrbioLibrary::UsrbioLibrary(std::string path, std::unique_ptr<FunctionTable> table)
    : path_(std::move(path)),
      table_(std::move(table)),
      fork_generation_(fork_generation.load(std::memory_order_relaxed)) {}

UsrbioLibrary::~UsrbioLibrary() = default;  // the library stays loaded

Result<std::shared_ptr<UsrbioLibrary>> UsrbioLibrary::load(const LibraryOptions& options) {
  if (options.has_file_table) LARDER_RETURN_IF_ERROR(check_own_file_limit());
  watch_forks();
  const std::string path = path_from(options);
  auto table = std::make_unique<FunctionTable>();
  // No RTLD_DEEPBIND: it would part the library from an interposed malloc.
  table->handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (table->handle == nullptr) {
    const char* reason = ::dlerror();
    return unavailable("cannot load the 3FS client library '" + path + "': " + (reason ? reason : "no reason given") +
                       ". Name it in the options or in " + kLibraryVariable);
  }
  LARDER_RETURN_IF_ERROR(find_symbols(path, *table));
  LARDER_RETURN_IF_ERROR(probe_layout(path, *table));
  return std::shared_ptr<UsrbioLibrary>(new UsrbioLibrary(path, std::move(table)));
}

void* UsrbioLibrary::symbol(const char* name) const { return ::dlsym(table_->handle, name); }

Status UsrbioLibrary::check_process() const {
  if (fork_generation.load(std::memory_order_relaxed) == fork_generation_) return Status::ok();
  return unavailable("the 3FS library was loaded before a fork: a child cannot use it");
}

Result<std::string> UsrbioLibrary::mount_point_of(const std::string& path) const {
  LARDER_RETURN_IF_ERROR(check_process());
  // The library throws through its C interface for a path that does not exist.
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return call_status("stat", path, errno);
  char buffer[kMaxMountPoint] = {};
  const int length = table_->extract_mount_point(buffer, sizeof buffer, path.c_str());
  if (length <= 0) return not_found("'" + path + "' is not on a 3FS mount");
  if (static_cast<std::size_t>(length) > sizeof buffer) {
    return invalid_argument("the mount point of '" + path + "' is longer than 255 bytes");
  }
  return std::string(buffer);
}

bool UsrbioLibrary::is_hf3fs(int fd) const { return check_process().is_ok() && table_->is_hf3fs(fd); }

Result<int> UsrbioLibrary::open(const std::string& path, int flags, unsigned mode) const {
  LARDER_RETURN_IF_ERROR(check_process());
  const int fd = table_->posix_open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0) return call_status("open", path, -fd);
  return fd;
}

Status UsrbioLibrary::close(int fd) const {
  LARDER_RETURN_IF_ERROR(check_process());
  return call_status("close", negated(table_->posix_close(fd)));
}

Status UsrbioLibrary::unlink(const std::string& path) const {
  LARDER_RETURN_IF_ERROR(check_process());
  return call_status("unlink", path, negated(table_->posix_unlink(path.c_str())));
}

Status UsrbioLibrary::register_fd(int fd) const {
  LARDER_RETURN_IF_ERROR(check_process());
  const int answer = table_->reg_fd(fd, 0);  // <= 0: minus a duplicate; > 0: errno
  return call_status("hf3fs_reg_fd", answer > 0 ? answer : 0);
}

void UsrbioLibrary::deregister_fd(int fd) const {
  if (check_process().is_ok()) table_->dereg_fd(fd);
}

Status UsrbioLibrary::create_iov(Hf3fsIov& iov, const std::string& mount_point, std::size_t size,
                                 std::size_t block_size, int numa) const {
  LARDER_RETURN_IF_ERROR(check_process());
  // The library ends the process for some of these.
  if (size == 0 || block_size > size || mount_point.empty() || mount_point.size() >= kMaxMountPoint) {
    return invalid_argument("hf3fs_iovcreate: needs 0 < size, block_size <= size and a mount point of 1..255 bytes");
  }
  iov = {};
  return call_status("hf3fs_iovcreate", mount_point,
                     negated(table_->iovcreate(&iov, mount_point.c_str(), size, block_size, numa)));
}

void UsrbioLibrary::destroy_iov(Hf3fsIov& iov) const {
  if (check_process().is_ok() && iov.iovh != nullptr) table_->iovdestroy(&iov);
}

Status UsrbioLibrary::create_ring(Hf3fsIor& ring, const RingOptions& options) const {
  LARDER_RETURN_IF_ERROR(check_process());
  if (options.entries <= 0) return invalid_argument("hf3fs_iorcreate4: a ring needs entries");
  ring = {};
  const int error = negated(table_->iorcreate4(&ring, options.mount_point.c_str(), options.entries, options.for_read,
                                               options.io_depth, options.timeout_ms, options.numa, options.flags));
  LARDER_RETURN_IF_ERROR(call_status("hf3fs_iorcreate4", options.mount_point, error));
  const int entries = table_->io_entries(&ring);
  if (entries == options.entries) return Status::ok();
  table_->iordestroy(&ring);
  return unsupported("a ring made for " + std::to_string(options.entries) + " entries says it has " +
                     std::to_string(entries) + ": another version of 3FS");
}

void UsrbioLibrary::destroy_ring(Hf3fsIor& ring) const {
  if (check_process().is_ok()) table_->iordestroy(&ring);
}

Result<int> UsrbioLibrary::prep(const Hf3fsIor& ring, const Hf3fsIov& iov, const PreparedIo& io) const {
  LARDER_RETURN_IF_ERROR(check_process());
  const int slot = table_->prep_io(&ring, &iov, io.read, io.data, io.fd, io.offset, io.length, io.userdata);
  if (slot < 0) return call_status("hf3fs_prep_io", -slot);
  return slot;
}

Status UsrbioLibrary::submit(const Hf3fsIor& ring) const {
  LARDER_RETURN_IF_ERROR(check_process());
  return call_status("hf3fs_submit_ios", negated(table_->submit_ios(&ring)));
}

Result<std::size_t> UsrbioLibrary::wait(const Hf3fsIor& ring, std::span<Hf3fsCqe> cqes, std::size_t min_results,
                                        const struct timespec& realtime_deadline) const {
  LARDER_RETURN_IF_ERROR(check_process());
  const int capacity = static_cast<int>(cqes.size());
  const int least = static_cast<int>(min_results < cqes.size() ? min_results : cqes.size());
  const int count = table_->wait_for_ios(&ring, cqes.data(), capacity, least, &realtime_deadline);
  if (count < 0) return call_status("hf3fs_wait_for_ios", -count);
  return static_cast<std::size_t>(count);
}

}  // namespace larder::hf3fs
