// SPDX-License-Identifier: Apache-2.0
#include "storage/hf3fs/usrbio_page_store.h"

#include <fcntl.h>

#include <atomic>
#include <future>
#include <utility>

#include "base/log_lines.h"
#include "base/rng.h"
#include "storage/hf3fs/waiting_line.h"

namespace larder::hf3fs {
namespace {

constexpr std::size_t kProbePayload = 64;
// Sessions that died with I/O that may still be served, and keep their memory. More than these: the mount is given up.
constexpr std::size_t kMaxDeadSessions = 32;
// Of opening one file, when the numbers of descriptors are still those of files of a dead daemon.
constexpr int kMaxOpenTries = 1024;

Digest256 probe_digest(std::uint64_t seed) {
  Rng rng(seed);
  Digest256 out;
  for (auto& byte : out.bytes) byte = static_cast<std::uint8_t>(rng.below(256));
  return out;
}

}  // namespace

// Open and registered; closed in the order that the library needs: deregister, then close.
class UsrbioPageStore::Files final : public UsrbioFiles {
 public:
  explicit Files(std::shared_ptr<UsrbioLibrary> library) : library_(std::move(library)) {}
  ~Files() override {
    for (const std::vector<int>* side : {&read_, &write_}) {
      for (const int fd : *side) {
        library_->deregister_fd(fd);
        (void)library_->close(fd);
      }
    }
  }
  [[nodiscard]] int descriptor(PageTransfer::Kind direction, std::uint32_t file) const override {
    const std::vector<int>& side = direction == PageTransfer::Kind::kRead ? read_ : write_;
    return file < side.size() ? side[file] : -1;
  }
  Status open(const std::string& path, int flags, PageTransfer::Kind direction) {
    std::vector<int> put_aside;
    const Result<int> fd = open_registered(path, flags, put_aside);
    for (const int other : put_aside) (void)library_->close(other);
    if (!fd.is_ok()) return fd.status();
    (direction == PageTransfer::Kind::kRead ? read_ : write_).push_back(*fd);
    return Status::ok();
  }
  // A reader keeps no write session at the file system's metadata server.
  Status open_all(const std::string& base, std::uint32_t count, PageTransfer::Kind purpose) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::string path = base + '.' + std::to_string(i) + ".bin";
      const bool writes = purpose == PageTransfer::Kind::kWrite;
      LARDER_RETURN_IF_ERROR(open(path, writes ? O_RDWR | O_CREAT : O_RDONLY, purpose));
    }
    return Status::ok();
  }

 private:
  // The library knows files by the numbers of their descriptors, and cannot forget one whose daemon has died before it
  // was closed. When that number is used again, now by us, it can: it looks at the number only. It may be the number of
  // the duplicate that the library makes, the lowest that is free; then the next descriptor opened here has it. So each
  // try frees one number. Those that do not get registered are put aside meanwhile, for the caller to close.
  Result<int> open_registered(const std::string& path, int flags, std::vector<int>& put_aside) {
    Status registered;
    for (int tries = 0; tries < kMaxOpenTries; ++tries) {
      Result<int> fd = library_->open(path, flags);
      if (!fd.is_ok()) return fd;
      flags &= ~(O_CREAT | O_EXCL);  // it is there now
      registered = library_->register_fd(*fd);
      if (registered.code() == StatusCode::kInvalidArgument) {
        library_->deregister_fd(*fd);
        registered = library_->register_fd(*fd);
      }
      if (registered.is_ok()) return fd;
      put_aside.push_back(*fd);
      if (registered.code() != StatusCode::kInvalidArgument || !library_->is_hf3fs(*fd)) break;
    }
    return registered;
  }

  const std::shared_ptr<UsrbioLibrary> library_;
  std::vector<int> read_, write_;
};

