// SPDX-License-Identifier: Apache-2.0
#include "tests/connector/connector_rig.h"

#include "storage/factory.h"
#include "storage/memory/memory_backend.h"
#include "tests/support/recurrent_model.h"

namespace larder::connector_test {

ModelSpec rig_model(const std::string& name) {
  return name == "recurrent" ? test::recurrent_model() : sim::simulated_model(name).value();
}

Storage::Storage(std::uint64_t seed, const sim::FaultPlan& plan) : executor(4096, seed) {
  BackendFactory factory;
  EXPECT_TRUE(register_memory_backend(factory).is_ok());
  BackendEnvironment environment;
  environment.clock = &clock;
  environment.executor = &executor;
  backend = std::make_unique<sim::FaultyBackend>(
      std::move(factory.create("memory", {{"max_size", "256M"}}, environment)).value(), seed, plan);
}

Storage::~Storage() {
  while (run()) {}
  backend.reset();
}

bool Storage::run() {
  (void)backend->release_hung();
  return backend->release_all() + executor.run_all() > 0;
}

Rig::Rig(const std::string& name, const RigOptions& o)
    : model(rig_model(name)),
      options(o),
      host(std::move(HostPools::create(model, o.layout, o.host_bytes, host_memory_source())).value()) {
  if (o.copies_seed) copies = std::make_unique<ManualExecutor>(4096, o.copies_seed);
  ConnectorParts parts;
  parts.model = &model;
  parts.host = host.get();
  parts.clock = &clock;
  parts.executor = copies.get();
  if (o.copy_threads > 0) {
    threads = std::make_unique<ThreadPoolExecutor>("copy", o.copy_threads, 4096);
    parts.executor = threads.get();
  }
  parts.ranks = o.ranks;
  parts.scope.layout = o.layout;
  connector = std::move(Connector::create(o.config, parts)).value();
}

Rig::~Rig() {
  if (connector) {
    settle();
    EXPECT_TRUE(connector->check_invariants().is_ok()) << connector->check_invariants().to_string();
    connector->detach_storage();
    connector.reset();
  }
  // Their buffers are those of the host pools.
  while (run_storages()) {}
}

void Rig::attach(Storage& to) {
  if (std::find(storages.begin(), storages.end(), &to) == storages.end()) storages.push_back(&to);
  ASSERT_TRUE(connector->attach_storage(*to.backend).is_ok());
}

bool Rig::run_storages() {
  bool has_run = false;
  for (Storage* storage : storages) has_run = storage->run() || has_run;
  return has_run;
}

void Rig::settle() {
  for (int i = 0; i < 2000; ++i) {
    const bool copied = copies && copies->run_all() > 0;
    const bool stored = run_storages();
    const bool changed = connector->poll(threads ? Nanos(std::chrono::milliseconds(1)) : Nanos{0});
    if (copied || stored || changed) continue;
    if (connector->operations_in_flight() == 0) return;
    clock.advance(std::chrono::milliseconds(50));
  }
  ADD_FAILURE() << connector->operations_in_flight() << " operations never end";
}

SaveResult Rig::save(const Tokens& tokens, std::uint64_t from, std::uint64_t to, std::uint64_t window_pages,
                     const std::vector<std::uint64_t>& states, const std::string& tenant) {
  EngineMemory memory(model, options.layout, tenant);
  memory.compute(tokens, {from, to - window_pages, to, states});
  const Result<TransferId> id = connector->save({.tokens = tokens,
                                                 .salt = tenant,
                                                 .from = from,
                                                 .to = to,
                                                 .window_pages = window_pages,
                                                 .states = states,
                                                 .places = memory.places()});
  EXPECT_TRUE(id.is_ok()) << id.status().to_string();
  if (!id.is_ok()) return {};
  settle();
  return connector->save_result(*id).value();
}

SaveResult Rig::save_all(const Tokens& tokens, std::uint64_t to, const std::string& tenant) {
  std::vector<std::uint64_t> states;
  if (model.has(ComponentKind::kMamba)) states.push_back(to);
  return save(tokens, 0, to, model.has(ComponentKind::kSwa) ? model.window_pages_at(to) : 0, states, tenant);
}

LookupResult Rig::look_up(const Tokens& tokens, LookupId& id, EngineHas has, const std::string& tenant) {
  const Result<LookupId> opened = connector->lookup({.tokens = tokens, .has = has, .salt = tenant});
  EXPECT_TRUE(opened.is_ok()) << opened.status().to_string();
  if (!opened.is_ok()) return {};
  id = *opened;
  settle();
  Result<LookupResult> points = connector->points(id);
  for (int i = 0; i < 50 && points.status().code() == StatusCode::kOverloaded; ++i) {
    settle();
    points = connector->points(id);
  }
  EXPECT_TRUE(points.is_ok()) << points.status().to_string();
  return points.value_or({});
}

std::uint64_t Rig::hit(const Tokens& tokens, const std::string& tenant) {
  LookupId id;
  const LookupResult found = look_up(tokens, id, {}, tenant);
  connector->release(id);
  return found.points.empty() ? 0 : found.points.back().pages;
}

PageNeeds Rig::needs_of(const LoadPoint& point) const {
  PageNeeds needs{point.full_from, point.window_from, point.pages, {}};
  if (point.has_state) needs.states.push_back(point.pages);
  return needs;
}

std::string Rig::load(LookupId id, const LoadPoint& point, const Tokens& tokens, const std::string& tenant) {
  EngineMemory memory(model, options.layout, tenant);
  memory.reserve(needs_of(point));
  const Result<TransferId> transfer = connector->load({.lookup = id, .pages = point.pages, .places = memory.places()});
  if (!transfer.is_ok()) return transfer.status().to_string();
  settle();
  const Result<LoadResult> result = connector->load_result(*transfer);
  if (!result.is_ok()) return result.status().to_string();
  if (!result->status.is_ok()) return result->status.to_string();
  if (result->bytes != point.bytes) return "it moved " + std::to_string(result->bytes) + " bytes";
  return memory.difference(tokens);
}

}  // namespace larder::connector_test
