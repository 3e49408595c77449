// SPDX-License-Identifier: Apache-2.0
// The page index against a model that is too simple to be wrong: maps, and a scan for each question.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "storage/file/page_index.h"
#include "storage/file/page_index_test_util.h"

namespace larder::file_store {
namespace {

constexpr std::uint64_t kNumbers = 50;  // of keys, per namespace
constexpr int kPools = 3, kNamespaces = 2;
constexpr SegmentId kModelSegments = 6;

std::uint64_t test_seed() {
  const char* const text = std::getenv("LARDER_TEST_SEED");
  return text == nullptr ? 20240607 : std::strtoull(text, nullptr, 10);
}

// Half of the keys share nine prefixes, so that they meet in the table with the same hash.
PageKey model_key(std::uint64_t number) {
  PageKey key;
  store_le<std::uint64_t>(key.bytes.data(), number % 2 == 0 ? number % 9 : number * 0x9e3779b97f4a7c15ull);
  store_le<std::uint64_t>(key.bytes.data() + 24, number + 1);
  return key;
}

PageIdentity model_identity(int name, int pool) {
  PageIdentity identity;
  identity.namespace_digest.bytes[5] = static_cast<std::uint8_t>(1 + name);
  identity.layout_fingerprint.bytes[9] = 1;
  identity.pool = static_cast<PoolName>(pool);
  return identity;
}

using NodeName = std::pair<int, std::uint64_t>;  // namespace, number

struct ModelNode {
  std::map<int, PageLocation> pages;  // by pool; none: a ghost
  std::optional<std::uint64_t> parent;
  std::uint64_t use = 0;
};

class Model {
 public:
  std::map<NodeName, ModelNode> nodes;

  [[nodiscard]] const PageLocation* find(NodeName name, int pool) const {
    const auto node = nodes.find(name);
    if (node == nodes.end()) return nullptr;
    const auto page = node->second.pages.find(pool);
    return page == node->second.pages.end() ? nullptr : &page->second;
  }
  [[nodiscard]] std::uint64_t size() const {
    std::uint64_t pages = 0;
    for (const auto& [name, node] : nodes) pages += node.pages.size();
    return pages;
  }
  [[nodiscard]] std::optional<NodeName> a_child(NodeName name) const {
    for (const auto& [other, node] : nodes) {
      if (other.first == name.first && node.parent == name.second) return other;
    }
    return std::nullopt;
  }
  // The stored node without children that was used longest ago.
  [[nodiscard]] std::optional<NodeName> victim() const {
    std::optional<NodeName> coldest;
    for (const auto& [name, node] : nodes) {
      if (node.pages.empty() || (coldest && nodes.at(*coldest).use < node.use) || a_child(name)) continue;
      coldest = name;
    }
    return coldest;
  }

  void use(NodeName name) { nodes.at(name).use = ++clock_; }
  void insert(NodeName name, int pool, std::optional<std::uint64_t> parent, const PageLocation& location) {
    const PageLocation* const old = find(name, pool);
    if (old != nullptr && old->generation >= location.generation) return;
    nodes[name].pages[pool] = location;
    use(name);
    if (!parent || parent == name.second || nodes[name].parent) return;
    nodes[name].parent = parent;
    nodes[{name.first, *parent}];  // a ghost if new
  }
  void erase(NodeName name, int pool) {
    nodes.at(name).pages.erase(pool);
    settle(name);
  }
  void erase_all(NodeName name) {
    nodes.at(name).pages.clear();
    settle(name);
  }
  std::uint64_t erase_namespace(int name) {
    std::vector<std::pair<NodeName, int>> gone;
    for (const auto& [node_name, node] : nodes) {
      for (const auto& [pool, location] : node.pages) {
        if (node_name.first == name) gone.emplace_back(node_name, pool);
      }
    }
    for (const auto& [node_name, pool] : gone) erase(node_name, pool);
    return gone.size();
  }

 private:
  void settle(NodeName name) {
    ModelNode& node = nodes.at(name);
    if (!node.pages.empty()) return;
    if (node.parent) {
      const NodeName parent{name.first, *node.parent};
      ModelNode& above = nodes.at(parent);
      above.use = std::max(above.use, node.use);
      node.parent.reset();
      if (above.pages.empty() && !a_child(parent)) nodes.erase(parent);
    }
    if (!a_child(name)) nodes.erase(name);
  }

  std::uint64_t clock_ = 0;
};

// One run with both: `absurd` of 100 inserts name a parent that is anything.
class Contest {
 public:
  Contest(std::uint64_t seed, std::uint64_t absurd, std::uint64_t evictions)
      : rng_(seed), absurd_(absurd), evictions_(evictions) {}

