// SPDX-License-Identifier: Apache-2.0
#include "sim/world/store_witness.h"

#include <utility>
#include <vector>

namespace larder::sim {
namespace {

std::string name_of_page(PoolName pool, const PageKey& key) {
  return "page " + key.hex().substr(0, 12) + " of pool " + std::string(pool_name(pool));
}

// What the record needs of a write when it ends; its payloads are the backend's.
WriteRequest names_of(const WriteRequest& request) {
  WriteRequest names{request.scope, {}, request.durable};
  for (const PageGroup& group : request.groups) {
    PageGroup& copy = names.groups.emplace_back();
    for (const WriteItem& item : group.items) copy.items.push_back({item.pool, item.key, {}, {}});
  }
  return names;
}

}  // namespace

void StoreRecord::power_went() {
  ++now_;
  for (auto& [name, page] : pages_) {
    if (!page.is_durable) page.acknowledged = 0;
    page.writes = 0;
    page.ended = now_;
  }
}

std::uint64_t StoreRecord::stored(PoolName pool) const {
  std::uint64_t count = 0;
  for (const auto& [name, page] : pages_) count += std::get<PoolName>(name) == pool && page.acknowledged > 0 ? 1 : 0;
  return count;
}

void StoreRecord::write_begins(const WriteRequest& request) {
  ++now_;
  for (const PageGroup& group : request.groups) {
    for (const WriteItem& item : group.items) {
      Page& page = pages_[name_of(*request.scope, item.pool, item.key)];
      page.begun = now_;
      page.taken = 0;
      ++page.writes;
    }
  }
}

void StoreRecord::write_ends(const WriteRequest& request, const WriteResult& result, std::uint64_t begun,
                             bool is_durable) {
  ++now_;
  for (std::size_t i = 0; i < request.groups.size(); ++i) {
    const bool is_there = i < result.groups.size() && result.groups[i].is_ok() && begun > last_clear_;
    for (const WriteItem& item : request.groups[i].items) {
      Page& page = pages_[name_of(*request.scope, item.pool, item.key)];
      page.ended = now_;
      page.writes -= page.writes > 0 ? 1 : 0;
      if (!is_there) continue;
      page.is_durable = is_durable || (page.is_durable && page.acknowledged > 0);
      if (page.acknowledged == 0) page.acknowledged = now_;
    }
  }
}

// From its begin to its end it may take what is written meanwhile.
void StoreRecord::clear_takes() {
  last_clear_ = ++now_;
  for (auto& [name, page] : pages_) {
    page.acknowledged = 0;
    page.is_durable = false;
  }
}

// A write that was under way when it began may come after it.
void StoreRecord::clear_ends(std::uint64_t begun, bool is_ok) {
  clear_takes();
  for (auto& [name, page] : pages_) {
    if (is_ok && page.writes == 0 && page.begun < begun && page.ended < begun) page.taken = now_;
  }
}

void StoreRecord::read_ends(const ReadRequest& request, const ReadResult& result, std::uint64_t begun) {
  ++now_;
  for (std::size_t i = 0; i < result.items.size(); ++i) {
    if (!result.items[i].is_ok()) continue;
    const ReadItem& item = request.items[i];
    Page& page = pages_[name_of(*request.scope, item.pool, item.key)];
    // Also what was not acknowledged, or was when the power went.
    if (page.acknowledged == 0 && begun > last_clear_) page.acknowledged = now_;
    if (page.taken == 0 || page.taken >= begun) continue;
    came_back_ = "storage gave back what a clear had taken: " + name_of_page(item.pool, item.key);
  }
}

void StoreRecord::exists_ends(const ExistsRequest& request, const ExistsResult& result, std::uint64_t begun) {
  if (!result.status.is_ok()) return;
  for (const PoolPresence& of : result.presence) {
    for (std::size_t i = 0; i < request.keys.size(); ++i) {
      if (i < of.present.size() && of.present[i]) continue;
      const auto found = pages_.find(name_of(*request.scope, of.pool, request.keys[i]));
      if (found == pages_.end() || found->second.acknowledged == 0 || found->second.acknowledged >= begun) continue;
      lost_ = "storage acknowledged, and does not have, " + name_of_page(of.pool, request.keys[i]);
    }
  }
}

Status StoreWitness::submit_exists(ExistsRequest request, ExistsDone done) {
  const std::uint64_t begun = ++record_->now_;
  ExistsRequest names{request.scope, request.keys, request.pools};
  return inner_.submit_exists(std::move(request), [record = record_, names = std::move(names), begun,
                                                   done = std::move(done)](ExistsResult result) {
    record->exists_ends(names, result, begun);
    done(std::move(result));
  });
}

Status StoreWitness::submit_read(ReadRequest request, ReadDone done) {
  const std::uint64_t begun = ++record_->now_;
  ReadRequest names{request.scope, {}};
  for (const ReadItem& item : request.items) names.items.push_back({item.pool, item.key, {}});
  return inner_.submit_read(std::move(request), [record = record_, names = std::move(names), begun,
                                                 done = std::move(done)](ReadResult result) {
    record->read_ends(names, result, begun);
    done(std::move(result));
  });
}

Status StoreWitness::submit_write(WriteRequest request, WriteDone done) {
  WriteRequest names = names_of(request);
  record_->write_begins(names);
  const std::uint64_t begun = record_->now_;
  Status taken = inner_.submit_write(std::move(request), [record = record_, names, begun, is_durable = is_durable_,
                                                          done = std::move(done)](WriteResult result) {
    record->write_ends(names, result, begun, is_durable);
    done(std::move(result));
  });
  if (!taken.is_ok()) record_->write_ends(names, {}, begun, false);
  return taken;
}

Status StoreWitness::submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) {
  record_->clear_takes();
  const bool is_whole = scope == nullptr;
  return inner_.submit_clear(std::move(scope), [record = record_, begun = record_->now_, is_whole,
                                                done = std::move(done)](const Status& status) {
    record->clear_ends(begun, status.is_ok() && is_whole);
    done(status);
  });
}

}  // namespace larder::sim
