// SPDX-License-Identifier: Apache-2.0
// The library's symbols for rings and their I/O. Each validates what the real one validates, and no more; what the real
// one does not survive is counted (would_crash, stale_handles) and refused.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fakes/hf3fs/fake_api.h"
#include "fakes/hf3fs/fake_world.h"

namespace larder::hf3fs {
namespace {

constexpr std::uint64_t kScanJitterMs = 1;  // how late the daemon finds what nobody submitted

// Watches one call of a role.
class RoleCall {
 public:
  RoleCall(World& world, RoleWatch& watch) : watch_(watch) {
    const RoleWatch::Verdict verdict = watch_.enter();
    const RoleCheck check = world.config().roles;
    if (check == RoleCheck::kOff) return;
    if (verdict.changed) count(world.counters.role_changes);
    if (verdict.overlapped) count(world.counters.role_overlaps);
    if (check == RoleCheck::kAbort && (verdict.changed || verdict.overlapped)) {
      std::fprintf(stderr, "larder fake 3FS: a second thread in one role of a ring\n");
      std::abort();
    }
  }
  ~RoleCall() { watch_.leave(); }
  RoleCall(const RoleCall&) = delete;
  RoleCall& operator=(const RoleCall&) = delete;

 private:
  RoleWatch& watch_;
};

int make_ring(Hf3fsIor* ring, const char* mount, RingSettings settings) {
  if (ring == nullptr || mount == nullptr || *mount == '\0' || std::strlen(mount) >= kMaxMountPoint) return -EINVAL;
  if (settings.timeout_ms < 0 || settings.entries <= 0) return -EINVAL;
  settings.mount = mount;
  return World::get().create_ring(std::move(settings), *ring);
}

std::shared_ptr<FakeRing> ring_of(World& world, const Hf3fsIor* ring) {
  if (ring == nullptr) return nullptr;
  auto found = world.find_ring(ring->iorh);
  if (found == nullptr) count(world.counters.stale_handles);
  return found;
}

// The checks of prep_io, with the fd found on the way. 0 or -errno.
int check_prep(World& world, const FakeRing& ring, const Hf3fsIov& iov, bool read, const void* ptr, int fd,
               std::uint64_t length, FakeIo& io) {
  if (read != ring.settings.for_read || length == 0) return -EINVAL;
  const auto* data = static_cast<const std::uint8_t*>(ptr);
  if (data < iov.base || length > iov.size || data + length > iov.base + iov.size) return -EINVAL;
  io.fd = world.fds.find(fd);
  if (io.fd == nullptr) return -EBADF;
  return (read ? io.fd->can_read : io.fd->can_write) ? 0 : -EACCES;
}

// Marks the buffer as the daemon's.
void take_buffer(const FakeConfig& config, FakeIo& io) {
  if (io.iov == nullptr) return;
  io.iov->in_flight.fetch_add(1, std::memory_order_acq_rel);
  if (io.read && config.poison == PoisonMode::kPrep) std::memset(io.data, kPoisonByte, io.length);
  if (!io.read && config.check_ownership) io.digest = digest_of(io.data, io.length);
}

std::shared_ptr<FakeIov> iov_of(World& world, const FakeRing& ring, const Hf3fsIov& iov, const IovId& id) {
  if (iov.iovh == nullptr) return world.iovs.find_by_id(id, world.iov_request(ring.settings.mount, 0, 0));
  auto found = world.iovs.find(iov.iovh);
  if (found == nullptr) count(world.counters.stale_handles);
  return found;
}

}  // namespace

LARDER_FAKE_EXPORT std::size_t hf3fs_ior_size(int entries) {
  const std::size_t entry_bytes = World::get().config().entry_bytes;  // 96, but to a test of the loader
  return 16 + 32 + entry_bytes * (static_cast<std::size_t>(entries) + 1) + 4096;
}

LARDER_FAKE_EXPORT int hf3fs_io_entries(const Hf3fsIor* ior) {
  const auto ring = ring_of(World::get(), ior);
  return ring == nullptr ? 0 : ring->settings.entries;
}

LARDER_FAKE_EXPORT int hf3fs_iorcreate4(Hf3fsIor* ior, const char* mount, int entries, bool for_read, int io_depth,
                                        int timeout, int numa, std::uint64_t flags) {
  (void)numa;
  if (const int failed = World::get().next_call(__func__)) return -failed;
  RingSettings settings;
  settings.entries = entries;
  settings.for_read = for_read;
  settings.io_depth = io_depth;
  settings.timeout_ms = timeout;
  settings.flags = flags;
  return make_ring(ior, mount, std::move(settings));
}

LARDER_FAKE_EXPORT int hf3fs_iorcreate3(Hf3fsIor* ior, const char* mount, int entries, bool for_read, int io_depth,
                                        int priority, int timeout, int numa) {
  const int made = hf3fs_iorcreate4(ior, mount, entries, for_read, io_depth, timeout, numa, 0);
  if (made == 0) ior->priority = priority;
  return made;
}

LARDER_FAKE_EXPORT int hf3fs_iorcreate2(Hf3fsIor* ior, const char* mount, int entries, bool for_read, int io_depth,
                                        int priority, int numa) {
  return hf3fs_iorcreate3(ior, mount, entries, for_read, io_depth, priority, 0, numa);
}

LARDER_FAKE_EXPORT int hf3fs_iorcreate(Hf3fsIor* ior, const char* mount, int entries, bool for_read, int io_depth,
                                       int numa) {
  return hf3fs_iorcreate2(ior, mount, entries, for_read, io_depth, 0, numa);
}

LARDER_FAKE_EXPORT void hf3fs_iordestroy(Hf3fsIor* ior) {
  if (ior != nullptr) World::get().destroy_ring(*ior);
}

LARDER_FAKE_EXPORT int hf3fs_prep_io(const Hf3fsIor* ior, const Hf3fsIov* iov, bool read, void* ptr, int fd,
                                     std::size_t offset, std::uint64_t length, const void* userdata) {
  World& world = World::get();
  if (const int failed = world.next_call(__func__)) return -failed;
  if (ior == nullptr || iov == nullptr || ptr == nullptr) return -EINVAL;
  const auto ring = ring_of(world, ior);
  if (ring == nullptr) return -EINVAL;
  const RoleCall role(world, ring->preparer);
  FakeIo io;
  const int refused = check_prep(world, *ring, *iov, read, ptr, fd, length, io);
  if (refused != 0) return refused;
  if (ring->full()) return -EAGAIN;
  const FakeConfig& config = world.config();
  io.read = read;
  io.data = static_cast<std::uint8_t*>(ptr);
  io.offset = offset;
  io.length = length;
  io.userdata = userdata;
  std::memcpy(io.iov_id.data(), iov->id, sizeof iov->id);
  io.iov_offset = static_cast<std::uint64_t>(io.data - iov->base);
  io.iov = iov_of(world, *ring, *iov, io.iov_id);
  take_buffer(config, io);
  bool start = false;
  const int slot = ring->prepare(std::move(io), config.start_at_prep_permille, world.now_ms(), start);
  if (slot < 0) return slot;
  count(world.counters.prepared);
  world.trace(TraceEvent::kPrep, ring->settings.trace_number, static_cast<std::uint64_t>(slot), offset);
  if (ring->settings.mode != FakeMode::kThreads) return slot;
  if (start) {
    world.scan(ring);
  } else if (ring->want_scan()) {
    world.threads.scan_later(ring, world.now_ms() + kScanJitterMs);
  }
  return slot;
}

LARDER_FAKE_EXPORT int hf3fs_submit_ios(const Hf3fsIor* ior) {
  World& world = World::get();
  if (const int failed = world.next_call(__func__)) return -failed;
  const auto ring = ring_of(world, ior);
  if (ring == nullptr) return -EINVAL;
  if (ring->settings.broken_semaphore) {
    count(world.counters.would_crash);  // D4: posts SEM_FAILED
    return 0;
  }
  const RoleCall role(world, ring->preparer);
  ring->mark_submitted();
  ring->is_unwaited = true;
  count(world.counters.submitted);
  world.trace(TraceEvent::kSubmit, ring->settings.trace_number, 0, 0);
  world.scan(ring);
  const auto timeout_ms = ring->next_timeout_ms(world.config().d1_partial_batch_stays);
  if (timeout_ms && ring->settings.mode == FakeMode::kThreads) world.threads.scan_later(ring, *timeout_ms);
  return 0;
}

LARDER_FAKE_EXPORT int hf3fs_wait_for_ios(const Hf3fsIor* ior, Hf3fsCqe* cqes, int capacity, int min_results,
                                          const struct timespec* deadline) {
  World& world = World::get();
  if (ior == nullptr || cqes == nullptr || capacity <= 0) return -EINVAL;
  const auto ring = ring_of(world, ior);
  if (ring == nullptr) return -EINVAL;
  if (ring->is_unwaited.exchange(false)) {
    if (const int failed = world.next_call(__func__)) return -failed;
  }
  const RoleCall role(world, ring->waiter);
  const int reaped = ring->reap(cqes, capacity, min_results, deadline);
  if (reaped > 0) count(world.counters.reaped, static_cast<std::uint64_t>(reaped));
  world.trace(TraceEvent::kReap, ring->settings.trace_number, static_cast<std::uint64_t>(reaped), 0);
  return reaped;
}

}  // namespace larder::hf3fs
