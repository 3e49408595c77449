// SPDX-License-Identifier: Apache-2.0
#include "tests/differential/reference_restore.h"

#include <algorithm>

namespace larder::differential {

bool has_page(const ReferencePages& pages, const std::string& pool, std::size_t page) {
  const auto found = pages.find(pool);
  return found != pages.end() && page < found->second.size() && found->second[page];
}

std::vector<ReferenceTransfer> ReferenceModel::transfers(std::size_t pages) const {
  std::vector<ReferenceTransfer> list;
  if (window_tokens != 0 && pages >= window_pages()) {
    list.push_back({"swa", true, window_pages()});
    for (const std::string& pool : window_sidecars) list.push_back({pool, true, window_pages()});
  }
  if (has_state) list.push_back({"mamba", true, 1});
  for (const std::string& pool : kv_sidecars) list.push_back({pool, false, 0});
  return list;
}

std::size_t kv_prefix(const ReferencePages& pages, std::size_t keys) {
  std::size_t count = 0;
  while (count < keys && has_page(pages, "kv", count)) ++count;
  return count;
}

std::size_t own_boundary(const ReferencePages& pages, const ReferenceTransfer& transfer, std::size_t kv_pages) {
  if (!transfer.trailing) {
    for (std::size_t page = 0; page < kv_pages; ++page) {
      if (!has_page(pages, transfer.pool, page)) return page;
    }
    return kv_pages;
  }
  for (std::size_t p = kv_pages; p >= 1; --p) {
    if (accepts(pages, transfer, p)) return p;
  }
  return 0;
}

std::size_t existing_pages(const ReferencePages& pages, const std::vector<ReferenceTransfer>& transfers,
                           std::size_t keys) {
  const std::size_t kv_pages = kv_prefix(pages, keys);
  std::size_t hit = kv_pages;
  for (const ReferenceTransfer& transfer : transfers) {
    if (hit == 0) break;
    hit = std::min(hit, own_boundary(pages, transfer, kv_pages));
  }
  return hit;
}

bool accepts(const ReferencePages& pages, const ReferenceTransfer& transfer, std::size_t p) {
  const std::size_t count = std::max<std::size_t>(1, transfer.keys);
  const std::size_t first = !transfer.trailing || p < count ? 0 : p - count;
  for (std::size_t page = first; page < p; ++page) {
    if (!has_page(pages, transfer.pool, page)) return false;
  }
  return true;
}

namespace {

// What one rank counts after reading; extra pools are read only when every page of KV came.
struct Loaded {
  std::size_t kv = 0, window = 0, state = 0;
};

Loaded read_pages(const ReferenceModel& model, const ReferencePages& readable, std::size_t hit, bool wants_window) {
  Loaded loaded{kv_prefix(readable, hit)};
  if (loaded.kv < hit) return loaded;
  // Slots for a whole window were reserved: with fewer keys than that, every page of the transfer fails.
  if (wants_window && hit >= model.window_pages()) {
    for (std::size_t page = hit - model.window_pages(); page < hit; ++page) {
      loaded.window += has_page(readable, "swa", page) ? 1 : 0;
    }
  }
  if (model.has_state && hit > 0) loaded.state = has_page(readable, "mamba", hit - 1) ? 1 : 0;
  return loaded;
}

bool lacks_sidecar(const ReferenceModel& model, const ReferencePages& readable, std::size_t resume) {
  for (const std::string& pool : model.kv_sidecars) {
    if (!accepts(readable, {pool, false, 0}, resume)) return true;
  }
  for (const std::string& pool : model.window_sidecars) {
    if (resume > 0 && !accepts(readable, {pool, true, model.window_pages()}, resume)) return true;
  }
  return false;
}

}  // namespace

ReferenceFetch fetch(const ReferenceModel& model, const std::vector<ReferencePages>& stored,
                     const std::vector<ReferencePages>& readable, std::size_t pages) {
  const std::vector<ReferenceTransfer> transfers = model.transfers(pages);
  const bool wants_window = !transfers.empty() && transfers.front().pool == "swa";
  ReferenceFetch result{pages};
  for (const ReferencePages& rank : stored) result.hit = std::min(result.hit, existing_pages(rank, transfers, pages));

  Loaded all{result.hit, model.window_pages(), 1};
  for (const ReferencePages& rank : readable) {
    const Loaded loaded = read_pages(model, rank, result.hit, wants_window);
    all = {std::min(all.kv, loaded.kv), std::min(all.window, loaded.window), std::min(all.state, loaded.state)};
  }
  result.resume = all.kv;
  if (model.window_tokens != 0 && all.window < model.window_pages()) result.resume = 0;  // all of it or nothing
  if (model.has_state && all.state == 0) result.resume = 0;
  for (const ReferencePages& rank : readable) {
    result.reads_garbage = result.reads_garbage || lacks_sidecar(model, rank, result.resume);
  }
  return result;
}

std::size_t branching_position(std::size_t matched, std::size_t resume, std::size_t chunk, bool has_host_tier) {
  if (has_host_tier || matched <= resume) return 0;
  const std::size_t position = matched / chunk * chunk;
  return position > resume ? position : 0;
}

}  // namespace larder::differential
