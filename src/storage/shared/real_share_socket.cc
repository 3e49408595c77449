// SPDX-License-Identifier: Apache-2.0
#include "storage/shared/real_share_socket.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>

#include "storage/shared/arena_room.h"

namespace larder::share {
namespace {

using StatBuffer = struct ::stat;

constexpr const char* kLockName = "larder-share.lock";
constexpr const char* kSocketName = "larder-share.sock";
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::size_t kReadBytes = std::size_t{128} << 10;
constexpr std::size_t kFramesAtOnce = 32;

Status system_error(const std::string& what) {
  return unavailable("shared store: " + what + ": " + std::strerror(errno));
}

Status write_error(const std::string& what) {
  if (errno != ENOSPC && errno != EDQUOT) return system_error(what);
  return overloaded("shared store: " + what + ": " + std::strerror(errno));
}

template <class Call>
auto retry(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

class FlockLock final : public ShareLock {
 public:
  explicit FlockLock(Descriptor file) : file_(std::move(file)) {}

 private:
  const Descriptor file_;  // the lock ends when it closes
};

class MappedMemory final : public ShareMemory {
 public:
  // The first `bytes` of what is mapped are the arena.
  MappedMemory(std::span<std::byte> mapped, std::size_t bytes) : mapped_(mapped), bytes_(mapped.first(bytes)) {}
  ~MappedMemory() override { ::munmap(mapped_.data(), mapped_.size()); }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() override { return bytes_; }
  [[nodiscard]] std::span<std::byte> mapped() const { return mapped_; }

 private:
  const std::span<std::byte> mapped_, bytes_;
};

Result<std::shared_ptr<MappedMemory>> map(int fd, std::size_t mapped, std::size_t bytes) {
  void* const at = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return system_error("mapping an arena");
  return std::make_shared<MappedMemory>(std::span<std::byte>(static_cast<std::byte*>(at), mapped), bytes);
}

// The words lie on the page after the arena.
constexpr std::uint64_t words_at(std::uint64_t arena_bytes) {
  return (arena_bytes + kArenaPageBytes - 1) / kArenaPageBytes * kArenaPageBytes;
}
static_assert(sizeof(ClearWords) == 16 && sizeof(ClearWords) <= kArenaPageBytes);
constexpr std::uint64_t kMostArenaBytes = std::uint64_t{1} << 62;

Result<Arena> make_sealed(std::size_t file_bytes, std::size_t bytes) {
  Arena arena;
  arena.descriptor = Descriptor(::memfd_create("larder-share", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!arena.descriptor.is_open()) return system_error("memfd_create");
  const int fd = arena.descriptor.get();
  if (retry([&] { return ::ftruncate(fd, static_cast<off_t>(file_bytes)); }) != 0)
    return system_error("sizing an arena");
  if (::fcntl(fd, F_ADD_SEALS, kSeals) != 0) return system_error("sealing an arena");
  LARDER_ASSIGN_OR_RETURN(std::shared_ptr<MappedMemory> memory, map(fd, file_bytes, bytes));
  arena.memory = memory;
  if (file_bytes > bytes) {
    auto* const words = new (memory->mapped().data() + words_at(bytes)) ClearWords;
    arena.words = std::shared_ptr<ClearWords>(arena.memory, words);
  }
  return arena;
}

// The name leads through an open directory, since a socket's path has 107 bytes and a directory's may have thousands.
sockaddr_un address_in(const Descriptor& directory) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = "/proc/self/fd/" + std::to_string(directory.get()) + "/" + kSocketName;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

bool is_own_peer(const Descriptor& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

Result<Descriptor> make_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return system_error("socket");
  return socket;
}

Status write_all(const Descriptor& file, std::string_view bytes, std::size_t at, const std::string& what) {
  while (!bytes.empty()) {
    const ssize_t put = retry([&] { return ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(at)); });
    if (put <= 0) return write_error("write " + what);
    bytes.remove_prefix(static_cast<std::size_t>(put));
    at += static_cast<std::size_t>(put);
  }
  return Status::ok();
}

FileId file_id(const StatBuffer& info) { return {info.st_dev, info.st_ino}; }

FileId find_file(const Descriptor& directory, const char* name) {
  StatBuffer info{};
  return ::fstatat(directory.get(), name, &info, AT_SYMLINK_NOFOLLOW) == 0 ? file_id(info) : FileId{};
}

// All parents, too. Those that are made are for this user alone.
Status make_directories(const std::string& path) {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string prefix = path.substr(0, end);
    if (::mkdir(prefix.c_str(), 0700) != 0 && errno != EEXIST) return system_error("mkdir " + prefix);
  }
  return Status::ok();
}

}  // namespace

void Descriptor::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Result<ShareDirectory> ShareDirectory::open(const std::string& path) {
  if (path.empty()) return invalid_argument("a shared store needs a directory for its lock and socket");
  const auto open_it = [&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); };
  Descriptor directory(retry(open_it));
  if (!directory.is_open() && errno == ENOENT) {
    LARDER_RETURN_IF_ERROR(make_directories(path));
    directory = Descriptor(retry(open_it));
  }
  if (!directory.is_open()) {
    if (errno == ENOTDIR) return invalid_argument("shared store: " + path + " is no directory");
    return system_error("open " + path);
  }
  StatBuffer info{};
  if (::fstat(directory.get(), &info) != 0) return system_error("stat " + path);
  if (info.st_uid != ::geteuid()) return conflict("shared store: " + path + " belongs to another user");
  if ((info.st_mode & 0022) != 0) return conflict("shared store: others may write to " + path + " (chmod 700)");
  return ShareDirectory(std::move(directory), path);
}

