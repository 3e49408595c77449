// SPDX-License-Identifier: Apache-2.0
#include "tree/victim_queues.h"

#include <algorithm>
#include <cassert>

namespace larder::tree {

VictimQueues::VictimQueues(NodePool& nodes, const std::vector<Space>& spaces, std::size_t place)
    : nodes_(nodes), spaces_(spaces), place_(place) {}

TenantBook::Standing VictimQueues::standing_of(TenantId tenant) const {
  return tenant.v < tenants_.size() ? tenants_[tenant.v].standing : TenantBook::Standing::kWithin;
}

// ---- queues of tenants

VictimQueues::QueueId VictimQueues::find(TenantId tenant, std::uint8_t number) const {
  if (tenant.v == 0) return number < everyones_.size() ? everyones_[number] : kNoQueue;
  if (tenant.v >= tenants_.size()) return kNoQueue;
  const std::vector<QueueId>& own = tenants_[tenant.v].queues;
  const auto at = std::lower_bound(own.begin(), own.end(), number,
                                   [&](QueueId id, std::uint8_t n) { return queues_[id].number < n; });
  return at != own.end() && queues_[*at].number == number ? *at : kNoQueue;
}

VictimQueues::QueueId VictimQueues::open_queue(TenantId tenant, std::uint8_t number) {
  auto id = static_cast<QueueId>(queues_.size());
  if (unused_.empty()) {
    queues_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  queues_[id].tenant = tenant;
  queues_[id].number = number;
  if (tenant.v == 0) {
    if (everyones_.size() <= number) everyones_.resize(number + std::size_t{1}, kNoQueue);
    everyones_[number] = id;
    return id;
  }
  if (tenants_.size() <= tenant.v) tenants_.resize(tenant.v + std::size_t{1});
  std::vector<QueueId>& own = tenants_[tenant.v].queues;
  const auto at = std::lower_bound(own.begin(), own.end(), number,
                                   [&](QueueId other, std::uint8_t n) { return queues_[other].number < n; });
  own.insert(at, id);
  return id;
}

// It is empty. Those of tenant 0 stay: they are at most 256.
void VictimQueues::close_queue(QueueId id) {
  if (queues_[id].tenant.v == 0) return;
  std::erase(tenants_[queues_[id].tenant.v].queues, id);
  queues_[id] = Queue{};
  unused_.push_back(id);
}

void VictimQueues::enter_top(QueueId id, Tops& tops) {
  const std::size_t number = queues_[id].number;
  if (tops.heaps.size() <= number) tops.heaps.resize(number + 1);
  tops.heaps[number].push({queues_[id].nodes.front().key, id}, note_top());
  note_first_of(number, tops);
}

void VictimQueues::leave_top(QueueId id, Tops& tops) {
  const std::size_t number = queues_[id].number;
  tops.heaps[number].remove(queues_[id].at_top, note_top());
  note_first_of(number, tops);
}

void VictimQueues::note_first_of(std::size_t number, Tops& tops) {
  const std::uint64_t bit = std::uint64_t{1} << (number % 64);
  std::uint64_t& filled = tops.filled[number / 64];
  const bool was_filled = (filled & bit) != 0, is_filled = !tops.heaps[number].empty();
  std::uint8_t& place = tops.place_of[number];
  if (is_filled && !was_filled) {
    filled |= bit;
    place = static_cast<std::uint8_t>(tops.numbers.size());
    tops.numbers.push_back(static_cast<std::uint8_t>(number));
    tops.majors.emplace_back();
  }
  if (is_filled) {
    tops.majors[place] = tops.heaps[number].front().key.major;
  } else if (was_filled) {
    filled &= ~bit;
    tops.place_of[tops.numbers.back()] = place;  // the last one takes its place
    tops.numbers[place] = tops.numbers.back();
    tops.majors[place] = tops.majors.back();
    tops.numbers.pop_back();
    tops.majors.pop_back();
  }
}

void VictimQueues::first_changed(QueueId id, const OrderKey& before) {
  const OrderKey& now = queues_[id].nodes.front().key;
  if (now == before) return;
  Tops& tops = tops_of(queues_[id].tenant);
  tops.heaps[queues_[id].number].update(queues_[id].at_top, now, note_top());
  note_first_of(queues_[id].number, tops);
}

void VictimQueues::set_standing(TenantId tenant, TenantBook::Standing standing) {
  if (standing_of(tenant) == standing) return;
  ++changes_;
  if (tenants_.size() <= tenant.v) tenants_.resize(tenant.v + std::size_t{1});
  for (const QueueId id : tenants_[tenant.v].queues) leave_top(id, tops_of(tenant));
  tenants_[tenant.v].standing = standing;
  for (const QueueId id : tenants_[tenant.v].queues) enter_top(id, tops_of(tenant));
}

// ---- nodes

Id VictimQueues::next_to_check() {
  if (size_ == 0) return kNoNode;
  constexpr std::size_t kWords = kNumbers / 64, kAllWords = TenantBook::kStandings * kWords;
  const auto word_at = [&](std::size_t word) { return tops_[word / kWords].filled[word % kWords]; };
  const std::size_t from = (checked_ + 1) % (64 * kAllWords);
  // Behind the last word the first one again, for what stands in it before `from`.
  for (std::size_t i = 0; i <= kAllWords; ++i) {
    const std::size_t word = (from / 64 + i) % kAllWords;
    const std::uint64_t bits = i == 0 ? word_at(word) & ~std::uint64_t{0} << (from % 64) : word_at(word);
    if (bits == 0) continue;
    checked_ = 64 * word + static_cast<std::size_t>(std::countr_zero(bits));
    break;
  }
  const QueueId queue = tops_[checked_ / kNumbers].heaps[checked_ % kNumbers].front().id;
  return queues_[queue].nodes.front().id;
}

void VictimQueues::note_first(const Question& question, const First& answer) {
  asked_at_ = changes_;
  asked_ = question;
  answer_ = answer;
}

void VictimQueues::push(Id id, std::uint8_t queue, const OrderKey& key) {
  ++changes_;
  const TenantId tenant = tenant_of(id);
  QueueId at = find(tenant, queue);
  if (at == kNoQueue) at = open_queue(tenant, queue);
  const bool was_empty = queues_[at].nodes.empty();
  const OrderKey before = was_empty ? key : queues_[at].nodes.front().key;
  nodes_.at(id).queue_at[place_] = queue;
  queues_[at].nodes.push({key, id}, note_place());
  ++size_;
  if (was_empty) {
    enter_top(at, tops_of(tenant));
  } else {
    first_changed(at, before);
  }
}

void VictimQueues::remove(Id id) {
  assert(holds(id));
  ++changes_;
  const QueueId queue = queue_with(id);
  KeyedHeap& heap = queues_[queue].nodes;
  const OrderKey before = heap.front().key;
  const std::size_t at = nodes_.at(id).heap_at[place_];
  nodes_.at(id).heap_at[place_] = kNotInHeap;
  --size_;
  if (heap.size() == 1) leave_top(queue, tops_of(queues_[queue].tenant));
  heap.remove(at, note_place());
  if (heap.empty()) {
    close_queue(queue);
  } else {
    first_changed(queue, before);
  }
}

void VictimQueues::update(Id id, std::uint8_t queue, const OrderKey& key) {
  assert(holds(id));
  if (nodes_.at(id).queue_at[place_] != queue) {
    remove(id);
    push(id, queue, key);
    return;
  }
  const QueueId with = queue_with(id);
  const OrderKey before = queues_[with].nodes.front().key;
  ++changes_;
  queues_[with].nodes.update(nodes_.at(id).heap_at[place_], key, note_place());
  first_changed(with, before);
}

const OrderKey& VictimQueues::key_of(Id id) const {
  return queues_[queue_with(id)].nodes[nodes_.at(id).heap_at[place_]].key;
}

bool VictimQueues::holds(Id id) const {
  const QueueId queue = queue_with(id);
  if (queue == kNoQueue) return false;
  const std::size_t at = nodes_.at(id).heap_at[place_];
  return at < queues_[queue].nodes.size() && queues_[queue].nodes[at].id == id;
}

bool VictimQueues::is_sound() const {
  std::size_t count = 0, listed = 0, on_top = 0;
  for (QueueId id = 0; id < queues_.size(); ++id) {
    const Queue& queue = queues_[id];
    if (queue.nodes.empty()) continue;
    ++listed;
    count += queue.nodes.size();
    if (!queue.nodes.is_sound() || find(queue.tenant, queue.number) != id) return false;
    for (std::size_t i = 0; i < queue.nodes.size(); ++i) {
      const Id node = queue.nodes[i].id;
      if (!nodes_.exists(node) || !holds(node) || tenant_of(node) != queue.tenant) return false;
    }
    const Tops& tops = tops_[static_cast<std::size_t>(standing_of(queue.tenant))];
    if (tops.heaps.size() <= queue.number || queue.at_top >= tops.heaps[queue.number].size()) return false;
    const KeyedHeap::Entry& entry = tops.heaps[queue.number][queue.at_top];
    if (entry.id != id || entry.key != queue.nodes.front().key) return false;
  }
  for (const Tops& tops : tops_) {
    std::size_t filled = 0;
    for (std::size_t number = 0; number < tops.heaps.size(); ++number) {
      const KeyedHeap& heap = tops.heaps[number];
      if (heap.empty() != ((tops.filled[number / 64] >> (number % 64) & 1) == 0) || !heap.is_sound()) return false;
      if (heap.empty()) continue;
      const std::size_t at = tops.place_of[number];
      if (at >= tops.numbers.size() || tops.numbers[at] != number) return false;
      if (tops.majors[at] != heap.front().key.major) return false;
      ++filled;
      on_top += heap.size();
    }
    if (filled != tops.numbers.size() || filled != tops.majors.size()) return false;
  }
  return count == size_ && listed == on_top;
}

}  // namespace larder::tree
