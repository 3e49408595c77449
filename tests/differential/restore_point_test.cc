// SPDX-License-Identifier: Apache-2.0
// Restore points of production code beside the reference's rules: what storage has, what several ranks agree on, what a
// fetch leaves a request with, and where the checkpoint of a fork is planned.
//
// LARDER_TEST_SEED: the first seed. A failure prints its seed and the case, made as small as it gets.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/rng.h"
#include "controller/checkpoint_plan.h"
#include "controller/joint.h"
#include "model/presets.h"
#include "model/restore_point.h"
#include "sim/world/small_models.h"
#include "tests/differential/differences.h"
#include "tests/differential/reference_restore.h"

namespace larder::differential {
namespace {

// One question: what so many ranks have in storage, and what a read of it would give.
struct Case {
  std::size_t pages = 0;
  std::vector<ReferencePages> stored, readable;  // a page that can be read is stored
};

std::string text_of(const Case& c) {
  std::string text = std::to_string(c.pages) + " pages";
  for (std::size_t rank = 0; rank < c.stored.size(); ++rank) {
    for (const auto& [pool, bits] : c.stored[rank]) {
      text += "\n  rank " + std::to_string(rank) + " " + pool + ": ";
      for (std::size_t i = 0; i < bits.size(); ++i) {
        text += !bits[i] ? '0' : has_page(c.readable[rank], pool, i) ? '1' : 'x';  // x: stored, cannot be read
      }
    }
  }
  return text;
}

ReferenceModel reference_of(const ModelSpec& model) {
  ReferenceModel reference;
  reference.page_size = model.page_size;
  if (model.has(ComponentKind::kSwa)) reference.window_tokens = model.dims.window;
  reference.has_state = model.has(ComponentKind::kMamba);
  for (const PoolSpec& pool : model.pools) {
    if (pool.is_anchor || pool.name == PoolName::kDraft) continue;  // drafts: a deviation, see below
    const std::string name(pool_name(pool.name));
    (pool.component == ComponentKind::kSwa ? reference.window_sidecars : reference.kv_sidecars).push_back(name);
  }
  return reference;
}

std::vector<PoolPresence> presence_of(const ModelSpec& model, const ReferencePages& pages) {
  std::vector<PoolPresence> presence;
  for (const PoolSpec& pool : model.pools) {
    const auto found = pages.find(std::string(pool_name(pool.name)));
    if (found != pages.end()) presence.push_back({pool.name, found->second});
  }
  return presence;
}

// What arrives of a read up to `target`: pages of full from 0, the window before it, the state at it.
ReferencePages arrived_of(const ModelSpec& model, const ReferencePages& readable, std::size_t target) {
  ReferencePages arrived;
  for (const PoolSpec& pool : model.pools) {
    std::size_t from = 0;
    if (pool.component == ComponentKind::kSwa) from = target - std::min<std::size_t>(target, model.window_pages());
    if (pool.component == ComponentKind::kMamba) from = target - std::min<std::size_t>(target, 1);
    std::vector<bool> bits(target, false);
    const std::string name(pool_name(pool.name));
    for (std::size_t page = from; page < target; ++page) bits[page] = has_page(readable, name, page);
    arrived[name] = bits;
  }
  return arrived;
}

class Comparison {
 public:
  Comparison(const ModelSpec& model, DifferenceCounts& counts)
      : model_(model), reference_(reference_of(model)), drafts_(reference_), counts_(counts) {
    if (model.find_pool(PoolName::kDraft) != nullptr) drafts_.kv_sidecars.emplace_back("draft");
  }

  // Empty: every disagreement has its entry. Else what disagrees.
  std::string run(const Case& c) {
    if (reference_.window_pages() != model_.window_pages()) return "window pages differ";
    std::vector<std::size_t> hits;
    for (const ReferencePages& stored : c.stored) {
      hits.push_back(0);
      if (std::string error = one_rank(stored, c.pages, hits.back()); !error.empty()) return error;
    }
    const std::uint64_t target = agreed(c.stored, c.pages);
    if (std::string error = all_ranks(c, hits, target); !error.empty()) return error;
    return compare_fetch(c, target);
  }