class UsrbioPageStore::Session {
 public:
  Session(std::shared_ptr<UsrbioLibrary> library, const UsrbioStoreOptions& options)
      : library_(library), options_(options), watch_(std::make_shared<MountWatch>(std::move(library))) {}
  ~Session();
  Status open();
  [[nodiscard]] bool is_dead() const { return watch_->is_dead(); }
  void ask() const { watch_->ask(); }
  // Has its end nothing to wait for, nor to leave behind?
  [[nodiscard]] bool can_end() const {
    PageStoreStats now;
    add_to(now);
    return !is_hanging() && now.in_flight == 0 && (now.abandoned == 0 || watch_->is_gone());
  }
  [[nodiscard]] bool is_hanging() const { return watch_->is_hanging(); }
  Result<std::shared_ptr<PageFiles>> open_files(const std::string& base, std::uint32_t count,
                                                PageTransfer::Kind purpose);
  [[nodiscard]] bool has_open(const std::string& base, PageTransfer::Kind purpose) const {
    return files_->find({base, purpose}) != nullptr;
  }
  Status submit(PageTransfer transfer) {
    const bool reads = transfer.kind == PageTransfer::Kind::kRead;
    const std::size_t first = reads ? 0 : options_.rings;
    // Neighbours meet in one ring.
    const std::uint64_t window = transfer.address.offset / kGatherBytes;
    const auto turn = static_cast<std::size_t>((transfer.address.file + window) % options_.rings);
    return workers_[first + turn]->submit(std::move(transfer));
  }
  void stop() {
    for (const auto& worker : workers_) worker->stop();
  }
  void add_to(PageStoreStats& out) const {
    for (const auto& worker : workers_) {
      out.in_flight += worker->in_flight();
      out.abandoned += worker->abandoned();
      out.late += worker->late();
    }
  }

 private:
  // What the mount's daemon has given. A task of the watch that nobody waits for any more keeps it.
  struct Opened {
    Status status = Status::ok();
    std::shared_ptr<Files> probe;                      // keeps the watch's descriptor open
    std::vector<std::unique_ptr<RingWorker>> workers;  // of reads, then of writes
  };
  // The open files. Written by the watch's thread only.
  class Table {
   public:
    using Name = std::pair<std::string, PageTransfer::Kind>;
    [[nodiscard]] std::shared_ptr<PageFiles> find(const Name& name) const LARDER_EXCLUDES(mutex_) {
      LockGuard guard(mutex_);
      const auto known = files_.find(name);
      return known == files_.end() ? nullptr : known->second;
    }
    void add(const Name& name, std::shared_ptr<PageFiles> files) LARDER_EXCLUDES(mutex_) {
      LockGuard guard(mutex_);
      files_.emplace(name, std::move(files));
    }
    [[nodiscard]] std::map<Name, std::shared_ptr<PageFiles>> take_all() LARDER_EXCLUDES(mutex_) {
      LockGuard guard(mutex_);
      return std::exchange(files_, {});
    }

   private:
    mutable RankedMutex mutex_{LockRank::kStorage};
    std::map<Name, std::shared_ptr<PageFiles>> files_ LARDER_GUARDED_BY(mutex_);
  };

  // Has the watch do what may wait for the mount.
  Status at_mount(std::function<void()> task) {
    if (watch_->run(std::move(task), patience())) return Status::ok();
    return unavailable("hf3fs: the mount of " + options_.directory + " does not answer; is its daemon stopped?");
  }
  [[nodiscard]] Nanos patience() const { return 2 * options_.ring.client_timeout; }
  static void open_mount(UsrbioStoreOptions options, const std::string& path,
                         const std::shared_ptr<UsrbioLibrary>& library, const std::shared_ptr<MountWatch>& watch,
                         Opened& out);
  Status test_rings(const std::shared_ptr<Files>& files);
  Status test_ring(std::size_t worker, const std::shared_ptr<Files>& files, std::size_t slot);

  const std::shared_ptr<UsrbioLibrary> library_;
  const UsrbioStoreOptions options_;
  const std::shared_ptr<MountWatch> watch_;
  const std::shared_ptr<Table> files_ = std::make_shared<Table>();
  std::shared_ptr<Files> probe_;
  std::vector<std::unique_ptr<RingWorker>> workers_;
};

