// SPDX-License-Identifier: Apache-2.0
// Strong types: an id is not a count, a position is not a slot.
//
// Strong<Tag, Rep> wraps an integer; two different tags never mix. No arithmetic between ids; counts and positions
// that need it say so with StrongCount, which adds, subtracts and compares within its own tag.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace larder {

template <class Tag, class Rep>
struct Strong {
  using rep = Rep;
  Rep v{};
  constexpr Strong() = default;
  constexpr explicit Strong(Rep value) : v(value) {}
  friend constexpr auto operator<=>(const Strong&, const Strong&) = default;
};

template <class Tag, class Rep>
struct StrongCount : Strong<Tag, Rep> {
  using Strong<Tag, Rep>::Strong;
  friend constexpr auto operator<=>(const StrongCount&, const StrongCount&) = default;
  friend constexpr StrongCount operator+(StrongCount a, StrongCount b) { return StrongCount(a.v + b.v); }
  friend constexpr StrongCount operator-(StrongCount a, StrongCount b) { return StrongCount(a.v - b.v); }
  constexpr StrongCount& operator+=(StrongCount b) {
    this->v += b.v;
    return *this;
  }
  constexpr StrongCount& operator-=(StrongCount b) {
    this->v -= b.v;
    return *this;
  }
};

using TokenId = std::uint32_t;  // a vocabulary index; hashed as little-endian u32

// Index of a page slot inside one component's part of one tier. Slots of different tiers never mix.
// kNoSlot marks "not there" (tombstone, out of window).
struct DeviceTag {};
struct HostTag {};
template <class Tier>
struct SlotOf : Strong<Tier, std::uint32_t> {
  using Strong<Tier, std::uint32_t>::Strong;
  static constexpr std::uint32_t kNone = 0xffffffffu;
  constexpr SlotOf() : Strong<Tier, std::uint32_t>(kNone) {}
  [[nodiscard]] constexpr bool valid() const { return this->v != kNone; }
  friend constexpr auto operator<=>(const SlotOf&, const SlotOf&) = default;
};
using DeviceSlot = SlotOf<DeviceTag>;
using HostSlot = SlotOf<HostTag>;

using OpId = Strong<struct OpTag, std::uint64_t>;            // one submitted operation, unique in a process
using RequestId = Strong<struct RequestTag, std::uint64_t>;  // one request of the engine
using NamespaceId =
    Strong<struct NamespaceTag, std::uint32_t>;        // an interned namespace digest (model x adapter x salt)
using NodeId = Strong<struct NodeTag, std::uint32_t>;  // a tree node; reused after the node is gone
// Whose room is counted together, under limits of its own; 0: everybody else.
using TenantId = Strong<struct TenantTag, std::uint32_t>;
using Generation = std::uint32_t;  // grows each time a slot is given out

}  // namespace larder

template <class Tag, class Rep>
struct std::hash<larder::Strong<Tag, Rep>> {
  std::size_t operator()(const larder::Strong<Tag, Rep>& s) const noexcept { return std::hash<Rep>{}(s.v); }
};
