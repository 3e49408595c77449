// SPDX-License-Identifier: Apache-2.0
// Cost of tree operations: match, extend, lock, unlock, evict.
//
// Workload: generated prefix-sharing sequences. Each starts with a prefix of an earlier one (three times in four) and
// goes on with a chunk of up to 256 new tokens, like turns of conversations over shared prompts. Short prompts: 64
// tokens among 10,000. Long ones: 131,072 cached tokens and 512 new, as one node and as 256 nodes, with memcmp over the
// same tokens timed in the same run: the ratio is what counts, as absolute numbers move with the machine. Each call is
// timed by itself; the cost of reading the clock is measured first and subtracted from the quantiles.
#include "bench/bench_tree.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "bench/quantile.h"
#include "tree/tree.h"

namespace larder {
namespace {

constexpr std::uint32_t kWindowTokens = 128;
constexpr const char* kTreeShapes[] = {"full", "full+swa", "full+mamba"};
constexpr std::size_t kLongTokens = 131'072, kLongNew = 512, kLongNodes = 256;

struct Row {
  std::string shape, operation;
  std::uint32_t page_size = 0;
  double p50_us = 0, p99_us = 0, per_second = 0;
  double us_per_page = 0;  // of pages touched; 0: does not apply
  double ratio = 0;        // to memcmp of the same tokens; 0: does not apply
};

// Gives out slots and counts what comes back; slots are never reused, as the tree does not care.
class CountingSink final : public SlotSink {
 public:
  void free_device(ComponentKind, std::span<const DeviceSlot> slots) override { freed += slots.size(); }
  void free_host(ComponentKind, std::span<const HostSlot> slots) override { freed += slots.size(); }
  std::uint64_t freed = 0;
};

class Samples {
 public:
  template <class Call>
  void time(Call call) {
    const auto start = real_clock().now();
    call();
    const auto stop = real_clock().now();
    ns_.push_back(std::chrono::duration<double, std::nano>(stop - start).count());
  }
  [[nodiscard]] double quantile_us(double q, double overhead_ns) {
    std::sort(ns_.begin(), ns_.end());
    return std::max(0.0, quantile_of_sorted(ns_, q) - overhead_ns) / 1000;
  }
  [[nodiscard]] double total_us(double overhead_ns) const {
    double sum = 0;
    for (const double ns : ns_) sum += std::max(0.0, ns - overhead_ns);
    return sum / 1000;
  }
  [[nodiscard]] std::size_t size() const { return ns_.size(); }

