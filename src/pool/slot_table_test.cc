// SPDX-License-Identifier: Apache-2.0
#include "pool/slot_table.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"

namespace larder {
namespace {

// The table of slot_table.h, row by row. A slot is brought to `from` with `leases`, then `event` happens.
enum class Event { kAllocate, kLease, kDrop, kFree };
struct Row {
  const char* from;  // "free", "live", "quarantined"
  std::uint32_t leases;
  Event event;
  StatusCode code;
  const char* to;
  std::uint32_t leases_after;
};
constexpr Row kTable[] = {
    {"free", 0, Event::kAllocate, StatusCode::kOk, "live", 0},
    {"free", 0, Event::kLease, StatusCode::kInternal, "free", 0},
    {"free", 0, Event::kDrop, StatusCode::kInternal, "free", 0},
    {"free", 0, Event::kFree, StatusCode::kInternal, "free", 0},
    {"live", 0, Event::kLease, StatusCode::kOk, "live", 1},
    {"live", 2, Event::kLease, StatusCode::kOk, "live", 3},
    {"live", 0, Event::kDrop, StatusCode::kInternal, "live", 0},
    {"live", 1, Event::kDrop, StatusCode::kOk, "live", 0},
    {"live", 2, Event::kDrop, StatusCode::kOk, "live", 1},
    {"live", 0, Event::kFree, StatusCode::kOk, "free", 0},
    {"live", 1, Event::kFree, StatusCode::kOk, "quarantined", 1},
    {"quarantined", 1, Event::kLease, StatusCode::kInternal, "quarantined", 1},
    {"quarantined", 1, Event::kFree, StatusCode::kInternal, "quarantined", 1},
    {"quarantined", 1, Event::kDrop, StatusCode::kOk, "free", 0},
    {"quarantined", 2, Event::kDrop, StatusCode::kOk, "quarantined", 1},
};

std::string state_of(const SlotTable& table) {  // of the only slot
  const SlotTable::Counts counts = table.counts();
  return counts.free == 1 ? "free" : counts.live == 1 ? "live" : "quarantined";
}

StatusCode apply(SlotTable& table, Event event) {
  switch (event) {
    case Event::kAllocate: return table.allocate() ? StatusCode::kOk : StatusCode::kOverloaded;
    case Event::kLease: return table.add_lease(0).status().code();
    case Event::kDrop: return table.drop_lease(0, table.generation(0)).status().code();
    case Event::kFree: return table.free(0).status().code();
  }
  return StatusCode::kInternal;
}

TEST(SlotTable, FollowsItsStateTable) {
  for (const Row& row : kTable) {
    SCOPED_TRACE(std::string(row.from) + " with " + std::to_string(row.leases) + " leases, event " +
                 std::to_string(static_cast<int>(row.event)));
    SlotTable table(1);
    if (std::string(row.from) != "free") {
      ASSERT_TRUE(table.allocate());
      for (std::uint32_t i = 0; i < row.leases; ++i) ASSERT_TRUE(table.add_lease(0).is_ok());
      if (std::string(row.from) == "quarantined") {
        ASSERT_TRUE(table.free(0).is_ok());
      }
    }
    ASSERT_EQ(state_of(table), row.from);
    EXPECT_EQ(apply(table, row.event), row.code);
    EXPECT_EQ(state_of(table), row.to);
    EXPECT_EQ(table.counts().leases, row.leases_after);
    EXPECT_EQ(table.check_invariants().to_string(), "ok");
  }
}

TEST(SlotTable, FullIsAValue) {
  SlotTable table(1);
  EXPECT_TRUE(table.allocate());
  EXPECT_FALSE(table.allocate());
  EXPECT_FALSE(SlotTable(0).allocate());
}

TEST(SlotTable, StaleLeaseIsRefusedAndCounted) {
  SlotTable table(1);
  const std::uint32_t slot = *table.allocate();
  const Generation first = table.generation(slot);
  ASSERT_TRUE(table.add_lease(slot).is_ok());
  ASSERT_FALSE(*table.free(slot));  // quarantined: the lease is still out
  EXPECT_FALSE(table.allocate());   // and not handed out
  ASSERT_TRUE(*table.drop_lease(slot, first));
  ASSERT_EQ(*table.allocate(), slot);
  EXPECT_NE(table.generation(slot), first);
  ASSERT_TRUE(table.add_lease(slot).is_ok());
  EXPECT_EQ(table.drop_lease(slot, first).status().code(), StatusCode::kConflict);
  EXPECT_EQ(table.counts().leases, 1u);
  EXPECT_EQ(table.refusals().stale_leases, 1u);
}

TEST(SlotTable, SlotsThatDoNotExistAreRefused) {
  SlotTable table(2);
  for (const std::uint32_t slot : {2u, 0xffffffffu}) {
    EXPECT_EQ(table.free(slot).status().code(), StatusCode::kInternal);
    EXPECT_EQ(table.add_lease(slot).status().code(), StatusCode::kInternal);
    EXPECT_EQ(table.drop_lease(slot, 0).status().code(), StatusCode::kInternal);
    EXPECT_EQ(table.generation(slot), 0u);
    EXPECT_FALSE(table.is_live(slot));
  }
  EXPECT_EQ(table.refusals(), (SlotTable::Refusals{2, 0, 4}));
  EXPECT_EQ(table.counts(), (SlotTable::Counts{2, 0, 0, 0}));
}

TEST(SlotTable, LeasesOfOneSlotAreBounded) {
  SlotTable table(1);
  ASSERT_TRUE(table.allocate());
  for (std::uint32_t i = 0; i < SlotTable::kMaxLeasesPerSlot; ++i) ASSERT_TRUE(table.add_lease(0).is_ok());
  EXPECT_EQ(table.add_lease(0).status().code(), StatusCode::kOverloaded);
  EXPECT_EQ(table.counts().leases, SlotTable::kMaxLeasesPerSlot);
}

// Random calls against a naive model: who is live, who is quarantined, which leases are out.
class SlotModel {
 public:
  explicit SlotModel(std::uint32_t capacity) : table_(capacity), capacity_(capacity) {}

