// SPDX-License-Identifier: Apache-2.0
// The file backend when the power goes, and when single file operations fail: at every operation of a workload.
//
// Crash: from the nth file operation on, nothing reaches the disk; then the simulated device keeps, drops or tears what
// was not synced. After the restart: every group that was acknowledged as durable is there; of any other group all
// pages are there or none; what is there reads back right; and what was cleared stays away. Failure: the nth operation
// alone fails. Groups that were acknowledged are readable at once and after a restart, and the store goes on.
#include <map>
#include <set>

#include "sim/sim_file_system.h"
#include "tests/conformance/storage_harness.h"

namespace larder::conformance {
namespace {

struct GroupSpec {
  std::uint64_t key;
  std::uint64_t scope;
  std::size_t swa_bytes, kv_bytes;
};

class CrashHarness final : public HarnessBase {
 public:
  CrashHarness(std::uint64_t seed, const std::string& fsync) : HarnessBase(0, seed), files(seed), fsync_(fsync) {}
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra = {}) override {
    return create("file", {{"directory", "/a/store"}, {"segment_size", "32Ki"}, {"fsync", fsync_}}, extra, &files);
  }
  sim::SimFileSystem files;

 private:
  const std::string fsync_;
};

// Reads a group's two pages and compares what came. The statuses.
std::array<Status, 2> read_group(CrashHarness& harness, StorageBackend& backend, const GroupSpec& group) {
  Rng rng(group.key);
  PageBuffer swa(group.swa_bytes, 2, rng), kv(group.kv_bytes, 2, rng);
  const PageKey key = test_key(group.key);
  ReadRequest request{test_scope(group.scope),
                      {{PoolName::kSwa, key, swa.segments()}, {PoolName::kKv, key, kv.segments()}}};
  const ReadResult result = read(harness, backend, std::move(request));
  EXPECT_TRUE(!result.items.at(0).is_ok() || swa.holds(key, PoolName::kSwa, group.scope)) << "wrong bytes";
  EXPECT_TRUE(!result.items.at(1).is_ok() || kv.holds(key, PoolName::kKv, group.scope)) << "wrong bytes";
  return {result.items[0], result.items[1]};
}

// One life of a store, from open to its end, and what was promised in it.
class Life {
 public:
  Life(CrashHarness& harness, std::uint64_t seed) : harness_(harness), rng_(seed) {}

  // Returns false if the store could not be opened.
  bool run() {
    auto opened = harness_.open();
    if (!opened.is_ok()) return false;
    backend_ = std::move(opened).value();
    for (int step = 0; step < 8; ++step) {
      if (step == 5) {
        clear_scope_2();
        continue;
      }
      write_some(rng_.chance(1, 2));
    }
    for (const auto& [id, group] : acknowledged) (void)read_group(harness_, *backend_, group);
    backend_.reset();
    return true;
  }

  using GroupId = std::pair<std::uint64_t, std::uint64_t>;  // scope, key
  std::map<GroupId, GroupSpec> written, acknowledged, durable;
  std::set<GroupId> cleared;

 private:
  void clear_scope_2() {
    const bool is_cleared = clear(harness_, *backend_, test_scope(2)).is_ok();
    // A clear that failed may have happened on the disk or not: nothing is promised about these pages any more.
    std::erase_if(durable, [](const auto& entry) { return entry.first.first == 2; });
    std::erase_if(acknowledged, [](const auto& entry) { return entry.first.first == 2; });
    for (const auto& [id, group] : written) {
      if (is_cleared && id.first == 2) cleared.insert(id);
    }
  }

  void write_some(bool is_durable) {
    const std::uint64_t scope = 1 + rng_.below(2);
    WriteRequest request{test_scope(scope), {}, is_durable};
    std::vector<GroupSpec> groups;
    std::vector<std::unique_ptr<PageBuffer>> buffers;
    for (std::uint64_t i = 0, count = 1 + rng_.below(3); i < count; ++i) {
      // Sizes follow from the key: a later life writes the same pages again.
      const std::uint64_t key = next_key_++;
      GroupSpec group{key, scope, (key * 97 + scope * 31) % 300, 1 + (key * 389 + scope) % 2000};
      if (!acknowledged.empty() && rng_.chance(1, 5)) {  // a duplicate, perhaps of a page not yet on disk
        const GroupSpec& old = acknowledged.begin()->second;
        if (old.scope == scope) group = old;
      }
      written[{scope, group.key}] = group;
      cleared.erase({scope, group.key});
      PageGroup& out = request.groups.emplace_back();
      for (const auto& [pool, bytes] : {std::pair(PoolName::kSwa, group.swa_bytes), {PoolName::kKv, group.kv_bytes}}) {
        buffers.push_back(std::make_unique<PageBuffer>(bytes, 1 + rng_.below(3), rng_));
        buffers.back()->fill(test_key(group.key), pool, scope);
        out.items.push_back({pool, test_key(group.key), buffers.back()->segments()});
      }
      groups.push_back(group);
    }
    const WriteResult result = write(harness_, *backend_, std::move(request));
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (!result.groups.at(i).is_ok()) continue;
      acknowledged[{scope, groups[i].key}] = groups[i];
      if (is_durable) durable[{scope, groups[i].key}] = groups[i];
    }
  }

