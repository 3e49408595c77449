// SPDX-License-Identifier: Apache-2.0
// Rank 0 is this process; the others are copies of it. No rank computes: between steps all wait, as a model would
// compute.
#include "bench/bench_ranks.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>
#include <unordered_map>

#include "base/ranked_mutex.h"
#include "bench/quantile.h"
#include "controller/ranks/real_tcp_ranks.h"
#include "server/command_line.h"
#include "server/real_child_process.h"
#include "server/text_table.h"

namespace larder {
namespace {

constexpr Nanos kRanksPatience = std::chrono::seconds(60);

double microseconds(Nanos time) { return static_cast<double>(time.count()) / 1000; }

class BenchedRank {
 public:
  BenchedRank(const RanksBenchOptions& options, ranks::RankMember& member) : o_(options), member_(member) {}

  // The first plan that every rank has begins the first step, so that all begin within its way.
  Status run() {
    std::vector<AgreedEvent> events;
    LARDER_RETURN_IF_ERROR(member_.wait_formed(kRanksPatience));
    LARDER_RETURN_IF_ERROR(member_.take(0, true, kRanksPatience, events));
    begin_ = real_clock().now() + std::chrono::milliseconds(20);
    wait_until(begin_);  // that plan has gone to all
    const ranks::RankTraffic before = member_.traffic();
    LARDER_RETURN_IF_ERROR(o_.pending[0] == 0 ? run_idle() : run_pending());
    const ranks::RankTraffic after = member_.traffic();
    cost_.bytes = after.bytes_sent - before.bytes_sent;
    for (const ranks::Kind kind : {ranks::Kind::kReports, ranks::Kind::kPlans, ranks::Kind::kAlive}) {
      cost_.messages += after.sent(kind) - before.sent(kind);
    }
    cost_.call_median_us = quantile_of(calls_, 0.5);
    cost_.call_p99_us = quantile_of(calls_, 0.99);
    cost_.agreed_median_us = quantile_of(agreed_, 0.5);
    return Status::ok();
  }
  [[nodiscard]] const RankCost& cost() const { return cost_; }
  // Of a child: until the leader has what it wanted, and ends.
  void wait_for_end() {
    const TimePoint end = real_clock().now() + kRanksPatience;
    while (member_.status().is_ok() && real_clock().now() < end) {
      wait_until(real_clock().now() + std::chrono::milliseconds(5));
    }
  }

 private:
  // Nothing pending: as many steps as there is time for; a call is too short to be timed alone.
  Status run_idle() {
    constexpr std::uint64_t kCalls = 10'000;
    std::vector<AgreedEvent> events;
    for (std::uint64_t i = 0; i < std::max<std::uint64_t>(o_.steps / 20, 1); ++i) {
      const TimePoint start = real_clock().now();
      for (std::uint64_t call = 0; call < kCalls; ++call) {
        LARDER_RETURN_IF_ERROR(member_.take(++step_, false, Nanos(0), events));
      }
      calls_.push_back(microseconds(real_clock().now() - start) / kCalls);
    }
    return Status::ok();
  }

  Status run_pending() {
    const OutcomeBits bits(o_.words, ~std::uint64_t{0});
    std::unordered_map<OpId, TimePoint> reported;
    std::vector<AgreedEvent> events;
    for (std::uint64_t op = 0, i = 0; i < o_.steps; ++i) {
      wait_until(begin_ + i * std::chrono::microseconds(o_.step_us));
      const TimePoint start = real_clock().now();
      for (std::uint32_t k = 0; k < o_.pending[0]; ++k) {
        const Status status = member_.report(OpId(op), bits);
        if (status.code() == StatusCode::kOverloaded) break;  // the others are behind: reported in the next step
        LARDER_RETURN_IF_ERROR(status);
        reported.emplace(OpId(op++), start);
      }
      events.clear();
      LARDER_RETURN_IF_ERROR(member_.take(++step_, true, kRanksPatience, events));
      const TimePoint end = real_clock().now();
      calls_.push_back(microseconds(end - start));
      for (const AgreedEvent& event : events) agreed_.push_back(microseconds(end - reported.at(event.op)));
    }
    return Status::ok();
  }

