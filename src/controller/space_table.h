// SPDX-License-Identifier: Apache-2.0
// The namespaces that a cache has open, by adapter and salt, and which of them idle.
//
// Purpose: max_namespaces bounds the places of those that are open, and so the memory of their names: a place for each,
// and one for each kPlaceBytes of a long name, which is kept once. Whoever uses one (a request, a prefetch) holds a
// Use; the others stand in a line, the one that was used last at its end, and the cache closes them from its head when
// it needs room. What goes into the line and when is the same on every rank, so all close the same. A flush takes names
// away: the namespace is retired, and the next one that is opened by its name is another.
//
// Threads: confined to the cache thread. The table outlives its Uses.
// Cost: O(log namespaces) to find, add or erase one by name; all else O(1).
#pragma once

#include <algorithm>
#include <cstddef>
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
  using Names = std::map<Name, NamespaceId>;
  static constexpr std::size_t kPlaceBytes = 1024;
  // Of those that max_namespaces counts.
  [[nodiscard]] static std::size_t places_of(const Name& name) {
    return std::max<std::size_t>(1, (name.first.size() + name.second.size() + kPlaceBytes - 1) / kPlaceBytes);
  }

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
  // Neither is there yet. Idle, at the end of the line. Where there is no memory, nothing has changed.
  void add(const Name& name, NamespaceId id, std::shared_ptr<const StoreScope> scope);
  // Nobody uses it.
  void erase(NamespaceId id);
  // The others: `id` is there.
  // Its name is free again, and it is no idle one.
  void retire(NamespaceId id);
  [[nodiscard]] Use use(NamespaceId id);
  [[nodiscard]] const std::shared_ptr<const StoreScope>& scope(NamespaceId id) const { return spaces_.at(id.v).scope; }
  [[nodiscard]] bool is_used(NamespaceId id) const { return spaces_.at(id.v).uses > 0; }
  [[nodiscard]] std::size_t size() const { return names_.size(); }  // without those that are retired
  [[nodiscard]] std::size_t places() const { return places_; }      // the same
  [[nodiscard]] const Name& name(NamespaceId id) const { return spaces_.at(id.v).name(); }
  [[nodiscard]] const Names& names() const { return names_; }

  // Oldest first.
  [[nodiscard]] const std::list<NamespaceId>& idle() const { return idle_; }
  // Retired ones that nobody uses.
  [[nodiscard]] const std::list<NamespaceId>& retired() const { return retired_; }
  // An idle one goes to the end of the line.
  void put_last(NamespaceId id) { idle_.splice(idle_.end(), idle_, spaces_.at(id.v).place); }

 private:
  struct Space {
    const Name* open_name = nullptr;  // in names_, until it is retired
    std::shared_ptr<const StoreScope> scope;
    std::list<NamespaceId>::iterator place;  // in line_of() it
    std::uint32_t uses = 0;
    Names::node_type retired_name{};  // from then on
    [[nodiscard]] bool is_retired() const { return !retired_name.empty(); }
    [[nodiscard]] const Name& name() const { return is_retired() ? retired_name.key() : *open_name; }
  };
  void drop_use(NamespaceId id);
  [[nodiscard]] Names::node_type take_name(const Name& name);
  [[nodiscard]] std::list<NamespaceId>& line_of(const Space& space) {
    return space.uses > 0 ? used_ : space.is_retired() ? retired_ : idle_;
  }

  Names names_;
  std::size_t places_ = 0;                           // of names_
  std::unordered_map<std::uint32_t, Space> spaces_;  // by NamespaceId
  std::list<NamespaceId> idle_, used_, retired_;     // used_: in no order, retired ones too
};

}  // namespace larder
