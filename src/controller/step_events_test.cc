// SPDX-License-Identifier: Apache-2.0
#include "controller/step_events.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "pool/pool_test_util.h"

namespace larder {
namespace {

using Event = std::shared_ptr<DeviceEvent>;

// What each look at it finds, as if another thread fired it between two of them; the last for good.
class SeenSo final : public DeviceEvent {
 public:
  explicit SeenSo(std::vector<bool> looks) : looks_(std::move(looks)) {}
  [[nodiscard]] bool has_fired() const override {
    const bool has = looks_.front();
    if (looks_.size() > 1) looks_.erase(looks_.begin());
    return has;
  }

 private:
  mutable std::vector<bool> looks_;
};

class StepEventsTest : public testing::Test {
 protected:
  [[nodiscard]] Event before(std::vector<std::uint32_t> slots) {
    std::array<std::vector<SlotPair>, kComponentCount> pairs;
    for (const std::uint32_t slot : slots) pairs[0].push_back({DeviceSlot(slot), HostSlot(0), {}});
    return events.before_writing(pairs);
  }
  void freed(std::uint32_t slot) { events.freed(ComponentKind::kFull, DeviceSlot(slot)); }
  Event give() {
    const auto event = std::make_shared<DeviceEvent>();
    events.ended(event);
    return event;
  }

  const ModelSpec model = pool_test::preset("gqa-tiny");
  const std::unique_ptr<DevicePools> device =
      pool_test::take(DevicePools::create(model, {256, 0, 0}, host_memory_source()));
  StepEvents events{*device};
};

TEST_F(StepEventsTest, AnEngineWithoutEventsWaitsForNothing) {
  freed(3);
  events.ended(nullptr);
  EXPECT_EQ(before({3}), nullptr);
  EXPECT_EQ(events.before_reading(), nullptr);
}

TEST_F(StepEventsTest, ACopyWaitsForTheStepsThatCouldTouchItsSlots) {
  freed(1);
  const Event first = give();
  freed(2);
  const Event second = give();
  freed(3);
  EXPECT_EQ(events.before_reading(), second);
  EXPECT_EQ(before({1}), nullptr) << "free before any of them";
  EXPECT_EQ(before({2}), first);
  EXPECT_EQ(before({3}), second);
  EXPECT_EQ(before({2, 3, 1}), second);
  first->fire();
  EXPECT_EQ(before({2}), nullptr);
  EXPECT_EQ(before({3}), second);
  second->fire();
  EXPECT_EQ(before({3}), nullptr);
  EXPECT_EQ(events.before_reading(), nullptr);
  const Event third = give();
  EXPECT_EQ(before({3}), nullptr);
  EXPECT_EQ(events.before_reading(), third);
}

TEST_F(StepEventsTest, ABatchSharesItsEvent) {
  const Event event = give();
  freed(1);
  events.ended(event);
  freed(2);
  event->fire();
  events.ended(event);
  EXPECT_EQ(before({1, 2}), nullptr);
}

// A call that was refused comes again with its event when others have been given.
TEST_F(StepEventsTest, AnEventThatComesLateDoesNotHideThoseBeforeIt) {
  const Event refused = give();
  const Event next = give();
  freed(1);
  events.ended(refused);
  freed(2);
  refused->fire();
  EXPECT_EQ(events.before_reading(), next);
  EXPECT_EQ(before({1, 2}), next);
  const Event later = give(), early = give();
  freed(3);
  early->fire();
  EXPECT_EQ(before({3}), later);
  next->fire();
  later->fire();
  EXPECT_EQ(before({1, 2, 3}), nullptr);
}

// fire() is any thread's: what has not fired at one look may have at the next, and then there is nothing to wait for.
TEST_F(StepEventsTest, EventsThatFireBetweenTwoLooksAreNotPassed) {
  for (const bool has_another : {false, true}) {
    SCOPED_TRACE(has_another);
    const auto gone = std::make_shared<SeenSo>(std::vector<bool>{false, true, false});  // nobody looks a third time
    events.ended(gone);
    std::vector<Event> given;
    if (has_another) given.push_back(std::make_shared<SeenSo>(std::vector<bool>{false, false, false, true}));
    given.push_back(
        std::make_shared<SeenSo>(has_another ? std::vector<bool>{false, true} : std::vector<bool>{false, false, true}));
    for (const Event& event : given) events.ended(event);
    freed(7);
    EXPECT_EQ(before({7}), nullptr);
    EXPECT_EQ(before({7}), nullptr);
    EXPECT_EQ(events.before_reading(), nullptr);
  }
}

// An engine far ahead: of more events than are kept, a copy waits for one that was given later, and never for less.
TEST_F(StepEventsTest, OfTooManyEventsACopyWaitsForALaterOne) {
  std::vector<Event> given;
  for (std::uint32_t i = 0; i < 3 * StepEvents::kMostEvents; ++i) {
    given.push_back(give());
    freed(i);
  }
  EXPECT_EQ(before({0}), given[0]);
  EXPECT_EQ(events.before_reading(), given.back());
  given[0]->fire();
  EXPECT_EQ(before({0}), nullptr);
  for (std::uint32_t i = 1; i < given.size(); ++i) {
    const Event wait = before({i});
    const auto at = std::find(given.begin(), given.end(), wait);
    ASSERT_NE(at, given.end()) << i;
    EXPECT_GE(at - given.begin(), static_cast<std::ptrdiff_t>(i));
  }
  for (const Event& event : given) event->fire();
  EXPECT_EQ(before({5}), nullptr);
}

}  // namespace
}  // namespace larder
