// SPDX-License-Identifier: Apache-2.0
// Page groups whose every byte follows from their name, so that a process that did not write them can tell whether
// what it reads is right.
//
// Scopes 1, 2, ... are namespaces; groups of a scope are numbered and form chains of eight. A group has two or three
// pages of different pools: logical ones (0 bytes), small ones, and ones of 16 KiB and more, which are written past
// the page cache. Many have equal sizes, so that they can be swapped.
// Threads: pure, but for GroupBuffers, which is confined.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "storage/backend.h"
#include "storage/file/io_queue.h"

namespace larder::crash {

struct GroupId {
  std::uint64_t scope = 0, number = 0;
  friend auto operator<=>(const GroupId&, const GroupId&) = default;
};
[[nodiscard]] std::string to_text(const GroupId& group);

struct PageShape {
  PoolName pool;
  std::size_t bytes;
};
// Sidecars first, the anchor last.
[[nodiscard]] std::vector<PageShape> pages_of(const GroupId& group);
[[nodiscard]] PageKey key_of(const GroupId& group);
[[nodiscard]] std::shared_ptr<const StoreScope> scope_of(std::uint64_t scope);

// Memory for one group's pages: aligned for direct I/O or not, in one piece or two, by chance.
class GroupBuffers {
 public:
  GroupBuffers(const GroupId& group, Rng& rng);
  void fill();
  // Does page `i` of pages_of() hold what it should?
  [[nodiscard]] bool is_right(std::size_t i) const;
  [[nodiscard]] PageGroup write_group() const;
  [[nodiscard]] std::vector<ReadItem> read_items() const;

 private:
  struct Page {
    PageShape shape;
    file_store::AlignedBuffer memory;
    std::byte* bytes;
    std::vector<Segment> pieces;
  };
  const GroupId group_;
  std::vector<Page> pages_;
};

// LARDER_TEST_SEED, or a fixed number.
[[nodiscard]] std::uint64_t test_seed();

}  // namespace larder::crash