Result<HeldLock> ShareDirectory::try_lock() const {
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  Descriptor file(retry([&] { return ::openat(directory_.get(), kLockName, kFlags, 0600); }));
  if (!file.is_open()) return system_error("open the lock in " + path_);
  if (retry([&] { return ::flock(file.get(), LOCK_EX | LOCK_NB); }) != 0) {
    if (errno == EWOULDBLOCK) return HeldLock{};
    return system_error("lock in " + path_);
  }
  StatBuffer info{};
  if (::fstat(file.get(), &info) != 0) return system_error("stat the lock in " + path_);
  const FileId id = file_id(info);
  if (id != lock_file()) return HeldLock{};  // deleted between the two calls: another one counts now
  return HeldLock{std::make_unique<FlockLock>(std::move(file)), id};
}

Result<ShareListener> ShareDirectory::listen(int backlog) const {
  LARDER_ASSIGN_OR_RETURN(Descriptor socket, make_socket());
  (void)::unlinkat(directory_.get(), kSocketName, 0);
  const sockaddr_un address = address_in(directory_);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return system_error("bind in " + path_);
  }
  if (::listen(socket.get(), backlog) != 0) return system_error("listen in " + path_);
  ShareListener made{std::move(socket), socket_file()};
  // The host would take "no file" for its own, and never look again.
  if (made.file == FileId{}) return unavailable("the socket in " + path_ + " was deleted as soon as it was made");
  return made;
}

void ShareDirectory::remove_socket(const FileId& own) const {
  if (socket_file() == own) (void)::unlinkat(directory_.get(), kSocketName, 0);
}

Result<Descriptor> ShareDirectory::connect() const {
  Result<Descriptor> socket = make_socket();
  if (!socket.is_ok()) return socket;
  const sockaddr_un address = address_in(directory_);
  // A Unix socket connects at once, or not at all.
  if (retry([&] { return ::connect(socket->get(), reinterpret_cast<const sockaddr*>(&address), sizeof address); }) !=
      0) {
    if (errno == ENOENT || errno == ECONNREFUSED) return not_found("shared store: no process answers in " + path_);
    if (errno == EAGAIN) return overloaded("shared store: too many processes wait for the host in " + path_);
    return system_error("connect in " + path_);
  }
  if (!is_own_peer(*socket)) return conflict("shared store: the host in " + path_ + " is another user's");
  return socket;
}

