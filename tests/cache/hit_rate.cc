// SPDX-License-Identifier: Apache-2.0
#include "tests/cache/hit_rate.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

namespace larder::test {
namespace {

constexpr std::size_t kDocuments = 60, kOpenConversations = 24, kLongestConversation = 120;
constexpr std::uint32_t kTraceGrid = 64;  // tokens: what a checkpoint_grid of 8,192 is in a trace's own ones

struct Prompt {
  std::vector<TokenId> tokens;
  std::uint64_t new_tokens = 0;
};

// The next prompt of a load, and how many tokens are to be computed after it.
class Prompts {
 public:
  explicit Prompts(const Load& load) : load_(load), rng_(load.seed * 7919 + static_cast<std::uint64_t>(load.kind)) {}

  Prompt next() {
    const std::size_t number = number_++;
    if (load_.kind == LoadKind::kTrace) {
      const TraceRequest& request = load_.trace->at(number);
      return {scaled_prompt(request), scaled_output(request)};
    }
    return {load_.kind == LoadKind::kDocuments ? question() : turn(), 1 + number % 6};
  }
  // What the engine computed last: the next turn of a conversation begins with it.
  void answered(std::vector<TokenId> tokens) {
    if (load_.kind == LoadKind::kConversations) talks_.back() = std::move(tokens);
  }

 private:
  void append_fresh(std::vector<TokenId>& tokens, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(rng_.below(60)));
  }

  // Document k is asked about 1 / k times as often as the first.
  std::vector<TokenId> question() {
    if (documents_.empty()) {
      for (std::size_t i = 0; i < kDocuments; ++i) {
        documents_.emplace_back();
        append_fresh(documents_.back(), 8 + rng_.below(32));
      }
      for (std::size_t i = 0; i < kDocuments; ++i) weight_ += kUnit / (i + 1);
    }
    std::uint64_t at = rng_.below(weight_);
    std::size_t chosen = 0;
    while (at >= kUnit / (chosen + 1)) at -= kUnit / (++chosen);
    std::vector<TokenId> prompt = documents_[chosen];
    append_fresh(prompt, 1 + rng_.below(12));
    return prompt;
  }

  // talks_: the last to speak is at the back.
  std::vector<TokenId> turn() {
    if (talks_.size() < kOpenConversations && (talks_.empty() || rng_.below(4) == 0)) {
      talks_.emplace_back();
    } else {
      const std::size_t back = std::min(rng_.below(talks_.size()), rng_.below(talks_.size()));
      const auto at = talks_.end() - 1 - static_cast<std::ptrdiff_t>(back);
      std::vector<TokenId> chosen = std::move(*at);
      talks_.erase(at);
      talks_.push_back(std::move(chosen));
    }
    if (talks_.back().size() > kLongestConversation) talks_.back().clear();  // over; another one begins
    append_fresh(talks_.back(), 3 + rng_.below(12));
    return talks_.back();
  }

  static constexpr std::uint64_t kUnit = 1'000'000;
  Load load_;
  Rng rng_;
  std::size_t number_ = 0;
  std::vector<std::vector<TokenId>> documents_, talks_;
  std::uint64_t weight_ = 0;
};

}  // namespace

HarnessOptions hit_rate_options(Shape shape, WritePolicy policy, ComponentCounts device, std::size_t host_slots) {
  HarnessOptions o = eager_options(shape);
  o.device = device;
  o.host_slots = std::max<std::size_t>(host_slots, 16);
  o.storage = false;
  o.config.write_policy = policy;
  o.config.host_tier_for_full = host_slots > 0;
  o.config.checkpoint_grid = 0;
  return o;
}

namespace {

// Tokens at the beginning of the prompt whose KV the device has.
std::uint64_t kv_on_device(const Harness& h, std::span<const TokenId> prompt) {
  const std::size_t page_size = h.model.page_size;
  const std::span<const TokenId> pages = prompt.first((prompt.size() - 1) / page_size * page_size);
  return h.cache->tree().match(NamespaceId(0), pages).full_device_pages * page_size;
}

}  // namespace

