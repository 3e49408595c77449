// SPDX-License-Identifier: Apache-2.0
#include "base/inbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/thread_pool.h"

namespace larder {
namespace {

TEST(Inbox, KeepsOrderAndRefusesWhenFull) {
  Inbox<int> inbox(2);
  EXPECT_TRUE(inbox.try_push(1).is_ok());
  EXPECT_TRUE(inbox.try_push(2).is_ok());
  EXPECT_EQ(inbox.try_push(3).code(), StatusCode::kOverloaded);
  std::vector<int> out;
  EXPECT_EQ(inbox.drain(out), 2u);
  EXPECT_EQ(out, (std::vector<int>{1, 2}));
  EXPECT_EQ(inbox.places_taken(), 0u);
}

TEST(Inbox, AReservedPlaceAlwaysFits) {
  Inbox<int> inbox(2);
  auto ticket = inbox.reserve();
  ASSERT_TRUE(ticket.is_ok());
  ASSERT_TRUE(inbox.try_push(1).is_ok());
  EXPECT_EQ(inbox.try_push(2).code(), StatusCode::kOverloaded);
  EXPECT_EQ(inbox.reserve().status().code(), StatusCode::kOverloaded);
  Inbox<int>::push(std::move(ticket).value(), 7);
  std::vector<int> out;
  EXPECT_EQ(inbox.drain(out), 2u);
  EXPECT_EQ(out, (std::vector<int>{1, 7}));
}

TEST(Inbox, AnUnusedTicketGivesItsPlaceBack) {
  Inbox<int> inbox(1);
  {
    auto ticket = inbox.reserve();
    ASSERT_TRUE(ticket.is_ok());
    Inbox<int>::Ticket moved = std::move(ticket).value();
    EXPECT_TRUE(moved.valid());
    EXPECT_EQ(inbox.places_taken(), 1u);
  }
  EXPECT_EQ(inbox.places_taken(), 0u);
  EXPECT_TRUE(inbox.try_push(1).is_ok());
}

TEST(Inbox, ALatePushAfterTheInboxIsGoneDestroysItsItemOnly) {
  std::optional<Inbox<std::shared_ptr<int>>> inbox(std::in_place, 1);
  auto ticket = inbox->reserve();
  ASSERT_TRUE(ticket.is_ok());
  inbox.reset();
  auto item = std::make_shared<int>(1);
  std::weak_ptr<int> watch = item;
  Inbox<std::shared_ptr<int>>::push(std::move(ticket).value(), std::move(item));
  EXPECT_TRUE(watch.expired());
}

TEST(Inbox, WakeIsRemembered) {
  Inbox<int> inbox(1);
  inbox.wake();
  EXPECT_FALSE(inbox.wait_for(std::chrono::hours(1)));
  ASSERT_TRUE(inbox.try_push(1).is_ok());
  EXPECT_TRUE(inbox.wait_for(std::chrono::hours(1)));
}

TEST(Inbox, ManyProducersLoseNothing) {
  constexpr std::size_t kItems = 2000;
  Inbox<std::size_t> inbox(kItems);
  ThreadPoolExecutor pool("producer", 4, kItems);
  for (std::size_t i = 0; i < kItems; ++i) {
    auto ticket = inbox.reserve();
    ASSERT_TRUE(ticket.is_ok());
    auto held = std::make_shared<Inbox<std::size_t>::Ticket>(std::move(ticket).value());
    ASSERT_TRUE(pool.post([held, i] { Inbox<std::size_t>::push(std::move(*held), i); }).is_ok());
  }
  std::vector<std::size_t> out;
  while (out.size() < kItems) {
    ASSERT_TRUE(inbox.wait_for(std::chrono::seconds(30)));
    inbox.drain(out);
  }
  std::vector<bool> seen(kItems);
  for (const std::size_t i : out) seen[i] = true;
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), static_cast<std::ptrdiff_t>(kItems));
}

}  // namespace
}  // namespace larder