Result<std::string> ShareDirectory::read_file(const char* name, std::size_t most) const {
  const Descriptor file(
      retry([&] { return ::openat(directory_.get(), name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); }));
  const std::string what = std::string(name) + " in " + path_;
  if (!file.is_open() && errno == ENOENT) return not_found("shared store: there is no " + what);
  if (!file.is_open()) return system_error("open " + what);
  StatBuffer info{};
  if (::fstat(file.get(), &info) != 0) return system_error("stat " + what);
  if (!S_ISREG(info.st_mode) || info.st_size < 0 || static_cast<std::uint64_t>(info.st_size) > most) {
    return corrupt("shared store: " + what + " is none of Larder's");
  }
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t got =
        retry([&] { return ::pread(file.get(), bytes.data() + at, bytes.size() - at, static_cast<off_t>(at)); });
    if (got < 0) return system_error("read " + what);
    if (got == 0) break;
    at += static_cast<std::size_t>(got);
  }
  bytes.resize(at);
  return bytes;
}

Status ShareDirectory::replace_file(const char* name, std::string_view bytes) const {
  const std::string next = std::string(name) + ".next", what = next + " in " + path_;
  (void)::unlinkat(directory_.get(), next.c_str(), 0);  // of a process that was killed
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  const Descriptor file(retry([&] { return ::openat(directory_.get(), next.c_str(), kFlags, 0600); }));
  if (!file.is_open()) return write_error("make " + what);
  Status failed = write_all(file, bytes, 0, what);
  if (failed.is_ok() && ::renameat(directory_.get(), next.c_str(), directory_.get(), name) != 0) {
    failed = write_error("rename " + what);
  }
  if (!failed.is_ok()) (void)::unlinkat(directory_.get(), next.c_str(), 0);
  return failed;
}

Status ShareDirectory::overwrite_file(const char* name, std::string_view bytes) const {
  const std::string what = std::string(name) + " in " + path_;
  constexpr int kFlags = O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const Descriptor file(retry([&] { return ::openat(directory_.get(), name, kFlags); }));
  if (!file.is_open()) return write_error("open " + what);
  StatBuffer info{};
  if (::fstat(file.get(), &info) != 0) return system_error("stat " + what);
  if (!S_ISREG(info.st_mode)) return corrupt("shared store: " + what + " is none of Larder's");
  const auto cut = [&](std::size_t size) {
    return retry([&] { return ::ftruncate(file.get(), static_cast<off_t>(size)); });
  };
  // What is new goes first: only that takes room.
  const std::size_t before = std::min(static_cast<std::size_t>(info.st_size), bytes.size());
  if (const Status longer = write_all(file, bytes.substr(before), before, what); !longer.is_ok()) {
    (void)cut(static_cast<std::size_t>(info.st_size));
    return longer;
  }
  Status head = write_all(file, bytes.substr(0, before), 0, what);
  if (head.is_ok() && cut(bytes.size()) != 0) head = system_error("cut " + what);
  if (!head.is_ok()) (void)::unlinkat(directory_.get(), name, 0);  // half new: add_file() writes the old one again
  return head;
}

Status ShareDirectory::add_file(const char* name, std::string_view bytes) const {
  if (find_file(directory_, name) != FileId{}) return Status::ok();
  const std::string what = std::string(name) + " in " + path_;
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  const Descriptor file(retry([&] { return ::openat(directory_.get(), name, kFlags, 0600); }));
  if (!file.is_open()) return errno == EEXIST ? Status::ok() : write_error("make " + what);
  Status written = write_all(file, bytes, 0, what);
  StatBuffer info{};
  const bool is_own = ::fstat(file.get(), &info) == 0 && find_file(directory_, name) == file_id(info);
  if (!written.is_ok() && is_own) (void)::unlinkat(directory_.get(), name, 0);
  return written;
}

FileId ShareDirectory::lock_file() const { return find_file(directory_, kLockName); }
FileId ShareDirectory::socket_file() const { return find_file(directory_, kSocketName); }

Result<Descriptor> accept_own(const Descriptor& listener) {
  for (;;) {
    Descriptor socket(retry([&] { return ::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); }));
    if (socket.is_open() && !is_own_peer(socket)) continue;
    if (!socket.is_open() && errno != EAGAIN && errno != EWOULDBLOCK) return system_error("accept");
    return socket;
  }
}

Result<Arena> make_arena(std::size_t bytes) { return make_sealed(bytes, bytes); }

Result<Arena> make_client_arena(std::size_t bytes) {
  if (bytes > kMostArenaBytes) return invalid_argument("shared store: no machine has an arena of so many bytes");
  return make_sealed(static_cast<std::size_t>(words_at(bytes) + kArenaPageBytes), bytes);
}