 private:
  // Is p a restore point by the reference's own test of each pool?
  [[nodiscard]] bool all_accept(const ReferencePages& pages, std::size_t p) const {
    if (p > 0 && kv_prefix(pages, p) < p) return false;
    const auto transfers = every_transfer();
    return p == 0 || std::all_of(transfers.begin(), transfers.end(),
                                 [&](const ReferenceTransfer& transfer) { return accepts(pages, transfer, p); });
  }
  [[nodiscard]] std::vector<ReferenceTransfer> every_transfer() const {
    return drafts_.transfers(std::max<std::size_t>(1, drafts_.window_pages()));
  }

  // One rank's storage: `hit` is the reference's answer, drafts counted.
  std::string one_rank(const ReferencePages& stored, std::size_t pages, std::size_t& hit) {
    const std::size_t published =
        existing_pages(stored, reference_.transfers(std::max(pages, reference_.window_pages())), pages);
    hit = existing_pages(stored, every_transfer(), pages);
    if (hit != published) counts_.meet(Difference::kDraftCounts);

    const std::vector<PoolPresence> presence = presence_of(model_, stored);
    const std::uint64_t ours = largest_restore_point(model_, presence, pages).pages;
    const std::uint64_t candidate = largest_candidate(restore_candidates(model_, presence, 0, pages), 0, pages);
    if (ours != candidate)
      return "restore_candidates says " + std::to_string(candidate) + ", not " + std::to_string(ours);
    std::size_t joint = hit;
    while (!all_accept(stored, joint)) --joint;
    if (joint != hit) counts_.meet(Difference::kJointPoint);
    if (ours != joint) {
      return "one rank: ours " + std::to_string(ours) + ", reference " + std::to_string(hit) + ", jointly " +
             std::to_string(joint);
    }
    return {};
  }

  [[nodiscard]] std::uint64_t agreed(const std::vector<ReferencePages>& ranks, std::size_t pages) const {
    OutcomeBits bits((pages + 63) / 64, ~std::uint64_t{0});
    for (const ReferencePages& rank : ranks) {
      const OutcomeBits own = restore_candidates(model_, presence_of(model_, rank), 0, pages);
      for (std::size_t i = 0; i < bits.size(); ++i) bits[i] &= own[i];
    }
    return largest_candidate(bits, 0, pages);
  }

  std::string all_ranks(const Case& c, const std::vector<std::size_t>& hits, std::uint64_t ours) {
    const auto everywhere = [&](std::size_t p) {
      return std::all_of(c.stored.begin(), c.stored.end(), [&](const auto& rank) { return all_accept(rank, p); });
    };
    const std::size_t least = *std::min_element(hits.begin(), hits.end());
    std::size_t joint = least;
    while (!everywhere(joint)) --joint;
    bool each_is_joint = true;
    for (std::size_t rank = 0; rank < hits.size(); ++rank) {
      each_is_joint = each_is_joint && all_accept(c.stored[rank], hits[rank]);
    }
    if (joint != least && each_is_joint) counts_.meet(Difference::kRanksIntersect);
    if (ours == joint) return {};
    return "ranks: ours " + std::to_string(ours) + ", reference " + std::to_string(least) + ", jointly " +
           std::to_string(joint);
  }

