// SPDX-License-Identifier: Apache-2.0
#include "pool/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "pool/control_group.h"

namespace larder {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();

std::size_t meminfo_available() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word) {
    std::size_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return kUnknown;
}

// What can be taken without swapping or meeting the limit of a container or a service. Pre-faulting more would end in
// the OOM killer, which gives no error to report, so the question is asked before.
std::size_t available_bytes() {
  return std::min(meminfo_available(), control_group_room("/sys/fs/cgroup", own_control_group()));
}

std::string mib(std::size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

class MappedMemory final : public Memory {
 public:
  MappedMemory(void* mapping, std::size_t mapped, std::byte* data, std::size_t size)
      : mapping_(mapping), mapped_(mapped), data_(data), size_(size) {}
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  ~MappedMemory() override { ::munmap(mapping_, mapped_); }
  std::byte* data() const override { return data_; }
  std::size_t size() const override { return size_; }

 private:
  void* const mapping_;
  const std::size_t mapped_;
  std::byte* const data_;
  const std::size_t size_;
};

// False: the kernel ran out while populating.
bool prefault(std::byte* data, std::size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno == ENOMEM || errno == EFAULT) return false;
#endif
  // Kernels before 5.14: touch each page.
  for (std::size_t i = 0; i < bytes; i += kPageBytes) *const_cast<volatile std::byte*>(data + i) = std::byte{0};
  return true;
}

class HostMemorySource final : public MemorySource {
 public:
  Result<std::unique_ptr<Memory>> allocate(std::size_t bytes) override {
    if (bytes == 0) return invalid_argument("a memory region of 0 bytes was asked for");
    LARDER_RETURN_IF_ERROR(check_memory(bytes, available_bytes()));
    const std::size_t slack = bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes;
    const std::size_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    const std::size_t mapped = rounded + slack;
    void* mapping = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) {
      return overloaded("mmap of " + mib(mapped) + " failed: " + std::strerror(errno));
    }
    // A region that starts on a huge page uses huge pages from its first byte.
    const auto address = reinterpret_cast<std::uintptr_t>(mapping);
    const std::uintptr_t aligned = (address + slack - 1) / slack * slack;
    auto* data = static_cast<std::byte*>(mapping) + (aligned - address);
    auto memory = std::make_unique<MappedMemory>(mapping, mapped, data, bytes);
    (void)::madvise(data, rounded, MADV_HUGEPAGE);  // best effort: small pages work too
    if (!prefault(data, rounded)) return overloaded("the machine ran out of memory while pre-faulting " + mib(bytes));
    return std::unique_ptr<Memory>(std::move(memory));
  }
};

}  // namespace

Status check_memory(std::size_t bytes, std::size_t available) {
  // Unknown: nothing is kept, and only what no machine has is refused.
  const bool is_known = available != kUnknown;
  const std::size_t kept = is_known ? std::min(available / 16, std::size_t{10} << 30) : 2 * kHugePageBytes;
  if (bytes <= available - kept) return Status::ok();
  if (!is_known) return overloaded("asked for " + mib(bytes) + " of memory, which no machine has available");
  return overloaded("asked for " + mib(bytes) + " of memory; " + mib(available) + " is available, of which " +
                    mib(kept) + " stay free for what else runs on the machine: ask for at most " +
                    mib(available - kept));
}

MemorySource& host_memory_source() {
  static HostMemorySource source;
  return source;
}

}  // namespace larder
