// SPDX-License-Identifier: Apache-2.0
// A client's and a host's session, joined by two queues of frames instead of a socket: one thread, every step told.
#include <gtest/gtest.h>

#include <deque>

#include "base/clock.h"
#include "base/executor.h"
#include "sim/faulty_backend.h"
#include "storage/conformance/harness.h"
#include "storage/memory/memory_backend.h"
#include "storage/shared/client_session.h"
#include "storage/shared/host_session.h"

namespace larder::share {
namespace {

using conformance::PageBuffer;

class HeapMemory final : public ShareMemory {
 public:
  explicit HeapMemory(std::size_t bytes) : bytes_(bytes) {}
  [[nodiscard]] std::span<std::byte> bytes() override { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class QueueSink final : public AnswerSink {
 public:
  void answer(std::string frame) override { frames.push_back(std::move(frame)); }
  std::deque<std::string> frames;
};

class QueuePort final : public ClientPort {
 public:
  void send(std::string frame) override { frames.push_back(std::move(frame)); }
  void on_stats(const BackendStats& seen) override { stats = seen; }
  void copied(std::uint64_t number, bool is_done) override { copies.emplace_back(number, is_done); }
  std::deque<std::string> frames;
  std::deque<std::pair<std::uint64_t, bool>> copies;
  BackendStats stats;
};

Status deliver(std::deque<std::string>& frames, auto& session) {
  const std::string frame = std::move(frames.front());
  frames.pop_front();
  const Result<Head> head = decode_head(frame);
  return head.is_ok() ? session.on_frame(*head, std::string_view(frame).substr(kHeadBytes)) : head.status();
}

class ShareSession : public testing::Test {
 protected:
  ShareSession() { connect(std::size_t{64} << 10, 1000); }

  void connect(std::size_t arena_bytes, std::size_t queue_limit) {
    client.reset();
    host.reset();
    port = std::make_shared<QueuePort>();
    sink = std::make_shared<QueueSink>();
    if (!inner) {
      BackendFactory factory;
      EXPECT_TRUE(register_memory_backend(factory).is_ok());
      auto memory = factory.create("memory", {{"max_size", "64Mi"}}, {nullptr, &clock, &executor});
      inner = std::make_unique<sim::FaultyBackend>(std::move(memory).value(), 1);
    }
    auto arena = std::make_shared<HeapMemory>(arena_bytes);
    host = std::make_unique<HostSession>(*inner, clock, arena, sink, queue_limit);
    client = std::make_unique<ClientSession>(arena, port, clock, executor);
  }

  // Until nothing moves any more.
  void run() {
    for (bool has_moved = true; has_moved;) {
      has_moved = executor.run_all() > 0;
      for (; !port->copies.empty(); has_moved = true) {
        const auto [number, is_done] = port->copies.front();
        port->copies.pop_front();
        client->on_copied(number, is_done);
      }
      for (; !port->frames.empty(); has_moved = true) ASSERT_TRUE(deliver(port->frames, *host).is_ok());
      for (; !sink->frames.empty(); has_moved = true) ASSERT_TRUE(deliver(sink->frames, *client).is_ok());
    }
  }

  template <class Op, class Request>
  auto submit(Request request) {
    using Out = decltype(Op::result);
    auto out = std::make_shared<std::optional<Out>>();
    auto op = std::make_shared<Op>(
        std::move(request),
        [out](Out result) {
          EXPECT_FALSE(out->has_value()) << "a callback runs once";
          *out = std::move(result);
        },
        gate.hold());
    preset_cancelled(*op);
    client->submit(std::move(op));
    return out;
  }

  PageBuffer& page(std::uint64_t number, std::size_t bytes) {
    pages.push_back(std::make_unique<PageBuffer>(bytes, 3, rng));
    pages.back()->fill(conformance::check_key(1, number), PoolName::kKv);
    return *pages.back();
  }
  WriteRequest write_of(std::uint64_t from, std::uint64_t count, std::size_t bytes) {
    WriteRequest request{scope, {}};
    for (std::uint64_t i = from; i < from + count; ++i) {
      request.groups.push_back({{{PoolName::kKv, conformance::check_key(1, i), page(i, bytes).segments()}}});
    }
    return request;
  }
  // Writes, reads into other buffers, compares.
  void expect_round_trip(std::uint64_t count, std::size_t bytes) {
    const auto written = submit<WriteOperation>(write_of(0, count, bytes));
    run();
    ASSERT_TRUE(written->has_value());
    for (const Status& status : (*written)->groups) ASSERT_TRUE(status.is_ok()) << status.to_string();
    std::vector<std::unique_ptr<PageBuffer>> buffers;
    ReadRequest request{scope, {}};
    for (std::uint64_t i = 0; i <= count; ++i) {  // the last is not there
      buffers.push_back(std::make_unique<PageBuffer>(bytes, 2, rng));
      request.items.push_back({PoolName::kKv, conformance::check_key(1, i), buffers.back()->segments()});
    }
    const auto read = submit<ReadOperation>(std::move(request));
    run();
    ASSERT_TRUE(read->has_value());
    for (std::uint64_t i = 0; i < count; ++i) {
      ASSERT_TRUE((*read)->items[i].is_ok()) << (*read)->items[i].to_string();
      EXPECT_TRUE(buffers[i]->holds(conformance::check_key(1, i), PoolName::kKv)) << i;
    }
    EXPECT_EQ((*read)->items[count].code(), StatusCode::kNotFound);
    EXPECT_EQ(client->room().free_bytes(), client->room().size());
  }

  ManualClock clock{Nanos(1'000'000)};
  ManualExecutor executor{100'000, 1};
  OperationGate gate{"test", 1000};
  Rng rng{1};
  std::shared_ptr<const StoreScope> scope = conformance::check_scope(1, 1);
  std::vector<std::unique_ptr<PageBuffer>> pages;
  std::unique_ptr<sim::FaultyBackend> inner;
  std::shared_ptr<QueuePort> port;
  std::shared_ptr<QueueSink> sink;
  std::unique_ptr<HostSession> host;
  std::unique_ptr<ClientSession> client;
};

TEST_F(ShareSession, LargeOperationsGoInParts) { expect_round_trip(40, 10'000); }
TEST_F(ShareSession, PagesMayFillTheArena) { expect_round_trip(3, std::size_t{64} << 10); }
TEST_F(ShareSession, PagesMayBeEmpty) { expect_round_trip(3, 0); }
TEST_F(ShareSession, LargeCopiesRunOnTheExecutor) {
  connect(std::size_t{4} << 20, 1000);
  expect_round_trip(3, std::size_t{1} << 20);
}
TEST_F(ShareSession, MoreItemsThanAMessageHolds) {
  connect(std::size_t{4} << 20, 1000);
  expect_round_trip(kMaxItems + 5, 1);
}

TEST_F(ShareSession, ManyOperationsShareTheArena) {
  std::vector<std::shared_ptr<std::optional<WriteResult>>> results;
  for (std::uint64_t i = 0; i < 50; ++i) {
    WriteRequest request = write_of(i * 3, 3, 9000);
    request.terms.urgency = static_cast<Urgency>(i % kUrgencyCount);
    results.push_back(submit<WriteOperation>(std::move(request)));
  }
  run();
  for (const auto& result : results) {
    ASSERT_TRUE(result->has_value());
    for (const Status& status : (*result)->groups) EXPECT_TRUE(status.is_ok()) << status.to_string();
  }
  EXPECT_EQ(port->stats.pages, 150u) << "statistics come with the last answer";
}

TEST_F(ShareSession, PresenceOfManyKeysIsPutTogether) {
  (void)submit<WriteOperation>(write_of(0, 3, 100));
  run();
  ExistsRequest request{scope, std::vector<PageKey>(2 * kMaxItems + 3), {PoolName::kKv, PoolName::kSwa}};
  request.keys[kMaxItems] = conformance::check_key(1, 1);
  request.keys.back() = conformance::check_key(1, 2);
  const auto found = submit<ExistsOperation>(std::move(request));
  run();
  ASSERT_TRUE(found->has_value() && (*found)->status.is_ok());
  const std::vector<bool>& present = (*found)->presence[0].present;
  ASSERT_EQ(present.size(), 2 * kMaxItems + 3);
  EXPECT_EQ(std::count(present.begin(), present.end(), true), 2);
  EXPECT_TRUE(present[kMaxItems] && present.back());
  EXPECT_EQ((*found)->presence[1].present, std::vector<bool>(2 * kMaxItems + 3));
}

TEST_F(ShareSession, MoreScopesThanTheTableHolds) {
  std::vector<std::shared_ptr<const StoreScope>> scopes;
  for (std::uint64_t i = 0; i < kMaxScopes + 44; ++i) scopes.push_back(conformance::check_scope(5, i));
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t i = 0; i < scopes.size(); ++i) {
      WriteRequest request = write_of(i, 1, 10);
      // The same, but another object.
      request.scope = round == 0 ? scopes[i] : std::make_shared<StoreScope>(*scopes[i]);
      const auto written = submit<WriteOperation>(std::move(request));
      if (i % 7 == 0) run();
      (void)written;
    }
  }
  run();
  for (std::uint64_t i = 0; i < scopes.size(); ++i) {
    const auto found = submit<ExistsOperation>(
        ExistsRequest{scopes[i], {conformance::check_key(1, i), conformance::check_key(1, i + 1)}, {PoolName::kKv}});
    run();
    ASSERT_TRUE(found->has_value() && (*found)->status.is_ok());
    EXPECT_EQ((*found)->presence[0].present, (std::vector<bool>{true, false})) << i;
  }
}

// The copy of a large write takes its time; meanwhile others take all slots of scopes.
TEST_F(ShareSession, ADelayedWriteKeepsItsScope) {
  connect(std::size_t{4} << 20, 1000);
  const auto written = submit<WriteOperation>(write_of(0, 1, 1 << 20));
  for (std::uint64_t i = 0; i < 2 * kMaxScopes; ++i) {
    (void)submit<ExistsOperation>(ExistsRequest{conformance::check_scope(5, i), {}, {}});
  }
  run();
  ASSERT_TRUE(written->has_value() && (*written)->groups[0].is_ok());
  const auto found = submit<ExistsOperation>(ExistsRequest{scope, {conformance::check_key(1, 0)}, {PoolName::kKv}});
  run();
  EXPECT_TRUE((*found)->presence.at(0).present.at(0)) << "written under another scope";
}

TEST_F(ShareSession, TermsCountUntilItBegins) {
  WriteRequest late = write_of(0, 1, 100), unwanted = write_of(0, 1, 100);
  late.terms.deadline = clock.now();
  unwanted.terms.cancel = std::make_shared<std::atomic<bool>>(true);
  const auto late_result = submit<WriteOperation>(std::move(late));
  const auto unwanted_result = submit<WriteOperation>(std::move(unwanted));
  EXPECT_EQ(late_result->value().groups[0].code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(unwanted_result->value().groups[0].code(), StatusCode::kCancelled);
  EXPECT_TRUE(port->frames.empty());
}

TEST_F(ShareSession, DroppedCopiesAreNoPages) {
  connect(std::size_t{4} << 20, 1000);
  const auto written = submit<WriteOperation>(write_of(0, 1, 1 << 20));
  EXPECT_EQ(executor.drop_all(), 1u);
  run();
  EXPECT_EQ(written->value().groups[0].code(), StatusCode::kCancelled);
  expect_round_trip(1, 1 << 20);
  PageBuffer buffer(1 << 20, 1, rng);
  const auto read =
      submit<ReadOperation>(ReadRequest{scope, {{PoolName::kKv, conformance::check_key(1, 0), buffer.segments()}}});
  while (!port->frames.empty()) ASSERT_TRUE(deliver(port->frames, *host).is_ok());
  executor.run_all();
  while (!sink->frames.empty()) ASSERT_TRUE(deliver(sink->frames, *client).is_ok());
  EXPECT_EQ(executor.drop_all(), 1u) << "the copy out";
  run();
  EXPECT_EQ(read->value().items[0].code(), StatusCode::kCancelled);
  EXPECT_EQ(client->room().free_bytes(), client->room().size());
}

// The connection breaks with operations in every state: each ends once, at once, and nothing uses their buffers after.
TEST_F(ShareSession, TheEndOfTheConnectionEndsEverything) {
  connect(std::size_t{1} << 20, 1000);
  const auto told = submit<WriteOperation>(write_of(0, 3, 100'000));  // 300,000 bytes: more than a part, copied
  const auto found = submit<ExistsOperation>(ExistsRequest{scope, {conformance::check_key(1, 0)}, {PoolName::kKv}});
  const auto cleared = submit<ClearOperation>(std::shared_ptr<const StoreScope>());
  std::vector<std::shared_ptr<std::optional<WriteResult>>> waiting;
  for (int i = 0; i < 20; ++i) waiting.push_back(submit<WriteOperation>(write_of(10, 1, 200'000)));
  client->end(unavailable("gone"));
  for (const Status& status : told->value().groups) EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(found->value().status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(cleared->value().code(), StatusCode::kUnavailable);
  for (const auto& result : waiting) EXPECT_EQ(result->value().groups[0].code(), StatusCode::kUnavailable);
  executor.run_all();
}

// Who closes does not wait for clears: asked for or still in the line. The host's late answers disturb nothing.
TEST_F(ShareSession, ClearsEndBeforeTheirAnswers) {
  inner->set_plan({.is_holding = true});
  const auto asked = submit<ClearOperation>(std::shared_ptr<const StoreScope>());
  const auto written = submit<WriteOperation>(write_of(0, 1, 60'000));
  const auto waiting = submit<WriteOperation>(write_of(1, 1, 60'000));  // the arena has no room for both
  const auto behind = submit<ClearOperation>(scope);
  client->end_clears();
  EXPECT_EQ(asked->value().code(), StatusCode::kCancelled);
  EXPECT_EQ(behind->value().code(), StatusCode::kCancelled);
  EXPECT_FALSE(written->has_value() || waiting->has_value()) << "writes end as ever";
  client->end_clears();  // nothing is left
  run();
  inner->set_plan({});
  inner->release_all();
  run();
  EXPECT_TRUE(written->value().groups[0].is_ok() && waiting->value().groups[0].is_ok());
  const auto again = submit<ClearOperation>(scope);
  client->end_clears();
  client->end(unavailable("gone"));
  EXPECT_EQ(again->value().code(), StatusCode::kCancelled);
}

TEST_F(ShareSession, ACopyUnderWayHoldsItsOperation) {
  connect(std::size_t{4} << 20, 1000);
  const auto written = submit<WriteOperation>(write_of(0, 1, 1 << 20));
  client->end(unavailable("gone"));
  EXPECT_FALSE(written->has_value()) << "its buffers are being read";
  executor.run_all();
  ASSERT_TRUE(written->has_value());
  EXPECT_EQ((*written)->groups[0].code(), StatusCode::kUnavailable);
}

TEST_F(ShareSession, TheHostLimitsOperationsInFlight) {
  connect(std::size_t{64} << 10, 2);
  inner->set_plan({.is_holding = true});
  std::vector<std::shared_ptr<std::optional<WriteResult>>> results;
  for (std::uint64_t i = 0; i < 4; ++i) results.push_back(submit<WriteOperation>(write_of(i, 1, 100)));
  run();
  EXPECT_FALSE(results[0]->has_value() || results[1]->has_value());
  EXPECT_EQ(results[2]->value().groups[0].code(), StatusCode::kOverloaded);
  EXPECT_EQ(results[3]->value().groups[0].code(), StatusCode::kOverloaded);
  inner->release_all();
  run();
  EXPECT_TRUE(results[0]->value().groups[0].is_ok() && results[1]->value().groups[0].is_ok());
}

// The session is gone and the client, too; the inner backend still has the arena's bytes, and they are still there.
TEST_F(ShareSession, OperationsOfAClientThatHasGoneKeepItsArena) {
  inner->set_plan({.is_holding = true});
  (void)submit<WriteOperation>(write_of(0, 1, 5000));
  while (!port->frames.empty()) ASSERT_TRUE(deliver(port->frames, *host).is_ok());
  EXPECT_EQ(inner->held(), 1u);
  host.reset();
  client.reset();
  inner->release_all();
  executor.run_all();
  inner->set_plan({});
  connect(std::size_t{64} << 10, 1000);
  const auto found = submit<ExistsOperation>(ExistsRequest{scope, {conformance::check_key(1, 0)}, {PoolName::kKv}});
  run();
  EXPECT_TRUE((*found)->presence[0].present[0]);
}

// A store that answers no write. Pages of 16,000 bytes take a quarter of the arena each.
// A read that is under way when they come leaves a gap behind; what it gives back is in one piece with what is free.
TEST_F(ShareSession, WritesThatHangLeaveReadsOnePiece) {
  constexpr std::size_t kPage = 16'000;  // a quarter of the arena
  const auto read_of = [&](std::uint64_t number, std::size_t bytes) {
    const auto& segments = page(number, bytes).segments();
    return ReadRequest{scope, {{PoolName::kKv, conformance::check_key(1, number), segments}}};
  };
  const auto small = submit<ReadOperation>(read_of(20, 100));
  for (std::uint64_t i = 0; i < 3; ++i) (void)submit<WriteOperation>(write_of(i, 1, kPage));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(deliver(port->frames, *host).is_ok());  // the scope, and the small read
  executor.run_all();
  while (!sink->frames.empty()) ASSERT_TRUE(deliver(sink->frames, *client).is_ok());
  ASSERT_TRUE(small->has_value());
  const std::size_t before = port->frames.size();
  (void)submit<ReadOperation>(read_of(21, kPage));
  ASSERT_EQ(port->frames.size(), before + 1);
  EXPECT_EQ(decode_head(port->frames.back())->kind, Kind::kRead);
  run();
}

struct WritesThatHang : ShareSession {
  static constexpr std::size_t kPage = 16'000;
  std::vector<std::shared_ptr<std::optional<WriteResult>>> writes;

  void SetUp() override {
    for (std::uint64_t i = 0; i < 5; ++i) writes.push_back(submit<WriteOperation>(write_of(i, 1, kPage)));
    EXPECT_EQ(sent(Kind::kWrite), 3u);
  }
  std::size_t sent(Kind kind) {
    return static_cast<std::size_t>(std::count_if(port->frames.begin(), port->frames.end(),
                                                  [&](const auto& frame) { return decode_head(frame)->kind == kind; }));
  }
  ReadRequest read_of(std::uint64_t from, std::uint64_t count, const OperationTerms& terms = {}) {
    ReadRequest request{scope, {}, terms};
    for (std::uint64_t i = from; i < from + count; ++i) {
      request.items.push_back({PoolName::kKv, conformance::check_key(1, i), page(i, kPage).segments()});
    }
    return request;
  }
  Status answer(const std::string& frame, const std::vector<Status>& statuses) {
    const std::string out = encode_statuses(decode_head(frame)->operation, statuses);
    return client->on_frame(*decode_head(out), std::string_view(out).substr(kHeadBytes));
  }
};

TEST_F(WritesThatHang, LeaveRoomForReads) {
  const auto read = submit<ReadOperation>(read_of(7, 1));
  const auto found = submit<ExistsOperation>(ExistsRequest{scope, {conformance::check_key(1, 0)}, {PoolName::kKv}});
  EXPECT_EQ(sent(Kind::kRead), 1u);
  EXPECT_EQ(sent(Kind::kExists), 1u);
  (void)submit<WriteOperation>(write_of(9, 1, 1));
  EXPECT_EQ(sent(Kind::kWrite), 3u) << "nor does a small one overtake";
  run();
  EXPECT_EQ((*read)->items.at(0).code(), StatusCode::kNotFound);
  for (const auto& written : writes) EXPECT_TRUE(written->value().groups.at(0).is_ok());
  EXPECT_FALSE(client->is_waiting());
  EXPECT_EQ(client->room().free_bytes(), client->room().size());
  // One alone may have all of it, and comes to its turn.
  const auto large = submit<WriteOperation>(write_of(20, 1, 64 << 10));
  run();
  EXPECT_TRUE(large->value().groups.at(0).is_ok());
}

TEST_F(WritesThatHang, WhatIsTooLateEndsInTheLine) {
  OperationTerms late, unwanted;
  late.deadline = clock.now() + std::chrono::seconds(1);
  const auto cancel = std::make_shared<std::atomic<bool>>(false);
  unwanted.cancel = cancel;
  const auto first = submit<ReadOperation>(read_of(10, 1));  // has the room
  const auto waiting = submit<ReadOperation>(read_of(11, 1, late)), other = submit<ReadOperation>(read_of(12, 1)),
             left = submit<ReadOperation>(read_of(13, 1, unwanted));
  WriteRequest request = write_of(14, 1, kPage);
  request.terms = late;
  const auto written = submit<WriteOperation>(std::move(request));
  EXPECT_TRUE(client->is_waiting());
  client->expire();
  EXPECT_FALSE(waiting->has_value() || left->has_value() || written->has_value());
  clock.advance(std::chrono::seconds(1));
  cancel->store(true);
  client->expire();
  EXPECT_EQ(waiting->value().items.at(0).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(left->value().items.at(0).code(), StatusCode::kCancelled);
  EXPECT_EQ(written->value().groups.at(0).code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(first->has_value() || other->has_value());
  run();
  EXPECT_TRUE(first->has_value() && other->has_value());
}

// A read whose first part has been answered, and that waits for room with the second.
TEST_F(WritesThatHang, WhatHasBegunEndsInTheLineToo) {
  OperationTerms late;
  late.deadline = clock.now() + std::chrono::seconds(1);
  late.urgency = Urgency::kBackground;
  const auto read = submit<ReadOperation>(read_of(10, 2, late));
  const std::string asked = port->frames.back();
  const auto urgent = submit<ReadOperation>(read_of(12, 1));
  ASSERT_TRUE(answer(asked, {Status::ok()}).is_ok());
  EXPECT_EQ(sent(Kind::kRead), 2u) << "the urgent one has the room";
  clock.advance(std::chrono::seconds(1));
  client->expire();
  EXPECT_TRUE(read->value().items.at(0).is_ok());
  EXPECT_EQ(read->value().items.at(1).code(), StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(answer(port->frames.back(), {not_found("none")}).is_ok());
  EXPECT_TRUE(urgent->has_value());
}

TEST_F(ShareSession, AHostBearsAnyFrames) {
  const auto refused = [&](const std::string& frame) {
    const Head head = decode_head(frame).value();
    return host->on_frame(head, std::string_view(frame).substr(kHeadBytes)).code() == StatusCode::kCorrupt;
  };
  EXPECT_TRUE(refused(encode_exists(1, {}))) << "unknown scope";
  EXPECT_TRUE(refused(encode_clear(1, 3)));
  EXPECT_TRUE(refused(encode_hello({}))) << "a second hello";
  EXPECT_TRUE(refused(encode_stats({}))) << "an answer";
  EXPECT_FALSE(refused(encode_scope({0, *scope})));
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  for (const Place place : {Place{64 << 10, 1}, Place{0, (64 << 10) + 1}, Place{kMost, 2}, Place{2, kMost}}) {
    EXPECT_TRUE(refused(encode_read(1, {{}, {{PoolName::kKv, {}, place}}})));
    EXPECT_TRUE(refused(encode_write(1, {{}, false, {{{PoolName::kKv, {}, {}, place}}}})));
  }
  EXPECT_EQ(host->in_flight(), 0u);
  // Pools that the scope has not, groups of nothing, the same operation twice: the inner backend's to judge.
  EXPECT_FALSE(refused(encode_read(1, {{}, {{static_cast<PoolName>(63), {}, {0, 64 << 10}}}})));
  EXPECT_FALSE(refused(encode_write(1, {{}, false, {{}, {{static_cast<PoolName>(63), {}, {}, {0, 5}}}}})));
  executor.run_all();
  EXPECT_EQ(host->in_flight(), 0u);
}

TEST_F(ShareSession, AClientBearsAnyFrames) {
  const auto written = submit<WriteOperation>(write_of(0, 1, 100));
  const auto refused = [&](const std::string& frame) {
    const Head head = decode_head(frame).value();
    return client->on_frame(head, std::string_view(frame).substr(kHeadBytes)).code() == StatusCode::kCorrupt;
  };
  EXPECT_TRUE(refused(encode_statuses(99, {Status::ok()}))) << "unknown operation";
  EXPECT_TRUE(refused(encode_statuses(1, {}))) << "too few";
  EXPECT_TRUE(refused(encode_presence(1, {}))) << "of another kind";
  EXPECT_TRUE(refused(encode_welcome({}))) << "a second welcome";
  EXPECT_TRUE(refused(encode_clear(1, 0))) << "a question";
  EXPECT_FALSE(written->has_value());
  const auto found = submit<ExistsOperation>(ExistsRequest{scope, {conformance::check_key(1, 0)}, {PoolName::kKv}});
  EXPECT_TRUE(refused(encode_presence(2, {})));
  EXPECT_FALSE((*found)->status.is_ok());
}

}  // namespace
}  // namespace larder::share
