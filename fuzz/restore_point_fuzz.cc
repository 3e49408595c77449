// SPDX-License-Identifier: Apache-2.0
// The joint restore point (model/restore_point.h).
//
// Fed: a model's shape (which components, page size, window, sidecars), and which pages of each pool are there.
// Checked: the answer is the largest boundary at which, by a definition written here once more, every pool has what it
// must have; is_restore_point() agrees at every boundary; the reason names a pool of the model that really lacks
// something there; more pages never make the answer smaller.
#include "fuzz/fuzz_input.h"
#include "model/restore_point.h"

namespace larder::fuzz {
namespace {

constexpr std::uint64_t kMostPages = 24;

ModelSpec make_model(FuzzInput& input) {
  ModelSpec model;
  model.id = "m";
  model.page_size = static_cast<std::uint32_t>(1 + input.below(8));
  const auto add = [&](PoolName name, ComponentKind component, bool is_anchor) {
    PoolSpec pool;
    pool.name = name;
    pool.component = component;
    pool.is_anchor = is_anchor;
    if (component != ComponentKind::kFull) pool.hit_policy = HitPolicy::kTrailingPages;
    model.pools.push_back(pool);
  };
  if (input.flag()) add(PoolName::kIndexer, ComponentKind::kFull, false);
  add(PoolName::kKv, ComponentKind::kFull, true);
  if (input.flag()) {
    model.dims.window = static_cast<std::uint32_t>(1 + input.below(60));
    model.layers.push_back(LayerKind::kSlidingAttention);
    if (input.flag()) add(PoolName::kDeepseekV4C4State, ComponentKind::kSwa, false);
    add(PoolName::kSwa, ComponentKind::kSwa, true);
  }
  if (input.flag()) add(PoolName::kMamba, ComponentKind::kMamba, true);
  return model;
}

std::vector<PoolPresence> make_presence(const ModelSpec& model, FuzzInput& input) {
  std::vector<PoolPresence> presence;
  for (const PoolSpec& pool : model.pools) {
    if (input.below(16) == 0) continue;  // absent everywhere
    Presence present(static_cast<std::size_t>(input.below(kMostPages + 1)));
    // Mostly there: else every answer is 0.
    const std::uint32_t gaps = input.number<std::uint32_t>() & input.number<std::uint32_t>();
    for (std::size_t i = 0; i < present.size(); ++i) present[i] = (gaps >> i & 1) == 0;
    presence.push_back({pool.name, std::move(present)});
  }
  return presence;
}

bool has(std::span<const PoolPresence> presence, PoolName pool, std::uint64_t page) {
  return std::any_of(presence.begin(), presence.end(), [&](const PoolPresence& entry) {
    return entry.pool == pool && page < entry.present.size() && entry.present[static_cast<std::size_t>(page)];
  });
}

// Does `pool` have what a request needs to resume at boundary p? Token by token.
bool serves(const ModelSpec& model, const PoolSpec& pool, std::span<const PoolPresence> presence, std::uint64_t p) {
  if (p == 0) return true;
  if (pool.component == ComponentKind::kMamba) return has(presence, pool.name, p - 1);
  const std::uint64_t tokens = p * model.page_size;
  const std::uint64_t needed = pool.component == ComponentKind::kFull ? tokens : model.dims.window;
  for (std::uint64_t back = 1; back <= std::min(tokens, needed); ++back) {
    if (!has(presence, pool.name, (tokens - back) / model.page_size)) return false;
  }
  return true;
}

bool is_restorable(const ModelSpec& model, std::span<const PoolPresence> presence, std::uint64_t p) {
  return std::all_of(model.pools.begin(), model.pools.end(),
                     [&](const PoolSpec& pool) { return serves(model, pool, presence, p); });
}

// The pool that is named fails at some boundary behind the answer, and its component fits the reason.
void check_reason(const ModelSpec& model, std::span<const PoolPresence> presence, const RestorePoint& found,
                  std::uint64_t pages) {
  fuzz_check((found.reason == StopReason::kNone) == (found.pages == pages), "a reason without need, or none");
  if (found.reason == StopReason::kNone) return;
  const PoolSpec* const pool = model.find_pool(found.pool);
  fuzz_check(pool != nullptr, "a pool that the model has not");
  const bool is_full = found.reason == StopReason::kFullMissing || found.reason == StopReason::kSidecarMissing;
  const ComponentKind component = is_full                                      ? ComponentKind::kFull
                                  : found.reason == StopReason::kWindowMissing ? ComponentKind::kSwa
                                                                               : ComponentKind::kMamba;
  fuzz_check(pool->component == component, "the reason is another component's");
  if (is_full) {
    fuzz_check(!has(presence, found.pool, found.pages), "the page is there");
    fuzz_check(pool->is_anchor == (found.reason == StopReason::kFullMissing), "anchor and sidecar are mixed up");
  }
  bool fails = false;
  for (std::uint64_t p = found.pages + 1; p <= pages; ++p) fails = fails || !serves(model, *pool, presence, p);
  fuzz_check(fails, "the pool that is named lacks nothing");
}

void run(FuzzInput input) {
  const ModelSpec model = make_model(input);
  const std::uint64_t pages = input.below(kMostPages + 1);
  std::vector<PoolPresence> presence = make_presence(model, input);
  const RestorePoint found = largest_restore_point(model, presence, pages);
  std::uint64_t best = 0;
  for (std::uint64_t p = 0; p <= pages; ++p) {
    const bool is_one = is_restorable(model, presence, p);
    fuzz_check(is_restore_point(model, presence, p) == is_one, "whether a boundary is one");
    if (is_one) best = p;
  }
  fuzz_check(found.pages == best, "not the largest restore point");
  check_reason(model, presence, found, pages);
  if (presence.empty()) return;
  Presence& more = presence[static_cast<std::size_t>(input.below(presence.size()))].present;
  if (more.empty()) return;
  more[static_cast<std::size_t>(input.below(more.size()))] = true;
  fuzz_check(largest_restore_point(model, presence, pages).pages >= best, "more pages, and less to restore");
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
