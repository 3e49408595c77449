// SPDX-License-Identifier: Apache-2.0
#include "engine/waiting_line.h"

#include <gtest/gtest.h>

#include <map>

namespace larder {
namespace {

std::unique_ptr<Sequence> sequence_of(Scheduler::Ticket ticket, std::int32_t priority = 0) {
  auto s = std::make_unique<Sequence>();
  s->ticket = ticket;
  s->request.priority = priority;
  return s;
}

std::vector<Scheduler::Ticket> tickets_of(const WaitingLine& line) {
  std::vector<Scheduler::Ticket> tickets;
  for (const auto& s : line.sequences()) tickets.push_back(s->ticket);
  return tickets;
}

using Tickets = std::vector<Scheduler::Ticket>;

TEST(WaitingLine, HigherPriorityFirstThenArrival) {
  WaitingLine line;
  line.add(sequence_of(1));
  line.add(sequence_of(2, 5));
  line.add(sequence_of(3));
  line.add(sequence_of(4, 5));
  line.add(sequence_of(5, -1));
  EXPECT_EQ(tickets_of(line), (Tickets{2, 4, 1, 3, 5}));
  line.add_first(sequence_of(6));
  EXPECT_EQ(tickets_of(line), (Tickets{2, 4, 6, 1, 3, 5}));
  EXPECT_EQ(line.take(1)->ticket, 1u);
  EXPECT_EQ(line.take(1), nullptr);
  EXPECT_EQ(line.take_all().size(), 5u);
  EXPECT_EQ(line.size(), 0u);
}

// What the line offers to start, and the answers of a script (kStarted where it says nothing).
struct Script {
  std::map<Scheduler::Ticket, StartAnswer> answers;
  Tickets asked;
  StartAnswer operator()(Sequence& s) {
    asked.push_back(s.ticket);
    const auto at = answers.find(s.ticket);
    return at == answers.end() ? StartAnswer::kStarted : at->second;
  }
};

TEST(WaitingLine, StartsAsManyAsThereArePlaces) {
  WaitingLine line;
  for (Scheduler::Ticket t = 1; t <= 5; ++t) line.add(sequence_of(t));
  Script script;
  script.answers[2] = StartAnswer::kFailed;
  const WaitingLine::Outcome outcome = line.admit(2, std::ref(script));
  EXPECT_EQ(outcome.started.size(), 2u);
  EXPECT_EQ(outcome.failed.size(), 1u);
  EXPECT_EQ(outcome.refused, nullptr);
  EXPECT_EQ(script.asked, (Tickets{1, 2, 3}));
  EXPECT_EQ(tickets_of(line), (Tickets{4, 5}));
}

TEST(WaitingLine, WaitingForStorageHoldsNobodyUpHoweverLong) {
  WaitingLine line;
  line.add(sequence_of(1));
  Script script;
  script.answers[1] = StartAnswer::kWaitsForStorage;
  for (Scheduler::Ticket t = 2; t < 100; ++t) {
    line.add(sequence_of(t));
    const WaitingLine::Outcome outcome = line.admit(1, std::ref(script));
    ASSERT_EQ(outcome.started.size(), 1u);
    EXPECT_TRUE(outcome.any_waits_for_storage);
  }
  EXPECT_EQ(line.sequences().front()->overtaken, 0u);
}

TEST(WaitingLine, WhoDoesNotFitIsOvertakenOnlySoOften) {
  WaitingLine line;
  line.add(sequence_of(1));
  Script script;
  script.answers[1] = StartAnswer::kNoRoom;
  std::size_t started = 0;
  for (Scheduler::Ticket t = 2; t < 50; ++t) {
    line.add(sequence_of(t));
    const WaitingLine::Outcome outcome = line.admit(1, std::ref(script));
    ASSERT_NE(outcome.refused, nullptr);
    EXPECT_EQ(outcome.refused->ticket, 1u);
    started += outcome.started.size();
  }
  EXPECT_EQ(started, WaitingLine::kMaxOvertakes);
  // Those of higher priority still pass, and it starts as soon as there is room.
  line.add(sequence_of(99, 1));
  EXPECT_EQ(line.admit(1, std::ref(script)).started.at(0)->ticket, 99u);
  script.answers.clear();
  EXPECT_EQ(line.admit(1, std::ref(script)).started.at(0)->ticket, 1u);
}

TEST(WaitingLine, ManyThatWaitForStorageHoldNobodyUp) {
  for (const std::size_t waiting : {15u, 16u, 64u, 500u}) {
    WaitingLine line;
    Script script;
    for (Scheduler::Ticket t = 1; t <= waiting; ++t) {
      line.add(sequence_of(t));
      script.answers[t] = StartAnswer::kWaitsForStorage;
    }
    line.add(sequence_of(waiting + 1));
    const WaitingLine::Outcome outcome = line.admit(8, std::ref(script));
    EXPECT_EQ(outcome.started.size(), 1u) << waiting;
    EXPECT_EQ(line.size(), waiting);
  }
}

TEST(WaitingLine, OneTurnTriesToStartOnlySoMany) {
  WaitingLine line;
  Script starts, room;
  for (Scheduler::Ticket t = 1; t <= 100; ++t) {
    line.add(sequence_of(t));
    room.answers[t] = StartAnswer::kNoRoom;
  }
  (void)line.admit(100, std::ref(starts));
  EXPECT_EQ(starts.asked.size(), WaitingLine::kLookAhead);
  (void)line.admit(8, std::ref(room));
  EXPECT_EQ(room.asked.size(), WaitingLine::kMaxRefusals);
}

}  // namespace
}  // namespace larder
