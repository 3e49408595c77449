// SPDX-License-Identifier: Apache-2.0
// A call that finds no memory: where it ends half-way, nothing is used after it, and everything can be given back.
#include <gtest/gtest.h>

#include <array>
#include <new>
#include <utility>

#include "tests/connector/connector_rig.h"

namespace larder::connector_test {
namespace {

// Stands for all that may throw, in the connector's own code, too.
void take_memory(bool is_out) {
  if (is_out) throw std::bad_alloc();
}

class ScarceClock final : public Clock {
 public:
  bool is_out = false;
  [[nodiscard]] TimePoint now() const override {
    take_memory(is_out);
    return TimePoint{};
  }
  [[nodiscard]] std::int64_t wall_unix_seconds() const override { return 1; }
};

class ScarceExecutor final : public Executor {
 public:
  bool is_out = false;
  ManualExecutor tasks;
  [[nodiscard]] Status post(Task task) override {
    take_memory(is_out);
    return tasks.post(std::move(task));
  }
};

class ScarceReader {
 public:
  explicit ScarceReader(const bool& is_out) : is_out_(is_out) {}
  ScarceReader(const ScarceReader& other) : is_out_(other.is_out_) { take_memory(is_out_); }
  ScarceReader& operator=(const ScarceReader&) = delete;
  ~ScarceReader() = default;
  Status operator()(PoolName, std::uint64_t, std::span<const Segment>) const { return Status::ok(); }

 private:
  const bool& is_out_;
};

struct ScarceRig {
  ScarceRig() {
    ConnectorParts parts;
    parts.model = &model;
    parts.host = host.get();
    parts.clock = &clock;
    parts.executor = &executor;
    connector = std::move(Connector::create({}, parts)).value();
  }
  Result<TransferId> save(std::uint64_t seed) {
    const Tokens tokens = tokens_from(seed, 6 * model.page_size);
    const std::array<std::uint64_t, 1> states = {6};
    SaveRequest request;
    request.tokens = tokens;
    request.to = 6;
    request.window_pages = model.window_pages_at(6);
    request.states = states;
    request.reader = ScarceReader(is_out);
    is_out = reader_is_out;
    Result<TransferId> id = connector->save(request);
    is_out = false;
    return id;
  }
  void poll() { (void)connector->poll(Nanos{0}); }
  void expect_failed() {
    EXPECT_TRUE(connector->has_failed());
    EXPECT_EQ(save(7).status().code(), StatusCode::kInternal);
    const Tokens tokens = tokens_from(7, 8);
    EXPECT_EQ(connector->lookup({.tokens = tokens}).status().code(), StatusCode::kInternal);
    EXPECT_EQ(connector->points(LookupId(1)).status().code(), StatusCode::kInternal);
    EXPECT_EQ(connector->load({.lookup = LookupId(1), .pages = 6}).status().code(), StatusCode::kInternal);
    EXPECT_EQ(connector->flush(), 0u);
    connector->release(LookupId(1));
    connector->detach_storage();
  }

  const ModelSpec model = sim::simulated_model("full_swa_mamba").value();
  std::unique_ptr<HostPools> host =
      std::move(HostPools::create(model, HostLayout::kPageFirst, std::size_t{4} << 20, host_memory_source())).value();
  ScarceClock clock;
  ScarceExecutor executor;
  bool is_out = false, reader_is_out = false;
  std::unique_ptr<Connector> connector;
};

// What is under way then ends, and its engine is told.
TEST(ConnectorMemory, ACallThatFindsNoMemoryLeavesNothingBehind) {
  for (const bool at_the_copy : {false, true}) {
    ScarceRig rig;
    const TransferId before = rig.save(1).value();
    (at_the_copy ? rig.executor.is_out : rig.reader_is_out) = true;
    EXPECT_EQ(rig.save(2).status().code(), StatusCode::kInternal);
    rig.executor.is_out = rig.reader_is_out = false;
    rig.expect_failed();
    rig.poll();
    EXPECT_EQ(rig.connector->operations_in_flight(), 1u) << "the copy before may still read the engine's memory";
    EXPECT_EQ(rig.connector->save_result(before).status().code(), StatusCode::kOverloaded);
    EXPECT_FALSE(rig.connector->idle());
    (void)rig.executor.tasks.run_all();
    rig.poll();
    EXPECT_EQ(rig.connector->operations_in_flight(), 0u);
    EXPECT_TRUE(rig.connector->idle());
    std::array<ConnectorEvent, 4> events;
    ASSERT_EQ(rig.connector->take_events(events), 1u);
    EXPECT_EQ(events[0], (ConnectorEvent{ConnectorEventKind::kTransfer, before.v}));
    EXPECT_EQ(rig.connector->save_result(before).status().code(), StatusCode::kInternal);
  }
}

TEST(ConnectorMemory, NorDoesALoadOrAPoll) {
  for (const bool by_poll : {false, true}) {
    ScarceRig rig;
    const TransferId saved = rig.save(1).value();
    (void)rig.executor.tasks.run_all();
    rig.poll();
    EXPECT_EQ(rig.connector->save_result(saved)->kept, 6u);
    const Tokens tokens = tokens_from(1, 6 * rig.model.page_size + 1);
    const LookupId lookup = rig.connector->lookup({.tokens = tokens}).value();
    ASSERT_EQ(last_of(rig.connector->points(lookup).value()), 6u);
    const LoadRequest request{
        .lookup = lookup, .pages = 6, .writer = [](PoolName, std::uint64_t, auto) { return Status::ok(); }};
    if (by_poll) {
      const TransferId load = rig.connector->load(request).value();
      (void)rig.executor.tasks.run_all();
      rig.clock.is_out = true;  // it is asked how long the load took
      rig.poll();
      rig.clock.is_out = false;
      EXPECT_TRUE(rig.connector->load_result(load).is_ok()) << "all of it has come";
    } else {
      rig.clock.is_out = true;  // it has its leases by then
      EXPECT_EQ(rig.connector->load(request).status().code(), StatusCode::kInternal);
      rig.clock.is_out = false;
    }
    rig.expect_failed();
    rig.poll();
    EXPECT_EQ(rig.connector->operations_in_flight(), 0u);
  }
}

}  // namespace
}  // namespace larder::connector_test
