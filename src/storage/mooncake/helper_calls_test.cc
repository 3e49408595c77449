// SPDX-License-Identifier: Apache-2.0
#include "storage/mooncake/helper_calls.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"

namespace larder::mooncake {
namespace {

using Codes = HelperCalls::Codes;
using Where = HelperCalls::Where;

// Keeps calls until the test answers them.
class KeptLink final : public HelperLink {
 public:
  Status call(std::string body, Done done, Late late) override {
    if (is_down) return unavailable("down");
    bodies.push_back(std::move(body));
    waiting.push_back(std::move(done));
    not_late.push_back(std::move(late));
    return Status::ok();
  }
  std::span<std::byte> staging() override { return {}; }
  void close() override {}
  // Answers the oldest call: its n-th object has code `first` + n.
  void answer(std::size_t count, std::int64_t first) {
    std::vector<std::int64_t> codes;
    for (std::size_t i = 0; i < count; ++i) codes.push_back(first + static_cast<std::int64_t>(i));
    const Done done = std::move(waiting.front());
    waiting.erase(waiting.begin());
    not_late.erase(not_late.begin());
    done(codes);
  }
  // The n-th of those that wait.
  void be_late(std::size_t n) { std::exchange(not_late[n], nullptr)(deadline_exceeded("late")); }

  std::vector<std::string> bodies;
  std::vector<Done> waiting;
  std::vector<Late> not_late;
  bool is_down = false;
};

class MooncakeCalls : public ::testing::Test {
 protected:
  static std::vector<NamedObject> objects(const std::string& names, std::uint64_t bytes = 10) {
    std::vector<NamedObject> out;
    for (const char name : names) out.push_back({std::string(1, name), {{0, 0, bytes}}});
    return out;
  }
  void get(const std::string& names, std::uint64_t bytes = 10, Where where = Where::kHere) {
    calls_.get(
        objects(names, bytes), where, [this, names](const Codes& codes) { tell(names, codes); },
        [this, names](const Status& why) { told_.push_back(names + " is " + why.message()); });
  }
  void put(const std::string& names) {
    calls_.put(
        objects(names), {{"tag" + names, names.size()}}, Where::kHere,
        [this, names](const Codes& codes) { tell(names, codes); },
        [this, names](const Status& why) { told_.push_back(names + " is " + why.message()); });
  }
  void tell(const std::string& names, const Codes& codes) {
    std::string line = names + ":";
    if (!codes.is_ok()) line += " " + codes.status().message();
    for (std::size_t i = 0; codes.is_ok() && i < codes->size(); ++i) line += " " + std::to_string((*codes)[i]);
    told_.push_back(line);
  }
  using Lines = std::vector<std::string>;

