// SPDX-License-Identifier: Apache-2.0
#include "controller/joint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <random>

#include "model/presets.h"

namespace larder {
namespace {

constexpr std::uint64_t kPages = 9;

// Every pool has nearly all, so that each of them is what decides somewhere.
std::vector<PoolPresence> random_presence(const ModelSpec& model, std::mt19937_64& random, std::uint64_t pages = kPages,
                                          std::uint64_t one_absent_in = 8) {
  std::vector<PoolPresence> presence;
  for (const PoolSpec& pool : model.pools) {
    Presence present(pages);
    for (std::uint64_t page = 0; page < pages; ++page) present[page] = random() % one_absent_in != 0;
    presence.push_back({pool.name, std::move(present)});
  }
  return presence;
}

std::vector<PoolPresence> piece_of(std::vector<PoolPresence> presence, std::uint64_t begin, std::uint64_t count) {
  for (PoolPresence& one : presence) {
    const auto first = one.present.begin() + static_cast<std::ptrdiff_t>(begin);
    one.present = Presence(first, first + static_cast<std::ptrdiff_t>(count));
  }
  return presence;
}

TEST(Joint, ABitIsWhereEveryPoolCanResume) {
  for (const PresetInfo& preset : all_presets()) {
    if (!preset.is_tiny) continue;
    SCOPED_TRACE(preset.name);
    const Result<ModelSpec> model = preset_model(preset.name);
    ASSERT_TRUE(model.is_ok());
    std::mt19937_64 random(1);
    for (int round = 0; round < 200; ++round) {
      const std::vector<PoolPresence> presence = random_presence(*model, random);
      const OutcomeBits bits = restore_candidates(*model, presence, 0, kPages);
      for (std::uint64_t page = 1; page <= kPages; ++page) {
        ASSERT_EQ(has_bit(bits, page - 1), is_restore_point(*model, presence, page))
            << "round " << round << ", page " << page;
      }
    }
  }
}

TEST(Joint, PresenceThatComesInPiecesGivesTheSameBits) {
  const Result<ModelSpec> model = preset_model("gdn-tiny+draft");
  ASSERT_TRUE(model.is_ok());
  std::mt19937_64 random(2);
  for (int round = 0; round < 200; ++round) {
    const std::vector<PoolPresence> presence = random_presence(*model, random);
    JointScan scan;
    OutcomeBits bits;
    while (scan.at() < kPages && !scan.is_over()) {
      const std::uint64_t begin = scan.at(), count = std::min(1 + random() % 4, kPages - begin);
      scan.add(*model, piece_of(presence, begin, count), count, bits);
    }
    for (std::uint64_t page = 1; page <= kPages; ++page) {
      ASSERT_EQ(has_bit(bits, page - 1), is_restore_point(*model, presence, page))
          << "round " << round << ", page " << page;
    }
  }
}

ModelSpec without(const ModelSpec& model, std::initializer_list<ComponentKind> components) {
  ModelSpec less = model;
  std::erase_if(less.pools, [&](const PoolSpec& pool) { return std::ranges::count(components, pool.component) > 0; });
  return less;
}

TEST(Joint, ReachIsARestorePointOfAModelWithoutTheRest) {
  for (const PresetInfo& preset : all_presets()) {
    if (!preset.is_tiny) continue;
    SCOPED_TRACE(preset.name);
    const Result<ModelSpec> model = preset_model(preset.name);
    ASSERT_TRUE(model.is_ok());
    const ModelSpec full = without(*model, {ComponentKind::kSwa, ComponentKind::kMamba});
    const ModelSpec window = without(*model, {ComponentKind::kMamba});
    std::mt19937_64 random(3);
    for (int round = 0; round < 200; ++round) {
      const std::vector<PoolPresence> presence = random_presence(*model, random);
      ReachScan scan;
      for (std::uint64_t begin = 0; begin < kPages;) {
        const std::uint64_t count = std::min(1 + random() % 4, kPages - begin);
        scan.add(*model, piece_of(presence, begin, count), count);
        begin += count;
      }
      ASSERT_EQ(scan.reach().full, largest_restore_point(full, presence, kPages).pages) << round;
      ASSERT_EQ(scan.reach().window, largest_restore_point(window, presence, kPages).pages) << round;
    }
  }
}

// What a scan keeps from one piece to the next changes nothing: each piece looked at with bits of its own says the
// same.
TEST(Joint, ReachOfALongPromptIsWhatEachPieceSaysByItself) {
  for (const char* const name : {"swa-tiny", "gdn-tiny+draft", "dsv4-tiny"}) {
    SCOPED_TRACE(name);
    const Result<ModelSpec> model = preset_model(name);
    ASSERT_TRUE(model.is_ok());
    const ModelSpec full = without(*model, {ComponentKind::kSwa, ComponentKind::kMamba});
    const ModelSpec window = without(*model, {ComponentKind::kMamba});
    std::mt19937_64 random(4);
    for (int round = 0; round < 100; ++round) {
      const std::uint64_t pages = 1 + random() % 400, first = random() % pages;
      const std::vector<PoolPresence> presence = random_presence(*model, random, pages, 1 + random() % 300);
      ReachScan scan(first);
      JointScan of_full(first), of_window(first);
      Reach expected{first, first};
      for (std::uint64_t begin = first; begin < pages;) {
        const std::uint64_t count = std::min(1 + random() % 150, pages - begin), end = begin + count;
        const std::vector<PoolPresence> piece = piece_of(presence, begin, count);
        scan.add(*model, piece, count);
        OutcomeBits full_bits, window_bits;
        of_full.add(full, piece, count, full_bits);
        of_window.add(window, piece, count, window_bits);
        const std::uint64_t to = largest_candidate(full_bits, begin, end);
        const std::uint64_t window_to = largest_candidate(window_bits, begin, end);
        if (to > begin) expected.full = to;
        if (window_to > begin) expected.window = window_to;
        ASSERT_EQ(scan.reach().full, expected.full) << "round " << round << ", page " << end;
        ASSERT_EQ(scan.reach().window, expected.window) << "round " << round << ", page " << end;
        begin = end;
      }
    }
  }
}

}  // namespace
}  // namespace larder
