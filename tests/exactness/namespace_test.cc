// SPDX-License-Identifier: Apache-2.0
// Who must not share a page does not, in any tier: tenants, adapters, dtypes, layouts, page sizes and models live side
// by side in one store, ask for the same tokens, and each finds its own pages and nobody else's.
#include <gtest/gtest.h>

#include <functional>

#include "model/presets.h"
#include "tests/exactness/exactness_rig.h"

namespace larder::exactness {
namespace {

constexpr std::size_t kNamespaceOutputs = 5;

// One of two parties that share a store.
struct Party {
  ModelSpec model;
  HostLayout layout = HostLayout::kPageFirst;
  RunOptions run;
};

struct Case {
  std::string name;
  Party one, two;
};

ModelSpec model_with(const std::string& preset, const std::function<void(ModelSpec&)>& change) {
  ModelSpec model = preset_model(preset).value();
  change(model);
  model.pools.clear();
  const Status status = finalize_model(model);
  EXPECT_TRUE(status.is_ok()) << status.to_string();
  return model;
}

Party party_of(ModelSpec model) { return {std::move(model), HostLayout::kPageFirst, {}}; }

std::vector<Case> cases() {
  const ModelSpec gdn = preset_model("gdn-tiny").value();
  const ModelSpec swa = preset_model("swa-tiny").value();
  const auto changed = [](const std::string& preset, const std::function<void(ModelSpec&)>& change) {
    return party_of(model_with(preset, change));
  };
  std::vector<Case> all;
  all.push_back({"salts",
                 {gdn, HostLayout::kPageFirst, {.salt = "tenant a"}},
                 {gdn, HostLayout::kPageFirst, {.salt = "tenant b"}}});
  all.push_back({"salt and none", party_of(gdn), {gdn, HostLayout::kPageFirst, {.salt = "tenant a"}}});
  all.push_back({"adapters",
                 {swa, HostLayout::kPageFirst, {.adapter = "lora-1"}},
                 {swa, HostLayout::kPageFirst, {.adapter = "lora-2"}}});
  // The same text in another field is another identity.
  all.push_back({"adapter and salt",
                 {gdn, HostLayout::kPageFirst, {.adapter = "x"}},
                 {gdn, HostLayout::kPageFirst, {.salt = "x"}}});
  all.push_back({"layouts", party_of(swa), {swa, HostLayout::kPageHead, {}}});
  all.push_back({"kv dtypes", party_of(swa), changed("swa-tiny", [](ModelSpec& m) { m.kv_dtype = Dtype::kBf16; })});
  all.push_back({"state dtypes", party_of(gdn), changed("gdn-tiny", [](ModelSpec& m) { m.ssm_dtype = Dtype::kBf16; })});
  all.push_back({"page sizes", party_of(gdn), changed("gdn-tiny", [](ModelSpec& m) { m.page_size = 32; })});
  all.push_back({"revisions", party_of(gdn), changed("gdn-tiny", [](ModelSpec& m) { m.revision = "2"; })});
  // Same geometry, other weights.
  all.push_back({"models", party_of(gdn), changed("gdn-tiny", [](ModelSpec& m) {
                   m.id = "gdn-other";
                   m.weight_seed = 2;
                 })});
  all.push_back({"weights", party_of(gdn), changed("gdn-tiny", [](ModelSpec& m) { m.weight_seed = 2; })});
  all.push_back({"families", party_of(gdn), party_of(preset_model("mamba2-tiny").value())});
  all.push_back({"draft and none", party_of(gdn), party_of(preset_model("gdn-tiny+draft").value())});
  return all;
}

RigOptions rig_options(const Party& party, StorageBackend& storage) {
  RigOptions options;
  options.layout = party.layout;
  options.device = {24, 24, 8};
  options.storage = &storage;
  options.config.prefetch_threshold = 1;
  options.config.prefetch_policy = PrefetchPolicy::kWaitComplete;
  options.config.chunked_prefill_tokens = 512;
  return options;
}

void check_pair(const Case& c, const std::string& store) {
  SCOPED_TRACE(c.name + ", store " + store);
  Stores stores;
  const std::unique_ptr<StorageBackend> storage = stores.open(store);
  ASSERT_NE(storage, nullptr);
  const Tokens prompt = random_tokens(5, 300, 512);
  std::array<std::uint64_t, 2> stored{};
  for (const bool is_again : {false, true}) {  // the second time each finds its own
    for (std::size_t who = 0; who < 2; ++who) {
      const Party& party = who == 0 ? c.one : c.two;
      SCOPED_TRACE((who == 0 ? "the first" : "the second") + std::string(is_again ? ", again" : ""));
      Truth truth(party.model, 512);
      std::vector<StepLogits> logits;
      const Tokens expected = truth.generate(prompt, kNamespaceOutputs, logits);
      Rig rig(party.model, rig_options(party, *storage));  // a new process: storage is all it has
      const std::uint64_t before = storage->stats().pages;
      RunOptions run = party.run;
      run.truth = &truth;
      const RunResult result = rig.run(prompt, kNamespaceOutputs, run);
      const std::uint64_t reachable = (prompt.size() - 1) / party.model.page_size * party.model.page_size;
      EXPECT_EQ(result.cached.cached(), is_again ? reachable : 0u);
      EXPECT_EQ(result.output, expected);
      EXPECT_TRUE(result.logits == logits);
      const std::uint64_t added = storage->stats().pages - before;
      if (is_again) {
        EXPECT_EQ(added, 0u);
      } else {
        stored[who] = added;
      }
    }
  }
  EXPECT_GT(stored[0], 0u);
  EXPECT_GT(stored[1], 0u);  // nothing of the first one's served for the second
  EXPECT_EQ(storage->stats().corrupt, 0u);
}

TEST(Namespaces, ShareAStoreAndNoPage) {
  for (const Case& c : cases()) {
    for (const char* store : {"memory", "file"}) check_pair(c, store);
  }
}

// The same in one process: device and host tiers, too.
TEST(Namespaces, TenantsAndAdaptersMeetInNoTier) {
  for (const std::string& preset : std::vector<std::string>{"gdn-tiny", "swa-tiny", "dsv4-tiny"}) {
    SCOPED_TRACE(preset);
    const ModelSpec model = preset_model(preset).value();
    Stores stores;
    const std::unique_ptr<StorageBackend> storage = stores.open("memory");
    Rig rig(model, rig_options(party_of(model), *storage));
    const Tokens prompt = random_tokens(5, 300, 512);
    const std::uint64_t reachable = (prompt.size() - 1) / model.page_size * model.page_size;
    const std::vector<RunOptions> parties = {
        {}, {.salt = "a"}, {.salt = "b"}, {.adapter = "a"}, {.adapter = "b", .salt = "a"}};
    for (const RunOptions& party : parties) EXPECT_EQ(rig.run(prompt, kNamespaceOutputs, party).cached.cached(), 0u);
    for (const RunOptions& party : parties)
      EXPECT_EQ(rig.run(prompt, kNamespaceOutputs, party).cached.cached(), reachable);
    (void)rig.cache().flush();
    for (const RunOptions& party : parties)
      EXPECT_EQ(rig.run(prompt, kNamespaceOutputs, party).cached.storage, reachable);
    (void)rig.cache().flush();
    EXPECT_EQ(rig.run(prompt, kNamespaceOutputs, {.salt = "c"}).cached.cached(), 0u);
  }
}

}  // namespace
}  // namespace larder::exactness
