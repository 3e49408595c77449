// SPDX-License-Identifier: Apache-2.0
// An embedder's own policies, through the whole cache: who leaves the host, and who enters it before it has to.
#include <gtest/gtest.h>

#include "tests/cache/harness.h"

namespace larder::test {
namespace {

// States before pages, whatever their age.
class StatesFirst final : public EvictionOrder {
 public:
  [[nodiscard]] OrderKey key(const Facts& facts) const override { return oldest_first(facts); }
  [[nodiscard]] OrderKey key_across(const Facts& facts) const override {
    return {facts.component == ComponentKind::kMamba ? 0u : 1u, facts.last_use};
  }
};

// Ten prompts into a host with room for six: their states on the host, and their pages.
std::pair<std::uint64_t, std::uint64_t> host_after_ten_prompts(std::shared_ptr<const EvictionOrder> order) {
  HarnessOptions o = eager_options(Shape::kFullMamba);
  o.storage = false;
  o.host_slots = 60;
  o.config.eviction_order = std::move(order);
  Harness h(o);
  for (TokenId i = 0; i < 10; ++i) {
    (void)h.run(prompt_of(40, 1 + i * 50), 4);
    h.settle();
  }
  EXPECT_EQ(h.failure, "");
  EXPECT_EQ(h.cache->check_invariants().to_string(), "ok");
  const RadixTree& tree = h.cache->tree();
  return {tree.counts(ComponentKind::kMamba, Tier::kHost).resident,
          tree.counts(ComponentKind::kFull, Tier::kHost).resident};
}

TEST(CachePolicy, AnEmbeddersOrderChoosesAcrossTheComponentsOfTheHost) {
  const auto [states, pages] = host_after_ten_prompts(nullptr);
  const auto [few_states, more_pages] = host_after_ten_prompts(std::make_shared<StatesFirst>());
  EXPECT_LT(few_states, states);
  EXPECT_GT(more_pages, pages);
}

// Only what stands no deeper than a system prompt.
class HeadsOnly final : public Admission {
 public:
  [[nodiscard]] bool may_enter(const Facts& facts) const override { return facts.end <= 5; }
};

TEST(CachePolicy, AnEmbeddersAdmissionSaysWhatIsCopiedAhead) {
  HarnessOptions o = eager_options(Shape::kFull);
  o.storage = false;
  o.config.admission = std::make_shared<HeadsOnly>();
  Harness h(o);
  (void)h.run(prompt_of(20), 1);  // 5 pages
  h.settle();
  EXPECT_EQ(h.cache->counters().backed_up, 5u);
  (void)h.run(prompt_of(60), 4);  // deeper
  h.settle();
  EXPECT_EQ(h.cache->counters().backed_up, 5u);
  EXPECT_EQ(h.failure, "");
  EXPECT_EQ(h.cache->check_invariants().to_string(), "ok");
}

}  // namespace
}  // namespace larder::test