// Rings, memory and files are given back where a mount that does not answer holds up nobody else.
UsrbioPageStore::Session::~Session() {
  for (const auto& worker : workers_) worker->stop();
  for (const auto& worker : workers_) worker->join();
  auto remains = std::make_shared<Opened>(Opened{Status::ok(), std::move(probe_), std::move(workers_)});
  const auto give_back = [remains = std::move(remains), files = files_] {
    remains->workers.clear();
    files->take_all().clear();
    remains->probe.reset();
  };
  // Who has waited for it in vain does not wait once more.
  if (watch_->end(give_back, is_hanging() ? Nanos(0) : patience())) return;
  log_warning("storage/hf3fs", "the mount of " + options_.directory +
                                   " does not answer: rings, memory and files of it are given back when it does");
}

Status UsrbioPageStore::Session::open() {
  // Every session tests with a file of its own: other processes do so at the same time.
  static std::atomic<std::uint64_t> number{0};
  const std::uint64_t seed = static_cast<std::uint64_t>(real_clock().now().time_since_epoch().count());
  const std::string path = options_.directory + "/.larder-probe-" + probe_digest(seed + number++).hex().substr(0, 16);
  const auto out = std::make_shared<Opened>();
  LARDER_RETURN_IF_ERROR(at_mount([out, path, options = options_, library = library_, watch = watch_] {
    open_mount(options, path, library, watch, *out);
  }));
  probe_ = std::move(out->probe);
  workers_ = std::move(out->workers);
  if (!probe_) return out->status;
  watch_->set_descriptor(probe_->descriptor(PageTransfer::Kind::kWrite, 0));
  const Status tested = out->status.is_ok() ? test_rings(probe_) : out->status;
  // The descriptor stays good for the watch.
  const Status unlinked = at_mount([path, library = library_] { (void)library->unlink(path); });
  return tested.is_ok() ? unlinked : tested;
}

void UsrbioPageStore::Session::open_mount(UsrbioStoreOptions options, const std::string& path,
                                          const std::shared_ptr<UsrbioLibrary>& library,
                                          const std::shared_ptr<MountWatch>& watch, Opened& out) {
  Result<std::string> mount = library->mount_point_of(options.directory);
  if (!mount.is_ok()) {
    const StatusCode code = mount.status().code();  // a mount that is not there may come later
    out.status =
        Status(code == StatusCode::kNotFound ? StatusCode::kUnavailable : code,
               "hf3fs: " + options.directory + " is not a directory on a 3FS mount: " + mount.status().message() +
                   "; see option 'file_path_prefix'");
    return;
  }
  out.probe = std::make_shared<Files>(library);
  out.status = out.probe->open(path, O_RDWR | O_CREAT | O_EXCL, PageTransfer::Kind::kWrite);
  if (out.status.is_ok()) out.status = out.probe->open(path, O_RDONLY, PageTransfer::Kind::kRead);
  options.ring.mount_point = std::move(mount).value();
  for (const auto direction : {PageTransfer::Kind::kRead, PageTransfer::Kind::kWrite}) {
    options.ring.direction = direction;
    for (unsigned i = 0; i < options.rings && out.status.is_ok(); ++i) {
      Result<std::unique_ptr<RingWorker>> worker = RingWorker::create(library, options.ring, watch);
      out.status = worker.status();
      if (worker.is_ok()) out.workers.push_back(std::move(worker).value());
    }
  }
}

// Each writing ring writes a page, then each reading one reads one of them.
Status UsrbioPageStore::Session::test_rings(const std::shared_ptr<Files>& files) {
  for (std::size_t i = 0; i < options_.rings; ++i) {
    LARDER_RETURN_IF_ERROR(test_ring(options_.rings + i, files, i));
  }
  for (std::size_t i = 0; i < options_.rings; ++i) LARDER_RETURN_IF_ERROR(test_ring(i, files, i));
  return Status::ok();
}

