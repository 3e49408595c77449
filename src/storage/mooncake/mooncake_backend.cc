// SPDX-License-Identifier: Apache-2.0
#include "storage/mooncake/mooncake_backend.h"

#include <algorithm>
#include <set>
#include <utility>

#include "storage/mooncake/mooncake_jobs.h"
#include "storage/mooncake/object_names.h"
#include "storage/mooncake/store_codes.h"

namespace larder::mooncake {
namespace {

constexpr std::size_t kNamesAtOnce = 2048;
constexpr std::uint64_t kQuickBytes = 128 << 10;  // copied and hashed in 20 us

}  // namespace

MooncakeBackend::MooncakeBackend(std::unique_ptr<HelperLink> link, const BackendLimits& limits, bool is_persistent,
                                 Executor& executor)
    : link_(std::move(link)),
      limits_(limits),
      executor_(executor),
      calls_(*link_, limits.join, executor),
      gate_("mooncake", limits.queue_limit),
      line_(link_->staging().size()) {
  info_.name = "mooncake";
  info_.persistent = is_persistent;
  info_.atomic_groups = true;
  info_.counts_pages = false;
}

MooncakeBackend::~MooncakeBackend() {
  gate_.drain();
  link_->close();
}

Status MooncakeBackend::submit_exists(ExistsRequest request, ExistsDone done) {
  return submit_operation<ExistsOperation>(gate_, executor_, std::move(request), std::move(done),
                                           [this](const auto& op) { run_exists(op); });
}
Status MooncakeBackend::submit_read(ReadRequest request, ReadDone done) {
  return submit_operation<ReadOperation>(
      gate_, executor_, std::move(request), std::move(done), [this](const auto& op) { run_read(op); },
      [](const ReadRequest& asked) { return asked.terms.caller_waits; });
}
Status MooncakeBackend::submit_write(WriteRequest request, WriteDone done) {
  return submit_operation<WriteOperation>(
      gate_, executor_, std::move(request), std::move(done), [this](const auto& op) { run_write(op); },
      [](const WriteRequest& asked) { return asked.terms.caller_waits; });
}
Status MooncakeBackend::submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) {
  return submit_operation<ClearOperation>(gate_, executor_, std::move(scope), std::move(done),
                                          [this](const auto& op) { run_clear(op); });
}

BackendStats MooncakeBackend::stats() const {
  const std::uint64_t queued = gate_.in_flight();
  LockGuard guard(mutex_);
  BackendStats out = stats_;
  out.queued = queued;
  return out;
}

Status MooncakeBackend::close(std::chrono::nanoseconds limit) {
  LARDER_RETURN_IF_ERROR(gate_.close_within(limit));
  link_->close();
  return Status::ok();
}

void MooncakeBackend::push(Batch batch) {
  {
    LockGuard guard(mutex_);
    line_.push(std::move(batch));
  }
  pump(true);
}

void MooncakeBackend::pump(bool may_begin_here) {
  std::vector<BatchLine::Ready> ready;
  std::vector<Batch> refused;
  {
    LockGuard guard(mutex_);
    ready = line_.take_ready();
    refused = line_.take_refused();
  }
  // Others copy beside this one. The last begins here: a change of threads takes longer than a small page.
  const std::size_t posted = ready.size() - (may_begin_here && !ready.empty() ? 1 : 0);
  for (std::size_t i = 0; i < posted; ++i) {
    calls_.post([one = std::move(ready[i])] { one.begin(one.batch, one.offset); });
  }
  if (posted < ready.size()) ready.back().begin(ready.back().batch, ready.back().offset);
  const Status why = unavailable("mooncake: what it would wait for has no answer in time (option 'client_timeout')");
  for (const Batch& batch : refused) batch.refuse(why);
}

void MooncakeBackend::end_batch(std::uint64_t batch, bool may_begin_here) {
  {
    LockGuard guard(mutex_);
    line_.end(batch);
  }
  pump(may_begin_here);
}

void MooncakeBackend::set_late(std::uint64_t batch) {
  {
    LockGuard guard(mutex_);
    line_.set_late(batch);
  }
  pump(false);
}

