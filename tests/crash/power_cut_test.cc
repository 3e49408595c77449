// SPDX-License-Identifier: Apache-2.0
// The file store when the power goes, and when single file operations fail, at every operation of a workload that
// crosses segments, volumes, direct pages, sealing, clears, cleaning and eviction.
//
// Power cut: from the nth file operation on nothing reaches the disks; then each simulated disk keeps, drops or tears
// on its own what was not synced, in any order. After the restart promises.h says what must be there. Then the store
// is written to, and the power goes again. Failure: the nth operation alone fails; what was acknowledged is there at
// once and after a restart, and what was durable after a power cut, too.
// FileCrash does the same with one volume and one operation at a time, for every kind of crash and failure.
#include <algorithm>
#include <span>
#include <string_view>

#include "sim/sim_file_system.h"
#include "tests/crash/store_client.h"
#include "tests/support/brief.h"

namespace larder::crash {
namespace {

struct Scenario {
  const char* name;
  unsigned volumes;
  const char* fsync;
  const char* max_size;     // "unlimited", or so small that segments are cleaned
  std::uint64_t steps;      // of one life
  std::uint64_t kept;       // groups of scopes 1 and 2, which are never cleared; about half of them are small
  std::uint64_t per_clear;  // steps from one clear of scope 3 to the next
  bool evicts;              // is more alive than max_size allows?
  // Where tests are brief: every so-many-th operation only. Odd, so that all kinds of crashes and failures have their
  // turn.
  std::uint64_t stride;
  std::uint64_t at_once = 3;  // writes under way, at most, beside a clear. 1: nor is that
  [[nodiscard]] bool cleans() const { return std::string_view(max_size) != "unlimited"; }
  friend void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }
};

class Disks {
 public:
  Disks(const Scenario& setup, std::uint64_t seed) : setup_(setup), files(seed), executor_(100'000, seed), rng_(seed) {
    for (unsigned i = 0; i < setup.volumes; ++i) {
      const std::string disk(1, static_cast<char>('a' + i));
      files.add_disk("/" + disk);
      directories_ += (i > 0 ? ":/" : "/") + disk + "/store";
    }
  }
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open() {
    return open_file_store({{"directory", directories_},
                            {"segment_size", "64Ki"},
                            {"max_size", setup_.max_size},
                            {"fsync", setup_.fsync},
                            {"open_files", "4"}},
                           files, clock_, executor_);
  }
  [[nodiscard]] Drain drain() {
    return [this] { (void)executor_.run_all(); };
  }
  [[nodiscard]] Rng& rng() { return rng_; }

 private:
  const Scenario& setup_;

 public:
  sim::SimFileSystem files;

