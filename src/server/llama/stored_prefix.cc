// SPDX-License-Identifier: Apache-2.0
#include "server/llama/stored_prefix.h"

#include <algorithm>
#include <future>
#include <utility>

#include "key/page_key.h"

namespace larder::llama {
namespace {

ExistsRequest query_for(const ModelSpec& model, const NamespaceScope& scope, std::span<const TokenId> tokens,
                        Nanos limit) {
  PageKeyChain chain(model.page_size, namespace_digest(model, scope));
  chain.append_pages(tokens);
  ExistsRequest query;
  query.scope = std::make_shared<const StoreScope>(make_store_scope(model, scope));
  query.keys.assign(chain.keys().begin(), chain.keys().end());
  for (const PoolSpec& pool : model.pools) query.pools.push_back(pool.name);
  query.terms.deadline = real_clock().now() + limit;
  return query;
}

ComponentKind component_of(const ModelSpec& model, PoolName name) {
  const auto pool = std::ranges::find(model.pools, name, &PoolSpec::name);
  return pool == model.pools.end() ? ComponentKind::kFull : pool->component;
}

}  // namespace

Result<StoredPrefix> find_stored(StorageBackend& storage, const ModelSpec& model, const NamespaceScope& scope,
                                 std::span<const TokenId> prompt, Nanos limit) {
  StoredPrefix out;
  out.pool_pages.resize(model.pools.size());
  const std::uint64_t pages = prompt.empty() ? 0 : (prompt.size() - 1) / model.page_size;
  if (pages == 0) return out;
  const auto answer = std::make_shared<std::promise<ExistsResult>>();  // an answer may come when nobody waits any more
  std::future<ExistsResult> future = answer->get_future();
  const std::span<const TokenId> whole = prompt.first(static_cast<std::size_t>(pages * model.page_size));
  LARDER_RETURN_IF_ERROR(storage.submit_exists(
      query_for(model, scope, whole, limit), [answer](ExistsResult result) { answer->set_value(std::move(result)); }));
  if (future.wait_for(limit) != std::future_status::ready) {
    return deadline_exceeded("storage did not say in time what it has");
  }
  const ExistsResult found = future.get();
  LARDER_RETURN_IF_ERROR(found.status);
  const RestorePoint point = largest_restore_point(model, found.presence, pages);
  out.pages = point.pages;
  out.reason = point.reason;
  out.component = component_of(model, point.pool);
  for (std::size_t i = 0; i < std::min(found.presence.size(), out.pool_pages.size()); ++i) {
    out.pool_pages[i] = static_cast<std::uint64_t>(std::ranges::count(found.presence[i].present, true));
  }
  return out;
}

}  // namespace larder::llama
