// SPDX-License-Identifier: Apache-2.0
// The symbols of fake_control.h, and what happens when the library is loaded and when the process ends.
#include <sys/resource.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "fakes/hf3fs/fake_api.h"
#include "fakes/hf3fs/fake_control.h"
#include "fakes/hf3fs/fake_world.h"

namespace larder::hf3fs {
namespace {

thread_local std::string last_error;

int answer(std::string problem) {
  last_error = std::move(problem);
  return last_error.empty() ? 0 : -EINVAL;
}

// D3: the real library makes a table as long as the hard limit of open files while it is loaded.
__attribute__((constructor)) void on_load() {
  const char* wanted = std::getenv("LARDER_FAKE_HF3FS_D3");
  struct rlimit limit = {};
  if (wanted == nullptr || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  if (limit.rlim_max <= std::strtoull(wanted, nullptr, 10)) return;
  std::fprintf(stderr, "larder fake 3FS: no memory for a table of all file descriptors (D3)\n");
  std::abort();
}

__attribute__((destructor)) void on_exit() { World::get().shut_down(); }

}  // namespace

LARDER_FAKE_EXPORT void larder_fake_hf3fs_reset() { World::get().reset(); }

LARDER_FAKE_EXPORT int larder_fake_hf3fs_config(const char* json) { return answer(World::get().change_config(json)); }

LARDER_FAKE_EXPORT int larder_fake_hf3fs_fault(const char* json) { return answer(World::get().add_fault(json)); }

LARDER_FAKE_EXPORT const char* larder_fake_hf3fs_error() { return last_error.c_str(); }

LARDER_FAKE_EXPORT std::uint64_t larder_fake_hf3fs_step(std::uint64_t max_events) {
  return World::get().steps.step(max_events);
}

LARDER_FAKE_EXPORT std::uint64_t larder_fake_hf3fs_release() {
  World& world = World::get();
  return world.threads.release() + world.steps.release() + world.land_late();
}

LARDER_FAKE_EXPORT void larder_fake_hf3fs_daemon(bool alive) { World::get().set_daemon(alive); }

LARDER_FAKE_EXPORT void larder_fake_hf3fs_advance(std::uint64_t milliseconds) { World::get().advance(milliseconds); }

LARDER_FAKE_EXPORT void larder_fake_hf3fs_idle() { World::get().threads.wait_idle(); }

LARDER_FAKE_EXPORT void larder_fake_hf3fs_stats(FakeStats* stats) { World::get().read_stats(*stats); }

}  // namespace larder::hf3fs