  void steps(int count) {
    for (int step = 0; step < count && !testing::Test::HasFailure(); ++step) {
      one_step();
      if (step % 200 == 0) {
        const Status status = index_.check_invariants();
        ASSERT_TRUE(status.is_ok()) << status.message() << " in step " << step;
        compare_all();
      }
    }
    while (model_.size() > 0 && !testing::Test::HasFailure()) evict();
    EXPECT_EQ(index_.size(), 0u);
    EXPECT_EQ(index_.identities(), 0u);
    EXPECT_TRUE(index_.check_invariants().is_ok());
  }
  [[nodiscard]] std::uint64_t cycles_cut() const { return cycles_cut_; }

 private:
  [[nodiscard]] IdentityId id(int name, int pool) const { return index_.find_identity(model_identity(name, pool)); }
  [[nodiscard]] SegmentId random_segment() { return static_cast<SegmentId>(1 + rng_.below(kModelSegments)); }
  [[nodiscard]] std::uint64_t random_offset() { return 64 * rng_.below(1u << 20); }

  void one_step() {
    const NodeName name{static_cast<int>(rng_.below(kNamespaces)), rng_.below(kNumbers)};
    const int pool = static_cast<int>(rng_.below(kPools));
    const std::uint64_t action = rng_.below(1000);
    if (action < 450) {
      insert(name, pool);
    } else if (action < 550) {
      erase(name, pool);
    } else if (action < 700) {
      index_.touch(id(name.first, pool), model_key(name.second));
      if (model_.find(name, pool) != nullptr) model_.use(name);
    } else if (action < 800) {
      move(name, pool);
    } else if (action < 820) {
      look_up(name.first, pool);
    } else if (action < 822) {
      drop(name);
    } else if (action < 822 + evictions_) {
      evict();
    }
    ASSERT_EQ(index_.size(), model_.size());
  }

  void insert(NodeName name, int pool) {
    std::optional<std::uint64_t> parent;
    if (name.second > 0) parent = name.second / 2;
    if (rng_.below(100) < absurd_) parent = rng_.below(kNumbers);
    if (rng_.chance(1, 10)) parent.reset();
    const std::uint64_t generation = rng_.chance(1, 8) ? rng_.below(generation_) : generation_++;
    const PageLocation at{random_segment(), random_offset(), static_cast<std::uint32_t>(rng_.below(300)), generation,
                          Checksum128{generation, rng_.next_u64()}};
    const PageKey parent_key = parent ? model_key(*parent) : PageKey{};
    ASSERT_TRUE(index_.insert(model_identity(name.first, pool), model_key(name.second), parent_key, at).is_ok());
    model_.insert(name, pool, parent, at);
  }

  void erase(NodeName name, int pool) {
    const PageLocation* const stored = model_.find(name, pool);
    const bool right = rng_.chance(7, 8);
    const std::uint64_t generation = (stored == nullptr ? 0 : stored->generation) + (right ? 0 : 1);
    const bool expected = stored != nullptr && right;
    ASSERT_EQ(index_.erase(id(name.first, pool), model_key(name.second), generation), expected);
    if (expected) model_.erase(name, pool);
  }

  void move(NodeName name, int pool) {
    const PageLocation* const stored = model_.find(name, pool);
    PageLocation from = stored == nullptr ? PageLocation{1, 64, 10, 1, {}} : *stored;
    if (rng_.chance(1, 4)) from.offset += 64;
    PageLocation to = from;
    to.segment = random_segment();
    to.offset = random_offset();
    const bool expected = stored != nullptr && from.offset == stored->offset;
    ASSERT_EQ(index_.move(model_identity(name.first, pool), model_key(name.second), from, to), expected);
    if (expected) model_.nodes.at(name).pages.at(pool) = to;
  }

  void drop(NodeName name) {
    if (rng_.chance(1, 20)) {
      index_.clear();
      model_ = Model();
    } else if (rng_.chance(1, 3)) {
      const std::uint64_t expected = model_.erase_namespace(name.first);
      ASSERT_EQ(drop_namespace(index_, model_identity(name.first, 0).namespace_digest), expected);
    } else {
      const SegmentId segment = random_segment();
      std::vector<ListedPage> listed;
      index_.list_segment(segment, ~std::size_t{0}, listed);
      // In the order of the index's list: what passes its last use on to its parent on the way depends on it.
      for (const ListedPage& page : listed) {
        model_.erase(name_of(page), static_cast<int>(page.identity.pool));
      }
      ASSERT_EQ(index_.drop_segment(segment), listed.size());
    }
  }

  static NodeName name_of(const ListedPage& page) {
    return {page.identity.namespace_digest.bytes[5] - 1, load_le<std::uint64_t>(page.key.bytes.data() + 24) - 1};
  }

