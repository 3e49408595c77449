// SPDX-License-Identifier: Apache-2.0
// Values by ids that count up and never repeat, as those of requests do: found without a division and without a list.
//
//   places:  those of ids that follow each other lie apart, so that few meet and an erase moves few; or the next free
//   one values:  where they were made, until they are erased; their memory is kept for the next one
//
// Threads: confined with its owner. Lifetime: references are good until their value is erased. Limits: the owner's; the
// memory kept is that of the most values at one time. Cost: O(1); for_each() O(places), in no order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace larder {

template <class T>
class RequestTable {
 public:
  RequestTable() : places_(kLeastPlaces) {}
  ~RequestTable() { clear(); }
  RequestTable(const RequestTable&) = delete;
  RequestTable& operator=(const RequestTable&) = delete;

  // Precondition: `id` is not 0, and not in the table.
  template <class... Args>
  T& add(std::uint64_t id, Args&&... args) {
    if (2 * (size_ + 1) > places_.size()) grow();
    if (free_.empty()) free_.push_back(std::make_unique<Room>());
    std::unique_ptr<Room> room = std::move(free_.back());
    free_.pop_back();
    T* const value = new (room->bytes) T(std::forward<Args>(args)...);
    put({id, std::move(room)});
    ++size_;
    return *value;
  }
  [[nodiscard]] T* find(std::uint64_t id) const {
    for (std::size_t at = home(id); places_[at].id != 0; at = next(at)) {
      if (places_[at].id == id) return places_[at].room->value();
    }
    return nullptr;
  }
  void erase(std::uint64_t id) {
    if (id == 0) return;
    std::size_t at = home(id);
    while (places_[at].id != id) {
      if (places_[at].id == 0) return;
      at = next(at);
    }
    places_[at].room->value()->~T();
    free_.push_back(std::move(places_[at].room));
    places_[at].id = 0;
    --size_;
    // Those behind it move up, as far as their own places allow.
    for (std::size_t from = next(at); places_[from].id != 0; from = next(from)) {
      const std::size_t distance = (from - home(places_[from].id)) & (places_.size() - 1);
      if (distance < ((from - at) & (places_.size() - 1))) continue;
      places_[at] = std::exchange(places_[from], {});
      at = from;
    }
  }
  void clear() {
    for (Place& place : places_) {
      if (place.id != 0) place.room->value()->~T();
      place = {};
    }
    size_ = 0;
  }
  template <class Each>
  void for_each(Each each) const {
    for (const Place& place : places_) {
      if (place.id != 0) each(*place.room->value());
    }
  }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }

 private:
  static constexpr std::size_t kLeastPlaces = 16;
  struct Room {
    alignas(T) std::byte bytes[sizeof(T)];
    [[nodiscard]] T* value() { return std::launder(reinterpret_cast<T*>(bytes)); }
  };
  struct Place {
    std::uint64_t id = 0;  // 0: free
    std::unique_ptr<Room> room;
  };
  [[nodiscard]] std::size_t home(std::uint64_t id) const {
    constexpr std::uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;
    return (id * kGoldenRatio >> 32) & (places_.size() - 1);
  }
  [[nodiscard]] std::size_t next(std::size_t at) const { return (at + 1) & (places_.size() - 1); }
  void put(Place place) {
    std::size_t at = home(place.id);
    while (places_[at].id != 0) at = next(at);
    places_[at] = std::move(place);
  }
  void grow() {
    std::vector<Place> old(2 * places_.size());
    std::swap(old, places_);
    for (Place& place : old) {
      if (place.id != 0) put(std::move(place));
    }
  }

  std::vector<Place> places_;  // a power of two, at most half of them taken
  std::vector<std::unique_ptr<Room>> free_;
  std::size_t size_ = 0;
};

}  // namespace larder