 private:
  ManualExecutor executor_;
  ManualClock clock_{Nanos(1'000'000'000)};
  Rng rng_;
  std::string directories_;
};

// What the lives of a test did, so that it can say that they did something.
struct Deeds {
  std::uint64_t moved = 0, evicted = 0, segments = 0;
  std::uint64_t lives_that_moved = 0, and_evicted_nothing = 0;  // of the latter, all that is promised must be there
};

// One life of a store, from open to its end. Several operations are under way at once.
class Life {
 public:
  Life(const Scenario& setup, Disks& disks, Promises& promises, std::uint64_t seed)
      : setup_(setup), disks_(disks), promises_(promises), rng_(seed) {}

  // False: the store could not be opened.
  bool run(Deeds& deeds) {
    auto opened = disks_.open();
    if (!opened.is_ok()) return false;
    store_ = std::move(opened).value();
    for (std::uint64_t step = 1; step <= setup_.steps; ++step) {
      for (std::uint64_t i = 0, count = 1 + rng_.below(setup_.at_once); i < count; ++i) begin_write();
      if (setup_.at_once == 1) disks_.drain()();
      if (step % setup_.per_clear == 0) begin_clear();
      disks_.drain()();
    }
    const BackendStats stats = store_->stats();
    deeds.moved += stats.moved;
    deeds.evicted += stats.evicted;
    deeds.segments = std::max(deeds.segments, stats.segments);
    if (stats.evicted > 0) promises_.allow_eviction();
    if (stats.moved > 0) ++deeds.lives_that_moved;
    if (stats.moved > 0 && !promises_.may_evict()) ++deeds.and_evicted_nothing;
    return true;
  }
  [[nodiscard]] StorageBackend& store() { return *store_; }
  [[nodiscard]] std::uint64_t failed() const { return failed_; }
  void end() { store_.reset(); }

 private:
  GroupId next_group() {
    if (kept_ < setup_.kept && rng_.chance(1, 3)) {
      ++kept_;
      const std::uint64_t number = 2 * rng_.below(setup_.kept / 2);  // often one that is there, perhaps not yet on disk
      return {1 + rng_.below(2), number + (rng_.chance(1, 6) ? 1 : 0)};
    }
    return {3, rng_.below(200)};
  }

  void begin_write() {
    std::vector<GroupId> groups = {next_group()};
    while (rng_.chance(1, 2)) {
      const GroupId more = next_group();
      if (more.scope == groups[0].scope) groups.push_back(more);
    }
    WriteRequest request{scope_of(groups[0].scope), {}, rng_.chance(1, 2)};
    auto buffers = std::make_shared<std::vector<GroupBuffers>>();
    for (const GroupId& group : groups) {
      buffers->emplace_back(group, rng_);
      buffers->back().fill();
      request.groups.push_back(buffers->back().write_group());
    }
    const std::uint64_t write = next_write_++;
    promises_.write_begun(write, groups, request.durable);
    const Status submitted = store_->submit_write(std::move(request), [this, write, buffers](const WriteResult& done) {
      for (std::size_t i = 0; i < done.groups.size(); ++i) promises_.group_done(write, i, done.groups[i].is_ok());
      for (const Status& group : done.groups) failed_ += group.is_ok() ? 0 : 1;
    });
    EXPECT_TRUE(submitted.is_ok()) << submitted.to_string();
  }

  void begin_clear() {
    promises_.clear_begun(3);
    const Status submitted = store_->submit_clear(scope_of(3), [this](const Status& status) {
      promises_.clear_done(3, status.is_ok());
      failed_ += status.is_ok() ? 0 : 1;
    });
    EXPECT_TRUE(submitted.is_ok()) << submitted.to_string();
  }

  const Scenario& setup_;
  Disks& disks_;
  Promises& promises_;
  Rng rng_;
  std::unique_ptr<StorageBackend> store_;
  std::uint64_t next_write_ = 1, kept_ = 0, failed_ = 0;
};

class PowerCut : public testing::TestWithParam<Scenario> {
 protected:
  // One crash at the nth operation and one more later. False: the life had fewer operations.
  bool crash_at(std::uint64_t n, std::uint64_t variant) {
    const std::string where = "operation " + std::to_string(n) + " variant " + std::to_string(variant);
    Disks disks(scenario_, seed_ * 1000 + n * 4 + variant);
    Promises promises;
    if (variant % 2 == 1) {  // half of the crashes hit a store that holds something
      Life before(scenario_, disks, promises, seed_ + variant + 100);
      EXPECT_TRUE(before.run(deeds_)) << where;
    }
    Life life(scenario_, disks, promises, seed_ + variant);
    disks.files.fail_nth(n, sim::FileFault::kIoError, kForEver);
    if (life.run(deeds_)) {
      for (const GroupId& group : promises.groups()) {  // no wrong bytes now, either
        (void)read_pages(life.store(), group, disks.drain(), disks.rng(), where);
      }
    }
    life.end();
    const bool fired = disks.files.fault_fired();
    disks.files.clear_fault();
    auto store = restart_and_check(disks, promises, where);
    if (!store) return false;
    // Clients write again what they have: groups that are gone, and such as are there.
    std::vector<GroupId> again = promises.groups();
    disks.rng().shuffle(std::span(again));
    again.resize(std::min<std::size_t>(again.size(), 8));
    again.push_back(kProbe);
    for (std::uint64_t i = 0; i < again.size(); ++i) {
      promises.write_begun(i, {again[i]}, true);
      const WriteResult written = write_groups(*store, {again[i]}, true, disks.drain(), disks.rng());
      EXPECT_TRUE(written.groups.at(0).is_ok()) << where << ": " << written.groups.at(0).to_string();
      promises.group_done(i, 0, written.groups.at(0).is_ok());
    }
    if (store->stats().evicted > 0) promises.allow_eviction();
    disks.files.fail_nth(1, sim::FileFault::kIoError, kForEver);  // no seal, no sync
    store.reset();
    disks.files.clear_fault();
    (void)restart_and_check(disks, promises, where + ", second crash");
    return fired && !HasFailure();
  }

  std::unique_ptr<StorageBackend> restart_and_check(Disks& disks, Promises& promises, const std::string& where) {
    disks.files.crash();
    promises.ended(Ending::kPowerCut);
    auto store = disks.open();
    EXPECT_TRUE(store.is_ok()) << where << ": " << store.status().to_string();
    if (!store.is_ok()) return nullptr;
    disks.drain()();
    if ((*store)->stats().evicted > 0) promises.allow_eviction();
    (void)check_promises(**store, promises, disks.drain(), disks.rng(), where);
    return std::move(store).value();
  }

  // The nth operation alone fails, and later the process or the power ends. False: there were fewer.
  bool fail_at(std::uint64_t n, sim::FileFault fault, Ending ending = Ending::kKilled) {
    const std::string where = "operation " + std::to_string(n) + " fault " + std::to_string(static_cast<int>(fault));
    Disks disks(scenario_, seed_ + n);
    Promises promises;
    const bool is_full = fault == sim::FileFault::kNoSpace;
    Deeds not_told;
    Deeds& deeds = is_full ? not_told : deeds_;
    if (scenario_.cleans()) {  // so that there is something to clean
      Life before(scenario_, disks, promises, seed_ + 1000);
      EXPECT_TRUE(before.run(deeds)) << where;
    }
    Life life(scenario_, disks, promises, seed_);
    disks.files.fail_nth(n, fault);
    const bool opened = life.run(deeds);
    const bool fired = disks.files.fault_fired();
    disks.files.clear_fault();
    if (is_full) promises.allow_eviction();  // a full disk lets the store drop its emptiest segment
    // A page that cannot be read when its segment is cleaned is given up.
    const std::size_t tolerated = scenario_.cleans() ? 1 : 0;
    if (opened) {
      Promises now = promises;
      (void)check_promises(life.store(), now, disks.drain(), disks.rng(), where + ", at once", tolerated);
    }
    if (ending == Ending::kPowerCut) disks.files.fail_nth(1, sim::FileFault::kIoError, kForEver);  // no seal, no sync
    life.end();
    disks.files.clear_fault();
    if (ending == Ending::kPowerCut) disks.files.crash();
    promises.ended(ending);
    auto store = disks.open();
    EXPECT_TRUE(store.is_ok()) << where << ": " << store.status().to_string();
    if (!store.is_ok()) return false;
    (void)check_promises(**store, promises, disks.drain(), disks.rng(), where, tolerated);
    const WriteResult written = write_groups(**store, {kProbe}, true, disks.drain(), disks.rng());
    EXPECT_TRUE(written.groups.at(0).is_ok()) << where << ": " << written.groups.at(0).to_string();
    if (scenario_.at_once == 1) {
      store.value().reset();
      Life after(scenario_, disks, promises, seed_ + 1);
      EXPECT_TRUE(after.run(deeds)) << where;
      EXPECT_EQ(after.failed(), 0u) << where << ": it goes on";
    }
    return fired && !HasFailure();
  }

  // Every kind of crash, or of failure, at every operation.
  void crash_everywhere() {
    for (std::uint64_t variant = 0; variant < 4 && !HasFailure(); ++variant) {
      for (std::uint64_t n = 1; crash_at(n, variant);) ++n;
    }
  }
  void fail_everywhere(Ending ending) {
    for (const sim::FileFault fault : kFaults) {
      for (std::uint64_t n = 1; fail_at(n, fault, ending);) ++n;
      if (HasFailure()) return;
    }
  }

  void expect_deeds() const {
    EXPECT_GE(deeds_.segments, 3u) << "segments were sealed";
    EXPECT_EQ(deeds_.moved > 0, scenario_.cleans()) << "segments were cleaned";
    if (scenario_.evicts) {
      EXPECT_GT(deeds_.evicted, 0u);
    } else if (scenario_.cleans()) {
      EXPECT_GT(deeds_.and_evicted_nothing * 4, deeds_.lives_that_moved);
    }
    RecordProperty("moved", static_cast<int>(deeds_.lives_that_moved));
    RecordProperty("strict", static_cast<int>(deeds_.and_evicted_nothing));
  }

  static constexpr GroupId kProbe = {1, 1'000'001};  // two pages, one of them direct
  static constexpr std::uint64_t kForEver = 1'000'000'000;
  static constexpr sim::FileFault kFaults[] = {sim::FileFault::kIoError, sim::FileFault::kNoSpace,
                                               sim::FileFault::kShort, sim::FileFault::kWriteTorn,
                                               sim::FileFault::kSyncLost};
  QuietLog quiet_;
  const Scenario scenario_ = GetParam();
  const std::uint64_t seed_ = test_seed();
  const std::uint64_t stride_ = support::is_brief() ? scenario_.stride : 1;
  const std::uint64_t first_ = 1 + seed_ % stride_;  // other seeds take the operations between
  Deeds deeds_;
};

TEST_P(PowerCut, AtEveryFileOperation) {
  SCOPED_TRACE("LARDER_TEST_SEED=" + std::to_string(seed_));
  std::uint64_t n = first_;
  while (crash_at(n, n % 4)) n += stride_;
  if (HasFailure()) return;
  RecordProperty("crash_points", static_cast<int>(n));
  EXPECT_GT(n, 100u);
  expect_deeds();
}

TEST_P(PowerCut, EveryFileOperationFailsOnce) {
  SCOPED_TRACE("LARDER_TEST_SEED=" + std::to_string(seed_));
  for (std::uint64_t n = first_; fail_at(n, kFaults[n % std::size(kFaults)]);) n += stride_;
  if (!HasFailure()) expect_deeds();
}

TEST_P(PowerCut, OneFailureAndThenThePowerGoes) {
  SCOPED_TRACE("LARDER_TEST_SEED=" + std::to_string(seed_));
  const auto fault = [](std::uint64_t n) { return n % 2 == 0 ? sim::FileFault::kIoError : sim::FileFault::kSyncLost; };
  for (std::uint64_t n = first_; fail_at(n, fault(n), Ending::kPowerCut);) n += 3 * stride_;
}

// As above, with every kind of crash and of failure at every operation. Minutes: --gtest_also_run_disabled_tests.
TEST_P(PowerCut, DISABLED_SlowAtEveryFileOperation) {
  SCOPED_TRACE("LARDER_TEST_SEED=" + std::to_string(seed_));
  crash_everywhere();
}

TEST_P(PowerCut, DISABLED_SlowEveryFileOperationFailsOnce) {
  SCOPED_TRACE("LARDER_TEST_SEED=" + std::to_string(seed_));
  fail_everywhere(Ending::kKilled);
  if (!HasFailure()) fail_everywhere(Ending::kPowerCut);
}

constexpr Scenario kScenarios[] = {
    {"OneVolume", 1, "segment", "unlimited", 16, 12, 7, false, 3},
    {"TwoVolumes", 2, "segment", "unlimited", 16, 12, 7, false, 3},
    {"TwoVolumesEveryGroupSynced", 2, "group", "unlimited", 16, 12, 7, false, 3},
    {"TwoVolumesUnsynced", 2, "off", "unlimited", 16, 12, 7, false, 3},
    {"Cleaning", 1, "segment", "768Ki", 24, 30, 2, false, 5},
    {"TwoVolumesCleaning", 2, "group", "896Ki", 24, 30, 2, false, 5},
    {"CleaningUnsynced", 1, "off", "768Ki", 24, 30, 2, false, 5},
    {"TwoVolumesEvicting", 2, "segment", "384Ki", 14, 12, 30, true, 13},
};
INSTANTIATE_TEST_SUITE_P(File, PowerCut, testing::ValuesIn(kScenarios),
                         [](const auto& scenario) { return scenario.param.name; });

class FileCrash : public PowerCut {};

TEST_P(FileCrash, AtEveryFileOperation) {
  SCOPED_TRACE("LARDER_TEST_SEED=" + std::to_string(seed_));
  crash_everywhere();
}

TEST_P(FileCrash, EveryFileOperationFailsOnce) {
  SCOPED_TRACE("LARDER_TEST_SEED=" + std::to_string(seed_));
  fail_everywhere(Ending::kKilled);
}

constexpr Scenario kOneByOne[] = {
    {"off", 1, "off", "unlimited", 8, 12, 5, false, 1, 1},
    {"segment", 1, "segment", "unlimited", 8, 12, 5, false, 1, 1},
    {"group", 1, "group", "unlimited", 8, 12, 5, false, 1, 1},
};
INSTANTIATE_TEST_SUITE_P(Fsync, FileCrash, testing::ValuesIn(kOneByOne),
                         [](const auto& scenario) { return scenario.param.name; });

}  // namespace
}  // namespace larder::crash