Status UsrbioPageStore::Session::test_ring(std::size_t worker, const std::shared_ptr<Files>& files, std::size_t slot) {
  std::vector<std::byte> bytes(kProbePayload, std::byte{0});
  const bool reads = worker < options_.rings;
  for (std::size_t i = 0; i < bytes.size() && !reads; ++i) bytes[i] = static_cast<std::byte>(i + slot);
  const Segment payload{bytes.data(), bytes.size()};
  PageTransfer transfer;
  transfer.kind = reads ? PageTransfer::Kind::kRead : PageTransfer::Kind::kWrite;
  transfer.files = files;
  transfer.address = {0, slot * transfer_bytes(kProbePayload)};
  transfer.envelope.key = probe_digest(slot);
  transfer.envelope.generation = slot + 1;
  transfer.envelope.payload_bytes = bytes.size();
  transfer.payload = {&payload, 1};
  std::promise<Status> promise;
  std::future<Status> ended = promise.get_future();
  transfer.done = [&promise](TransferEnd end) { promise.set_value(std::move(end.status)); };
  Status status = workers_[worker]->submit(std::move(transfer));
  if (status.is_ok()) status = ended.get();  // ends by the transfer's own deadline
  for (std::size_t i = 0; i < bytes.size() && reads && status.is_ok(); ++i) {
    if (bytes[i] != static_cast<std::byte>(i + slot)) status = corrupt("wrong bytes");
  }
  if (status.is_ok()) return status;
  return unavailable("hf3fs: the mount's rings failed their test (a " + std::string(reads ? "read" : "write") +
                     " of one page in " + options_.directory + "): " + status.message());
}

Result<std::shared_ptr<PageFiles>> UsrbioPageStore::Session::open_files(const std::string& base, std::uint32_t count,
                                                                        PageTransfer::Kind purpose) {
  const Table::Name name{base, purpose};
  if (auto known = files_->find(name)) return known;
  const auto status = std::make_shared<Status>();
  const auto open_all = [status, name, count, table = files_, library = library_, directory = options_.directory] {
    if (table->find(name)) return;  // meanwhile
    auto files = std::make_shared<Files>(library);
    *status = files->open_all(name.first, count, name.second);
    if (status->is_ok()) return table->add(name, std::move(files));
    if (status->code() != StatusCode::kNotFound || library->mount_point_of(directory).is_ok()) return;
    *status = unavailable("hf3fs: " + directory + " is not there: is 3FS mounted?");
  };
  LARDER_RETURN_IF_ERROR(at_mount(open_all));
  LARDER_RETURN_IF_ERROR(*status);
  return files_->find(name);
}

UsrbioPageStore::UsrbioPageStore(const UsrbioStoreOptions& options, std::shared_ptr<UsrbioLibrary> library,
                                 Clock& clock)
    : options_(options), library_(std::move(library)), clock_(clock) {}

Result<std::unique_ptr<UsrbioPageStore>> UsrbioPageStore::create(const UsrbioStoreOptions& options, Clock& clock) {
  LARDER_ASSIGN_OR_RETURN(std::shared_ptr<UsrbioLibrary> library, UsrbioLibrary::load(options.library));
  std::unique_ptr<UsrbioPageStore> out(new UsrbioPageStore(options, std::move(library), clock));
  auto session = std::make_shared<Session>(out->library_, options);
  LARDER_RETURN_IF_ERROR(session->open());
  LockGuard guard(out->mutex_);
  out->session_ = std::move(session);
  return out;
}

UsrbioPageStore::~UsrbioPageStore() = default;  // each session waits for its workers

