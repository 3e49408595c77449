// SPDX-License-Identifier: Apache-2.0
// EmbeddedMetadata::confirm: groups over several namespaces, whole or not at all.
//
//   1  each namespace, under its lock: mark what can be confirmed. A marked page neither expires nor goes to others.
//   2  one batch into the journal's queue for all groups that are whole.
//   3  under the locks of all: publish the items of those, and give up those of the others; count that, so that
//      find(), which takes one lock after the other, knows that it may have seen half of a group. Then each namespace,
//      under its lock: release.
// Nothing waits between these, so pages are marked for microseconds. Each lock is let go after kKeysPerLock items. If
// memory runs out in the first, every group is refused: a mark that stays would keep its page for ever. The others need
// none. Then the call waits for the journal.
#include <algorithm>
#include <exception>

#include "metadata/embedded_impl.h"
#include "metadata/request_checks.h"

namespace larder {

using metadata::Marked;

Status EmbeddedMetadata::plan_confirm(const ConfirmRequest& request, ConfirmWork& work) {
  const MetadataNamespace* last = nullptr;
  std::size_t last_space = 0;
  const auto add = [&](const ConfirmItem& item, std::size_t group, std::vector<ConfirmWork::Item>& items) -> Status {
    LARDER_RETURN_IF_ERROR(metadata::check_key(item.key));
    if (item.name_space == nullptr || item.name_space != last) {
      const Result<Space*> space = space_of(item.name_space);
      if (!space) return space.status();
      const auto found = std::find(work.spaces.begin(), work.spaces.end(), *space);
      last_space = static_cast<std::size_t>(found - work.spaces.begin());
      if (found == work.spaces.end()) work.spaces.push_back(*space);
      last = item.name_space;
    }
    items.push_back({&item, last_space, group, item.ref, Marked::kRefused});
    return Status::ok();
  };
  for (std::size_t group = 0; group < request.groups.size(); ++group) {
    for (const ConfirmItem& item : request.groups[group]) LARDER_RETURN_IF_ERROR(add(item, group, work.items));
  }
  for (const ConfirmItem& item : request.release) LARDER_RETURN_IF_ERROR(add(item, 0, work.releases));
  work.refused.assign(request.groups.size(), false);
  work.mutexes = mutexes_of(work.spaces);
  return Status::ok();
}

void EmbeddedMetadata::mark(const ConfirmRequest& request, ConfirmWork& work) {
  for (std::size_t i = 0; i < work.spaces.size(); ++i) {
    Space& space = *work.spaces[i];
    std::size_t from = 0;
    do {  // once at least: what is only released rests from now on
      LockGuard guard(space.mutex);
      space.table.advance(clock_.now());
      for (ConfirmWork::Item& item : part_of(work.items, from)) {
        if (item.space != i) continue;
        item.marked = space.table.mark(request.session, item.item->key, item.ref);
        if (item.marked == Marked::kRefused) work.refused[item.group] = true;
      }
      from += kKeysPerLock;
    } while (from < work.items.size());
  }
}

void EmbeddedMetadata::publish_part(const ConfirmRequest& request, const ConfirmWork& work, std::size_t from,
                                    std::size_t to) {
  LockAll guard(work.mutexes);
  for (Space* const space : work.spaces) space->publications.fetch_add(1, std::memory_order_relaxed);
  for (const ConfirmWork::Item& item : std::span(work.items).subspan(from, to - from)) {
    if (item.marked != Marked::kMarked) continue;
    metadata::PageTable& table = work.spaces[item.space]->table;
    if (work.refused[item.group]) {
      table.give_up(request.session, item.item->key, item.ref);
    } else {
      table.publish(request.session, item.item->key, item.ref);
    }
  }
}

void EmbeddedMetadata::publish(const ConfirmRequest& request, const ConfirmWork& work) {
  for (std::size_t from = 0, to = 0; from < work.items.size(); from = to) {
    to = std::min(from + kKeysPerLock, work.items.size());
    while (to < work.items.size() && work.items[to].group == work.items[to - 1].group) ++to;
    publish_part(request, work, from, to);
  }
  for (std::size_t i = 0; i < work.spaces.size(); ++i) release(request, work, i);
}

// What the request releases, and what was cleared meanwhile: that is refused, but still reserved, and its writer has
// just said that it is done.
void EmbeddedMetadata::release(const ConfirmRequest& request, const ConfirmWork& work, std::size_t number) {
  Space& space = *work.spaces[number];
  for (std::size_t from = 0; from < work.releases.size(); from += kKeysPerLock) {
    LockGuard guard(space.mutex);
    for (const ConfirmWork::Item& item : part_of(work.releases, from)) {
      if (item.space != number) continue;
      space.table.release(request.session, item.item->key, item.ref, request.released_rest);
    }
  }
  for (std::size_t from = 0; from < work.items.size(); from += kKeysPerLock) {
    LockGuard guard(space.mutex);
    for (const ConfirmWork::Item& item : part_of(work.items, from)) {
      if (item.space != number || item.marked != Marked::kRefused) continue;
      space.table.release(request.session, item.item->key, item.ref, false);
    }
  }
}

void EmbeddedMetadata::record(const ConfirmWork& work, metadata::CommitLog::Piece& piece) {
  if (piece.empty()) return;
  for (const ConfirmWork::Item& item : work.items) {
    if (item.marked != Marked::kMarked || work.refused[item.group]) continue;
    metadata::record_confirmed(piece.front(), work.spaces[item.space]->id, item.ref);
  }
  (void)log_.append(piece);
}

Result<std::vector<Status>> EmbeddedMetadata::confirm(const ConfirmRequest& request) try {
  ConfirmWork work;
  LARDER_RETURN_IF_ERROR(plan_confirm(request, work));
  LARDER_RETURN_IF_ERROR(log_.admit());
  metadata::CommitLog::Piece piece = log_.make_piece(work.items.size() * metadata::record_bytes());
  try {
    mark(request, work);
  } catch (const std::exception&) {
    work.refused.assign(work.refused.size(), true);
    publish(request, work);
    throw;
  }
  record(work, piece);
  publish(request, work);
  // Up to the last: what was confirmed before, by the same request sent twice, may still be on its way to the journal.
  const metadata::Ticket last = log_.last();
  LARDER_RETURN_IF_ERROR(log_.commit(last, request.durable ? last : 0));
  std::vector<Status> answer;
  for (std::size_t group = 0; group < request.groups.size(); ++group) {
    answer.push_back(work.refused[group] ? not_found("a page of the group is not reserved by this session (any more)")
                                         : Status::ok());
  }
  return answer;
} catch (const std::exception&) {
  return out_of_memory();
}

}  // namespace larder
