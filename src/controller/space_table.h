// SPDX-License-Identifier: Apache-2.0
// The namespaces that a cache has open, by adapter and salt, and which of them idle.
//
// Purpose: max_namespaces bounds those that are open. Whoever uses one (a request, a prefetch) holds a Use; the others
// stand in a line, the one that was used last at its end, and the cache closes them from its head when it needs room.
// What goes into the line and when is the same on every rank, so all close the same.
// Threads: confined to the cache thread. The table outlives its Uses.
// Cost: O(log namespaces) to find, add or erase one by name; all else O(1).
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/strong.h"
#include "storage/backend.h"

namespace larder {

class SpaceTable {
 public:
  using Name = std::pair<std::string, std::string>;  // adapter, salt

  // While one is held, its namespace is not idle.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept : table_(std::exchange(other.table_, nullptr)), id_(other.id_) {}
    Use& operator=(Use&& other) noexcept {
      if (this == &other) return *this;
      reset();
      table_ = std::exchange(other.table_, nullptr);
      id_ = other.id_;
      return *this;
    }
    ~Use() { reset(); }

   private:
    friend class SpaceTable;
    Use(SpaceTable& table, NamespaceId id) : table_(&table), id_(id) {}
    void reset() {
      if (table_ != nullptr) std::exchange(table_, nullptr)->drop_use(id_);
    }

    SpaceTable* table_ = nullptr;
    NamespaceId id_;
  };

  [[nodiscard]] std::optional<NamespaceId> find(const Name& name) const;
  // Neither is there yet. Idle, at the end of the line.
  void add(const Name& name, NamespaceId id, std::shared_ptr<const StoreScope> scope);
  // It is idle.
  void erase(NamespaceId id);
  // The others: `id` is there.
  [[nodiscard]] Use use(NamespaceId id);
  [[nodiscard]] const std::shared_ptr<const StoreScope>& scope(NamespaceId id) const { return spaces_.at(id.v).scope; }
  [[nodiscard]] std::size_t size() const { return spaces_.size(); }
  [[nodiscard]] const Name& name(NamespaceId id) const { return spaces_.at(id.v).name; }
  [[nodiscard]] const std::map<Name, NamespaceId>& names() const { return names_; }

  // Oldest first.
  [[nodiscard]] const std::list<NamespaceId>& idle() const { return idle_; }
  // An idle one goes to the end of the line.
  void put_last(NamespaceId id) { idle_.splice(idle_.end(), idle_, spaces_.at(id.v).place); }

 private:
  struct Space {
    Name name;
    std::shared_ptr<const StoreScope> scope;
    std::uint32_t uses = 0;
    std::list<NamespaceId>::iterator place;  // in idle_, while nobody uses it; else in used_
  };
  void drop_use(NamespaceId id);

  std::map<Name, NamespaceId> names_;
  std::unordered_map<std::uint32_t, Space> spaces_;  // by NamespaceId
  std::list<NamespaceId> idle_, used_;               // used_: in no order
};

}  // namespace larder