 private:
  std::vector<double> ns_;
};

double clock_overhead_ns() {
  Samples samples;
  for (int i = 0; i < 20'000; ++i) samples.time([] {});
  return samples.quantile_us(0.5, 0) * 1000;
}

// Keeps a result alive, so that the call is not optimized away.
template <class T>
void keep(const T& value) {
  asm volatile("" : : "g"(&value) : "memory");
}

using Tokens = std::vector<TokenId>;

std::vector<Tokens> make_sequences(std::size_t count, std::uint32_t page_size, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<Tokens> sequences;
  sequences.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    Tokens tokens;
    if (i > 0 && rng.chance(3, 4)) {
      const Tokens& earlier = sequences[rng.below(i)];
      const std::size_t shared = 1 + static_cast<std::size_t>(rng.below(earlier.size()));
      tokens.assign(earlier.begin(), earlier.begin() + static_cast<std::ptrdiff_t>(shared / page_size * page_size));
    }
    const std::uint64_t chunk = std::max<std::uint64_t>(1 + rng.below(256), page_size) / page_size * page_size;
    for (std::uint64_t k = 0; k < chunk; ++k) tokens.push_back(static_cast<TokenId>(rng.below(50'000)));
    sequences.push_back(std::move(tokens));
  }
  return sequences;
}

class TreeBench {
 public:
  TreeBench(const std::string& shape, std::uint32_t page_size, const TreeBenchOptions& options, double overhead_ns)
      : shape_(shape), page_size_(page_size), options_(options), overhead_ns_(overhead_ns) {
    config_.page_size = page_size;
    config_.window_tokens = shape.find("swa") != std::string::npos ? kWindowTokens : 0;
    config_.has_mamba = shape.find("mamba") != std::string::npos;
  }

  std::vector<Row> run() {
    run_shared();
    run_short();
    run_long(1);
    run_long(kLongNodes);
    return std::move(rows_);
  }

 private:
  // Slots of one insertion, made outside of the timed part.
  struct Slots {
    std::vector<DeviceSlot> full, swa;
    std::vector<Checkpoint> checkpoints;
  };
  Slots slots_for(const Tokens& tokens, std::uint64_t owned_from) {
    const std::uint64_t pages = tokens.size() / page_size_;
    Slots slots;
    slots.full.resize(pages);
    for (std::uint64_t i = owned_from; i < pages; ++i) slots.full[i] = DeviceSlot(next_slot_++);
    if (config_.window_tokens != 0) slots.swa = slots.full;
    if (config_.has_mamba && pages > owned_from) slots.checkpoints = {{pages, DeviceSlot(next_slot_++)}};
    return slots;
  }
  // A lock of the path up to where the tree has it on the device, as a request holds it that computes the rest.
  static LockHandle hold(RadixTree& tree, NamespaceId space, const Tokens& tokens) {
    const MatchResult found = tree.match(space, tokens);
    return tree.lock(tree.settle({found.walked.node, found.full_device_pages}), Tier::kDevice, {});
  }
  Result<InsertResult> extend(RadixTree& tree, LockHandle& lock, const Tokens& tokens, const Slots& slots,
                              std::uint64_t from) const {
    const std::span<const DeviceSlot> full(slots.full), swa(slots.swa);
    return tree.extend(lock, {from, std::span(tokens).subspan(from * page_size_), full.subspan(from),
                              swa.empty() ? swa : swa.subspan(from), slots.checkpoints, 0});
  }
  void add_row(const std::string& operation, Samples& samples, double pages = 0, double ratio = 0) {
    Row row{shape_, operation, page_size_};
    row.p50_us = samples.quantile_us(0.5, overhead_ns_);
    row.p99_us = samples.quantile_us(0.99, overhead_ns_);
    const double total = samples.total_us(overhead_ns_);
    row.per_second = total > 0 ? static_cast<double>(samples.size()) / total * 1e6 : 0;
    row.us_per_page = pages > 0 ? total / pages : 0;
    row.ratio = ratio;
    rows_.push_back(row);
  }

  void run_shared() {
    const std::vector<Tokens> sequences = make_sequences(options_.sequences, page_size_, options_.seed);
    CountingSink sink;
    RadixTree tree(config_, sink);
    const NamespaceId space = tree.spaces().open(std::nullopt, {}, PathHash());
    Samples extensions, matches, locks, unlocks;
    double new_pages = 0;
    for (const Tokens& tokens : sequences) {
      const std::uint64_t owned = tree.match(space, tokens).full_device_pages;
      const Slots slots = slots_for(tokens, owned);
      LockHandle lock = hold(tree, space, tokens);
      extensions.time([&] { keep(extend(tree, lock, tokens, slots, owned)); });
      tree.unlock(lock);
      new_pages += static_cast<double>(tokens.size() / page_size_ - owned);
    }
    add_row("extend", extensions, new_pages);

    Rng rng(options_.seed + 1);
    for (std::size_t i = 0; i < sequences.size(); ++i) {  // hits, partial hits and misses
      Tokens query = sequences[rng.below(sequences.size())];
      if (i % 3 != 0) query[rng.below(query.size())] = 60'000;
      matches.time([&] { keep(tree.match(space, query)); });
    }
    add_row("match mix", matches);

    for (const Tokens& tokens : sequences) {
      const NodeId node = tree.settle(tree.match(space, tokens).device.at);
      LockHandle handle;
      locks.time([&] { handle = tree.lock(node, Tier::kDevice, {}); });
      unlocks.time([&] { tree.unlock(handle); });
    }
    add_row("lock", locks);
    add_row("unlock", unlocks);
    run_evict(tree);
  }

  void run_evict(RadixTree& tree) {
    Samples evictions;
    double pages = 0;
    const auto evict = [&](ComponentKind c, std::uint64_t slots, std::size_t times) {
      for (std::size_t i = 0; i < times; ++i) {
        EvictResult result;
        evictions.time([&] { result = tree.evict_device(c, slots, VictimRule::kDrop); });
        pages += static_cast<double>(result.freed);
        if (result.freed == 0) break;
      }
    };
    if (config_.window_tokens != 0) {
      evict(ComponentKind::kSwa, 256 / page_size_, 200);
      add_row("evict 256 swa tokens", evictions, pages);
    }
    if (config_.has_mamba) {
      evict(ComponentKind::kMamba, 1, 500);
      add_row("evict 1 state", evictions);
    }
    // What is left, from the leaves up.
    evictions = Samples();
    pages = 0;
    evict(ComponentKind::kFull, 256 / page_size_, 1'000'000);
    add_row("evict 256 tokens", evictions, pages);
  }

  void run_short() {
    Rng rng(options_.seed + 2);
    CountingSink sink;
    RadixTree tree(config_, sink);
    const NamespaceId space = tree.spaces().open(std::nullopt, {}, PathHash());
    std::vector<Tokens> prompts(10'000, Tokens(64)), others = prompts;
    for (auto* list : {&prompts, &others}) {
      for (Tokens& tokens : *list) {
        for (TokenId& token : tokens) token = static_cast<TokenId>(rng.below(50'000));
      }
    }
    Samples extensions, hits, misses;
    for (const Tokens& tokens : prompts) {
      const Slots slots = slots_for(tokens, 0);
      LockHandle lock = hold(tree, space, tokens);
      extensions.time([&] { keep(extend(tree, lock, tokens, slots, 0)); });
      tree.unlock(lock);
    }
    rng.shuffle(std::span(prompts));
    for (const Tokens& tokens : prompts) hits.time([&] { keep(tree.match(space, tokens)); });
    for (const Tokens& tokens : others) misses.time([&] { keep(tree.match(space, tokens)); });
    add_row("64 tokens: extend", extensions, 10'000.0 * 64 / page_size_);
    add_row("64 tokens: match hit", hits);
    add_row("64 tokens: match miss", misses);
  }

  void run_long(std::size_t nodes) {
    Rng rng(options_.seed + 3);
    CountingSink sink;
    RadixTree tree(config_, sink);
    const NamespaceId space = tree.spaces().open(std::nullopt, {}, PathHash());
    Tokens cached(kLongTokens);
    for (TokenId& token : cached) token = static_cast<TokenId>(rng.below(50'000));
    std::vector<LockHandle> locks;  // one ends at each node, so that they are not joined
    for (std::size_t i = 1; i <= nodes; ++i) {
      const Tokens part(cached.begin(), cached.begin() + static_cast<std::ptrdiff_t>(kLongTokens / nodes * i));
      const std::uint64_t owned = kLongTokens / nodes * (i - 1) / page_size_;
      locks.push_back(hold(tree, space, part));
      LockHandle lock = hold(tree, space, part);
      keep(extend(tree, lock, part, slots_for(part, owned), owned));
      tree.unlock(lock);
    }
    Tokens query = cached;
    for (std::size_t i = 0; i < kLongNew; ++i) query.push_back(static_cast<TokenId>(rng.below(50'000)));
    const Tokens other = cached;  // as far apart in memory as the tree's tokens are from the query
    Samples compares, matches;
    for (int i = 0; i < 300; ++i) {  // interleaved, so that both see the same machine
      compares.time([&] { keep(std::memcmp(query.data(), other.data(), kLongTokens * sizeof(TokenId))); });
      matches.time([&] { keep(tree.match(space, query)); });
    }
    const double memcmp_us = compares.quantile_us(0.5, overhead_ns_);
    const std::string name = "131072+512 tokens, " + std::to_string(nodes) + " nodes";
    add_row(name + ": match", matches, 0, matches.quantile_us(0.5, overhead_ns_) / memcmp_us);
    add_row(name + ": memcmp", compares);
  }

  std::string shape_;
  std::uint32_t page_size_;
  const TreeBenchOptions& options_;
  double overhead_ns_;
  TreeConfig config_;
  std::uint32_t next_slot_ = 0;
  std::vector<Row> rows_;
};

void print_table(const std::vector<Row>& rows) {
  std::printf("%-11s %4s  %-38s %10s %10s %12s %9s %8s\n", "shape", "page", "operation", "p50 us", "p99 us", "ops/s",
              "us/page", "/memcmp");
  for (const Row& row : rows) {
    std::printf("%-11s %4u  %-38s %10.3f %10.3f %12.0f", row.shape.c_str(), row.page_size, row.operation.c_str(),
                row.p50_us, row.p99_us, row.per_second);
    row.us_per_page > 0 ? std::printf(" %9.4f", row.us_per_page) : std::printf(" %9s", "");
    row.ratio > 0 ? std::printf(" %8.2f\n", row.ratio) : std::printf(" %8s\n", "");
  }
}

void print_json(const std::vector<Row>& rows, const TreeBenchOptions& options) {
  std::printf("{\"benchmark\": \"tree\", \"seed\": %llu, \"sequences\": %zu, \"window_tokens\": %u, \"results\": [",
              static_cast<unsigned long long>(options.seed), options.sequences, kWindowTokens);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    std::printf(
        "%s\n  {\"shape\": \"%s\", \"page_size\": %u, \"operation\": \"%s\", \"p50_us\": %.4f, \"p99_us\": %.4f, "
        "\"per_second\": %.0f, \"us_per_page\": %.5f, \"ratio_to_memcmp\": %.3f}",
        i == 0 ? "" : ",", row.shape.c_str(), row.page_size, row.operation.c_str(), row.p50_us, row.p99_us,
        row.per_second, row.us_per_page, row.ratio);
  }
  std::printf("\n]}\n");
}

}  // namespace

void run_tree_bench(const TreeBenchOptions& options) {
  const double overhead_ns = clock_overhead_ns();
  const std::vector<std::uint32_t> page_sizes =
      options.page_size != 0 ? std::vector{options.page_size} : std::vector{1u, 64u};
  std::vector<Row> rows;
  for (const char* shape : kTreeShapes) {
    if (!options.shape.empty() && options.shape != shape) continue;
    for (const std::uint32_t page_size : page_sizes) {
      for (Row& row : TreeBench(shape, page_size, options, overhead_ns).run()) rows.push_back(std::move(row));
    }
  }
  options.as_json ? print_json(rows, options) : print_table(rows);
}

}  // namespace larder