void MooncakeBackend::run_exists(const std::shared_ptr<ExistsOperation>& op) {
  const ExistsRequest& request = op->request;
  struct Cell {
    std::size_t pool, key;
  };
  ExistsResult& result = op->result;
  result = {};
  std::vector<std::string> names;
  std::vector<Cell> places;
  for (std::size_t pool = 0; pool < request.pools.size(); ++pool) {
    result.presence.push_back({request.pools[pool], std::vector<bool>(request.keys.size(), false)});
    if (request.scope->fingerprint(request.pools[pool]).is_zero()) continue;  // the model has no such pool
    for (std::size_t key = 0; key < request.keys.size(); ++key) {
      names.push_back(object_name(*request.scope, request.pools[pool], request.keys[key]));
      places.push_back({pool, key});
    }
  }
  // The answers of several calls, one at a time: they write into one result.
  const auto mutex = std::make_shared<RankedMutex>(LockRank::kStorage);
  for (std::size_t begin = 0; begin < names.size(); begin += kNamesAtOnce) {
    const std::size_t end = std::min(names.size(), begin + kNamesAtOnce);
    const std::vector<std::string> some(names.begin() + static_cast<std::ptrdiff_t>(begin),
                                        names.begin() + static_cast<std::ptrdiff_t>(end));
    const std::vector<Cell> where(places.begin() + static_cast<std::ptrdiff_t>(begin),
                                  places.begin() + static_cast<std::ptrdiff_t>(end));
    calls_.call(exists_request(some), some.size(), Where::kHere, [op, where, mutex](const Codes& codes) {
      LockGuard guard(*mutex);
      ExistsResult& out = op->result;
      Status failed = codes.is_ok() ? Status::ok() : codes.status();
      for (std::size_t i = 0; failed.is_ok() && i < where.size(); ++i) {
        if ((*codes)[i] < 0) failed = status_of((*codes)[i], "asking whether pages are there");
        if (failed.is_ok() && out.status.is_ok()) out.presence[where[i].pool].present[where[i].key] = (*codes)[i] == 1;
      }
      if (failed.is_ok()) return;
      out.status = failed;
      out.presence.clear();
    });
  }
}

void MooncakeBackend::run_clear(const std::shared_ptr<ClearOperation>& op) {
  Batch batch;
  batch.kind = Batch::Kind::kClear;
  if (op->request) batch.space = op->request->namespace_digest;
  const auto asked = std::make_shared<std::shared_ptr<ClearOperation>>(op);  // null: it has its answer, and is late
  const auto fail = [this, asked](const Status& why) {
    (*asked)->result = why;
    calls_.post([own = std::exchange(*asked, nullptr)] {});
  };
  batch.refuse = fail;
  batch.begin = [this, asked, fail](std::uint64_t number, std::uint64_t) {
    const auto finish = [this, asked, number](const Codes& codes) {
      const bool is_late = *asked == nullptr;
      if (!is_late) {
        (*asked)->result = !codes.is_ok()     ? codes.status()
                           : (*codes)[0] >= 0 ? Status::ok()
                                              : status_of((*codes)[0], "clearing the store");
      }
      end_batch(number, !is_late);
    };
    calls_.call(clear_request(pattern_of((*asked)->request.get())), 1, Where::kElsewhere, finish,
                [this, fail, number](const Status& why) {
                  fail(why);
                  set_late(number);
                });
  };
  push(std::move(batch));
}

// In batches of about the same size: while one is copied out, the next one moves.
void MooncakeBackend::run_read(const std::shared_ptr<ReadOperation>& op) {
  const std::vector<ReadItem>& items = op->request.items;
  const std::uint64_t most = link_->staging().size();
  std::vector<std::size_t> fitting;
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::uint64_t room = room_of(payload_bytes(items[i].payload));
    if (room > most) {
      op->result.items[i] =
          invalid_argument("mooncake: a page of " + std::to_string(room) +
                           " bytes is larger than option 'staging_size' (" + std::to_string(most) + ")");
      continue;
    }
    fitting.push_back(i);
    all += room;
  }
  std::uint64_t batches = std::max<std::uint64_t>((all + limits_.read_bytes / 2) / limits_.read_bytes,
                                                  (fitting.size() + limits_.join.objects - 1) / limits_.join.objects);
  std::vector<std::size_t> some;
  std::set<std::pair<PoolName, decltype(PageKey::bytes)>> pages;  // of a batch: the store fills one place for each name
  std::uint64_t bytes = 0;
  for (const std::size_t i : fitting) {
    const std::uint64_t room = room_of(payload_bytes(items[i].payload));
    const bool is_enough = batches > 1 && bytes + room / 2 > all / batches;
    const bool has_room = bytes + room <= most && some.size() < limits_.join.objects;
    if (!some.empty() && (is_enough || !has_room || pages.contains({items[i].pool, items[i].key.bytes}))) {
      add_read_batch(op, std::exchange(some, {}), bytes);
      all -= std::exchange(bytes, 0);
      batches = std::max<std::uint64_t>(batches, 2) - 1;
      pages.clear();
    }
    some.push_back(i);
    pages.emplace(items[i].pool, items[i].key.bytes);
    bytes += room;
  }
  if (!some.empty()) add_read_batch(op, std::move(some), bytes);
}

