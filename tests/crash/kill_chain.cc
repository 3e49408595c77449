// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/kill_chain.h"

#include <chrono>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "storage/file/store_check.h"
#include "tests/crash/killed_writer.h"
#include "tests/crash/store_client.h"
#include "tests/support/real_killed_process.h"
#include "tests/support/temporary_directory.h"

namespace larder::crash {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

class Chain {
 public:
  explicit Chain(std::uint64_t seed) : seed_(seed), rng_(seed) {
    const bool has_two = rng_.chance(1, 3);
    directories_.push_back(directory_.path() + "/one");
    if (has_two) directories_.push_back(directory_.path() + "/two");
    options_["directory"] = directories_[0] + (has_two ? ":" + directories_[1] : "");
    options_["segment_size"] = rng_.chance(1, 2) ? "256Ki" : "128Ki";
    if (rng_.chance(1, 3)) {
      options_["max_size"] = has_two ? "4Mi" : "2Mi";
      promises_.allow_eviction();
    }
    const std::uint64_t fsync = rng_.below(6);
    options_["fsync"] = fsync == 0 ? "off" : fsync == 1 ? "group" : "segment";
    if (rng_.chance(1, 4)) options_["io_uring"] = "off";
    if (rng_.chance(1, 4)) options_["direct"] = "off";
    options_["open_files"] = "6";
  }

  void run() {
    ASSERT_FALSE(directory_.path().empty());
    for (std::uint64_t kill = 0; kill < kKillsPerChain; ++kill) {
      where_ = "seed " + std::to_string(seed_) + ", kill " + std::to_string(kill);
      kill_one(kill);
      if (testing::Test::HasFailure()) return;
      if (kill + 1 < kKillsPerChain && rng_.chance(1, 5)) continue;
      if (rng_.chance(1, 4)) check_with_fsck();
      look();
      if (testing::Test::HasFailure()) return;
    }
  }
  [[nodiscard]] std::uint64_t acknowledged() const { return promises_.acknowledged(); }
  [[nodiscard]] std::uint64_t found() const { return found_; }

 private:
  void kill_one(std::uint64_t number) {
    const WriterPlan plan{seed_ * 100 + number, options_};
    support::KilledProcess child;
    ASSERT_TRUE(child.start(plan.arguments("killed_writer")).is_ok()) << where_;
    if (rng_.chance(1, 8)) {  // while it opens the store
      child.read_for(std::chrono::microseconds(rng_.below(30'000)));
    } else {
      child.read_lines(static_cast<std::size_t>(rng_.below(60)), kPatience, 'A');
      child.read_for(std::chrono::microseconds(rng_.below(2'000)));
    }
    const Status killed = child.kill();
    for (const std::string& line : child.lines()) EXPECT_TRUE(note_line(line, promises_)) << where_ << ": " << line;
    EXPECT_TRUE(killed.is_ok()) << where_ << ": " << killed.to_string();
    promises_.ended(Ending::kKilled);
  }

  // An untidy store is not a damaged one.
  void check_with_fsck() {
    const auto report = file_store::check_store(real_file_system(), real_clock(), directories_, {});
    if (report.status().code() == StatusCode::kNotFound) return;  // killed before there was a store
    ASSERT_TRUE(report.is_ok()) << where_ << ": " << report.status().to_string();
    for (const file_store::Finding& finding : report->findings) {
      const bool is_torn = finding.kind == file_store::FindingKind::kTail ||
                           finding.kind == file_store::FindingKind::kHeader ||  // killed while it was made
                           finding.kind == file_store::FindingKind::kFormat;    // a second directory before it was
      EXPECT_TRUE(!finding.is_damage || is_torn) << where_ << ": " << finding.path << ": " << finding.what;
    }
  }

  void look() {
    ThreadPoolExecutor executor("storage", 2, 100'000);
    auto store = open_file_store(options_, real_file_system(), real_clock(), executor);
    ASSERT_TRUE(store.is_ok()) << where_ << ": " << store.status().to_string();
    const BackendStats at_opening = (*store)->stats();
    found_ += check_promises(**store, promises_, {}, rng_, where_).whole;
    const BackendStats stats = (*store)->stats();
    EXPECT_LE(at_opening.corrupt, kMostAtOnce) << where_ << ": more than was under way";
    EXPECT_EQ(stats.corrupt, at_opening.corrupt) << where_ << ": what opening let in could not be read";
    EXPECT_EQ(stats.read_errors, 0u) << where_;
    const GroupId probe{1, 1'000'001 + 4 * rng_.below(1000)};
    promises_.write_begun(0, {probe}, true);
    const WriteResult written = write_groups(**store, {probe}, true, {}, rng_);
    ASSERT_TRUE(written.groups.at(0).is_ok()) << where_ << ": " << written.groups.at(0).to_string();
    promises_.group_done(0, 0, true);
    if (!promises_.may_evict()) {
      for (const Status& page : read_pages(**store, probe, {}, rng_, where_)) EXPECT_TRUE(page.is_ok()) << where_;
    }
    promises_.ended(Ending::kKilled);
  }

  const std::uint64_t seed_;
  Rng rng_;
  support::TemporaryDirectory directory_;
  std::vector<std::string> directories_;
  BackendOptions options_;
  Promises promises_;
  std::string where_;
  std::uint64_t found_ = 0;
};

}  // namespace

void run_chains(std::uint64_t first, std::uint64_t count) {
  const QuietLog quiet;
  std::uint64_t acknowledged = 0, found = 0;
  for (std::uint64_t i = 0; i < count && !testing::Test::HasFailure(); ++i) {
    const std::uint64_t seed = test_seed() + first + i;
    SCOPED_TRACE("LARDER_TEST_SEED=" + std::to_string(seed) + " runs the chain first");
    Chain chain(seed);
    chain.run();
    acknowledged += chain.acknowledged();
    found += chain.found();
  }
  EXPECT_GT(acknowledged, count * kKillsPerChain * 5);
  EXPECT_GT(found, count * kKillsPerChain * 5);
}

}  // namespace larder::crash
