// SPDX-License-Identifier: Apache-2.0
// LlamaEngine on the real libllama: answers alone and together, what of a prompt is reused, clients that leave,
// requests that are refused, and the end of the engine.
#include "server/llama/libllama/llama_engine.h"

#include <future>
#include <stdexcept>

#include "tests/llama/engine_rig.h"

namespace larder::llama {
namespace {

using llama_test::EngineOptions;
using llama_test::EngineRig;
using llama_test::FakeWriter;
using llama_test::first;
using llama_test::joined;
using llama_test::LoadedModel;
using llama_test::random_model;
using llama_test::random_tokens;
using llama_test::Tokens;

using Writer = std::shared_ptr<FakeWriter>;

class LlamaEngines : public testing::TestWithParam<std::string_view> {
 protected:
  const LoadedModel model_{random_model(GetParam()), "_engine"};
  const Tokens a_ = random_tokens(200, 1);
};

TEST_P(LlamaEngines, SayTheSameAloneAndTogether) {
  EngineRig rig(model_, {.slots = 4});
  std::vector<Tokens> prompts;
  std::vector<Writer> together;
  support::Signal all_are_here;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    prompts.push_back(random_tokens(30 + 25 * seed, 10 + seed));
    together.push_back(std::make_shared<FakeWriter>(rig.reference(prompts.back(), 12)));
    together.back()->before(0, [&] { all_are_here.wait(); });
    rig.submit(prompts.back(), together.back());
  }
  all_are_here.set();
  for (const Writer& writer : together) EngineRig::expect_right(*writer, 12);
  const std::uint64_t batches = rig.engine().use().batches;
  EXPECT_LT(batches, 6 * 12u) << "several answers have gone on in one batch";
  for (const Tokens& prompt : prompts) (void)rig.ask(prompt, 12);
  EXPECT_EQ(rig.engine().use().busy, 0u);
}

TEST_P(LlamaEngines, ResumeWhereAnotherPromptHasLeft) {
  const support::TemporaryDirectory folder;
  EngineRig rig(model_, {.store = folder.path()});
  EXPECT_EQ(rig.ask(a_)->use().tokens, 0u);
  const Writer again = rig.ask(a_);
  EXPECT_EQ(again->use().tokens, 199u) << "all but the last token";
  EXPECT_EQ(again->use().from, ReusedFrom::kSlot);
  const auto branch = [&](std::uint64_t seed) { return rig.ask(joined(first(a_, 100), random_tokens(60, seed))); };
  EXPECT_EQ(branch(2)->use().tokens, rig.is_dense() ? 100u : 0u) << "of the others nobody has been there";
  EXPECT_EQ(branch(3)->use().tokens, rig.is_dense() ? 100u : 96u);
  const Writer back = rig.ask(joined(a_, random_tokens(20, 4)));
  EXPECT_EQ(back->use().tokens, 192u);
  EXPECT_EQ(back->use().from, ReusedFrom::kHost);
}

TEST_P(LlamaEngines, FindWhatAnEarlierOneHasKept) {
  const support::TemporaryDirectory folder;
  {
    EngineRig rig(model_, {.store = folder.path()});
    (void)rig.ask(a_);
  }
  EngineRig rig(model_, {.store = folder.path()});
  const Writer answer = rig.ask(joined(first(a_, 195), random_tokens(20, 2)));
  EXPECT_EQ(answer->use().tokens, 192u);
  EXPECT_EQ(answer->use().from, ReusedFrom::kStorage);
}

TEST_P(LlamaEngines, GoOnWhenAClientHasLeft) {
  EngineRig rig(model_, {});
  const auto leaver = std::make_shared<FakeWriter>(1000);
  leaver->before(3, [&] { leaver->leave(); });
  rig.submit(a_, leaver);
  EXPECT_EQ(leaver->wait().code(), StatusCode::kCancelled);
  EXPECT_LE(leaver->tokens().size(), 5u);
  EXPECT_EQ(rig.engine().use().busy, 0u) << "its slot is free when it has ended";
  (void)rig.ask(joined(a_, random_tokens(20, 2)));
}

TEST_P(LlamaEngines, MakeRoomForWhoCameFirst) {
  EngineRig rig(model_, {.slots = 3, .context = 256});
  std::vector<Writer> writers;  // of 330 tokens in all
  support::Signal all_are_here;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const Tokens prompt = random_tokens(50, 20 + seed);
    writers.push_back(std::make_shared<FakeWriter>(rig.reference(prompt, 60)));
    writers.back()->before(0, [&] { all_are_here.wait(); });
    rig.submit(prompt, writers.back());
  }
  all_are_here.set();
  int begun = 0;
  for (const Writer& writer : writers) {
    EngineRig::expect_right(*writer, 60);
    begun += writer->begun();
  }
  const std::uint64_t set_back = rig.engine().use().set_back;
  EXPECT_EQ(begun, 3 + static_cast<int>(set_back)) << "one that is set back begins again";
  const bool has_cells = GetParam() != "mamba2";  // states take no more room for more tokens
  EXPECT_EQ(set_back > 0, has_cells);
}

