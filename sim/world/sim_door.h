// SPDX-License-Identifier: Apache-2.0
// What both doors of the library have in common, for those parts of a world that do not care which one it is: time,
// operators and rules.
//
// Threads: confined to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "controller/cache.h"
#include "storage/backend.h"

namespace larder::sim {

class SimDoor {
 public:
  virtual ~SimDoor() = default;
  virtual bool poll() = 0;
  [[nodiscard]] virtual std::size_t operations_in_flight() const = 0;
  virtual void flush() = 0;
  [[nodiscard]] virtual Status attach_storage(StorageBackend& backend) = 0;
  virtual void detach_storage() = 0;
  virtual void storage_cleared() = 0;
  [[nodiscard]] virtual CacheCounters counters() const = 0;
  [[nodiscard]] virtual const RadixTree& tree() const = 0;
  [[nodiscard]] virtual Status check_invariants() const = 0;
};

// Door: Cache or Connector.
template <class Door>
class DoorOf final : public SimDoor {
 public:
  explicit DoorOf(std::unique_ptr<Door> door) : door_(std::move(door)) {}
  [[nodiscard]] Door& operator*() { return *door_; }

  bool poll() override { return door_->poll(Nanos::zero()); }
  [[nodiscard]] std::size_t operations_in_flight() const override { return door_->operations_in_flight(); }
  void flush() override { (void)door_->flush(); }
  [[nodiscard]] Status attach_storage(StorageBackend& backend) override { return door_->attach_storage(backend); }
  void detach_storage() override { door_->detach_storage(); }
  void storage_cleared() override { door_->storage_cleared(); }
  [[nodiscard]] CacheCounters counters() const override { return door_->counters(); }
  [[nodiscard]] const RadixTree& tree() const override { return door_->tree(); }
  [[nodiscard]] Status check_invariants() const override { return door_->check_invariants(); }

 private:
  const std::unique_ptr<Door> door_;
};

}  // namespace larder::sim