HitRate replay(const HarnessOptions& options, const Load& load, std::size_t requests) {
  Harness h(options);
  Prompts prompts(load);
  HitRate rate;
  for (std::size_t i = 0; i < requests && h.failure.empty(); ++i) {
    Prompt prompt = prompts.next();
    Harness::Job job = h.begin(std::move(prompt.tokens), prompt.new_tokens);
    std::uint64_t on_device = 0;  // when it starts
    for (int tries = 0; !h.done(job) && h.failure.empty(); ++tries) {
      if (!job.started) on_device = kv_on_device(h, job.prompt);
      (void)h.advance(job, 16);
      h.settle();  // an engine polls between its steps
      if (tries > 1000) h.failure = "a request makes no progress: " + h.refusal;
    }
    h.finish(job);
    h.settle();
    rate.prompt += job.cached.prompt;
    rate.device += std::min(on_device, job.cached.cached());
    rate.cached += job.cached.cached();
    prompts.answered(std::move(job.tokens));
  }
  rate.failure = h.check_clean();
  return rate;
}

// A larger host finds more full pages, also such that stand above no state, and where they end a request takes a
// checkpoint (a fork). Each takes one of the device's states from another restore point, which is worth more in some
// loads.
// Without windows such a model is under `value`, which remembers what was evicted for good: a host that keeps it for
// longer teaches less, and on a device of 24 or 30 states one copy more or less moves what follows by a point, in
// either direction. The largest step down is 1.66 of sums over two loads, and 1.15 over four. (lru has half of the
// hits, and needs 0.6.)
double slack_of(Shape shape) {
  if (shape == Shape::kFullMamba) return 1.6;
  return shape == Shape::kAll ? 0.6 : 0.2;
}

std::string name_of(const TierRule& rule) {
  return std::string(write_policy_name(rule.policy)) + (rule.is_exclusive ? ", exclusive" : "");
}

std::vector<HostSizeRow> replay_host_sizes(Shape shape, const Load& load, ComponentCounts device, std::size_t requests,
                                           std::span<const std::size_t> quarters) {
  std::vector<HostSizeRow> rows;
  for (const TierRule& rule : kTierRules) {
    const auto add = [&](std::size_t host) {
      HarnessOptions options = hit_rate_options(shape, rule.policy, device, host);
      options.config.exclusive_tiers = rule.is_exclusive;
      if (load.kind == LoadKind::kTrace) options.config.checkpoint_grid = kTraceGrid;
      rows.push_back({rule, host, replay(options, load, requests)});
    };
    add(0);
    for (const std::size_t quarter : quarters) add(device[index_of(ComponentKind::kFull)] * quarter / 4);
  }
  return rows;
}

namespace {

std::string words(const HostSizeRow& row) {
  char text[200];
  std::snprintf(text, sizeof text, "%s, host of %zu: %.2f percent, on the device %.2f", name_of(row.rule).c_str(),
                row.host, row.rate.total(), row.rate.on_device());
  return text;
}

}  // namespace

void add_rows(std::vector<HostSizeRow>& sum, const std::vector<HostSizeRow>& rows) {
  sum.resize(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    sum[i].rule = rows[i].rule;
    sum[i].host = rows[i].host;
    sum[i].rate.prompt += rows[i].rate.prompt;
    sum[i].rate.device += rows[i].rate.device;
    sum[i].rate.cached += rows[i].rate.cached;
    if (sum[i].rate.failure.empty()) sum[i].rate.failure = rows[i].rate.failure;
  }
}

std::string broken_host_size_law(std::span<const HostSizeRow> rows, double slack) {
  const HostSizeRow *alone = nullptr, *best = nullptr;
  for (const HostSizeRow& row : rows) {
    if (!row.rate.failure.empty()) return words(row) + ": " + row.rate.failure;
    if (row.host == 0) alone = best = &row;
    if (row.rate.on_device() + slack < alone->rate.on_device()) return words(row) + "; " + words(*alone);
    if (row.rate.total() + slack < best->rate.total()) return words(row) + "; with less: " + words(*best);
    if (row.rate.total() > best->rate.total()) best = &row;
  }
  return "";
}

std::string table_of(std::span<const HostSizeRow> rows) {
  std::string out = "| host |";
  for (const TierRule& rule : kTierRules) out += " " + name_of(rule) + " |";
  out += "\n|---|---|---|---|---|\n";
  const std::size_t sizes = rows.size() / kTierRules.size();
  for (std::size_t i = 0; i < sizes; ++i) {
    out += "| " + std::to_string(rows[i].host) + " |";
    for (std::size_t rule = 0; rule < kTierRules.size(); ++rule) {
      const HitRate& rate = rows[rule * sizes + i].rate;
      char text[40];
      std::snprintf(text, sizeof text, " %.2f (%.2f) |", rate.total(), rate.on_device());
      out += text;
    }
    out += "\n";
  }
  return out;
}

}  // namespace larder::test