Result<Arena> map_client_arena(Descriptor arena, std::uint64_t bytes, std::uint64_t most) {
  if (!arena.is_open()) return corrupt("shared store: a client came without an arena");
  if (bytes == 0 || bytes > std::min(most, kMostArenaBytes)) {
    return invalid_argument("shared store: an arena of " + std::to_string(bytes) + " bytes; the host takes up to " +
                            std::to_string(most));
  }
  const std::uint64_t file_bytes = words_at(bytes) + kArenaPageBytes;
  const int seals = ::fcntl(arena.get(), F_GET_SEALS);
  StatBuffer info{};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return corrupt("shared store: a client's arena could shrink");
  if ((seals & F_SEAL_WRITE) != 0 || ::fstat(arena.get(), &info) != 0 ||
      static_cast<std::uint64_t>(info.st_size) < file_bytes) {
    return corrupt("shared store: a client's arena is not as it said");
  }
  LARDER_ASSIGN_OR_RETURN(std::shared_ptr<MappedMemory> memory,
                          map(arena.get(), static_cast<std::size_t>(file_bytes), static_cast<std::size_t>(bytes)));
  Arena out;
  out.memory = memory;
  // The client has made them before it said where. What it does to them is its own loss: they are only written here.
  auto* const words = reinterpret_cast<ClearWords*>(memory->mapped().data() + words_at(bytes));
  out.words = std::shared_ptr<ClearWords>(out.memory, words);
  return out;
}

void ShareConnection::send(std::string frame) {
  queued_bytes_ += frame.size();
  out_.push_back(std::move(frame));
}

Status ShareConnection::flush() {
  while (!out_.empty()) {
    std::array<iovec, kFramesAtOnce> pieces{};
    std::size_t count = 0;
    for (; count < out_.size() && count < pieces.size(); ++count) {
      const std::size_t skipped = count == 0 ? out_begin_ : 0;
      pieces[count] = {out_[count].data() + skipped, out_[count].size() - skipped};
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (to_pass_.is_open()) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      const int fd = to_pass_.get();
      std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    const ssize_t sent = retry([&] { return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status::ok();
    if (sent < 0) return system_error("send");
    to_pass_.reset();
    queued_bytes_ -= static_cast<std::size_t>(sent);
    out_begin_ += static_cast<std::size_t>(sent);
    for (; !out_.empty() && out_begin_ >= out_.front().size(); out_.pop_front()) out_begin_ -= out_.front().size();
  }
  return Status::ok();
}

Status ShareConnection::receive() {
  in_.erase(0, std::exchange(in_begin_, 0));
  if (chunk_.empty()) chunk_.resize(kReadBytes);
  iovec piece{chunk_.data(), chunk_.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = retry([&] { return ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC); });
  if (got == 0) return unavailable("the other process of the shared store has gone");
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? Status::ok() : system_error("receive");
  in_.append(chunk_.data(), static_cast<std::size_t>(got));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    // Each is ours to close, wanted or not.
    for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= header->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + at, sizeof fd);
      passed_ = Descriptor(fd);
      ++received_descriptors_;
    }
  }
  if (received_descriptors_ > 1 || (message.msg_flags & MSG_CTRUNC) != 0)
    return corrupt("shared store: a peer passed more than one descriptor");
  return Status::ok();
}

Result<std::optional<ShareConnection::Received>> ShareConnection::next() {
  const std::string_view left = std::string_view(in_).substr(in_begin_);
  if (left.size() < kHeadBytes) return std::optional<Received>();
  LARDER_ASSIGN_OR_RETURN(const Head head, decode_head(left));
  if (left.size() - kHeadBytes < head.body_bytes) return std::optional<Received>();
  in_begin_ += kHeadBytes + head.body_bytes;
  return std::optional<Received>({head, left.substr(kHeadBytes, head.body_bytes)});
}

EventWaker::EventWaker() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void EventWaker::wake() {
  const std::uint64_t one = 1;
  (void)!::write(event_.get(), &one, sizeof one);  // full: the thread is woken anyway
}

void EventWaker::clear() {
  std::uint64_t count = 0;
  (void)!::read(event_.get(), &count, sizeof count);
}

}  // namespace larder::share
