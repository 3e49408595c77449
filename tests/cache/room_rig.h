// SPDX-License-Identifier: Apache-2.0
// The rooms between device and host over real trees and pools, without a cache: copies end when the test says so.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "controller/backups.h"
#include "controller/device_copies.h"
#include "controller/device_room.h"
#include "controller/lower_tiers.h"
#include "tests/cache/patient_backend.h"

namespace larder::test {

// Leases the slots of each copy, as a device does, and keeps it until the test answers it.
class PatientTransfer final : public TransferEngine {
 public:
  struct Copy {
    TransferRequest request;
    Done done;
    TransferDone answer;
  };
  std::deque<Copy> copies;  // not answered yet
  std::size_t submitted = 0;
  Status refusal;  // not ok: of what is submitted

  // host: null: none. Both outlive this.
  PatientTransfer(DevicePools& device, HostPools* host) : device_(device), host_(host) {}
  [[nodiscard]] Status submit(TransferRequest request, Done done) override;
  [[nodiscard]] std::size_t in_flight() const override { return copies.size(); }
  [[nodiscard]] bool serves(const DevicePools& device, const HostPools* host) const override {
    return &device == &device_ && (host == nullptr || host == host_);
  }
  // Of the oldest copy.
  void answer(bool is_ok);

 private:
  DevicePools& device_;
  HostPools* const host_;
};

struct RigOptions {
  std::string model = "full_mamba";
  ComponentCounts device = {8, 0, 4};
  std::uint64_t host_pages = 64;  // 0: no host
  CacheConfig config{};
};

class RoomRig {
 public:
  explicit RoomRig(RigOptions options);
  // Ends everything, and checks that nothing was lost.
  ~RoomRig();

  // The path of `name`, one letter a page, whose pages beyond `from` are new on the device. state: at its end.
  // NodeId{}: the device has no slots for it.
  NodeId add(const std::string& name, std::size_t from = 0, bool has_state = false);
  [[nodiscard]] std::vector<TokenId> tokens_of(const std::string& name) const;
  void poll() { (void)tiers->poll(Nanos{0}); }
  // The oldest copy ends.
  void end_copy(bool is_ok = true);
  void end_all();
  [[nodiscard]] bool on_device(NodeId node, ComponentKind c = ComponentKind::kFull) const;
  [[nodiscard]] bool on_host(NodeId node, ComponentKind c = ComponentKind::kFull) const;  // published
  [[nodiscard]] Status make(std::uint32_t pages, bool may_wait = true) {
    return room->make_room(seeker, ComponentKind::kFull, pages, may_wait);
  }
  // Every slot is free or the tree's. Empty, or what is wrong.
  [[nodiscard]] std::string check() const;

  ManualClock clock;
  const ModelSpec model;
  CacheConfig config;
  std::unique_ptr<DevicePools> device;
  std::unique_ptr<HostPools> host;
  std::unique_ptr<PatientTransfer> transfer;
  PatientBackend storage;
  std::unique_ptr<LowerTiers> tiers;
  std::unique_ptr<StepEvents> events;
  std::unique_ptr<DeviceCopies> copies;
  std::unique_ptr<Backups> backups;
  std::unique_ptr<DeviceRoom> room;
  NamespaceId space;
  RoomSeeker seeker;
  std::vector<std::pair<OpKind, bool>> ended;  // what the tiers handed out
};

}  // namespace larder::test
