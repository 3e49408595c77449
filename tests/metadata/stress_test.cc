// SPDX-License-Identifier: Apache-2.0
// Real threads on one service: writers, readers, evictions, removals, restless time. "The file" is one word per page;
// whoever finds a page under a lease must read there what its key's writer wrote.
#include <array>
#include <atomic>
#include <shared_mutex>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "tests/metadata/embedded_harness.h"

namespace larder::conformance {
namespace {

constexpr std::uint64_t kPages = 48, kKeys = 120;
constexpr int kThreads = 4, kRounds = 4000;

class Stress {
 public:
  explicit Stress(std::uint64_t seed) : seed_(seed) {
    for (const MetadataNamespace& space : spaces_) EXPECT_TRUE(rig_.service().initialize(space, kPages).is_ok());
  }

  void run() {
    ThreadPoolExecutor threads("clients", kThreads, kThreads);
    for (int i = 0; i < kThreads; ++i) {
      const Status posted = threads.post([this, i] { work(static_cast<std::uint64_t>(i)); });
      EXPECT_TRUE(posted.is_ok());
    }
    threads.wait_idle();
  }

  void verify() {
    EXPECT_EQ(wrong_.load(), 0) << "a reader under a lease saw another key's bytes; seed " << seed_;
    EXPECT_EQ(errors_.load(), 0) << "seed " << seed_;
    EXPECT_GT(reads_.load(), 100u);
    EXPECT_TRUE(rig_.check().is_ok()) << rig_.check().to_string();
    rig_.advance(10 * kMaxTtl);
    for (const MetadataNamespace& space : spaces_) {
      const NamespaceStats stats = Talker(rig_.service(), space).stats();
      EXPECT_EQ(stats.reserved + stats.quarantined + stats.leased, 0u) << "nothing stays for ever; seed " << seed_;
      EXPECT_GT(stats.evicted, 0u);
      EXPECT_GT(stats.expired, 0u);
    }
  }

 private:
  class Rig final : public EmbeddedHarness {
   public:
    Rig() { open(metadata::open_memory_journal(std::make_shared<metadata::MemoryDisk>())); }
  };
  [[nodiscard]] static std::uint64_t content(std::uint64_t key, std::uint64_t generation) {
    return generation << 16 | key;
  }

  void work(std::uint64_t thread) {
    Rng rng(seed_ + thread);
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t key = rng.below(kKeys);
      const std::string name = "key" + std::to_string(key);
      const MetadataSession session = session_of(1 + thread, static_cast<std::uint64_t>(round));
      const std::uint64_t kind = rng.below(100);
      if (kind < 40) {
        write(rng, session, key, name);
      } else if (kind < 95) {
        read(rng, key, name);
      } else if (kind < 98) {
        std::unique_lock stop(time_);  // nobody reads or writes while time goes on
        rig_.advance(kSecond * (1 + rng.below(20)));
      } else {
        const std::vector<ConfirmItem> items{{&spaces_[rng.below(2)], name, {}}};
        if (!rig_.service().remove(items).is_ok()) ++errors_;
        if (rng.chance(1, 20) && !rig_.service().clear(spaces_[1], "key1").is_ok()) ++errors_;
      }
    }
  }

  // The key in both namespaces, as one group.
  void write(Rng& rng, const MetadataSession& session, std::uint64_t key, const std::string& name) {
    std::shared_lock stand_still(time_);
    const std::string parent = "key" + std::to_string(key / 2);
    const std::vector<ReserveItems> wanted{{&spaces_[0], {{name, parent}}}, {&spaces_[1], {{name, parent}}}};
    const auto reserved = rig_.service().reserve(session, wanted, kMaxTtl / 4);
    const auto again = rng.chance(1, 4) ? rig_.service().reserve(session, wanted, kMaxTtl / 4) : reserved;
    if (!reserved || !again) {
      ++errors_;
      return;
    }
    ConfirmRequest request{session, {{}}, {}, rng.chance(1, 16)};
    for (std::size_t i = 0; i < 2; ++i) {
      const Reserved& page = reserved->at(i).at(0);
      if (page.outcome != ReserveOutcome::kReserved) continue;
      files_[i][page.ref.page].store(content(key, page.ref.generation), std::memory_order_relaxed);
      request.groups[0].push_back({&spaces_[i], name, page.ref});
    }
    if (rng.chance(1, 30)) return;  // this client dies
    if (rng.chance(1, 10)) std::swap(request.groups[0], request.release);
    const auto confirmed = rig_.service().confirm(request);
    const auto repeated = rig_.service().confirm(request);
    if (!confirmed || !repeated || confirmed->size() != 1) ++errors_;
  }

  void read(Rng& rng, std::uint64_t key, const std::string& name) {
    std::shared_lock stand_still(time_);
    const std::size_t which = rng.below(2);
    const std::vector<MetadataKeys> wanted{{&spaces_[which], {name}}};
    const auto found = rig_.service().find(wanted, kSecond * (1 + rng.below(10)));
    if (!found) {
      ++errors_;
      return;
    }
    const auto& page = found->at(0).at(0);
    if (!page) return;
    ++reads_;
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t seen = files_[which][page->page].load(std::memory_order_relaxed);
      if (seen != content(key, page->generation)) ++wrong_;
    }
  }

  const std::uint64_t seed_;
  const std::array<MetadataNamespace, 2> spaces_{{{0, "kv"}, {0, "mamba"}}};
  Rig rig_;
  std::shared_mutex time_;  // held by those for whom time must stand still
  std::array<std::array<std::atomic<std::uint64_t>, kPages>, 2> files_{};
  std::atomic<int> wrong_{0}, errors_{0};
  std::atomic<std::uint64_t> reads_{0};
};

TEST(MetadataStressTest, ReadersUnderALeaseSeeTheirKeysBytes) {
  Stress stress(metadata_test_seed());
  stress.run();
  stress.verify();
}

}  // namespace
}  // namespace larder::conformance