TEST_P(LlamaEngines, ComputeThePromptOfSeveralAnswersOnce) {
  EngineRig rig(model_, {.slots = 3});
  const Tokens prompt = random_tokens(300, 1);  // longer than all of what llama.cpp has for windows
  const std::vector<Writer> writers = rig.several(prompt, 3, 12);
  rig.submit(prompt, writers);
  for (const Writer& writer : writers) EngineRig::expect_right(*writer, 12);
  EXPECT_LE(rig.engine().use().batches, 300 / llama_test::kEnginePage + 4 + 12);
  EXPECT_EQ(rig.engine().use().set_back, 0u);
}

TEST_P(LlamaEngines, GiveSeveralAnswersTheRoomOfWhatTheirSlotsHeld) {
  EngineRig rig(model_, {.slots = 4, .context = 512});
  for (std::uint64_t seed = 1; seed <= 4; ++seed) (void)rig.ask(random_tokens(110, seed), 4);
  const Tokens prompt = random_tokens(300, 50);
  const std::vector<Writer> writers = rig.several(prompt, 4, 4);
  rig.submit(prompt, writers);
  for (const Writer& writer : writers) EngineRig::expect_right(*writer, 4);
}

TEST_P(LlamaEngines, SetBackWhoCameLastWithAllOfItsAnswers) {
  EngineRig rig(model_, {.slots = 4, .context = 256});
  const Tokens a = random_tokens(100, 1), b = random_tokens(150, 2);
  const std::vector<Writer> earlier = rig.several(a, 2, 30), later = rig.several(b, 2, 10);
  support::Signal begun, released;
  earlier.front()->before(0, [&] {
    begun.set();
    released.wait();
  });
  rig.submit(a, earlier);
  begun.wait();
  rig.submit(b, later);  // there is no room for all of it, beside the two
  released.set();
  const bool has_cells = GetParam() != "mamba2";
  for (const Writer& writer : earlier) {
    EngineRig::expect_right(*writer, 30);
    EXPECT_EQ(writer->begun(), 1);
  }
  for (const Writer& writer : later) {
    EngineRig::expect_right(*writer, 10);
    EXPECT_EQ(writer->begun(), has_cells ? 2 : 1);
  }
}

TEST_P(LlamaEngines, RestoreBesideIdleSlotsThatFillTheContext) {
  const support::TemporaryDirectory folder;
  EngineRig rig(model_, {.slots = 3, .context = 512, .store = folder.path()});
  const Tokens a = random_tokens(300, 1);
  (void)rig.ask(a, 4);
  for (const auto& [tokens, seed] : {std::pair(100, 2), {100, 3}, {200, 4}, {180, 5}}) {
    (void)rig.ask(random_tokens(static_cast<std::size_t>(tokens), static_cast<std::uint64_t>(seed)), 4);
  }
  // The slots hold 200, 180 and 100 tokens; the last one is taken.
  const Writer again = rig.ask(joined(first(a, 295), random_tokens(10, 6)), 4);
  EXPECT_EQ(again->use().tokens, 288u);
  EXPECT_EQ(again->use().from, ReusedFrom::kHost);
  EXPECT_FALSE(again->use().has_failed_load);
}

TEST_P(LlamaEngines, RestoreLaterWhatFindsNoRoomBesideBusySlots) {
  const support::TemporaryDirectory folder;
  EngineRig rig(model_, {.slots = 2, .context = 512, .store = folder.path()});
  const Tokens a = random_tokens(300, 1), other = random_tokens(250, 2);
  (void)rig.ask(a, 4);
  const auto busy = std::make_shared<FakeWriter>(rig.reference(other, 40));
  support::Signal begun, released;
  busy->before(1, [&] {
    begun.set();
    released.wait();
  });
  rig.submit(other, busy);
  begun.wait();
  const Writer again = rig.start(joined(first(a, 295), random_tokens(10, 6)), 4);
  released.set();
  EngineRig::expect_right(*busy, 40);
  EngineRig::expect_right(*again, 4);
  const bool has_cells = GetParam() != "mamba2";
  EXPECT_EQ(again->use().has_failed_load, has_cells);
  EXPECT_EQ(again->use().tokens, has_cells ? 0u : 288u);
  EXPECT_EQ(again->begun(), has_cells ? 2 : 1);
  EXPECT_EQ(again->last_use().tokens, 288u);
  EXPECT_FALSE(again->last_use().has_failed_load);
}

