// SPDX-License-Identifier: Apache-2.0
// The operating system's part of a shared store: the directory with its lock and socket, connections, and the arena.
//
// Threads: confined, but for the memory. Nothing here blocks, apart from the directory's own calls.
// Errors: kUnavailable with errno's words; others as each says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "storage/clear_order.h"
#include "storage/shared/share_memory.h"
#include "storage/shared/share_state.h"
#include "storage/shared/share_wire.h"

namespace larder::share {

// Owns a descriptor; -1: none.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  void reset();
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Which file it is, whatever its name. As long as it is open or bound, no other file has the same.
struct FileId {
  std::uint64_t device = 0, number = 0;  // both 0: none
  friend bool operator==(const FileId&, const FileId&) = default;
};

struct HeldLock {
  std::unique_ptr<ShareLock> lock;  // null: another process, or another backend of this one, has it
  FileId file;
};

struct ShareListener {
  Descriptor socket;
  FileId file;
};

class ShareDirectory {
 public:
  // Makes it if it is absent. kConflict: another user's. kInvalidArgument: no directory.
  [[nodiscard]] static Result<ShareDirectory> open(const std::string& path);
  [[nodiscard]] Result<HeldLock> try_lock() const;
  // With the lock only, and if nobody answers: takes the place of a dead host's socket.
  [[nodiscard]] Result<ShareListener> listen(int backlog) const;
  // Not if another one lies there.
  void remove_socket(const FileId& own) const;
  // kNotFound: nobody listens. kOverloaded: somebody does, and accepts nobody now.
  [[nodiscard]] Result<Descriptor> connect() const;
  // A small file there. kNotFound: there is none. kCorrupt: it is larger than `most`, or no file.
  [[nodiscard]] Result<std::string> read_file(const char* name, std::size_t most) const;
  // In one step: whoever reads it has the one or the other. It need not survive a power cut. kOverloaded: the disk is
  // full.
  [[nodiscard]] Status replace_file(const char* name, std::string_view bytes) const;
  // In its place, for a full disk. A crash meanwhile leaves neither the one nor the other. kOverloaded: there is no
  // room for it; the file is as it was, or gone.
  [[nodiscard]] Status overwrite_file(const char* name, std::string_view bytes) const;
  // Not if one of that name is there: then all is well, too. A crash meanwhile leaves a part of it.
  [[nodiscard]] Status add_file(const char* name, std::string_view bytes) const;
  // What lies there now.
  [[nodiscard]] FileId lock_file() const;
  [[nodiscard]] FileId socket_file() const;

 private:
  ShareDirectory(Descriptor directory, std::string path) : directory_(std::move(directory)), path_(std::move(path)) {}
  Descriptor directory_;
  std::string path_;  // for messages
};

// A connection that was waiting; none is left: no descriptor. Those of other users are closed.
[[nodiscard]] Result<Descriptor> accept_own(const Descriptor& listener);

struct Arena {
  Descriptor descriptor;
  std::shared_ptr<ShareMemory> memory;
  // Of a client, behind its arena, on a page of their own: the host writes them, the client reads them.
  std::shared_ptr<ClearWords> words;
};
// Zeroed on first use, sealed: it neither shrinks nor grows. Without words.
[[nodiscard]] Result<Arena> make_arena(std::size_t bytes);
// With words.
[[nodiscard]] Result<Arena> make_client_arena(std::size_t bytes);
// A client's. kCorrupt: it is not sealed, or smaller than it must be. kInvalidArgument: larger than `most`.
[[nodiscard]] Result<Arena> map_client_arena(Descriptor arena, std::uint64_t bytes, std::uint64_t most);

// Frames over a socket that does not block.
class ShareConnection {
 public:
  explicit ShareConnection(Descriptor socket) : socket_(std::move(socket)) {}
  [[nodiscard]] int descriptor() const { return socket_.get(); }

  void send(std::string frame);
  // Goes with the first byte that is sent.
  void pass(Descriptor descriptor) { to_pass_ = std::move(descriptor); }
  // Writes what the socket takes. kUnavailable: the peer has gone.
  [[nodiscard]] Status flush();
  [[nodiscard]] std::size_t queued_bytes() const { return queued_bytes_; }

  // Reads once what is there. kUnavailable: the peer has gone; kCorrupt: it passed more than one descriptor.
  [[nodiscard]] Status receive();
  // The next whole frame; the body lies here until receive(). kCorrupt: as decode_head().
  struct Received {
    Head head;
    std::string_view body;
  };
  [[nodiscard]] Result<std::optional<Received>> next();
  [[nodiscard]] Descriptor take_passed() { return std::move(passed_); }

 private:
  Descriptor socket_, to_pass_, passed_;
  std::deque<std::string> out_;
  std::size_t out_begin_ = 0;  // bytes of out_.front() that are sent
  std::size_t queued_bytes_ = 0;
  std::string in_;
  std::size_t in_begin_ = 0;  // bytes of in_ that next() has given out
  std::vector<char> chunk_;   // what one receive() reads into
  std::size_t received_descriptors_ = 0;
};

// An eventfd.
class EventWaker final : public Waker {
 public:
  EventWaker();
  void wake() override;
  void clear();
  [[nodiscard]] int descriptor() const { return event_.get(); }

 private:
  Descriptor event_;
};

}  // namespace larder::share