void MooncakeBackend::add_read_batch(const std::shared_ptr<ReadOperation>& op, std::vector<std::size_t> items,
                                     std::uint64_t bytes) {
  auto batch = std::make_shared<ReadBatch>();
  batch->op = op;
  batch->items = std::move(items);
  Batch entry;
  entry.bytes = bytes;
  entry.space = batch->op->request.scope->namespace_digest;
  batch->is_short = bytes <= kQuickBytes;
  entry.begin = [this, batch](std::uint64_t number, std::uint64_t offset) {
    batch->number = number;
    const ReadRequest& request = batch->op->request;
    for (const std::size_t item : batch->items) {
      const ReadItem& page = request.items[item];
      const std::uint64_t payload = payload_bytes(page.payload);
      batch->objects.push_back(
          {object_name(*request.scope, page.pool, page.key), {{0, offset, object_bytes(payload)}}});
      offset += room_of(payload);
    }
    calls_.get(
        batch->objects, batch->is_short ? Where::kHere : Where::kElsewhere,
        [this, batch](const Codes& codes) { finish_read(batch, codes); },
        [this, batch](const Status& why) {
          fail_read(*batch, why);
          set_late(batch->number);
        });
  };
  entry.refuse = [this, batch](const Status& why) { fail_read(*batch, why); };
  push(std::move(entry));
}

Status MooncakeBackend::take_page(const ReadBatch& batch, std::size_t at, std::int64_t code) {
  const ReadRequest& request = batch.op->request;
  const ReadItem& page = request.items[batch.items[at]];
  const Place& place = batch.objects[at].places[0];
  if (code < 0) return status_of(code, "reading a page");
  if (static_cast<std::uint64_t>(code) != place.bytes) return status_of(kShortCode, "reading a page");
  const ExpectedPage expected{page.pool, page.key, request.scope->namespace_digest,
                              request.scope->fingerprint(page.pool), place.bytes - kEnvelopeBytes};
  const std::byte* const object = link_->staging().data() + place.offset;
  const Result<Envelope> found = decode_envelope({object, kEnvelopeBytes});
  if (!found.is_ok()) return found.status();
  LARDER_RETURN_IF_ERROR(verify_fields(expected, *found));
  return verify_checksum(*found, scatter_payload(object + kEnvelopeBytes, page.payload));
}

bool MooncakeBackend::has_met_clear(const ReadBatch& batch) const {
  LockGuard guard(mutex_);
  return line_.has_met_clear(batch.number);
}

void MooncakeBackend::fail_read(ReadBatch& batch, const Status& why) {
  {
    LockGuard guard(mutex_);
    for (const std::size_t item : batch.items) {
      batch.op->result.items[item] = why;
      count_read(stats_, why);
    }
  }
  calls_.post([op = std::move(batch.op)] {});  // who waits is told there
}

void MooncakeBackend::finish_read(const std::shared_ptr<ReadBatch>& batch, const Codes& codes) {
  if (!batch->op) return end_batch(batch->number, false);
  std::vector<std::string> wrong;
  for (std::size_t at = 0; at < batch->items.size(); ++at) {
    Status status = codes.is_ok() ? take_page(*batch, at, (*codes)[at]) : codes.status();
    // A clear takes pages that are being read, and what is written next lies in their place.
    if (status.code() == StatusCode::kCorrupt && has_met_clear(*batch)) status = not_found("cleared while it was read");
    if (status.code() == StatusCode::kCorrupt) wrong.push_back(batch->objects[at].name);
    batch->op->result.items[batch->items[at]] = std::move(status);
  }
  {
    LockGuard guard(mutex_);
    for (const std::size_t item : batch->items) count_read(stats_, batch->op->result.items[item]);
  }
  if (wrong.empty()) return end_batch(batch->number, !batch->is_short);
  // The caller hears of a wrong page when it is gone, so that what it then writes is not a duplicate.
  const std::size_t count = wrong.size();
  calls_.call(remove_request(wrong), count, Where::kElsewhere,
              [this, batch](const Codes&) { end_batch(batch->number, true); });
}

}  // namespace larder::mooncake