  void wait_until(TimePoint time) {
    LockGuard guard(mutex_);
    for (TimePoint now = real_clock().now(); now < time; now = real_clock().now()) {
      (void)never_.wait_for(mutex_, time - now);
    }
  }

  const RanksBenchOptions& o_;
  ranks::RankMember& member_;
  TimePoint begin_;
  std::uint64_t step_ = 0;
  std::vector<double> calls_, agreed_;
  RankCost cost_;
  RankedMutex mutex_{LockRank::kServer};
  RankedCondition never_;
};

Result<std::unique_ptr<ranks::TcpRankGroup>> open_benched(const RanksBenchOptions& options) {
  ranks::RankSettings settings;
  settings.rank = options.rank;
  settings.ranks = options.ranks[0];
  settings.forming_limit = kRanksPatience;
  return ranks::TcpRankGroup::open({"127.0.0.1", options.port}, settings, real_clock());
}

int run_child(const RanksBenchOptions& options) {
  auto group = open_benched(options);
  Status status = group.status();
  if (group.is_ok()) {
    BenchedRank rank(options, (*group)->member());
    status = rank.run();
    if (status.is_ok()) {
      std::printf("%s\n", rank.cost().to_line().c_str());
      std::fflush(stdout);
      rank.wait_for_end();
      return 0;
    }
  }
  std::printf("rank %u: %s\n", options.rank, status.message().c_str());
  return 1;
}

std::vector<std::string> child_arguments(const RanksBenchOptions& options, std::uint16_t port, std::uint32_t rank) {
  return {"/proc/self/exe",
          "bench",
          "ranks",
          "--ranks",
          std::to_string(options.ranks[0]),
          "--pending",
          std::to_string(options.pending[0]),
          "--steps",
          std::to_string(options.steps),
          "--step-us",
          std::to_string(options.step_us),
          "--words",
          std::to_string(options.words),
          "--as-rank",
          std::to_string(rank),
          "--port",
          std::to_string(port)};
}

// Of each rank. `options` has one number of ranks and of events.
Result<std::vector<RankCost>> measure_ranks(const RanksBenchOptions& options) {
  auto group = open_benched(options);
  if (!group.is_ok()) return group.status();
  std::vector<std::unique_ptr<ChildProcess>> children;
  for (std::uint32_t rank = 1; rank < options.ranks[0]; ++rank) {
    children.push_back(std::make_unique<ChildProcess>());
    LARDER_RETURN_IF_ERROR(children.back()->start(child_arguments(options, (*group)->port(), rank), ""));
  }
  BenchedRank leader(options, (*group)->member());
  LARDER_RETURN_IF_ERROR(leader.run());
  std::vector<RankCost> costs = {leader.cost()};
  for (const auto& child : children) {
    const Result<std::string> line = child->read_line(kRanksPatience);
    if (!line.is_ok()) return line.status();
    const Result<RankCost> cost = RankCost::from_line(*line);
    if (!cost.is_ok()) return cost.status();
    costs.push_back(*cost);
  }
  return costs;
}

void add_costs(TextTable& table, const RanksBenchOptions& options, const std::vector<RankCost>& costs) {
  double median = 0, p99 = 0, agreed = 0;
  std::uint64_t messages = 0, bytes = 0;
  for (std::size_t rank = 0; rank < costs.size(); ++rank) {
    const RankCost& cost = costs[rank];
    messages += cost.messages;
    bytes += cost.bytes;
    agreed = std::max(agreed, cost.agreed_median_us);
    if (rank == 0) continue;
    median = std::max(median, cost.call_median_us);
    p99 = std::max(p99, cost.call_p99_us);
  }
  const bool is_idle = options.pending[0] == 0;  // many more steps then: `--steps` says nothing of them
  const auto per_step = [&](std::uint64_t count) {
    return is_idle ? std::to_string(count)
                   : fmt::format("{:.1f}", static_cast<double>(count) / static_cast<double>(options.steps));
  };
  const auto us = [](double value) { return fmt::format("{:.3f}", value); };
  table.add_row({std::to_string(options.ranks[0]), std::to_string(options.pending[0]), us(costs[0].call_median_us),
                 us(costs[0].call_p99_us), us(median), us(p99), is_idle ? "-" : fmt::format("{:.0f}", agreed),
                 per_step(messages), per_step(bytes)});
}

}  // namespace

std::string RankCost::to_line() const {
  return fmt::format("{} {} {} {} {}", call_median_us, call_p99_us, agreed_median_us, messages, bytes);
}

Result<RankCost> RankCost::from_line(const std::string& line) {
  RankCost cost;
  std::istringstream in(line);
  in >> cost.call_median_us >> cost.call_p99_us >> cost.agreed_median_us >> cost.messages >> cost.bytes;
  if (in.fail()) return unavailable(line);
  return cost;
}

int run_ranks_bench(const RanksBenchOptions& options) {
  if (options.is_child()) return run_child(options);
  TextTable table({"ranks", "events", "leader us", "p99", "followers us", "p99", "agreed us", "messages", "bytes"});
  for (const std::uint32_t ranks : options.ranks) {
    for (const std::uint32_t pending : options.pending) {
      RanksBenchOptions one = options;
      one.ranks = {ranks};
      one.pending = {pending};
      const Result<std::vector<RankCost>> costs = measure_ranks(one);
      if (!costs.is_ok()) return fail_command("larder bench ranks", costs.status());
      add_costs(table, one, *costs);
    }
  }
  std::printf(
      "Processes on this machine, over TCP; a step each %llu us; outcomes of %u x 64 bits.\n"
      "leader, followers: what a step costs the thread that asks (of followers the slowest, its wait for the plan "
      "included).\nagreed: from a report to the step that applies it. messages, bytes: of all ranks, per step; with no "
      "events in all,\n%llu steps, where those that are left say once a second that a rank is there.\n\n%s",
      static_cast<unsigned long long>(options.step_us), options.words,
      static_cast<unsigned long long>(options.steps / 20 * 10'000), table.text().c_str());
  return 0;
}

int bench_ranks(int argc, char** argv) {
  CLI::App app("What it costs the ranks of a model to agree, as processes on this machine.", "larder bench ranks");
  app.get_formatter()->column_width(34);
  RanksBenchOptions o;
  app.add_option("--ranks", o.ranks, "processes; several: one after the other")
      ->type_name("NUMBERS")
      ->delimiter(',')
      ->check(whole_number(2, 64))
      ->capture_default_str();
  app.add_option("--pending", o.pending, "operations that end in a step, on each rank")
      ->type_name("NUMBERS")
      ->delimiter(',')
      ->check(whole_number(0, 1000))
      ->capture_default_str();
  app.add_option("--steps", o.steps, "of each measurement")
      ->type_name("NUMBER")
      ->check(whole_number(20, 1'000'000))
      ->capture_default_str();
  app.add_option("--step-us", o.step_us, "from one step to the next")
      ->type_name("MICROSECONDS")
      ->check(whole_number(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--words", o.words, "of 64 pages, of an outcome")
      ->type_name("NUMBER")
      ->check(whole_number(0, 65536))
      ->capture_default_str();
  app.add_option("--as-rank", o.rank)->check(whole_number(0, 63))->group("");
  app.add_option("--port", o.port)->check(whole_number(0, 65535))->group("");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  return run_ranks_bench(o);
}

}  // namespace larder
