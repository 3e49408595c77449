// SPDX-License-Identifier: Apache-2.0
// Small numbers for what pages belong to: an identity is a namespace, a layout and a pool; identities of one namespace
// have bits, so that a node of the page index says in one word which of them it has pages of.
//
// Threads: confined (the file store's mutex).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "key/page_key.h"
#include "model/pool_spec.h"

namespace larder::file_store {

using IdentityId = std::uint32_t;  // 0: none

struct PageIdentity {
  Digest256 namespace_digest, layout_fingerprint;
  PoolName pool = PoolName::kKv;
  friend bool operator==(const PageIdentity&, const PageIdentity&) = default;
};

struct PageIdentityHash {
  std::size_t operator()(const PageIdentity& i) const noexcept {
    return i.namespace_digest.prefix64() ^ (i.layout_fingerprint.prefix64() * 31) ^ static_cast<std::size_t>(i.pool);
  }
};

// kOverloaded.
[[nodiscard]] inline Status too_many_identities() { return overloaded("file store: too many namespaces at once"); }

class PageIdentities {
 public:
  static constexpr std::uint32_t kSharedBit = 31;

  struct Entry {
    PageIdentity identity;
    std::uint64_t pages = 0;  // 0: the id is free
    std::uint32_t namespace_id = 0;
    std::uint32_t bit = 0;              // its own in its namespace, or kSharedBit if those were used up
    IdentityId previous = 0, next = 0;  // of the namespace; 0: there is none
    bool is_unlinked = false;
  };

  // 0: no page has this identity. The number is good until the last page of the identity goes.
  [[nodiscard]] IdentityId find(const PageIdentity& identity) const;
  // 0: no page lies in it.
  [[nodiscard]] std::uint32_t find_namespace(const Digest256& digest) const;
  [[nodiscard]] const Entry& operator[](IdentityId id) const { return entries_[id - 1]; }
  // Precondition: find() does not know it. The caller adds a page.
  [[nodiscard]] IdentityId make(const PageIdentity& identity);
  void add_page(IdentityId id) { ++entries_[id - 1].pages; }
  // Without pages the identity goes, without identities the namespace. (Its last nodes go with its last page, so no
  // node is left behind under a free namespace.)
  void remove_page(IdentityId id);
  // Nothing finds the namespace and its identities any more; they keep their numbers as long as they have pages. Pages
  // that are added to it later have others. Cost: O(identities of the namespace).
  void unlink_namespace(const Digest256& digest);
  [[nodiscard]] std::uint64_t unlinked_pages() const { return unlinked_pages_; }
  [[nodiscard]] std::size_t size() const { return ids_.size(); }
  [[nodiscard]] std::size_t end_id() const { return entries_.size() + 1; }  // ids are below it
  // `pages`: how many each has, by id - 1. O(identities); tests.
  [[nodiscard]] Status check(std::span<const std::uint64_t> pages) const;

 private:
  struct Namespace {
    Digest256 digest;
    std::uint32_t identities = 0;  // 0: the id is free
    std::uint32_t bits = 0;        // that have an owner
    IdentityId first = 0;
    bool is_unlinked = false;
  };

  void leave_namespace(IdentityId id);
  [[nodiscard]] std::uint32_t find_or_make_namespace(const Digest256& digest);

  std::vector<Entry> entries_;  // [id - 1]
  std::vector<IdentityId> free_;
  std::unordered_map<PageIdentity, IdentityId, PageIdentityHash> ids_;
  std::vector<Namespace> namespaces_;  // [id - 1]
  std::vector<std::uint32_t> free_namespaces_;
  std::unordered_map<Digest256, std::uint32_t> namespace_ids_;
  std::uint64_t unlinked_pages_ = 0;
  std::size_t unlinked_ = 0;  // identities
};

}  // namespace larder::file_store
