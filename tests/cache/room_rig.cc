// SPDX-License-Identifier: Apache-2.0
#include "tests/cache/room_rig.h"

#include <array>
#include <span>
#include <variant>

#include "sim/world/small_models.h"

#include "tree/tree_test_support.h"

namespace larder::test {

Status PatientTransfer::submit(TransferRequest request, Done done) {
  if (!refusal.is_ok()) return refusal;
  ++submitted;
  TransferDone answer{request.id, Status::ok(), {}, {}};
  for (const ComponentKind c : kAllComponents) {
    for (const SlotPair& pair : request.pairs[index_of(c)]) {
      for (const DeviceSlot slot : {pair.device, pair.source}) {
        if (!slot.valid()) continue;
        EXPECT_TRUE(device_.add_lease(c, slot).is_ok());
        answer.device_leases.push_back({c, slot.v, device_.generation(c, slot)});
      }
      if (!pair.host.valid()) continue;
      EXPECT_TRUE(host_->add_lease(c, pair.host).is_ok());
      answer.host_leases.push_back({c, pair.host.v, host_->generation(c, pair.host)});
    }
  }
  copies.push_back({std::move(request), std::move(done), std::move(answer)});
  return Status::ok();
}

void PatientTransfer::answer(bool is_ok) {
  Copy copy = std::move(copies.front());
  copies.pop_front();
  if (!is_ok) copy.answer.status = unavailable("the device failed");
  copy.done(std::move(copy.answer));
}

RoomRig::RoomRig(RigOptions options) : model(sim::simulated_model(options.model).value()), config(options.config) {
  for (const ComponentKind c : kAllComponents) {
    if (!model.has(c)) options.device[index_of(c)] = 0;
  }
  device = std::move(DevicePools::create(model, options.device, host_memory_source())).value();
  if (options.host_pages > 0) {
    const std::size_t bytes = options.host_pages * model.slot_bytes(ComponentKind::kFull);
    host = std::move(HostPools::create(model, HostLayout::kPageFirst, bytes, host_memory_source())).value();
  }
  events = std::make_unique<StepEvents>(*device);
  transfer = std::make_unique<PatientTransfer>(*device, host.get());
  tiers = std::make_unique<LowerTiers>(
      config, LowerTiers::Parts{.model = model,
                                .host = host.get(),
                                .clock = clock,
                                .metrics = nullptr,
                                .ranks = nullptr,
                                .scope = {},
                                .own_done =
                                    [this](Op& op, bool is_ok) {
                                      ended.emplace_back(op.kind, is_ok);
                                      if (const auto* done = std::get_if<TransferDone>(&op.completion))
                                        copies->drop_leases(*done);
                                      if (op.kind == OpKind::kBackup) backups->done(op, is_ok);
                                    },
                                .is_engine_busy = [] { return false; },
                                .free_device = [this](ComponentKind c,
                                                      std::span<const DeviceSlot> slots) { room->let_go(c, slots); }});
  copies = std::make_unique<DeviceCopies>(
      DeviceCopies::Parts{transfer.get(), *device, tiers->host_room(), tiers->ops(), *events});
  backups = std::make_unique<Backups>(
      config, Backups::Parts{host.get(), tiers->tree(), tiers->ops(), tiers->host_room(), *copies, tiers->counts()});
  room = std::make_unique<DeviceRoom>(config, DeviceRoom::Parts{.model = model,
                                                                .device = *device,
                                                                .host = host.get(),
                                                                .tree = tiers->tree(),
                                                                .ops = tiers->ops(),
                                                                .backlog = tiers->backlog(),
                                                                .host_room = tiers->host_room(),
                                                                .prefetcher = tiers->prefetcher(),
                                                                .backups = *backups,
                                                                .events = *events,
                                                                .clock = clock,
                                                                .counters = tiers->counts(),
                                                                .metrics = tiers->metrics()});
  space = tiers->open_space("", "").value();
}

RoomRig::~RoomRig() {
  tiers->detach_storage();
  for (auto& write : std::exchange(storage.writes, {})) write.done(WriteResult{{cancelled("over")}});
  transfer->refusal = Status::ok();
  end_all();
  EXPECT_EQ(check(), "");
}

std::vector<TokenId> RoomRig::tokens_of(const std::string& name) const {
  std::vector<TokenId> tokens;
  for (const char page : name) tokens.insert(tokens.end(), model.page_size, static_cast<TokenId>(page));
  return tokens;
}

NodeId RoomRig::add(const std::string& name, std::size_t from, bool has_state) {
  std::array<std::vector<DeviceSlot>, kComponentCount> slots;
  const auto fresh = static_cast<std::uint32_t>(name.size() - from);
  if (!device->reserve({fresh, model.has(ComponentKind::kSwa) ? fresh : 0, has_state ? 1u : 0u}, slots)) return {};
  for (const ComponentKind c : {ComponentKind::kFull, ComponentKind::kSwa}) {
    if (model.has(c)) slots[index_of(c)].insert(slots[index_of(c)].begin(), from, DeviceSlot{});
  }
  const std::vector<TokenId> tokens = tokens_of(name);
  std::vector<Checkpoint> checkpoints;
  if (has_state) checkpoints.push_back({name.size(), slots[index_of(ComponentKind::kMamba)].front()});
  const Result<InsertResult> inserted = tree_test::insert_pages(tiers->tree(), model.page_size,
                                                                {.space = space,
                                                                 .tokens = tokens,
                                                                 .owned_from = from,
                                                                 .full = slots[index_of(ComponentKind::kFull)],
                                                                 .swa = slots[index_of(ComponentKind::kSwa)],
                                                                 .checkpoints = checkpoints});
  EXPECT_TRUE(inserted.is_ok()) << inserted.status().to_string();
  return inserted->node;
}

void RoomRig::end_copy(bool is_ok) {
  ASSERT_FALSE(transfer->copies.empty());
  transfer->answer(is_ok);
  poll();
}

void RoomRig::end_all() {
  while (!transfer->copies.empty()) end_copy();
  poll();
}

bool RoomRig::on_device(NodeId node, ComponentKind c) const {
  if (!tiers->tree().exists(node)) return false;
  const NodeView view = tiers->tree().view(node);
  return !view.device[index_of(c)].empty() && !view.device_pending[index_of(c)];
}

bool RoomRig::on_host(NodeId node, ComponentKind c) const {
  if (!tiers->tree().exists(node)) return false;
  const NodeView view = tiers->tree().view(node);
  return !view.host[index_of(c)].empty() && !view.host_pending[index_of(c)];
}

std::string RoomRig::check() const {
  if (const Status s = std::as_const(*tiers).check_invariants({}); !s.is_ok()) return s.to_string();
  for (const ComponentKind c : kAllComponents) {
    const TierCounts& counts = std::as_const(*tiers).tree().counts(c, Tier::kDevice);
    const std::uint64_t live = device->slots(c).counts().live;
    if (live != counts.resident + counts.pending) {
      return std::string(component_name(c)) + ": " + std::to_string(live) + " live on the device, but the tree has " +
             std::to_string(counts.resident + counts.pending);
    }
  }
  return "";
}

}  // namespace larder::test
