// SPDX-License-Identifier: Apache-2.0
// Slots with one context for all: when it is full, llama-server empties those that compute nothing, and tells nobody.
#include <future>

#include "tests/llama_relay/relay_rig.h"

namespace larder::llama::relay_test {
namespace {

class RelayCrowds : public testing::TestWithParam<const char*> {
 protected:
  Rig rig_{{.geometry = geometry_of(GetParam()), .slots = 2, .checkpoint_offset = 4, .context = 512}};
  const Tokens a_ = random_tokens(150, 1), b_ = random_tokens(150, 2);
  const Tokens next_ = joined(a_, random_tokens(40, 3));

  [[nodiscard]] std::uint64_t cached(const Answer& answer) const {
    return answer.body.at("timings").at("cache_n").get<std::uint64_t>();
  }
  [[nodiscard]] double reused_of(const std::string& from) const {
    return rig_.metric("larder_proxy_reused_tokens_total{from=\"" + from + "\"}");
  }
  // The answer to b_ takes the cells of a_'s slot.
  void crowd_out(bool streams) {
    (void)rig_.ask(a_);
    rig_.wait_idle();
    EXPECT_EQ(rig_.post("/completion", {{"prompt", b_}, {"n_predict", 250}, {"stream", streams}}).http, 200u);
    rig_.wait_idle();
  }
  // As llama-server does it for reasons of its own.
  void empty_behind_the_back(int slot) {
    HttpClient client(HttpUrl{"127.0.0.1", rig_.server().port(), ""}, std::chrono::seconds(20));
    const auto emptied = client.request("POST", "/slots/" + std::to_string(slot) + "?action=erase", "{}");
    EXPECT_TRUE(emptied.is_ok() && emptied->status == 200);
  }
};

TEST_P(RelayCrowds, WhatAnAnswerMayHaveTakenComesFromTheHost) {
  for (const bool streams : {false, true}) {
    crowd_out(streams);
    const Answer answer = rig_.ask(next_);
    EXPECT_EQ(answer.from, "host");
    EXPECT_EQ(answer.reused, streams ? 176u : 144u) << "of what was kept before";
    EXPECT_LE(*answer.reused, cached(answer));
    rig_.wait_idle();
  }
  EXPECT_EQ(rig_.metric("larder_proxy_ignored_restores_total"), 0);
}

TEST_P(RelayCrowds, WhatIsOnNoHostIsLookedForBeforeTheClientIsTold) {
  crowd_out(false);
  rig_.flush();
  const Answer answer = rig_.ask(next_);  // below 256 tokens storage is not asked
  EXPECT_EQ(answer.reused, 0u);
  EXPECT_EQ(reused_of("slot"), 0);
  EXPECT_EQ(rig_.metric("larder_proxy_ignored_restores_total"), 0) << "nothing was restored";
}

TEST_P(RelayCrowds, ConversationsThatFitStandInTheirSlots) {
  (void)rig_.ask(a_);
  rig_.wait_idle();
  (void)rig_.ask(b_);
  rig_.wait_idle();
  const int erased = rig_.server().calls("erase");
  for (const Tokens& prompt : {a_, b_, next_}) {
    const Answer answer = rig_.ask(prompt);
    EXPECT_EQ(answer.from, "slot");
    EXPECT_GE(answer.reused, 144u);
    EXPECT_EQ(answer.reused, rig_.geometry().has_partial_form() ? 146u : prompt.size() == 190 ? 150u : 149u);
    rig_.wait_idle();
  }
  EXPECT_EQ(rig_.server().calls("restore"), 1) << "of the proof";
  EXPECT_EQ(rig_.server().calls("erase"), erased);
}

// A prompt that does not fit beside the others has the oldest one emptied, or llama-server would empty the first.
TEST_P(RelayCrowds, TheOldestOnesMakeRoom) {
  Rig rig({.geometry = geometry_of(GetParam()), .slots = 3, .checkpoint_offset = 4, .context = 640});
  for (const Tokens& prompt : {a_, b_, a_}) {
    (void)rig.ask(prompt);
    rig.wait_idle();
  }
  (void)rig.ask(random_tokens(300, 4));
  rig.wait_idle();
  EXPECT_EQ(rig.ask(a_).from, "slot") << "the second one was not used for longest";
  rig.wait_idle();
  EXPECT_EQ(rig.ask(b_).from, "host");
}

TEST_P(RelayCrowds, OneThatWasLostUnseenIsNotCountedAndMakesOthersDoubtful) {
  for (const Tokens& prompt : {a_, b_}) {
    (void)rig_.ask(prompt);
    rig_.wait_idle();
  }
  empty_behind_the_back(0);
  empty_behind_the_back(1);
  const double before = reused_of("slot");
  const Answer lost = rig_.ask(next_);
  rig_.wait_idle();
  EXPECT_EQ(reused_of("slot"), before) << "the client may have been told more: " << lost.reused.value_or(0);
  EXPECT_EQ(rig_.metric("larder_proxy_ignored_restores_total"), 0) << "nothing was restored";
  EXPECT_EQ(rig_.ask(joined(b_, random_tokens(10, 5))).from, "host");
}

// Two that do not fit together fail, and all slots are empty then.
TEST_P(RelayCrowds, ThoseThatRanOutOfCellsHaveFailed) {
  const Json first = {{"prompt", a_}, {"n_predict", 300}, {"stream", true}};
  rig_.server().hold("answer", 100);
  auto runs = std::async(std::launch::async, [&] { return rig_.post("/completion", first); });
  ASSERT_TRUE(rig_.server().wait_held());
  const Json second = {{"prompt", random_tokens(400, 6)}, {"n_predict", 4}, {"stream", true}};
  EXPECT_EQ(rig_.post("/completion", second).http, 200u);
  rig_.server().release();
  EXPECT_EQ(runs.get().http, 200u);
  rig_.wait_idle();
  // Where its prompt was computed before the request, that has failed, and has made room.
  EXPECT_EQ(rig_.metric("larder_proxy_failed_requests_total"), rig_.geometry().has_partial_form() ? 1 : 2);
  (void)rig_.ask(next_);
  rig_.wait_idle();
  (void)rig_.ask(b_);
}

INSTANTIATE_TEST_SUITE_P(All, RelayCrowds, testing::Values("dense", "hybrid", "sliding"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace larder::llama::relay_test