  std::string compare_fetch(const Case& c, std::uint64_t target) {
    const ReferenceFetch theirs = fetch(drafts_, c.stored, c.readable, c.pages);
    std::vector<ReferencePages> arrived;
    for (const ReferencePages& rank : c.readable) arrived.push_back(arrived_of(model_, rank, target));
    const std::uint64_t ours = agreed(arrived, target);
    const std::string numbers = "fetch: ours " + std::to_string(ours) + " of " + std::to_string(target) +
                                ", reference " + std::to_string(theirs.resume) + " of " + std::to_string(theirs.hit);
    std::size_t joint = target;
    const auto whole = [&](const ReferencePages& rank) { return all_accept(rank, joint); };
    while (!std::all_of(arrived.begin(), arrived.end(), whole)) --joint;
    if (ours != joint) return numbers + ": what arrived whole is " + std::to_string(joint);
    if (theirs.reads_garbage) {  // it may be shorter than ours as well, for one of the reasons below
      counts_.meet(Difference::kSidecarReadCounts);
      if (ours > theirs.resume && !is_explained(c, theirs, ours, target)) return numbers;
      return {};
    }
    if (ours == theirs.resume) return {};
    if (ours < theirs.resume) return numbers + ": ours is shorter, and nothing is missing";
    return is_explained(c, theirs, ours, target) ? "" : numbers;
  }

  // May ours be longer? Only where the reference read up to a boundary that was no restore point on every rank, or
  // where ours is shorter than a window.
  bool is_explained(const Case& c, const ReferenceFetch& theirs, std::uint64_t ours, std::uint64_t target) {
    if (ours < model_.window_pages()) {
      counts_.meet(Difference::kShortWindow);
      return true;
    }
    // The entries were met above, when the answers were compared.
    return theirs.hit != target && std::any_of(c.stored.begin(), c.stored.end(), [&](const ReferencePages& rank) {
             return !all_accept(rank, theirs.hit);
           });
  }

  const ModelSpec& model_;
  ReferenceModel reference_, drafts_;
  DifferenceCounts& counts_;
};

std::vector<ModelSpec> models() {
  std::vector<ModelSpec> models;
  const auto add = [&](Result<ModelSpec> model) {
    ASSERT_TRUE(model.is_ok()) << model.status().to_string();
    // Without full attention the reference has no host tier; a window of real size takes more pages than a case has.
    if (model->has(ComponentKind::kFull) && model->window_pages() <= 8) models.push_back(*model);
  };
  for (const PresetInfo& info : all_presets()) add(preset_model(info.name));
  for (const std::string& name : sim::small_model_names()) add(sim::simulated_model(name));
  for (const char* const name : {"dsv4-tiny", "swa-tiny"}) {  // windows that are no multiple of the page
    for (const std::uint32_t pages_and_a_bit : {1u, 3u}) {
      Result<ModelSpec> model = preset_model(name);
      model->dims.window = pages_and_a_bit * model->page_size + 1;
      const Status status = finalize_model(*model);
      add(status.is_ok() ? model : Result<ModelSpec>(status));
    }
  }
  return models;
}

Case random_case(const ModelSpec& model, Rng& rng) {
  Case c;
  c.pages = rng.between(1, 12);
  const std::size_t ranks = rng.chance(1, 2) ? 1 : rng.between(2, 3);
  const bool all_readable = rng.chance(1, 3);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    ReferencePages stored, readable;
    for (const PoolSpec& pool : model.pools) {
      const std::uint64_t hole_in = std::uint64_t{1} << rng.between(1, 6);
      const bool sparse = pool.component == ComponentKind::kMamba && rng.chance(1, 2);
      std::vector<bool> bits, reads;
      for (std::size_t i = 0; i < c.pages; ++i) {
        bits.push_back(sparse ? rng.chance(1, 3) : !rng.chance(1, hole_in));
        reads.push_back(bits.back() && (all_readable || !rng.chance(1, 12)));
      }
      stored[std::string(pool_name(pool.name))] = bits;
      readable[std::string(pool_name(pool.name))] = reads;
    }
    c.stored.push_back(stored);
    c.readable.push_back(readable);
  }
  return c;
}

// Every case that is a little simpler: a page, a rank, a hole or a failing read less.
std::vector<Case> simpler(const Case& c) {
  std::vector<Case> cases;
  if (c.pages > 1) {
    cases.push_back(c);
    --cases.back().pages;
    for (auto* side : {&cases.back().stored, &cases.back().readable}) {
      for (ReferencePages& rank : *side) {
        for (auto& [pool, bits] : rank) bits.pop_back();
      }
    }
  }
  for (std::size_t rank = 0; rank < c.stored.size(); ++rank) {
    if (c.stored.size() > 1) {
      cases.push_back(c);
      cases.back().stored.erase(cases.back().stored.begin() + static_cast<std::ptrdiff_t>(rank));
      cases.back().readable.erase(cases.back().readable.begin() + static_cast<std::ptrdiff_t>(rank));
    }
    for (const auto& [pool, bits] : c.stored[rank]) {
      for (std::size_t i = 0; i < bits.size(); ++i) {
        if (has_page(c.readable[rank], pool, i)) continue;
        cases.push_back(c);
        (bits[i] ? cases.back().readable : cases.back().stored)[rank][pool][i] = true;
      }
    }
  }
  return cases;
}

std::string error_of(const ModelSpec& model, const Case& c) {
  DifferenceCounts unused;
  return Comparison(model, unused).run(c);
}

Case shrink(const ModelSpec& model, Case c) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (const Case& next : simpler(c)) {
      if (error_of(model, next).empty()) continue;
      c = next;
      smaller = true;
      break;
    }
  }
  return c;
}