Result<std::shared_ptr<UsrbioPageStore::Session>> UsrbioPageStore::session() {
  const Status down = unavailable("hf3fs: the mount of " + options_.directory + " is down");
  std::vector<std::shared_ptr<Session>> ended, stuck;  // for both no lock may be held
  bool may_open = false;
  {
    LogLines lines;
    LockGuard guard(mutex_);
    if (is_closed_) return unavailable("hf3fs: closed");
    if (session_ && !session_->is_dead()) return session_;
    if (session_) {
      lines.warning("storage/hf3fs", "the mount of " + options_.directory + " does not answer any more");
      next_try_ = clock_.now() + options_.retry_after;
      dead_.push_back(std::move(session_));
      session_ = nullptr;
      ++deaths_;
    }
    if (is_opening_ || clock_.now() < next_try_) return down;
    part_dead(ended, stuck);
    const bool was_given_up = is_given_up_;
    may_open = is_opening_ = has_room();
    if (is_given_up_ && !was_given_up) {
      lines.error("storage/hf3fs",
                  "the mount of " + options_.directory +
                      " is given up until its daemon is started anew: " + std::to_string(dead_.size()) +
                      " times it fell silent with pages in flight, and kept their memory");
    }
    next_try_ = clock_.now() + options_.retry_after;
  }
  ended.clear();
  for (const auto& session : stuck) session->ask();  // is its daemon gone by now?
  stuck.clear();
  if (!may_open) return down;
  auto fresh = std::make_shared<Session>(library_, options_);
  const Status opened = fresh->open();
  LogLines lines;
  LockGuard guard(mutex_);
  is_opening_ = false;
  next_try_ = clock_.now() + options_.retry_after;
  if (fresh->is_hanging()) dead_.push_back(fresh);
  if (!opened.is_ok()) return Status(StatusCode::kUnavailable, opened.message());
  if (is_closed_) return unavailable("hf3fs: closed");
  lines.info("storage/hf3fs", "the mount of " + options_.directory + " is back");
  session_ = std::move(fresh);
  return session_;
}

void UsrbioPageStore::part_dead(std::vector<std::shared_ptr<Session>>& ended,
                                std::vector<std::shared_ptr<Session>>& stuck) {
  for (auto at = dead_.begin(); at != dead_.end();) {
    // Nobody gets hold of a dead one any more; who still has it, must not be the one to end it.
    if (!(*at)->can_end() || at->use_count() > 1) {
      stuck.push_back(*at++);
      continue;
    }
    PageStoreStats last;
    (*at)->add_to(last);
    late_ += last.late;
    ended.push_back(std::move(*at));
    at = dead_.erase(at);
  }
}

bool UsrbioPageStore::has_room() {
  is_given_up_ = dead_.size() > kMaxDeadSessions;
  return !is_given_up_;
}

Result<std::shared_ptr<PageFiles>> UsrbioPageStore::open_files(const std::string& base, std::uint32_t count,
                                                               PageTransfer::Kind purpose) {
  LARDER_ASSIGN_OR_RETURN(const std::shared_ptr<Session> now, session());
  return now->open_files(base, count, purpose);
}

bool UsrbioPageStore::has_open(const std::string& base, PageTransfer::Kind purpose) const {
  std::shared_ptr<Session> now;
  {
    LockGuard guard(mutex_);
    now = session_;
  }
  return now && !now->is_dead() && now->has_open(base, purpose);
}

Status UsrbioPageStore::submit(PageTransfer transfer) {
  std::shared_ptr<Session> now;
  {
    LockGuard guard(mutex_);
    now = session_;
  }
  if (!now || now->is_dead()) return unavailable("hf3fs: the mount of " + options_.directory + " is down");
  return now->submit(std::move(transfer));
}

PageStoreStats UsrbioPageStore::stats() const {
  LockGuard guard(mutex_);
  PageStoreStats out;
  if (session_) session_->add_to(out);
  for (const auto& session : dead_) session->add_to(out);
  out.late += late_;
  out.remounts = deaths_;
  out.is_down = !session_ || session_->is_dead();
  return out;
}

Status UsrbioPageStore::close(std::chrono::nanoseconds limit) {
  std::shared_ptr<Session> last;
  {
    LockGuard guard(mutex_);
    is_closed_ = true;
    last = session_;
  }
  (void)limit;  // the backend's gate has waited for every transfer's end already
  if (last) last->stop();
  return stats().in_flight == 0 ? Status::ok() : deadline_exceeded("hf3fs: pages are still in flight");
}

}  // namespace larder::hf3fs
