// SPDX-License-Identifier: Apache-2.0
#include "storage/mooncake/batch_line.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

namespace larder::mooncake {

void BatchLine::push(Batch batch) {
  assert(batch.bytes <= most_bytes());
  waiting_.push_back({next_++, 0, std::move(batch), false, false});
}

bool BatchLine::has_free_names(const Batch& batch) const {
  return std::none_of(batch.names.begin(), batch.names.end(),
                      [this](const std::string& name) { return written_.contains(name); });
}

std::vector<BatchLine::Ready> BatchLine::take_ready() {
  std::vector<Ready> out;
  bool has_passed_write = false, has_passed_clear = false;
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto next = std::next(at);
    const Batch& batch = at->batch;
    const bool is_write = batch.kind == Batch::Kind::kWrite, is_clear = batch.kind == Batch::Kind::kClear;
    const bool is_held = (is_write && (is_clearing_ || has_passed_clear || !has_free_names(batch))) ||
                         (is_clear && (is_clearing_ || writes_ > 0 || has_passed_write));
    const std::optional<std::uint64_t> offset = is_held ? std::nullopt : room_.take(batch.bytes);
    if (!offset && (is_held ? waits_for_late(batch) : are_all_late())) {
      refused_.push_back(std::move(at->batch));
      waiting_.erase(at);
      at = next;
      continue;
    }
    if (!is_held && !offset) break;
    has_passed_write |= is_held && is_write;
    has_passed_clear |= is_held && is_clear;
    if (offset) {
      at->offset = *offset;
      written_.insert(batch.names.begin(), batch.names.end());
      writes_ += is_write ? 1 : 0;
      is_clearing_ |= is_clear;
      for (Entry& running : running_) meet(running, *at);
      out.push_back({at->number, at->offset, std::move(at->batch.begin)});
      at->batch.refuse = nullptr;
      running_.splice(running_.end(), waiting_, at);
    }
    at = next;
  }
  return out;
}

void BatchLine::meet(Entry& one, Entry& other) {
  const bool is_one_clear = one.batch.kind == Batch::Kind::kClear;
  const Batch& clear = is_one_clear ? one.batch : other.batch;
  Entry& read = is_one_clear ? other : one;
  if (clear.kind != Batch::Kind::kClear || read.batch.kind != Batch::Kind::kRead) return;
  read.has_met_clear |= !clear.space || clear.space == read.batch.space;
}

bool BatchLine::is_before(const Batch& one, const Batch& other) {
  if (one.kind == Batch::Kind::kRead || other.kind == Batch::Kind::kRead) return false;
  if (one.kind == Batch::Kind::kClear || other.kind == Batch::Kind::kClear) return true;
  return std::find_first_of(one.names.begin(), one.names.end(), other.names.begin(), other.names.end()) !=
         one.names.end();
}

bool BatchLine::waits_for_late(const Batch& batch) const {
  return std::any_of(running_.begin(), running_.end(),
                     [&](const Entry& e) { return e.is_late && is_before(e.batch, batch); });
}

bool BatchLine::are_all_late() const {
  return std::all_of(running_.begin(), running_.end(), [](const Entry& e) { return e.is_late; });
}

void BatchLine::set_late(std::uint64_t batch) {
  const auto at = std::find_if(running_.begin(), running_.end(), [&](const Entry& e) { return e.number == batch; });
  assert(at != running_.end());
  at->is_late = true;
}

bool BatchLine::has_met_clear(std::uint64_t batch) const {
  const auto at = std::find_if(running_.begin(), running_.end(), [&](const Entry& e) { return e.number == batch; });
  return at != running_.end() && at->has_met_clear;
}

void BatchLine::end(std::uint64_t batch) {
  const auto at = std::find_if(running_.begin(), running_.end(), [&](const Entry& e) { return e.number == batch; });
  assert(at != running_.end());
  room_.give_back(at->offset, at->batch.bytes);
  for (const std::string& name : at->batch.names) written_.erase(name);
  if (at->batch.kind == Batch::Kind::kWrite) --writes_;
  if (at->batch.kind == Batch::Kind::kClear) is_clearing_ = false;
  running_.erase(at);
}

}  // namespace larder::mooncake
