// SPDX-License-Identifier: Apache-2.0
#include "fakes/hf3fs/fake_world.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bitset>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace larder::hf3fs {
namespace {

constexpr std::size_t kJobsPerScan = 32;

std::string binary(std::uint64_t flags) {
  if (flags == 0) return "0";
  const std::string digits = std::bitset<64>(flags).to_string();
  return digits.substr(digits.find('1'));
}

// A ring's link, as the library writes it: flags in binary at creation (and, its defect D2, in decimal at destruction).
std::string ring_link(const RingSettings& ring, const std::string& name, const std::string& flags) {
  return iov_link_path(ring.mount, name + (ring.for_read ? ".r" : ".w") + std::to_string(ring.io_depth) + ".t" +
                                       std::to_string(ring.timeout_ms) + ".f" + flags);
}

}  // namespace

World& World::get() {
  static World* world = new World();  // NOLINT: outlives every static object that may call
  return *world;
}

World::World() : process_(::getpid()) { reset(); }

void World::publish(const FakeConfig& config) {
  configs_.push_back(std::make_unique<const FakeConfig>(config));
  config_.store(configs_.back().get(), std::memory_order_release);
  published_.notify_all();
}

std::string World::change_config(const char* json) {
  FakeConfig config;
  bool seeded = false;
  {
    const FakeGuard guard(config_mutex_);
    config = this->config();
    std::string problem = parse_config(json, config);
    if (!problem.empty()) return problem;
    executed_since_config_.store(0, std::memory_order_relaxed);
    calls_since_config_.store(0, std::memory_order_relaxed);
    seeded = config.seed != this->config().seed;
    publish(config);
  }
  if (seeded) steps.seed(config.seed);
  return {};
}

std::string World::add_fault(const char* json) {
  FaultRule rule;
  std::string problem = parse_fault(json, rule);
  if (!problem.empty()) return problem;
  const FakeGuard guard(config_mutex_);
  faults_.push_back(std::move(rule));
  fault_count_.store(faults_.size(), std::memory_order_release);
  return problem;
}

std::optional<FaultEffect> World::next_fault(bool read) {
  if (fault_count_.load(std::memory_order_acquire) == 0) return std::nullopt;
  const FakeGuard guard(config_mutex_);
  for (auto rule = faults_.begin(); rule != faults_.end(); ++rule) {
    if (!(read ? rule->reads : rule->writes)) continue;
    if (rule->skip > 0) {
      --rule->skip;
      continue;
    }
    FaultEffect effect = rule->effect;
    if (--rule->count == 0) faults_.erase(rule);
    fault_count_.store(faults_.size(), std::memory_order_release);
    return effect;
  }
  return std::nullopt;
}

int World::next_call(const char* name) {
  const FakeConfig& now = config();
  if (calls_since_config_.fetch_add(1, std::memory_order_relaxed) + 1 != now.fail_call) return 0;
  // seq_cst: who sees the count sees the name.
  failed_call_.store(name);
  counters.failed_calls.fetch_add(1);
  return now.call_error;
}

std::uint64_t World::now_ms() const {
  const std::uint64_t advanced = advanced_ms_.load(std::memory_order_acquire);
  if (config().mode != FakeMode::kThreads) return advanced;
  const auto since_boot = std::chrono::steady_clock::now().time_since_epoch();
  const auto real = std::chrono::duration_cast<std::chrono::milliseconds>(since_boot).count();
  return advanced + static_cast<std::uint64_t>(real);
}

void World::advance(std::uint64_t milliseconds) {
  advanced_ms_.fetch_add(milliseconds, std::memory_order_acq_rel);
  trace(TraceEvent::kTime, milliseconds, 0, 0);
  threads.wake();
  for (const auto& ring : rings()) {
    if (ring->settings.mode == FakeMode::kSync) scan(ring);
  }
  steps.run_due();
}

bool World::note_executed() {
  const std::uint64_t limit = config().die_after_events;
  if (limit == 0) return false;
  return executed_since_config_.fetch_add(1, std::memory_order_relaxed) + 1 == limit;
}

void World::set_daemon(bool alive) {
  if (alive_.exchange(alive, std::memory_order_acq_rel) == alive) return;
  trace(TraceEvent::kDeath, alive ? 1 : 0, 0, 0);
  if (alive) {
    life_.fetch_add(1, std::memory_order_acq_rel);
    return;
  }
  steps.drop_all(true);
  threads.drop_all();
}

