#include "storage/file/page_index.h"

#include <cassert>

namespace larder::file_store {
namespace {

// Keys are digests, but the identity must take part, and tests use keys that are not random.
std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0x9e3779b97f4a7c15ull;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9ull;
  return x ^ (x >> 32);
}

}  // namespace

std::size_t PageIndex::home(IdentityId identity, const PageKey& key) const {
  return static_cast<std::size_t>(mix(key.prefix64() + identity * 0x94d049bb133111ebull)) & (table_.size() - 1);
}

std::size_t PageIndex::probe(IdentityId identity, const PageKey& key) const {
  std::size_t at = home(identity, key);
  while (table_[at] != kNone) {
    const Entry& e = entry(table_[at]);
    if (e.identity == identity && e.key == key) break;
    at = (at + 1) & (table_.size() - 1);
  }
  return at;
}

IdentityId PageIndex::find_identity(const PageIdentity& identity) const {
  const auto at = identity_ids_.find(identity);
  return at == identity_ids_.end() ? 0 : at->second;
}

bool PageIndex::contains(IdentityId identity, const PageKey& key) const {
  return identity != 0 && !table_.empty() && table_[probe(identity, key)] != kNone;
}

bool PageIndex::find(IdentityId identity, const PageKey& key, PageLocation& out) const {
  if (identity == 0 || table_.empty()) return false;
  const std::uint32_t number = table_[probe(identity, key)];
  if (number == kNone) return false;
  const Entry& e = entry(number);
  out = {e.segment, e.offset_units * kRecordAlignment, e.payload_bytes, e.generation};
  return true;
}

Result<IdentityId> PageIndex::intern(const PageIdentity& identity) {
  if (const IdentityId known = find_identity(identity); known != 0) return known;
  if (identity_ids_.size() >= kMaxIdentities) return overloaded("file store: too many namespaces at once");
  IdentityId id = 0;
  if (free_identities_.empty()) {
    identities_.emplace_back();
    id = static_cast<IdentityId>(identities_.size());
  } else {
    id = free_identities_.back();
    free_identities_.pop_back();
  }
  identities_[id - 1] = {identity, 0};
  identity_ids_.emplace(identity, id);
  return id;
}

void PageIndex::release_identity(IdentityId id) {
  Identity& identity = identities_[id - 1];
  if (--identity.pages > 0) return;
  identity_ids_.erase(identity.identity);
  free_identities_.push_back(id);
}

std::uint32_t PageIndex::take_entry() {
  if (free_entries_ != kNone) {
    const std::uint32_t number = free_entries_;
    free_entries_ = entry(number).next;
    return number;
  }
  if (entries_made_ % kChunk == 0) chunks_.push_back(std::make_unique<Entry[]>(kChunk));
  return entries_made_++;
}

void PageIndex::grow() {
  std::vector<std::uint32_t> old(table_.empty() ? 1024 : table_.size() * 2, kNone);
  old.swap(table_);
  // In entry order, so that the entries are read one after the other and only the table is hit at random.
  for (std::uint32_t number = 0; number < entries_made_; ++number) {
    const Entry& e = entry(number);
    if (e.identity == 0) continue;
    std::size_t at = home(e.identity, e.key);
    while (table_[at] != kNone) at = (at + 1) & (table_.size() - 1);
    table_[at] = number;
  }
}

void PageIndex::link(std::uint32_t number) {
  Entry& e = entry(number);
  const auto [head, is_new] = segment_heads_.try_emplace(e.segment, kNone);
  e.previous = kNone;
  e.next = head->second;
  if (e.next != kNone) entry(e.next).previous = number;
  head->second = number;
}

void PageIndex::unlink(std::uint32_t number) {
  Entry& e = entry(number);
  if (e.next != kNone) entry(e.next).previous = e.previous;
  if (e.previous != kNone) {
    entry(e.previous).next = e.next;
  } else if (e.next != kNone) {
    segment_heads_[e.segment] = e.next;
  } else {
    segment_heads_.erase(e.segment);
  }
}

void PageIndex::place(Entry& e, const PageLocation& location) {
  e.segment = location.segment;
  e.offset_units = static_cast<std::uint32_t>(location.offset / kRecordAlignment);
  e.payload_bytes = location.payload_bytes;
  e.generation = location.generation;
  payload_bytes_ += location.payload_bytes;
}

Status PageIndex::insert(const PageIdentity& identity, const PageKey& key, const PageLocation& location) {
  assert(location.offset % kRecordAlignment == 0 && location.offset <= kMaxRecordOffset);
  const Result<IdentityId> id = intern(identity);
  if (!id.is_ok()) return id.status();
  if (table_.empty() || (count_ + 1) * 4 > table_.size() * 3) grow();
  const std::size_t at = probe(*id, key);
  if (table_[at] != kNone) {
    const std::uint32_t number = table_[at];
    Entry& e = entry(number);
    if (e.generation >= location.generation) return Status::ok();
    unlink(number);
    payload_bytes_ -= e.payload_bytes;
    place(e, location);
    link(number);
    return Status::ok();
  }
  if (count_ >= kMaxPages) return overloaded("file store: the index is full");
  const std::uint32_t number = take_entry();
  Entry& e = entry(number);
  e.key = key;
  e.identity = *id;
  place(e, location);
  link(number);
  table_[at] = number;
  ++identities_[*id - 1].pages;
  ++count_;
  return Status::ok();
}

void PageIndex::erase_at(std::size_t position) {
  const std::uint32_t number = table_[position];
  Entry& e = entry(number);
  unlink(number);
  payload_bytes_ -= e.payload_bytes;
  --count_;
  release_identity(e.identity);
  e.identity = 0;
  e.next = free_entries_;
  free_entries_ = number;
  // Close the gap: move back each follower whose home is not behind the hole.
  const std::size_t mask = table_.size() - 1;
  std::size_t hole = position;
  for (std::size_t at = (hole + 1) & mask; table_[at] != kNone; at = (at + 1) & mask) {
    const Entry& follower = entry(table_[at]);
    const std::size_t from_home = (at - home(follower.identity, follower.key)) & mask;
    if (from_home < ((at - hole) & mask)) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = kNone;
}

bool PageIndex::erase(IdentityId identity, const PageKey& key, std::uint64_t generation) {
  if (identity == 0 || table_.empty()) return false;
  const std::size_t at = probe(identity, key);
  if (table_[at] == kNone || entry(table_[at]).generation != generation) return false;
  erase_at(at);
  return true;
}

std::uint64_t PageIndex::drop_segment(SegmentId segment) {
  std::uint64_t dropped = 0;
  for (auto head = segment_heads_.find(segment); head != segment_heads_.end(); head = segment_heads_.find(segment)) {
    const Entry& e = entry(head->second);
    erase_at(probe(e.identity, e.key));
    ++dropped;
  }
  return dropped;
}

std::uint64_t PageIndex::drop_namespace(const Digest256& namespace_digest) {
  std::uint64_t dropped = 0;
  for (std::uint32_t number = 0; number < entries_made_; ++number) {
    const Entry& e = entry(number);
    if (e.identity == 0 || identities_[e.identity - 1].identity.namespace_digest != namespace_digest) continue;
    erase_at(probe(e.identity, e.key));
    ++dropped;
  }
  return dropped;
}

void PageIndex::clear() { *this = PageIndex(); }

std::size_t PageIndex::memory_bytes() const {
  return table_.capacity() * sizeof(std::uint32_t) + chunks_.size() * kChunk * sizeof(Entry);
}

}  // namespace larder::file_store
