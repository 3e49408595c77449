// SPDX-License-Identifier: Apache-2.0
#include "engine/composition.h"

#include <gtest/gtest.h>

#include "model/presets.h"
#include "sim/sim_file_system.h"

namespace larder {
namespace {

TEST(Composition, SlotsFollowTheOptions) {
  Options o;
  o.max_total_tokens = 1000;
  o.swa_full_tokens_ratio = 0.5;
  o.max_mamba_cache_size = 7;
  EXPECT_EQ(device_slots(o, preset_model("gqa-tiny").value()), (ComponentCounts{15, 0, 0}));  // whole pages only
  EXPECT_EQ(device_slots(o, preset_model("swa-tiny").value()), (ComponentCounts{15, 8, 0}));
  EXPECT_EQ(device_slots(o, preset_model("gdn-tiny").value()), (ComponentCounts{15, 0, 7}));
  EXPECT_EQ(host_bytes(o, 1000), 2000u);
  o.hicache_size_gb = 0.5;
  EXPECT_EQ(host_bytes(o, 1000), 500'000'000u);
  o.hicache_size_gb = 1e6;
  EXPECT_EQ(host_bytes(o, 1000), 1'000'000'000'000'000u);
}

TEST(Composition, BuildsEveryPresetWithAndWithoutItsTiers) {
  sim::SimFileSystem files(1);
  MetricsRegistry metrics;
  for (const PresetInfo& preset : all_presets()) {
    if (!preset.is_tiny) continue;
    for (const int tiers : {0, 1, 2, 3}) {
      SCOPED_TRACE(preset.name + ", tiers " + std::to_string(tiers));
      Options o;
      o.model = preset.name;
      o.max_total_tokens = 4096;
      o.chunked_prefill_size = 256;
      o.disable_radix_cache = tiers == 0;
      o.enable_hierarchical_cache = tiers >= 2;
      if (tiers == 3) {
        o.hicache_storage_backend = "file";
        o.hicache_storage_backend_extra_config = R"({"directory": "/store"})";
      }
      const Result<std::unique_ptr<Composition>> parts = Composition::create(o, files, real_clock(), metrics);
      ASSERT_TRUE(parts.is_ok()) << parts.status().to_string();
      EXPECT_EQ((*parts)->host_pools != nullptr, tiers >= 2);
      EXPECT_EQ((*parts)->storage != nullptr, tiers == 3);
      EXPECT_TRUE((*parts)->cache->check_invariants().is_ok());
    }
  }
}

TEST(Composition, EndsWithRequestsAndCopiesUnderWay) {
  sim::SimFileSystem files(1);
  MetricsRegistry metrics;
  Options o;
  o.model = "gdn-tiny";
  o.max_total_tokens = 4096;
  o.hicache_storage_backend = "memory";
  Result<std::unique_ptr<Composition>> parts = Composition::create(o, files, real_clock(), metrics);
  ASSERT_TRUE(parts.is_ok()) << parts.status().to_string();
  Cache& cache = *(*parts)->cache;
  const std::vector<TokenId> prompt(500, 7);
  BeginRequest begin;
  begin.tokens = prompt;
  begin.max_new_tokens = 4;
  const Result<RequestId> id = cache.begin(begin);
  ASSERT_TRUE(id.is_ok());
  while (cache.phase(*id) != RequestPhase::kReady) (void)cache.poll(std::chrono::milliseconds(10));
  ASSERT_TRUE(cache.start(*id).is_ok());
  const Result<StepGrant> step = cache.prepare_step(*id, 500);
  ASSERT_TRUE(step.is_ok());
  ASSERT_TRUE(cache.complete_step(step->token, prompt).is_ok());  // backups start; nobody polls for their ends
  parts->reset();
}

TEST(Composition, NamesWhatIsWrong) {
  sim::SimFileSystem files(1);
  MetricsRegistry metrics;
  const auto message = [&](const Options& o) {
    const Result<std::unique_ptr<Composition>> parts = Composition::create(o, files, real_clock(), metrics);
    return parts.is_ok() ? std::string("it was built") : parts.status().message();
  };
  Options o;
  o.hicache_storage_backend = "file";  // without its directory
  EXPECT_NE(message(o).find("directory"), std::string::npos) << message(o);
  o.hicache_storage_backend_extra_config = R"({"directory": "/store", "max_sise": "1G"})";
  EXPECT_NE(message(o).find("max_sise"), std::string::npos) << message(o);
  o = {};
  o.max_mamba_cache_size = 1'000'000'000;  // refused before anything of that size is touched
  EXPECT_NE(message(o).find("--max-mamba-cache-size): asked for "), std::string::npos) << message(o);
  o = {};
  o.hicache_size_gb = 1e-6;
  EXPECT_NE(message(o).find("--hicache-size"), std::string::npos) << message(o);
  o = {};
  o.model = "gdn-real";  // said before memory is taken for its pools
  o.hicache_size_gb = 1e6;
  EXPECT_NE(message(o).find("use a -tiny model"), std::string::npos) << message(o);
}

}  // namespace
}  // namespace larder