void compare_models(std::uint64_t seed, DifferenceCounts& counts) {
  for (const ModelSpec& model : models()) {
    for (std::uint64_t i = 0; i < 400; ++i) {
      Rng rng(seed + i);
      const Case c = random_case(model, rng);
      const std::string error = Comparison(model, counts).run(c);
      if (error.empty()) continue;
      const Case small = shrink(model, c);
      FAIL() << model.id << ", window of " << model.window_pages() << " pages, " << error
             << "; replay: LARDER_TEST_SEED=" << seed + i << "\nshrunk: " << error_of(model, small) << "\n"
             << text_of(small);
    }
  }
}

// Forks: chunks of the kernel are pages or whole numbers of them, or divide the page.
void compare_forks(DifferenceCounts& counts) {
  constexpr std::uint32_t kPage = 4;
  for (const std::size_t chunk_pages : {1u, 2u, 4u}) {
    for (std::uint64_t prompt = 1; prompt <= 60; ++prompt) {
      const std::uint64_t end = (prompt - 1) / kPage;
      for (std::uint64_t resume = 0; resume <= end; ++resume) {
        for (std::uint64_t matched = resume; matched <= end; ++matched) {
          std::uint64_t ours = 0;
          for (const PlannedCheckpoint& at : plan_checkpoints(prompt, kPage, resume, matched, 0)) {
            if (at.page == matched) ours = matched;
            ASSERT_TRUE(at.page == matched || at.page == end || at.page == prompt / kPage)
                << "a checkpoint where nobody asked for one";
          }
          const std::size_t chunk = chunk_pages * kPage;
          const std::uint64_t alone = branching_position(matched * kPage, resume * kPage, chunk, false);
          const std::uint64_t beside = branching_position(matched * kPage, resume * kPage, chunk, true);
          if (beside != ours * kPage) counts.meet(Difference::kForkBesideHost);
          if (alone != ours * kPage) {
            ASSERT_TRUE(matched % chunk_pages != 0 && alone < ours * kPage)
                << prompt << " " << resume << " " << matched;
            counts.meet(Difference::kForkAtPage);
          }
          ASSERT_EQ(ours, matched > resume ? matched : 0);
        }
      }
    }
  }
}

TEST(RestorePointsBesideTheReference, DifferOnlyWhereTheTableSaysSo) {
  DifferenceCounts counts;
  compare_models(first_seed(1), counts);
  if (HasFatalFailure()) return;
  compare_forks(counts);
  if (HasFatalFailure()) return;
  EXPECT_EQ(counts.dead_entries(DifferencePart::kRestorePoint), "") << counts.to_string(DifferencePart::kRestorePoint);
  printf("%s", counts.to_string(DifferencePart::kRestorePoint).c_str());
}

}  // namespace
}  // namespace larder::differential
