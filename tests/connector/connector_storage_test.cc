// SPDX-License-Identifier: Apache-2.0
// The connector over storage: what is saved reaches it, what it has comes back, and its troubles are misses.
#include <gtest/gtest.h>

#include "tests/connector/connector_rig.h"

namespace larder::connector_test {
namespace {

RigOptions eager() {
  RigOptions options;
  options.copies_seed = 1;
  options.config.tiers.prefetch_threshold = 1;
  options.config.tiers.prefetch_capacity = 1;
  options.config.tiers.backup_retry_delay = std::chrono::milliseconds(10);
  return options;
}

TEST(ConnectorStorage, WhatIsSavedOutlivesTheConnectorForEveryModel) {
  std::vector<std::string> names = sim::small_model_names();
  for (const std::string& name : sim::tiny_model_names()) names.push_back(name);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    Storage storage(1);
    RigOptions options = eager();
    options.host_bytes = std::size_t{32} << 20;
    const Tokens tokens = Rig(name, options).prompt(1, 6);
    {
      Rig rig(name, options);
      rig.attach(storage);
      (void)rig.save_all(tokens, 6);
      rig.settle();
      EXPECT_EQ(rig.connector->counters().stored, 6u);
    }
    Rig rig(name, options);
    EXPECT_EQ(rig.hit(tokens), 0u);
    rig.attach(storage);
    LookupId id;
    const LookupResult found = rig.look_up(tokens, id);
    ASSERT_EQ(last_of(found), 6u);
    EXPECT_EQ(found.from_storage, 6u);
    EXPECT_EQ(rig.load(id, found.points.back(), tokens), "");
    rig.connector->release(id);
    EXPECT_EQ(rig.connector->counters().prefetched, 6u);
    EXPECT_EQ(rig.connector->counters().stored, 0u) << "storage has it already";
  }
}

TEST(ConnectorStorage, PointsWaitForStorageAsLongAsThePolicySays) {
  Storage storage(1, {.is_holding = true});
  Rig first("full_mamba", eager());
  first.attach(storage);
  const Tokens tokens = first.prompt(1, 6);
  (void)first.save_all(tokens, 6);
  (void)first.connector->flush();
  const LookupId id = first.connector->lookup({.tokens = tokens}).value();
  EXPECT_EQ(first.connector->points(id).status().code(), StatusCode::kOverloaded);
  // Storage does not answer: after the policy's time the engine goes on without.
  first.clock.advance(std::chrono::seconds(2));
  (void)first.connector->poll(Nanos{0});
  const Result<LookupResult> late = first.connector->points(id);
  ASSERT_TRUE(late.is_ok()) << late.status().to_string();
  EXPECT_TRUE(late->points.empty());
  first.connector->release(id);
  first.settle();
  EXPECT_EQ(first.hit(tokens), 6u);
}

TEST(ConnectorStorage, WhoDoesNotAskStorageDoesNotWait) {
  Storage storage(1, {.is_holding = true});
  Rig rig("full_mamba", eager());
  rig.attach(storage);
  const Tokens tokens = rig.prompt(1, 6);
  (void)rig.save_all(tokens, 6);
  (void)rig.connector->flush();
  LookupId id = rig.connector->lookup({.tokens = tokens, .asks_storage = false}).value();
  const LookupResult unasked = rig.connector->points(id).value();
  EXPECT_TRUE(unasked.points.empty());
  EXPECT_EQ(miss_reason_name(unasked.miss.reason), "not_fetched");
  rig.connector->release(id);
  id = rig.connector->lookup({.tokens = tokens, .has = {.pages = 6}}).value();
  EXPECT_TRUE(rig.connector->points(id)->points.empty()) << "the engine has all of it";
  rig.connector->release(id);
  EXPECT_EQ(rig.connector->operations_in_flight(), 0u);
}

TEST(ConnectorStorage, AReleasedLookupLeavesNothingBehind) {
  Storage storage(1, {.is_holding = true});
  Rig rig("full_swa_mamba", eager());
  rig.attach(storage);
  const Tokens tokens = rig.prompt(1, 6);
  (void)rig.save_all(tokens, 6);
  (void)rig.connector->flush();
  const LookupId id = rig.connector->lookup({.tokens = tokens}).value();
  rig.connector->release(id);
  rig.settle();
  EXPECT_TRUE(rig.connector->check_invariants().is_ok()) << rig.connector->check_invariants().to_string();
  EXPECT_TRUE(rig.connector->idle());
}

TEST(ConnectorStorage, ADetachUnderWayIsAMissAndTheNextStorageIsFilled) {
  Storage slow(1, {.is_holding = true}), next(2);
  Rig rig("full_mamba", eager());
  rig.attach(slow);
  const Tokens tokens = rig.prompt(1, 6);
  EngineMemory memory(rig.model, rig.options.layout);
  const std::vector<std::uint64_t> states = {6};
  memory.compute(tokens, {0, 6, 6, states});
  ASSERT_TRUE(rig.connector->save({.tokens = tokens, .to = 6, .states = states, .places = memory.places()}).is_ok());
  (void)rig.copies->run_all();
  (void)rig.connector->poll(Nanos{0});
  EXPECT_GT(slow.backend->held(), 0u);
  rig.connector->detach_storage();
  rig.attach(next);
  EXPECT_EQ(rig.connector->attach_storage(*slow.backend).code(), StatusCode::kConflict);
  rig.settle();
  EXPECT_EQ(next.backend->stats().pages, slow.backend->stats().pages) << "both have all of it in the end";
  (void)rig.connector->flush();
  EXPECT_EQ(rig.hit(tokens), 6u);
}

TEST(ConnectorStorage, AStorageThatWasClearedIsFilledAgain) {
  Storage storage(1);
  Rig rig("full_mamba", eager());
  rig.attach(storage);
  const Tokens tokens = rig.prompt(1, 6);
  (void)rig.save_all(tokens, 6);
  bool is_cleared = false;
  ASSERT_TRUE(storage.backend->submit_clear(nullptr, [&](const Status& s) { is_cleared = s.is_ok(); }).is_ok());
  (void)storage.run();
  ASSERT_TRUE(is_cleared);
  rig.connector->storage_cleared();
  rig.settle();
  (void)rig.connector->flush();
  EXPECT_EQ(rig.hit(tokens), 6u);
}

// What the host has of it, without asking storage.
LookupResult on_the_host(Rig& rig, const Tokens& tokens) {
  const LookupId id = rig.connector->lookup({.tokens = tokens, .asks_storage = false}).value();
  const LookupResult found = rig.connector->points(id).value();
  rig.connector->release(id);
  return found;
}

void expect_no_slots(Rig& rig) {
  rig.settle();
  (void)rig.connector->flush();
  (void)rig.connector->poll(Nanos{0});
  EXPECT_TRUE(rig.connector->check_invariants().is_ok()) << rig.connector->check_invariants().to_string();
  for (const ComponentKind c : kAllComponents) EXPECT_EQ(rig.host->counts(c).live, 0u);
  EXPECT_EQ(rig.connector->counters().host_resident, 0u);
}

// A save of pages [0, 6) that has ended, with what the next poll does of it.
void save_and_poll(Rig& rig, const Tokens& tokens) {
  EngineMemory memory(rig.model, rig.options.layout);
  const std::vector<std::uint64_t> states = {6};
  memory.compute(tokens, {0, 6, 6, states});
  const SaveRequest save{.tokens = tokens, .to = 6, .states = states, .places = memory.places()};
  const TransferId id = rig.connector->save(save).value();
  (void)rig.copies->run_all();
  (void)rig.connector->poll(Nanos{0});
  EXPECT_EQ(rig.connector->save_result(id)->kept, 6u);
}

TEST(ConnectorFlush, TakesWhatIsBeingWritten) {
  Storage storage(1, {.is_holding = true});
  Rig rig("full_mamba", eager());
  rig.attach(storage);
  const Tokens tokens = rig.prompt(1, 6);
  save_and_poll(rig, tokens);
  EXPECT_GT(storage.backend->held(), 0u);
  EXPECT_EQ(rig.connector->flush(), 6u);
  const LookupResult none = on_the_host(rig, tokens);
  EXPECT_TRUE(none.points.empty());
  EXPECT_EQ(miss_reason_name(none.miss.reason), "flushed");
  EXPECT_EQ(rig.connector->flush(), 0u) << "there is nothing to be found any more";
  // The same prompt, computed anew while the old write goes on.
  save_and_poll(rig, tokens);
  EXPECT_EQ(last_of(on_the_host(rig, tokens)), 6u);
  EXPECT_EQ(rig.connector->counters().host_resident, 12u);
  rig.settle();
  EXPECT_EQ(last_of(on_the_host(rig, tokens)), 6u);
  EXPECT_EQ(rig.connector->counters().host_resident, 6u);
  EXPECT_EQ(rig.connector->counters().host_flushed, 6u);
  expect_no_slots(rig);
}

TEST(ConnectorFlush, AWriteThatFailedIsNotTriedAgain) {
  Storage storage(1, {.is_holding = true});
  Rig rig("full_mamba", eager());
  rig.attach(storage);
  const Tokens tokens = rig.prompt(1, 6);
  storage.backend->fail_nth(1, sim::StorageFault::kFailed);
  save_and_poll(rig, tokens);
  (void)rig.connector->flush();
  rig.settle();
  EXPECT_EQ(rig.connector->counters().stored, 0u);
  EXPECT_EQ(storage.backend->stats().pages, 0u);
  expect_no_slots(rig);
}

TEST(ConnectorFlush, TakesWhatIsBeingFetched) {
  Storage storage(1, {.is_holding = true});
  Rig rig("full_mamba", eager());
  rig.attach(storage);
  const Tokens tokens = rig.prompt(1, 6);
  (void)rig.save_all(tokens, 6);
  EXPECT_EQ(rig.connector->flush(), 6u);
  const LookupId waits = rig.connector->lookup({.tokens = tokens}).value();
  const LookupId released = rig.connector->lookup({.tokens = tokens}).value();
  (void)rig.connector->poll(Nanos{0});
  (void)storage.run();
  (void)rig.connector->poll(Nanos{0});
  EXPECT_GT(storage.backend->held(), 0u) << "it is being read";
  rig.connector->release(released);
  EXPECT_EQ(rig.connector->flush(), 0u);
  EXPECT_TRUE(rig.connector->points(waits).value().points.empty()) << "it waits no more";
  rig.connector->release(waits);
  rig.settle();
  EXPECT_TRUE(on_the_host(rig, tokens).points.empty());
  EXPECT_EQ(rig.connector->counters().host_resident, 0u);
  EXPECT_EQ(rig.hit(tokens), 6u) << "storage is left as it is";
  expect_no_slots(rig);
}

TEST(ConnectorFlush, TakesWhatIsBeingSaved) {
  Rig rig("full_mamba", eager());
  const Tokens tokens = rig.prompt(1, 6);
  EngineMemory memory(rig.model, rig.options.layout);
  const std::vector<std::uint64_t> states = {6};
  memory.compute(tokens, {0, 6, 6, states});
  ASSERT_TRUE(rig.connector->save({.tokens = tokens, .to = 6, .states = states, .places = memory.places()}).is_ok());
  EXPECT_EQ(rig.connector->flush(), 0u);
  rig.settle();
  EXPECT_TRUE(on_the_host(rig, tokens).points.empty());
  EXPECT_EQ(rig.connector->counters().host_flushed, 6u);
  expect_no_slots(rig);
}

TEST(ConnectorFlush, ALeaseKeepsWhatNobodyElseFinds) {
  Storage storage(1);
  Rig rig("full_swa_mamba", eager());
  const Tokens tokens = rig.prompt(1, 6);
  (void)rig.save_all(tokens, 6);
  LookupId id;
  const LookupResult found = rig.look_up(tokens, id);
  ASSERT_EQ(last_of(found), 6u);
  EXPECT_EQ(rig.connector->flush(), 6u);
  rig.attach(storage);
  EXPECT_EQ(rig.hit(tokens), 0u);
  EXPECT_EQ(storage.backend->stats().pages, 0u) << "nobody is to find it there";
  (void)rig.save_all(tokens, 6);
  EXPECT_EQ(rig.hit(tokens), 6u);
  EXPECT_EQ(rig.load(id, found.points.back(), tokens), "");
  EXPECT_EQ(rig.connector->counters().host_resident, 12u);
  rig.connector->release(id);
  (void)rig.connector->poll(Nanos{0});
  EXPECT_EQ(rig.connector->counters().host_resident, 6u);
  expect_no_slots(rig);
}

// Names are used again as often as there are flushes, with something that holds each of the old ones.
TEST(ConnectorFlush, RetiredNamespacesDoNotCount) {
  RigOptions options = eager();
  options.config.tiers.max_namespaces = 1;
  Rig rig("full_mamba", options);
  const Tokens tokens = rig.prompt(1, 6);
  std::vector<LookupId> leases(5);
  for (LookupId& id : leases) {
    (void)rig.save_all(tokens, 6);
    ASSERT_EQ(last_of(rig.look_up(tokens, id)), 6u);
    EXPECT_EQ(rig.connector->flush(), 6u);
  }
  for (const LookupId id : leases) rig.connector->release(id);
  expect_no_slots(rig);
}

// While storage takes pages, a save that may wait does not push out what it lacks; one that may not, does.
TEST(ConnectorStorage, ASaveMayWaitForStorage) {
  RigOptions options = eager();
  const ModelSpec model = sim::simulated_model("full").value();
  options.host_bytes = 8 * host_slot_bytes(model, ComponentKind::kFull);
  options.config.tiers.store_batch_nodes = 1;
  Storage storage(1, {.is_holding = true});
  Rig rig("full", options);
  const std::uint64_t page_count = rig.host->total_blocks() / rig.host->blocks_per_slot(ComponentKind::kFull);
  for (std::uint64_t i = 0; i < page_count; ++i) (void)rig.save_all(rig.prompt(i, 1), 1);
  rig.attach(storage);
  const Tokens tokens = rig.prompt(100, 1);
  EngineMemory memory(rig.model, rig.options.layout);
  memory.compute(tokens, {0, 1, 1, {}});
  const SaveRequest save{.tokens = tokens, .to = 1, .places = memory.places(), .may_wait = true};
  EXPECT_EQ(rig.connector->save(save).status().code(), StatusCode::kOverloaded);
  int polls = 0;
  Result<TransferId> id = rig.connector->save(save);
  for (; !id.is_ok() && polls < 1000; ++polls) {
    (void)rig.connector->poll(Nanos{0});
    id = rig.connector->save(save);
  }
  EXPECT_GT(polls, 0);
  EXPECT_LT(polls, 100) << "a storage that hangs is not waited for";
  rig.settle();
  EXPECT_EQ(rig.connector->save_result(*id)->kept, 1u);
}

}  // namespace
}  // namespace larder::connector_test
