// SPDX-License-Identifier: Apache-2.0
#include "storage/hf3fs/waiting_line.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace larder::hf3fs {

void WaitingLine::push(WaitingTransfer entry) {
  Entry place = line_.end();
  while (place != line_.begin() && std::prev(place)->deadline > entry.deadline) --place;
  line_.insert(place, std::move(entry));
}

void WaitingLine::put_back(std::vector<WaitingTransfer> entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const WaitingTransfer& a, const WaitingTransfer& b) { return a.deadline < b.deadline; });
  Entry place = line_.begin();
  for (WaitingTransfer& entry : entries) {
    while (place != line_.end() && place->deadline < entry.deadline) ++place;
    line_.insert(place, std::move(entry));
  }
}

std::vector<WaitingLine::Entry> WaitingLine::first(const IsBusy& is_busy, std::uint64_t limit) {
  std::size_t looked = 0;
  Entry head = line_.begin();
  while (head != line_.end() && looked < kLookedThrough && is_busy(window_of(head->transfer))) {
    ++head;
    ++looked;
  }
  if (head == line_.end() || looked == kLookedThrough) return {};
  std::vector<Entry> neighbours{head};
  if (head->goes_alone || head->bytes() >= limit) return neighbours;
  const GatherWindow window = window_of(head->transfer);
  for (Entry entry = std::next(head); entry != line_.end() && ++looked < kLookedThrough; ++entry) {
    const Nanos apart =
        entry->deadline < head->deadline ? head->deadline - entry->deadline : entry->deadline - head->deadline;
    if (entry->goes_alone || apart > close_deadlines_ || window_of(entry->transfer) != window) continue;
    neighbours.push_back(entry);
  }
  std::stable_sort(neighbours.begin(), neighbours.end(), [](const Entry& a, const Entry& b) {
    return a->transfer.address.offset < b->transfer.address.offset;
  });
  const auto middle = std::find(neighbours.begin(), neighbours.end(), head);
  std::vector<Entry> run{head};
  std::uint64_t begin = head->transfer.address.offset, end = head->end();
  for (auto before = std::make_reverse_iterator(middle); before != neighbours.rend(); ++before) {
    if ((*before)->end() > begin) continue;  // the same page once more
    if ((*before)->end() < begin || end - (*before)->transfer.address.offset > limit) break;
    begin = (*before)->transfer.address.offset;
    run.insert(run.begin(), *before);
  }
  for (auto after = std::next(middle); after != neighbours.end(); ++after) {
    if ((*after)->transfer.address.offset < end) continue;
    if ((*after)->transfer.address.offset > end || (*after)->end() - begin > limit) break;
    end = (*after)->end();
    run.push_back(*after);
  }
  return run;
}

WaitingTransfer WaitingLine::take(Entry entry) {
  WaitingTransfer out = std::move(*entry);
  line_.erase(entry);
  return out;
}

bool WaitingLine::take_expired(TimePoint now, WaitingTransfer& out) {
  if (line_.empty() || line_.front().deadline > now) return false;
  out = take(line_.begin());
  return true;
}

}  // namespace larder::hf3fs