  CrashHarness& harness_;
  Rng rng_;
  std::unique_ptr<StorageBackend> backend_;
  std::uint64_t next_key_ = 1;
};

void check_after_crash(CrashHarness& harness, StorageBackend& backend, const Life& life, const std::string& where) {
  const bool is_atomic = backend.info().atomic_groups;
  for (const auto& [id, group] : life.written) {
    const auto [swa, kv] = read_group(harness, backend, group);
    const std::string what = where + " scope " + std::to_string(id.first) + " key " + std::to_string(id.second);
    if (life.durable.contains(id)) {
      EXPECT_TRUE(swa.is_ok() && kv.is_ok()) << "durable group lost: " << what << ": " << kv.to_string();
    }
    if (life.cleared.contains(id)) {
      EXPECT_EQ(kv.code(), StatusCode::kNotFound) << "cleared group is back: " << what;
    }
    if (!is_atomic) continue;
    EXPECT_EQ(swa.code(), kv.code()) << "half a group: " << what;
    EXPECT_TRUE(kv.is_ok() || kv.code() == StatusCode::kNotFound) << what << ": " << kv.to_string();
  }
}

class FileCrash : public testing::TestWithParam<const char*> {};

TEST_P(FileCrash, AtEveryFileOperation) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("LARDER_TEST_SEED=" + std::to_string(seed));
  bool fired = true;
  for (std::uint64_t n = 1; fired && !HasFailure(); ++n) {
    for (std::uint64_t variant = 0; variant < 4; ++variant) {
      CrashHarness harness(seed * 1000 + n * 4 + variant, GetParam());
      const std::string where = "operation " + std::to_string(n) + " variant " + std::to_string(variant);
      Life before(harness, seed + variant), life(harness, seed + variant + 100);
      // Half of the crashes hit a store that holds something.
      ASSERT_TRUE(variant % 2 == 0 || before.run()) << where;
      harness.files.fail_nth(n, sim::FileFault::kIoError, 1'000'000);
      (void)life.run();
      fired = harness.files.fault_fired();
      harness.files.clear_fault();
      harness.files.crash();
      auto reopened = harness.open();
      ASSERT_TRUE(reopened.is_ok()) << where << ": " << reopened.status().to_string();
      check_after_crash(harness, **reopened, life, where);
      // The store goes on, and survives a second crash right away.
      Rng rng(seed);
      PageBuffer buffer(700, 2, rng);
      buffer.fill(test_key(9999), PoolName::kKv, 1);
      WriteRequest request{test_scope(1), {{{{PoolName::kKv, test_key(9999), buffer.segments()}}}}, true};
      ASSERT_TRUE(write(harness, **reopened, std::move(request)).groups.at(0).is_ok()) << where;
      harness.files.crash();
      std::move(reopened).value().reset();
      auto again = harness.open();
      ASSERT_TRUE(again.is_ok()) << where << ": " << again.status().to_string();
      check_after_crash(harness, **again, life, where + ", second crash");
      EXPECT_TRUE(read_group(harness, **again, {9999, 1, 0, 700})[1].is_ok()) << where;
      if (HasFailure()) return;
    }
  }
}

TEST_P(FileCrash, EveryFileOperationFailsOnce) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("LARDER_TEST_SEED=" + std::to_string(seed));
  for (const auto fault :
       {sim::FileFault::kIoError, sim::FileFault::kNoSpace, sim::FileFault::kShort, sim::FileFault::kWriteTorn}) {
    bool fired = true;
    for (std::uint64_t n = 1; fired && !HasFailure(); ++n) {
      CrashHarness harness(seed + n, GetParam());
      const std::string where = "operation " + std::to_string(n) + " fault " + std::to_string(static_cast<int>(fault));
      Life life(harness, seed);
      harness.files.fail_nth(n, fault);
      const bool opened = life.run();
      fired = harness.files.fault_fired();
      harness.files.clear_fault();
      EXPECT_TRUE(opened || life.written.empty()) << where;
      auto reopened = harness.open();
      ASSERT_TRUE(reopened.is_ok()) << where << ": " << reopened.status().to_string();
      for (const auto& [id, group] : life.acknowledged) {
        // A full disk lets the store drop its oldest segment: then pages may be gone, but never wrong.
        const auto [swa, kv] = read_group(harness, **reopened, group);
        if (fault == sim::FileFault::kNoSpace) continue;
        EXPECT_TRUE(swa.is_ok() && kv.is_ok()) << where << " key " << id.second << ": " << kv.to_string();
      }
      Life after(harness, seed + 1);
      (*reopened).reset();
      EXPECT_TRUE(after.run()) << where;
      EXPECT_EQ(after.acknowledged.size() + after.cleared.size(), after.written.size()) << where << ": it goes on";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fsync, FileCrash, testing::Values("off", "segment", "group"),
                         [](const auto& mode) { return std::string(mode.param); });

}  // namespace
}  // namespace larder::conformance