INSTANTIATE_TEST_SUITE_P(All, LlamaEngines, testing::Values("qwen3next", "gemma3", "mamba2", "qwen3"),
                         [](const auto& one) { return std::string(one.param); });

class LlamaEngineRequests : public testing::Test {
 protected:
  const LoadedModel model_{random_model("qwen3"), "_requests"};
  const Tokens a_ = random_tokens(100, 1);

  // An answer that waits before its second token until `released` is set.
  [[nodiscard]] static Writer held(support::Signal& begun, support::Signal& released, std::size_t count = 4) {
    auto writer = std::make_shared<FakeWriter>(count);
    writer->before(1, [&] {
      begun.set();
      released.wait();
    });
    return writer;
  }
};

TEST_F(LlamaEngineRequests, ThatDoNotFitAreRefused) {
  EngineRig rig(model_, {.slots = 2, .context = 128});
  const auto refusal = [&](const Tokens& prompt, std::size_t answers) {
    const auto writer = std::make_shared<FakeWriter>(1);
    EngineRequest request = rig.request(prompt, writer);
    request.answers.assign(answers, writer);
    const Status status = rig.engine().submit(std::move(request));
    EXPECT_FALSE(writer->has_ended()) << "who is refused hears nothing else";
    return status;
  };
  EXPECT_EQ(refusal({}, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(random_tokens(128, 1), 1).code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refusal(random_tokens(128, 1), 1).message().find("the context has room for 127"), std::string::npos);
  EXPECT_EQ(refusal(a_, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(a_, 3).code(), StatusCode::kInvalidArgument);
  (void)rig.ask(random_tokens(127, 1), 1);
}

TEST_F(LlamaEngineRequests, ThatOutgrowTheContextEnd) {
  EngineRig rig(model_, {.context = 256});
  const auto writer = std::make_shared<FakeWriter>(1000);
  rig.submit(a_, writer);
  EXPECT_EQ(writer->wait().code(), StatusCode::kOverloaded);
  EXPECT_GE(writer->tokens().size(), 150u);
  (void)rig.ask(a_);
}

TEST_F(LlamaEngineRequests, BeyondTheLimitAreRefused) {
  EngineRig rig(model_, {.max_waiting = 2});
  support::Signal begun, released;
  const Writer running = held(begun, released);
  rig.submit(a_, running);
  begun.wait();
  const Writer second = rig.start(random_tokens(40, 2), 2), third = rig.start(random_tokens(40, 3), 2);
  EXPECT_EQ(rig.engine().use().waiting, 2u);
  EXPECT_EQ(rig.engine().use().busy, 1u);
  const auto fourth = std::make_shared<FakeWriter>(2);
  EXPECT_EQ(rig.engine().submit(rig.request(a_, fourth)).code(), StatusCode::kOverloaded);
  released.set();
  for (const Writer& writer : {running, second, third}) EXPECT_TRUE(writer->wait().is_ok());
  EXPECT_FALSE(fourth->has_ended());
  (void)rig.ask(a_);
}

TEST_F(LlamaEngineRequests, ThatWaitMayLeave) {
  EngineRig rig(model_, {});
  support::Signal begun, released;
  const Writer running = held(begun, released);
  rig.submit(a_, running);
  begun.wait();
  const Writer waiting = rig.start(random_tokens(40, 2), 2);
  waiting->leave();
  released.set();
  EXPECT_EQ(waiting->wait().code(), StatusCode::kCancelled);
  EXPECT_EQ(waiting->begun(), 0);
  EXPECT_TRUE(running->wait().is_ok());
}

TEST_F(LlamaEngineRequests, EndWithTheEngine) {
  EngineRig rig(model_, {});
  support::Signal begun, released;
  const Writer running = held(begun, released, 1000000);
  rig.submit(a_, running);
  begun.wait();
  const Writer waiting = rig.start(random_tokens(40, 2), 2);
  const auto stopped = std::async(std::launch::async, [&] { rig.close(); });
  released.set();
  stopped.wait();
  EXPECT_EQ(running->wait().code(), StatusCode::kCancelled);
  EXPECT_EQ(waiting->wait().code(), StatusCode::kCancelled);
}

TEST_F(LlamaEngineRequests, EndWhenTheServerStops) {
  EngineRig rig(model_, {});
  support::Signal begun, released;
  const Writer running = held(begun, released, 1000000);
  rig.submit(a_, running);
  begun.wait();
  const Writer waiting = rig.start(random_tokens(40, 2), 2);
  rig.engine().end_requests();
  released.set();
  EXPECT_EQ(running->wait().code(), StatusCode::kCancelled);
  EXPECT_EQ(waiting->wait().code(), StatusCode::kCancelled);
  EXPECT_EQ(rig.engine().submit(rig.request(a_, running)).code(), StatusCode::kCancelled);
}

TEST_F(LlamaEngineRequests, ShareWhatABusySlotHas) {
  EngineRig rig(model_, {.slots = 2});
  support::Signal begun, released;
  const Writer running = held(begun, released, 200);
  rig.submit(a_, running);
  begun.wait();
  const Writer branch = rig.start(joined(first(a_, 60), random_tokens(20, 2)), 8);
  released.set();
  EngineRig::expect_right(*branch, 8);
  EXPECT_FALSE(running->has_ended());
  EXPECT_EQ(branch->use().tokens, 60u);
  EXPECT_EQ(branch->use().from, ReusedFrom::kSlot);
  EXPECT_TRUE(running->wait().is_ok());
}

TEST_F(LlamaEngineRequests, OfTenantsShareNothing) {
  EngineRig rig(model_, {.slots = 2});
  const auto ask = [&](const std::string& owner, bool may_reuse) {
    const auto writer = std::make_shared<FakeWriter>(2);
    EngineRequest request = rig.request(a_, writer);
    request.owner = owner;
    request.may_reuse = may_reuse;
    EXPECT_TRUE(rig.engine().submit(std::move(request)).is_ok());
    EXPECT_TRUE(writer->wait().is_ok());
    return writer->use().tokens;
  };
  EXPECT_EQ(ask("me", true), 0u);
  EXPECT_EQ(ask("you", true), 0u);
  EXPECT_EQ(ask("me", true), 99u);
  EXPECT_EQ(rig.engine().best(a_, "you").tokens, 99u);
  EXPECT_EQ(rig.engine().best(a_, "nobody").tokens, 0u);
  const std::size_t kept = rig.kept().size();
  EXPECT_EQ(ask("private", false), 0u);
  EXPECT_EQ(ask("private", true), 0u) << "what is private leaves nothing";
  EXPECT_EQ(rig.kept().size(), kept + 1);
}

TEST_F(LlamaEngineRequests, WhoseWriterFailsEndAlone) {
  EngineRig rig(model_, {.slots = 2});
  const auto broken = std::make_shared<FakeWriter>(1000);
  broken->before(3, [] { throw std::runtime_error("no such grammar"); });
  rig.submit(a_, broken);
  const Writer other = rig.start(random_tokens(40, 2), 20);
  const Status status = broken->wait();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("no such grammar"), std::string::npos);
  EngineRig::expect_right(*other, 20);
}

TEST_F(LlamaEngineRequests, WithBlobsThatAreNoneAreComputed) {
  EngineRig rig(model_, {});
  for (const bool is_there : {false, true}) {
    (void)rig.ask(random_tokens(30, 2), 1);
    (void)rig.ask(first(a_, 60), 1);
    const auto writer = std::make_shared<FakeWriter>(rig.reference(a_, 6));
    EngineRequest request = rig.request(a_, writer);
    request.restorable = 96;
    request.load = [is_there](std::span<const TokenId>) -> Result<EngineRequest::Blob> {
      if (!is_there) return unavailable("the disk is gone");
      EngineRequest::Blob blob = ByteBuffers(1).take(1000);
      std::ranges::fill(blob->bytes(), std::byte{7});
      return blob;
    };
    ASSERT_TRUE(rig.engine().submit(std::move(request)).is_ok());
    EngineRig::expect_right(*writer, 6);
    EXPECT_TRUE(writer->use().has_failed_load);
    EXPECT_EQ(writer->use().tokens, is_there ? 0u : 60u) << "for a blob that is not there the slot gives up nothing";
  }
}

}  // namespace
}  // namespace larder::llama