  void step(Rng& rng) {
    const auto slot = static_cast<std::uint32_t>(rng.below(capacity_));
    switch (rng.below(4)) {
      case 0: allocate(); break;
      case 1: free(slot); break;
      case 2: lease(slot); break;
      default: drop(slot, rng.chance(1, 8)); break;
    }
    const auto free_count = static_cast<std::uint32_t>(capacity_ - live_.size() - quarantined_.size());
    ASSERT_EQ(table_.counts(), (SlotTable::Counts{free_count, static_cast<std::uint32_t>(live_.size()),
                                                  static_cast<std::uint32_t>(quarantined_.size()), leases_}));
    ASSERT_EQ(table_.check_invariants().to_string(), "ok");
  }

 private:
  void allocate() {
    const auto slot = table_.allocate();
    ASSERT_EQ(slot.has_value(), live_.size() + quarantined_.size() < capacity_);
    if (!slot) return;
    ASSERT_FALSE(live_.contains(*slot) || quarantined_.contains(*slot));
    const Generation generation = table_.generation(*slot);
    ASSERT_TRUE(seen_.insert({*slot, generation}).second) << "a generation came twice";
    live_[*slot] = 0;
  }
  void free(std::uint32_t slot) {
    const auto result = table_.free(slot);
    const auto found = live_.find(slot);
    ASSERT_EQ(result.is_ok(), found != live_.end());
    if (found == live_.end()) return;
    ASSERT_EQ(*result, found->second == 0);
    if (found->second > 0) quarantined_[slot] = found->second;
    live_.erase(found);
  }
  void lease(std::uint32_t slot) {
    const bool is_live = live_.contains(slot);
    ASSERT_EQ(table_.add_lease(slot).is_ok(), is_live);
    if (!is_live) return;
    ++live_[slot];
    ++leases_;
  }
  void drop(std::uint32_t slot, bool is_stale) {
    const auto result = table_.drop_lease(slot, table_.generation(slot) - (is_stale ? 1 : 0));
    auto& where = quarantined_.contains(slot) ? quarantined_ : live_;
    const auto found = where.find(slot);
    const bool is_legal = !is_stale && found != where.end() && found->second > 0;
    ASSERT_EQ(result.is_ok(), is_legal);
    if (!is_legal) return;
    --leases_;
    const bool is_freed = --found->second == 0 && &where == &quarantined_;
    ASSERT_EQ(*result, is_freed);
    if (is_freed) where.erase(found);
  }

  SlotTable table_;
  const std::uint32_t capacity_;
  std::map<std::uint32_t, std::uint32_t> live_, quarantined_;  // slot -> leases
  std::set<std::pair<std::uint32_t, Generation>> seen_;
  std::uint32_t leases_ = 0;
};

TEST(SlotTable, RandomCallsMatchTheModel) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    SlotModel model(static_cast<std::uint32_t>(rng.between(1, 12)));
    for (int i = 0; i < 1000; ++i) {
      ASSERT_NO_FATAL_FAILURE(model.step(rng)) << "step " << i;
    }
  }
}

TEST(SlotTable, ReservedSlotsAreNobodys) {
  const std::vector<std::uint32_t> reserved = {0, 3, 0};
  SlotTable table(5, reserved);
  EXPECT_EQ(table.size(), 5u);
  EXPECT_EQ(table.capacity(), 3u);
  EXPECT_EQ(table.counts().free, 3u);
  std::set<std::uint32_t> seen;
  while (const auto slot = table.allocate()) seen.insert(*slot);
  EXPECT_EQ(seen, (std::set<std::uint32_t>{1, 2, 4}));
  for (const std::uint32_t slot : {0u, 3u}) {
    EXPECT_FALSE(table.is_live(slot));
    EXPECT_FALSE(table.is_free(slot));
    EXPECT_EQ(table.free(slot).status().code(), StatusCode::kInternal);
    EXPECT_EQ(table.add_lease(slot).status().code(), StatusCode::kInternal);
    EXPECT_EQ(table.generation(slot), 0u);
  }
  for (const std::uint32_t slot : seen) EXPECT_TRUE(table.free(slot).is_ok());
  EXPECT_EQ(table.check_invariants().to_string(), "ok");
}

}  // namespace
}  // namespace larder