  KeptLink link_;
  ManualExecutor executor_;
  ManualClock clock_;
  HelperCalls calls_{link_, {4, 100, 2, 3}, executor_, clock_};
  Lines told_;
};

TEST_F(MooncakeCalls, WhoAsksAloneGoesAloneAndOthersGoTogether) {
  get("a");
  ASSERT_EQ(link_.bodies.size(), 1u);
  EXPECT_EQ(link_.bodies[0], get_request(objects("a"), {1}));
  get("b");
  get("cd");
  EXPECT_EQ(link_.bodies.size(), 1u);
  link_.answer(1, 7);
  EXPECT_EQ(told_, (Lines{"a: 7"}));
  ASSERT_EQ(link_.bodies.size(), 2u);
  EXPECT_EQ(link_.bodies[1], get_request(objects("bcd"), {1, 2}));
  link_.answer(3, 20);
  EXPECT_EQ(told_, (Lines{"a: 7", "b: 20", "cd: 21 22"}));
  EXPECT_TRUE(link_.waiting.empty());
}

TEST_F(MooncakeCalls, ReadsAndWritesDoNotWaitForEachOther) {
  get("a");
  put("b");
  put("cd");
  put("e");
  put("f");
  ASSERT_EQ(link_.bodies.size(), 3u) << "one get, and two puts";
  EXPECT_EQ(link_.bodies[1], put_request(objects("b"), {{"tagb", 1}}));
  EXPECT_EQ(link_.bodies[2], put_request(objects("cd"), {{"tagcd", 2}}));
  link_.answer(1, 0);
  EXPECT_EQ(link_.bodies.size(), 3u);
  link_.answer(1, 0);
  ASSERT_EQ(link_.bodies.size(), 4u);
  EXPECT_EQ(link_.bodies[3], put_request(objects("ef"), {{"tage", 1}, {"tagf", 1}}));
}

TEST_F(MooncakeCalls, WhatFillsACallGoesBesideOthersUpToABound) {
  get("a");
  get("b");
  get("c", 90);  // with b they reach the limit of bytes
  ASSERT_EQ(link_.bodies.size(), 2u);
  EXPECT_EQ(link_.bodies[1].substr(0, 27), R"({"op":"get","names":["b","c)");
  get("defg");  // as many objects as a call may have, but two calls run
  EXPECT_EQ(link_.bodies.size(), 2u);
  get("h");
  link_.answer(1, 0);
  ASSERT_EQ(link_.bodies.size(), 3u);
  EXPECT_EQ(link_.bodies[2], get_request(objects("defg"), {4}));
  link_.answer(2, 0);
  EXPECT_EQ(link_.bodies.size(), 3u) << "h is small, and a call runs";
  link_.answer(4, 0);
  EXPECT_EQ(link_.bodies.size(), 4u);
}

TEST_F(MooncakeCalls, WhatIsLargerThanACallGoesAlone) {
  get("a");
  get("g");
  get("bcdef", 1000);
  ASSERT_EQ(link_.bodies.size(), 2u) << "that much waits";
  EXPECT_EQ(link_.bodies[1], get_request(objects("g"), {1}));
  link_.answer(1, 0);
  ASSERT_EQ(link_.bodies.size(), 3u);
  EXPECT_EQ(link_.bodies[2], get_request(objects("bcdef", 1000), {5}));
}

TEST_F(MooncakeCalls, NoCallNamesAnObjectTwice) {
  get("a");
  get("bc");
  get("d");
  get("cb");
  get("e");
  link_.answer(1, 0);
  ASSERT_EQ(link_.bodies.size(), 2u);
  EXPECT_EQ(link_.bodies[1], get_request(objects("bcd"), {2, 1}));
  link_.answer(3, 0);
  ASSERT_EQ(link_.bodies.size(), 3u);
  EXPECT_EQ(link_.bodies[2], get_request(objects("cbe"), {2, 1}));
}

TEST_F(MooncakeCalls, ACallThatHangsHoldsUpFewOthers) {
  get("a");
  get("b");
  clock_.advance(std::chrono::milliseconds(51));
  get("c");
  ASSERT_EQ(link_.bodies.size(), 2u) << "b has waited long";
  EXPECT_EQ(link_.bodies[1], get_request(objects("bc"), {1, 1}));
  get("d");
  EXPECT_EQ(link_.bodies.size(), 2u);
  clock_.advance(std::chrono::milliseconds(51));
  get("e");
  ASSERT_EQ(link_.bodies.size(), 3u);
  clock_.advance(std::chrono::seconds(1));
  get("f");
  EXPECT_EQ(link_.bodies.size(), 3u) << "three are the most";
}

TEST_F(MooncakeCalls, AnAnswerOfAnotherLengthIsAnErrorOfAllThatWereAsked) {
  get("a");
  get("b");
  get("c");
  link_.answer(2, 0);
  link_.answer(3, 0);
  ASSERT_EQ(told_.size(), 3u);
  for (const std::string& line : told_) EXPECT_NE(line.find("codes for"), std::string::npos) << line;
}

TEST_F(MooncakeCalls, WhatWaitsEndsWhenTheHelperIsGone) {
  get("a");
  get("b");
  get("c");
  link_.is_down = true;
  link_.answer(1, 5);
  EXPECT_EQ(told_, (Lines{"a: 5"}));
  while (executor_.run_one()) {}
  EXPECT_EQ(told_, (Lines{"a: 5", "b: down", "c: down"}));
  link_.is_down = false;
  get("d");
  EXPECT_EQ(link_.bodies.size(), 2u) << "what failed does not count as running";
}

TEST_F(MooncakeCalls, WhatTakesLongIsDoneOnAnotherThread) {
  get("a", 10, Where::kElsewhere);
  link_.answer(1, 1);
  EXPECT_TRUE(told_.empty());
  while (executor_.run_one()) {}
  EXPECT_EQ(told_, (Lines{"a: 1"}));
}

// Who waits is told, others go on, and the late answer is nobody else's.
TEST_F(MooncakeCalls, ACallThatIsLateHoldsUpNoOtherAndEndsWithItsAnswer) {
  get("a");
  get("b");
  get("c", 10, Where::kElsewhere);
  link_.be_late(0);
  EXPECT_EQ(told_, (Lines{"a is late"}));
  ASSERT_EQ(link_.bodies.size(), 2u) << "b and c have waited for it";
  link_.be_late(1);
  EXPECT_EQ(told_, (Lines{"a is late", "b is late", "c is late"}));
  get("d");
  ASSERT_EQ(link_.bodies.size(), 3u);
  link_.answer(1, 7);
  EXPECT_EQ(told_.back(), "a: 7");
  link_.answer(2, 20);
  EXPECT_EQ(told_[4], "b: 20");
  EXPECT_EQ(told_[5], "c: 21") << "at once: nobody waits for it, so nothing keeps what it would be posted for";
  link_.answer(1, 30);
  EXPECT_EQ(told_.back(), "d: 30");
  EXPECT_EQ(told_.size(), 7u);
}

TEST_F(MooncakeCalls, WhereAsManyAsMayBeAreLateOthersAreRefused) {
  for (const char* name : {"a", "b", "c"}) {
    get(name);
    link_.be_late(link_.waiting.size() - 1);
  }
  told_.clear();
  get("d");
  put("e");
  ASSERT_EQ(link_.bodies.size(), 4u) << "e is a put";
  while (executor_.run_one()) {}
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_NE(told_[0].find("d: mooncake: too many calls have no answer"), std::string::npos) << told_[0];
  link_.answer(1, 0);
  get("f");
  EXPECT_EQ(link_.bodies.size(), 5u);
  get("g");
  clock_.advance(std::chrono::seconds(1));
  get("h");
  EXPECT_EQ(link_.bodies.size(), 5u) << "two are late and one runs";
  link_.be_late(link_.waiting.size() - 1);
  while (executor_.run_one()) {}
  EXPECT_NE(told_.back().find("h: mooncake: too many calls"), std::string::npos) << told_.back();
}

// Of what holds nothing: it ends when it is late.
TEST_F(MooncakeCalls, WithoutLateACallEndsOnce) {
  calls_.call("x", 1, Where::kHere, [this](const Codes& codes) { tell("x", codes); });
  link_.be_late(0);
  link_.answer(1, 3);
  EXPECT_EQ(told_, (Lines{"x: late"}));
}

// An answer may ask again. Each call has its own codes, whatever the order.
TEST_F(MooncakeCalls, EachCallHasItsOwnCodes) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    KeptLink link;
    HelperCalls calls(link, {1 + rng.below(8), 1 + rng.below(200), 1 + rng.below(3), 3}, executor_, clock_);
    std::size_t asked = 0, answered = 0;
    const auto ask = [&](const auto& self) -> void {
      const std::size_t count = 1 + rng.below(5);
      std::vector<NamedObject> own;
      for (std::size_t i = 0; i < count; ++i) own.push_back({std::to_string(asked++), {{0, 0, rng.below(60)}}});
      const std::int64_t first = std::stoll(own.front().name);
      const auto check = [&, count, first](const Codes& codes) {
        ASSERT_TRUE(codes.is_ok() && codes->size() == count);
        for (std::size_t i = 0; i < count; ++i) EXPECT_EQ((*codes)[i], first + static_cast<std::int64_t>(i));
        answered += count;
        if (asked < 300) self(self);
      };
      calls.get(std::move(own), Where::kHere, check, [](const Status&) {});
    };
    for (int i = 0; i < 12; ++i) ask(ask);
    std::size_t at = 0;  // of the calls sent
    while (!link.waiting.empty()) {
      // The names are the codes that are awaited.
      std::vector<std::int64_t> codes;
      const std::string& body = link.bodies[at++];
      const std::size_t begin = body.find('[') + 1, end = body.find(']');
      for (std::size_t i = begin; i < end; i = body.find('"', i + 1) + 2)
        codes.push_back(std::stoll(body.substr(i + 1)));
      const auto done = std::move(link.waiting.front());
      link.waiting.erase(link.waiting.begin());
      done(codes);
    }
    EXPECT_EQ(answered, asked);
  }
}

}  // namespace
}  // namespace larder::mooncake
