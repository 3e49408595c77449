// SPDX-License-Identifier: Apache-2.0
// Random requests to the service and to a simple model of it, with restarts: the same answers, down to the victim of
// each eviction. A failing run prints the seed that replays it.
#include <algorithm>
#include <cstdlib>

#include "base/rng.h"
#include "tests/metadata/embedded_harness.h"
#include "tests/metadata/metadata_model.h"

namespace larder::conformance {
namespace {

constexpr std::uint64_t kModelKeys = 24;
constexpr std::size_t kSteps = 1500;

class Journaled final : public EmbeddedHarness {
 public:
  Journaled() { (void)restart(); }
  [[nodiscard]] bool restart() override {
    open(metadata::open_memory_journal(disk_));
    return true;
  }

 private:
  std::shared_ptr<metadata::MemoryDisk> disk_ = std::make_shared<metadata::MemoryDisk>();
};

class Replay {
 public:
  explicit Replay(std::uint64_t seed) : rng_(seed), pages_(1 + rng_.below(20)), model_(pages_) {
    for (std::uint64_t i = 0; i < kModelKeys; ++i) {
      names_.push_back((i % 2 == 0 ? "even" : "odd") + std::to_string(i));
      // A parent has a smaller number, so there are no circles.
      parents_.push_back(i == 0 || rng_.chance(1, 5) ? "" : names_[rng_.below(i)]);
    }
    (void)rig_.service().initialize(space_, pages_);
  }

  void step() {
    switch (rng_.below(20)) {
      case 0: return remove();
      case 1: return rng_.chance(1, 10) ? clear() : find();
      case 2: return rng_.chance(1, 10) ? restart() : find();
      case 3: return advance();
      case 4:
      case 5:
      case 6: return find();
      case 7:
      case 8:
      case 9:
      case 10: return reserve();
      default: return held_.empty() ? reserve() : confirm();
    }
  }

  void compare() {
    const auto all = rig_.service().stats();
    ASSERT_TRUE(all.is_ok());
    const NamespaceStats own = all->at(space_), expected = model_.stats();
    ASSERT_EQ(own.pages, expected.pages);
    ASSERT_EQ(own.free, expected.free);
    ASSERT_EQ(own.reserved, expected.reserved);
    ASSERT_EQ(own.stored, expected.stored);
    ASSERT_EQ(own.quarantined, expected.quarantined);
    ASSERT_LE(own.leased, own.stored + own.quarantined);
    ASSERT_TRUE(rig_.check().is_ok()) << rig_.check().to_string();
  }

 private:
  struct Held {  // a reservation that was given to a client
    MetadataSession session;
    std::vector<ConfirmItem> items;
  };
  [[nodiscard]] MetadataSession any_session() { return session_of(1 + rng_.below(3), rng_.below(2)); }
  [[nodiscard]] Nanos any_time() { return kSecond * (1 + rng_.below(50)); }
  [[nodiscard]] std::vector<std::size_t> any_keys() {
    std::vector<std::size_t> keys;
    for (std::size_t i = 0, count = 1 + rng_.below(5); i < count; ++i) keys.push_back(rng_.below(kModelKeys));
    if (rng_.chance(2, 3)) std::sort(keys.begin(), keys.end());
    return keys;
  }

  void find() {
    std::vector<std::string> keys;
    for (const std::size_t key : any_keys()) keys.push_back(names_[key]);
    const Nanos lease = rng_.chance(1, 2) ? Nanos{0} : any_time() / 4;
    ASSERT_EQ(Talker(rig_.service(), space_).find(keys, lease), model_.find(keys, lease));
  }

  void reserve() {
    std::vector<ReserveItems> wanted{{&space_, {}}};
    for (const std::size_t key : any_keys()) wanted[0].items.push_back({names_[key], parents_[key]});
    const MetadataSession session = any_session();
    const Nanos ttl = any_time();
    const auto answer = rig_.service().reserve(session, wanted, ttl);
    ASSERT_TRUE(answer.is_ok()) << answer.status().to_string();
    ASSERT_EQ(model_.reserve(session, wanted[0].items, ttl, answer->at(0)), "");
    Held held{session, {}};
    for (std::size_t i = 0; i < wanted[0].items.size(); ++i) {
      if (answer->at(0)[i].outcome != ReserveOutcome::kReserved) continue;
      const auto is_same = [&](const ConfirmItem& item) { return item.ref == answer->at(0)[i].ref; };
      if (std::any_of(held.items.begin(), held.items.end(), is_same)) continue;
      held.items.push_back({&space_, wanted[0].items[i].key, answer->at(0)[i].ref});
    }
    if (!held.items.empty()) held_.push_back(held);
  }

  // Also late ones, and some twice.
  void confirm() {
    const std::size_t which = rng_.below(held_.size());
    const Held held = held_[which];
    if (rng_.chance(4, 5)) held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(which));
    ConfirmRequest request{held.session, {{}, {}}, {}, rng_.chance(1, 10), rng_.chance(1, 2)};
    for (const ConfirmItem& item : held.items) {
      const std::uint64_t kind = rng_.below(5);
      (kind == 0 ? request.release : request.groups[kind % 2]).push_back(item);
    }
    // The service publishes the groups in the order of their items, and then releases.
    const auto answer = rig_.service().confirm(request);
    ASSERT_TRUE(answer.is_ok()) << answer.status().to_string();
    for (std::size_t group = 0; group < 2; ++group) {
      ASSERT_EQ(answer->at(group).is_ok(), model_.confirm(held.session, request.groups[group])) << "group " << group;
    }
    for (const ConfirmItem& item : request.release) {
      model_.release(held.session, item, request.released_rest);
    }
  }

  void remove() {
    const ConfirmItem item{
        &space_, names_[rng_.below(kModelKeys)], {rng_.below(pages_), rng_.below(2) * rng_.below(40)}};
    const std::vector<ConfirmItem> items{item};
    const auto answer = rig_.service().remove(items);
    ASSERT_TRUE(answer.is_ok());
    ASSERT_EQ(*answer, model_.remove(item));
  }

  void clear() {
    const std::string prefix = rng_.chance(1, 2) ? "even" : "";
    const auto answer = rig_.service().clear(space_, prefix);
    ASSERT_TRUE(answer.is_ok());
    ASSERT_EQ(*answer, model_.clear(prefix));
  }

  void advance() {
    const Nanos by = rng_.chance(1, 10) ? 3 * kMaxTtl : any_time() / 3;
    rig_.advance(by);
    model_.advance(by);
  }

  void restart() {
    ASSERT_TRUE(rig_.restart());
    model_.restart();
  }

  Rng rng_;
  const std::uint64_t pages_;
  const MetadataNamespace space_{0, "kv"};
  Journaled rig_;
  MetadataModel model_;
  std::vector<std::string> names_, parents_;
  std::vector<Held> held_;
};

TEST(MetadataModelTest, AnswersAsTheModelDoes) {
  const std::uint64_t first = metadata_test_seed();
  const std::uint64_t runs = std::getenv("LARDER_TEST_SEED") != nullptr ? 1 : 40;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    Replay run(seed);
    for (std::size_t step = 0; step < kSteps; ++step) {
      run.step();
      if (!testing::Test::HasFatalFailure()) run.compare();
      ASSERT_FALSE(testing::Test::HasFatalFailure()) << "step " << step << "; replay: LARDER_TEST_SEED=" << seed;
    }
  }
}

}  // namespace
}  // namespace larder::conformance
