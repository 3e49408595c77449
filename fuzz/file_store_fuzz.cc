// SPDX-License-Identifier: Apache-2.0
// The file store (storage/file/file_backend.h) on simulated disks: rows of calls, failing operations, power cuts.
//
// Fed: disks, when to sync, a budget or none; then writes of groups (durable or not), clears, reads, background work in
// pieces, restarts, single failing operations, and power cuts at some operation of what is under way.
// Checked: after each restart what tests/crash/promises.h says: what was acknowledged and should have survived is
// there, what was cleared stays away, groups are whole or absent; every read gives right bytes or says that it has
// none.
#include "fuzz/expectations.h"
#include "fuzz/fuzz_input.h"
#include "sim/sim_file_system.h"
#include "tests/crash/store_client.h"

namespace larder::fuzz {
namespace {

using namespace larder::crash;

constexpr std::uint64_t kForEver = 1'000'000'000;

class World {
 public:
  explicit World(FuzzInput& input)
      : seed_(input.number<std::uint8_t>()), files_(seed_), executor_(100'000, seed_), rng_(seed_) {
    const std::uint64_t volumes = 1 + input.below(2);
    for (std::uint64_t i = 0; i < volumes; ++i) {
      const std::string disk(1, static_cast<char>('a' + i));
      files_.add_disk("/" + disk);
      options_["directory"] += (i > 0 ? ":/" : "/") + disk + "/store";
    }
    static constexpr const char* kSyncs[] = {"segment", "group", "off"};
    has_budget_ = input.below(4) == 0;
    options_["segment_size"] = "64Ki";
    const std::uint64_t sync = input.below(3);
    is_unsynced_ = sync == 2;
    options_["fsync"] = kSyncs[sync];
    options_["max_size"] = has_budget_ ? "512Ki" : "unlimited";
    options_["open_files"] = "4";
    open();
  }

  void step(FuzzInput& input) {
    switch (input.below(16)) {
      case 0: return clear();
      case 1: return restart();
      case 2: return cut_power(input);
      case 3: return fail_once(input);
      case 4: return read(input);
      case 5: return clock_.advance(std::chrono::seconds(input.below(100)));
      case 6:
      case 7:
      case 8: return run_some(1 + input.below(20));
      default: return write(input);
    }
  }
  void end() {
    restart();
    store_.reset();
  }

 private:
  void open() {
    auto opened = open_file_store(options_, files_, clock_, executor_);
    fuzz_check(opened.is_ok(), "the store does not open: " + opened.status().to_string());
    store_ = std::move(opened).value();
    drain();
  }
  void run_some(std::uint64_t tasks) {
    for (std::uint64_t i = 0; i < tasks && executor_.run_one(); ++i) continue;
  }
  void drain() { (void)executor_.run_all(); }
  void note_eviction() {
    if (store_->stats().evicted > 0) promises_.allow_eviction();
  }
  void check(const char* where) {
    note_eviction();
    (void)check_promises(
        *store_, promises_, [this] { drain(); }, rng_, where);
  }

  void write(FuzzInput& input) {
    const std::uint64_t scope = 1 + input.below(3);
    std::vector<GroupId> groups;
    for (std::uint64_t left = 1 + input.below(3); left > 0; --left) groups.push_back({scope, input.below(12)});
    WriteRequest request{scope_of(scope), {}, input.flag()};
    auto buffers = std::make_shared<std::vector<GroupBuffers>>();
    for (const GroupId& group : groups) {
      buffers->emplace_back(group, rng_);
      buffers->back().fill();
      request.groups.push_back(buffers->back().write_group());
    }
    const std::uint64_t number = next_write_++;
    promises_.write_begun(number, groups, request.durable);
    const Status submitted = store_->submit_write(std::move(request), [this, number, buffers](const WriteResult& done) {
      for (std::size_t i = 0; i < done.groups.size(); ++i) promises_.group_done(number, i, done.groups[i].is_ok());
    });
    fuzz_check(submitted.is_ok(), "a write is refused: " + submitted.to_string());
  }
  void clear() {
    if (is_clearing_) return;  // one at a time is what the promises know of
    is_clearing_ = true;
    promises_.clear_begun(3);
    const Status submitted = store_->submit_clear(scope_of(3), [this](const Status& status) {
      is_clearing_ = false;
      promises_.clear_done(3, status.is_ok());
    });
    fuzz_check(submitted.is_ok(), "a clear is refused: " + submitted.to_string());
  }
  void read(FuzzInput& input) {
    const GroupId group{1 + input.below(3), input.below(12)};
    (void)read_pages(
        *store_, group, [this] { drain(); }, rng_, "while it runs");
  }
  // An orderly end.
  void restart() {
    files_.clear_fault();
    drain();
    note_eviction();
    store_.reset();
    promises_.ended(Ending::kKilled);
    open();
    if (!is_unsynced_) return check("after a restart");
    // What is found is not therefore on disk: nobody had to wait for that when the store was closed.
    const Promises before = promises_;
    check("after a restart");
    promises_ = before;
  }
  // From some operation on nothing reaches the disks; then they keep, drop or tear what was not synced.
  void cut_power(FuzzInput& input) {
    files_.fail_nth(1 + input.below(40), sim::FileFault::kIoError, kForEver);
    for (std::uint64_t left = input.below(3); left > 0; --left) write(input);
    drain();
    note_eviction();
    files_.fail_nth(1, sim::FileFault::kIoError, kForEver);  // closing writes nothing either
    store_.reset();
    files_.clear_fault();
    files_.crash();
    promises_.ended(Ending::kPowerCut);
    open();
    check("after a power cut");
  }
  // What was acknowledged stays so, whatever fails. A page that cannot be read when its segment is cleaned is lost, and
  // a full disk makes the store drop a segment: so not with a budget, and not for lack of room.
  void fail_once(FuzzInput& input) {
    static constexpr sim::FileFault kFaults[] = {sim::FileFault::kIoError, sim::FileFault::kShort,
                                                 sim::FileFault::kWriteTorn, sim::FileFault::kSyncLost};
    if (!has_budget_) files_.fail_nth(1 + input.below(30), kFaults[input.below(std::size(kFaults))]);
  }

  const std::uint64_t seed_;
  sim::SimFileSystem files_;
  ManualExecutor executor_;
  ManualClock clock_{Nanos(1'000'000'000)};
  Rng rng_;
  BackendOptions options_;
  bool has_budget_ = false, is_unsynced_ = false;
  Promises promises_;
  std::unique_ptr<StorageBackend> store_;
  std::uint64_t next_write_ = 1;
  bool is_clearing_ = false;
};

void run(FuzzInput input) {
  static const QuietLog kQuiet;
  end_at_failed_expectations();
  World world(input);
  for (int i = 0; i < 40 && !input.empty(); ++i) world.step(input);
  world.end();
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