bool World::answers_for(int fd) {
  if (config().probe_blocks) {
    const FakeGuard guard(config_mutex_);
    while (config().probe_blocks) published_.wait(config_mutex_);
  }
  return alive() && is_on_fake_mount(fd) && fds.opened_life(fd).value_or(daemon_life()) == daemon_life();
}

void World::keep_late(LateWrite write) {
  const FakeGuard guard(late_mutex_);
  late_.push_back(std::move(write));
}

std::uint64_t World::land_late() {
  std::vector<LateWrite> now;
  {
    const FakeGuard guard(late_mutex_);
    now.swap(late_);
  }
  for (const LateWrite& write : now) {
    (void)write.file->write(write.bytes.data(), write.offset, write.bytes.size(), nullptr, config().capacity_bytes);
  }
  return now.size();
}

IovRequest World::iov_request(std::string mount, std::size_t size, std::size_t block_size) const {
  return {std::move(mount), size, block_size, daemon_life(), config().fail_registration};
}

int World::create_ring(RingSettings settings, Hf3fsIor& ring) {
  struct stat info = {};
  const std::string directory = settings.mount + "/" + kVirtualDirectory;
  if (!alive() || ::stat(directory.c_str(), &info) != 0) return -ENOENT;
  (void)::mkdir((settings.mount + "/" + kIovLinkDirectory).c_str(), 0777);
  const FakeConfig& config = this->config();
  settings.broken_semaphore = config.semaphores_fail;
  if (settings.broken_semaphore && !config.d4_semaphore_unchecked) return -EIO;
  const IovId id = new_iov_id();
  const std::string name = iov_name(id);
  settings.link = ring_link(settings, name, binary(settings.flags));
  if (::symlink(iov_memory_path(id).c_str(), settings.link.c_str()) != 0) return -errno;
  settings.mode = config.mode;
  settings.daemon_life = daemon_life();
  const FakeGuard guard(rings_mutex_);
  settings.number = next_ring_++;
  settings.trace_number = settings.number - first_ring_;
  settings.seed = config.seed * 1'000'003 + settings.trace_number;
  ring = {};
  std::memcpy(ring.iov.id, id.data(), id.size());
  ring.iov.numa = -1;
  std::strncpy(ring.mount_point, settings.mount.c_str(), sizeof ring.mount_point - 1);
  std::strncpy(ring.iov.mount_point, settings.mount.c_str(), sizeof ring.iov.mount_point - 1);
  ring.for_read = settings.for_read;
  ring.io_depth = settings.io_depth;
  ring.timeout = settings.timeout_ms;
  ring.flags = settings.flags;
  ring.iorh = reinterpret_cast<void*>(settings.number);
  if (settings.mode == FakeMode::kThreads) threads.start(config.workers, config.seed);
  const std::uint64_t number = settings.number;
  rings_[number] = std::make_shared<FakeRing>(std::move(settings));
  return 0;
}

void World::destroy_ring(Hf3fsIor& ring) {
  std::shared_ptr<FakeRing> gone;
  {
    const FakeGuard guard(rings_mutex_);
    const auto found = rings_.find(reinterpret_cast<std::uint64_t>(ring.iorh));
    if (found == rings_.end()) {
      count(counters.stale_handles);
      return;
    }
    gone = std::move(found->second);
    rings_.erase(found);
  }
  if (gone->in_flight() > 0 && serves(gone->settings.daemon_life)) count(counters.destroyed_in_flight);
  gone->close();
  const std::string& link = gone->settings.link;
  const std::string flags =
      config().d2_ring_link_stays ? std::to_string(gone->settings.flags) : binary(gone->settings.flags);
  const std::string removed = link.substr(0, link.rfind(".f")) + ".f" + flags;
  if (removed != link) count(counters.leaked_ring_links);
  (void)::unlink(removed.c_str());
}

