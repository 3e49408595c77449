// SPDX-License-Identifier: Apache-2.0
#include "tests/metadata/crash_rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/thread_pool.h"
#include "tests/metadata/crash_client.h"
#include "tests/metadata/crash_promises.h"
#include "tests/metadata/metadata_harness.h"
#include "tests/support/real_killed_process.h"
#include "tests/support/temporary_directory.h"

namespace larder::conformance {
namespace {

constexpr int kKillsPerDirectory = 10;

void say_lines(const std::vector<CrashEvent>& events) {
  std::string lines;
  for (const CrashEvent& event : events) lines += to_line(event);
  support::say(lines);
}

// Of run_kills().
std::uint64_t kill_some(const std::string& directory, Rng& rng, int kills) {
  CrashPromises promises;
  for (int i = 0; i < kills && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("kill " + std::to_string(i) + " of this directory");
    support::KilledProcess child;
    EXPECT_TRUE(child.start({"metadata_crash", kCrashChild, directory, std::to_string(rng.next_u64())}).is_ok());
    child.read_lines(1 + rng.below(rng.chance(1, 4) ? 10 : 1500), std::chrono::seconds(30));
    const Status killed = child.kill();
    EXPECT_TRUE(killed.is_ok()) << killed.to_string() << "\n" << (child.lines().empty() ? "" : child.lines().back());
    for (const std::string& line : child.lines()) promises.note(event_of(line));
    ManualClock clock;
    auto service = open_crash_service(directory, clock, kMaxLease);
    EXPECT_TRUE(service.is_ok()) << service.status().to_string();
    if (!service) break;
    const Status sound = (*service)->check();
    EXPECT_TRUE(sound.is_ok()) << sound.to_string();
    promises.verify(**service, kCrashClients * kMostItems, [&] { clock.advance(std::chrono::hours(1)); });
  }
  return promises.confirmed();
}

}  // namespace

int run_crash_child(const std::string& directory, std::uint64_t seed) {
  auto service = open_crash_service(directory, real_clock(), std::chrono::milliseconds(1));
  if (!service) {
    say_lines({{CrashWord::kWrong, 'b', service.status().to_string(), {}}});
    return 1;
  }
  std::vector<std::unique_ptr<CrashClient>> clients;
  ThreadPoolExecutor threads("clients", kCrashClients, kCrashClients);
  for (std::uint64_t i = 0; i < kCrashClients; ++i) {
    clients.push_back(std::make_unique<CrashClient>(i, seed, say_lines));
    clients.back()->connect(**service);
    const Status posted = threads.post([client = clients.back().get()] {
      while (client->step()) {}
    });
    if (!posted.is_ok()) return 1;
  }
  threads.wait_idle();
  return 0;
}

void run_crash_rounds(std::uint64_t seed, int kills) { run_kills(seed, kills, kill_some); }

void run_kills(std::uint64_t seed, int kills, const KillSome& kill_some) {
  Rng rng(seed);
  std::uint64_t confirmed = 0;
  for (int kill = 0; kill < kills; kill += kKillsPerDirectory) {
    const support::TemporaryDirectory directory;
    confirmed += kill_some(directory.path(), rng, std::min(kKillsPerDirectory, kills - kill));
    ASSERT_FALSE(testing::Test::HasFailure()) << "kills from " << kill << "; replay: LARDER_TEST_SEED=" << seed;
  }
  EXPECT_GT(confirmed, static_cast<std::uint64_t>(kills) * 10) << "too little load to show anything";
}

}  // namespace larder::conformance