  void evict() {
    const std::optional<NodeName> expected = model_.victim();
    std::optional<NodeName> gone = expected;
    const PageIndex::Evicted evicted = index_.evict_coldest();
    if (!expected && model_.size() > 0) {
      gone = vanished();
      ASSERT_TRUE(gone);
      const std::optional<NodeName> child = model_.a_child(*gone);
      ASSERT_TRUE(child);
      model_.nodes.at(*child).parent.reset();
      ++cycles_cut_;
    }
    if (!gone) {
      ASSERT_EQ(evicted.pages, 0u);
      return;
    }
    std::uint64_t bytes = 0;
    for (const auto& [pool, location] : model_.nodes.at(*gone).pages) {
      bytes += location.payload_bytes;
      ASSERT_FALSE(index_.contains(id(gone->first, pool), model_key(gone->second))) << "the model would evict this";
    }
    ASSERT_EQ(evicted.pages, model_.nodes.at(*gone).pages.size());
    ASSERT_EQ(evicted.payload_bytes, bytes);
    model_.erase_all(*gone);
  }

  // What the model has and the index has not.
  std::optional<NodeName> vanished() const {
    for (const auto& [name, node] : model_.nodes) {
      for (const auto& [pool, location] : node.pages) {
        if (!index_.contains(id(name.first, pool), model_key(name.second))) return name;
      }
    }
    return std::nullopt;
  }

  void look_up(int name, int pool) {
    std::vector<PageKey> keys;
    std::vector<std::uint64_t> numbers;
    for (std::uint64_t count = rng_.below(150); count > 0; --count) {
      numbers.push_back(rng_.below(kNumbers + 5));
      keys.push_back(model_key(numbers.back()));
    }
    Presence present(keys.size(), rng_.chance(1, 2));
    index_.contains(id(name, pool), keys, present);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(present[i], model_.find({name, numbers[i]}, pool) != nullptr) << numbers[i];
    }
  }

  void compare_all() {
    std::map<SegmentId, std::pair<std::uint64_t, std::uint64_t>> live;  // pages, bytes
    std::uint64_t bytes = 0;
    for (const auto& [name, node] : model_.nodes) {
      for (const auto& [pool, location] : node.pages) {
        PageLocation found;
        ASSERT_TRUE(index_.find(id(name.first, pool), model_key(name.second), found));
        ASSERT_EQ(found, location);
        ++live[location.segment].first;
        live[location.segment].second += (location.payload_bytes + 63) / 64 * 64;
        bytes += location.payload_bytes;
      }
    }
    ASSERT_EQ(index_.payload_bytes(), bytes);
    std::uint64_t seen = 0;
    for (SegmentId segment = 1; segment <= kModelSegments; ++segment) {
      std::vector<ListedPage> listed;
      index_.list_segment(segment, ~std::size_t{0}, listed);
      ASSERT_EQ(listed.size(), live[segment].first);
      ASSERT_EQ(index_.live_pages(segment), live[segment].first);
      ASSERT_EQ(index_.live_bytes(segment), live[segment].second);
      for (const ListedPage& page : listed) {
        ASSERT_EQ(page.location.segment, segment);
        const ModelNode& node = model_.nodes.at(name_of(page));
        EXPECT_EQ(page.parent, node.parent ? model_key(*node.parent) : PageKey{});
      }
      seen += listed.size();
    }
    ASSERT_EQ(seen, model_.size());
  }

  Rng rng_;
  std::uint64_t absurd_, evictions_;
  PageIndex index_;
  Model model_;
  std::uint64_t generation_ = 1;
  std::uint64_t cycles_cut_ = 0;
};

TEST(PageIndexModel, AgreesWithANaiveModel) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("LARDER_TEST_SEED=" + std::to_string(seed));
  // Absurd links of 100 inserts, evictions of 1000 steps: from a store that is full to one that fills and empties.
  const std::pair<std::uint64_t, std::uint64_t> profiles[] = {{0, 170}, {0, 60}, {10, 120}, {90, 100}};
  std::uint64_t cycles = 0;
  for (std::uint64_t i = 0; i < std::size(profiles) && !HasFailure(); ++i) {
    SCOPED_TRACE("profile " + std::to_string(i));
    Contest run(seed + i, profiles[i].first, profiles[i].second);
    run.steps(60'000);
    cycles += run.cycles_cut();
    if (i == 1) {
      EXPECT_EQ(cycles, 0u) << "without absurd links there are no cycles";
    }
  }
  EXPECT_GT(cycles, 0u) << "this test is meant to meet them";
}

}  // namespace
}  // namespace larder::file_store