std::shared_ptr<FakeRing> World::find_ring(const void* handle) const {
  const FakeGuard guard(rings_mutex_);
  const auto found = rings_.find(reinterpret_cast<std::uint64_t>(handle));
  return found == rings_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<FakeRing>> World::rings() const {
  const FakeGuard guard(rings_mutex_);
  std::vector<std::shared_ptr<FakeRing>> all;
  for (const auto& [number, ring] : rings_) all.push_back(ring);
  return all;
}

std::vector<JobPtr> World::take_jobs(const std::shared_ptr<FakeRing>& ring) {
  std::vector<JobPtr> jobs;
  if (!serves(ring->settings.daemon_life)) return jobs;
  for (auto& slots : ring->take_jobs(now_ms(), config().d1_partial_batch_stays, kJobsPerScan)) {
    auto job = std::make_shared<FakeJob>();
    job->ring = ring;
    job->slots = std::move(slots);
    plan_job(*this, *job);
    trace(TraceEvent::kJob, ring->settings.trace_number, job->slots.size(), 0);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

void World::scan(const std::shared_ptr<FakeRing>& ring) {
  if (ring->settings.mode == FakeMode::kSim) return;  // step() looks
  for (std::vector<JobPtr> jobs = take_jobs(ring); !jobs.empty(); jobs = take_jobs(ring)) {
    if (ring->settings.mode == FakeMode::kThreads) {
      threads.push(std::move(jobs));
    } else {
      steps.run(std::move(jobs));
    }
  }
}

void World::trace(TraceEvent event, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  if (config().mode == FakeMode::kThreads) return;
  const FakeGuard guard(trace_mutex_);
  for (const std::uint64_t word : {static_cast<std::uint64_t>(event), a, b, c}) {
    trace_hash_ = (trace_hash_ ^ word) * 0x100000001b3ull;
    trace_hash_ ^= trace_hash_ >> 31;
  }
}

void World::read_stats(FakeStats& stats) const {
  stats = {};
#define LARDER_FAKE_COPY(name) stats.name = counters.name.load(std::memory_order_relaxed);
  LARDER_FAKE_COUNTERS(LARDER_FAKE_COPY)
#undef LARDER_FAKE_COPY
  stats.live_iovs = iovs.live();
  stats.live_registered_fds = fds.size();
  stats.live_write_sessions = fds.write_sessions();
  stats.used_bytes = files.used_bytes();
  for (const auto& ring : rings()) {
    ++stats.live_rings;
    stats.in_flight += ring->in_flight();
  }
  const FakeGuard guard(trace_mutex_);
  stats.trace_hash = trace_hash_;
  stats.failed_call = failed_call_.load();
}

void World::reset_tables() {
  for (const auto& ring : rings()) {
    ring->close();
    (void)::unlink(ring->settings.link.c_str());
  }
  {
    const FakeGuard guard(rings_mutex_);
    rings_.clear();
    first_ring_ = next_ring_;
  }
  iovs.reset();
  fds.reset();
  files.space().reset();
  {
    const FakeGuard guard(late_mutex_);
    late_.clear();
  }
#define LARDER_FAKE_CLEAR(name) counters.name.store(0, std::memory_order_relaxed);
  LARDER_FAKE_COUNTERS(LARDER_FAKE_CLEAR)
#undef LARDER_FAKE_CLEAR
}

void World::reset() {
  threads.stop();
  steps.drop_all(false);
  reset_tables();
  alive_.store(true, std::memory_order_release);
  life_.fetch_add(1, std::memory_order_acq_rel);
  advanced_ms_.store(0, std::memory_order_release);
  FakeConfig config;
  const char* given = std::getenv("LARDER_FAKE_HF3FS_CONFIG");
  const std::string problem = given != nullptr ? parse_config(given, config) : std::string();
  if (!problem.empty()) std::fprintf(stderr, "larder fake 3FS: LARDER_FAKE_HF3FS_CONFIG: %s\n", problem.c_str());
  {
    const FakeGuard guard(config_mutex_);
    faults_.clear();
    fault_count_.store(0, std::memory_order_release);
    executed_since_config_.store(0, std::memory_order_relaxed);
    calls_since_config_.store(0, std::memory_order_relaxed);
    publish(config);
  }
  steps.seed(config.seed);
  const FakeGuard guard(trace_mutex_);
  trace_hash_ = 0;
}

void World::shut_down() {
  if (::getpid() != process_) return;
  FakeStats now{};
  read_stats(now);
  const bool leaked = now.live_iovs + now.live_rings + now.live_registered_fds + now.live_write_sessions > 0;
  if (config().report_leaks && leaked) {
    std::fprintf(stderr,
                 "larder fake 3FS: left open: %llu iovs, %llu rings, %llu registered fds, %llu write sessions\n",
                 static_cast<unsigned long long>(now.live_iovs), static_cast<unsigned long long>(now.live_rings),
                 static_cast<unsigned long long>(now.live_registered_fds),
                 static_cast<unsigned long long>(now.live_write_sessions));
  }
  threads.stop();
  iovs.reset();
}

}  // namespace larder::hf3fs
