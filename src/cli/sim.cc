// SPDX-License-Identifier: Apache-2.0
// `larder sim`: the production cache in simulated worlds, each of which follows from a seed.
#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <cstdio>
#include <span>
#include <string>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/probe.h"
#include "cli/commands.h"
#include "engine/text_file.h"
#include "server/command_line.h"
#include "sim/world/real_last_words.h"
#include "sim/world/simulate.h"
#include "sim/world/small_models.h"

namespace larder {
namespace {

// Of every option that counts or names worlds: their sums fit.
constexpr std::uint64_t kMostNumber = std::uint64_t{1} << 62;

struct SimOptions {
  std::uint64_t seeds = 200, first = 1;
  std::size_t events = 600;
  std::uint64_t check_every = 64;
  std::string scenario, write_to;
  sim::WorldWishes wishes;
  bool tell = false, probes = false, keeps_long = false, every_fault = false;
};

struct Progress {
  TimePoint begin = real_clock().now(), last = begin;
  sim::SimTotals totals;
};

double seconds_since(TimePoint begin) { return std::chrono::duration<double>(real_clock().now() - begin).count(); }

void print_totals(const sim::SimTotals& t, double seconds) {
  const auto share = [&](std::uint64_t tokens) {
    return t.prompt_tokens == 0 ? 0.0 : 100.0 * static_cast<double>(tokens) / static_cast<double>(t.prompt_tokens);
  };
  fmt::print("{} worlds, {} events in {:.1f} s: {:.0f} events per second\n", t.stories, t.events, seconds,
             static_cast<double>(t.events) / seconds);
  fmt::print("requests: {} begun, {} finished, {} aborted, {} cut off by a restart or a crash\n", t.begun, t.finished,
             t.aborted, t.dropped);
  fmt::print(
      "of {} prompt tokens, found on device {:.1f} %, host {:.1f} %, storage {:.1f} %; {} restored pages compared\n",
      t.prompt_tokens, share(t.device_tokens), share(t.host_tokens), share(t.storage_tokens), t.checked_pages);
  fmt::print(
      "{} requests retracted, {} of them for others; {} steps ran on when their requests let go, {} ended before "
      "they ran, {} of them before what they read was there\n",
      t.retracts, t.starved, t.steps_left, t.late_steps, t.late_loads);
  fmt::print("{} forks, {} steps given up, {} requests refused for want of a place, {} groups of ranks fell apart\n",
             t.forks, t.cancelled, t.refused, t.parted);
  fmt::print("connectors: {} loads, {} saves\n", t.loads, t.saves);
  fmt::print("{} crashes, {} restarts, {} attaches, {} attaches that failed\n", t.crashes, t.restarts, t.attaches,
             t.failed_attaches);
}

// Which rare branches were reached. How many never were.
std::size_t print_probes() {
  std::size_t missing = 0;
  for (std::size_t i = 0; i < kProbeCount; ++i) {
    const std::uint64_t count = probe_counts[i].load(std::memory_order_relaxed);
    fmt::print("{:>12}  {}\n", count == 0 ? "never" : std::to_string(count), kProbeWords[i]);
    missing += count == 0 ? 1 : 0;
  }
  return missing;
}

int report_failure(const sim::Story& story, const sim::SimOutcome& outcome, const SimOptions& options) {
  fmt::print(stderr, "\nFAILED after {} events: {}\n", outcome.took, outcome.failure);
  if (options.keeps_long) return 1;
  const sim::Story small = sim::shrink(story, options.check_every);
  const sim::SimOutcome again = sim::run_story(small, options.check_every);
  const std::string path =
      options.write_to.empty() ? fmt::format("sim-failure-{}.txt", story.world.seed) : options.write_to;
  OpenOptions fresh;
  fresh.write = fresh.create = fresh.truncate = true;
  Result<std::unique_ptr<File>> file = real_file_system().open(path, fresh);
  const std::string text = "# " + again.failure + "\n" + sim::to_text(small);
  Status written = file.status();
  if (written.is_ok()) written = write_fully(**file, std::as_bytes(std::span(text)), 0);
  if (!written.is_ok()) fmt::print(stderr, "it could not be written: {}\n{}", written.message(), text);
  fmt::print(stderr, "shrunk to {} events: {}\nreplay: larder sim --scenario {} --check-every {}\n",
             small.events.size(), again.failure, path, options.check_every);
  return 1;
}

// Every call of each story fails once, in each way. `totals`, `runs`: sums over stories.
int fail_everywhere(const sim::Story& story, const SimOptions& options, sim::SimTotals& totals,
                    std::array<std::uint64_t, sim::kFaultSiteCount>& runs) {
  const sim::EveryFault every = sim::run_every_fault(story, options.check_every);
  totals.add(every.totals);
  for (std::size_t site = 0; site < runs.size(); ++site) runs[site] += every.runs[site];
  if (every.failure.empty()) return 0;
  fmt::print(stderr, "\nseed {}: {}\n", story.world.seed, sim::to_text(story.world));
  return report_failure(every.story, sim::run_story(every.story, options.check_every), options);
}

void print_runs(const std::array<std::uint64_t, sim::kFaultSiteCount>& runs) {
  for (std::size_t site = 0; site < runs.size(); ++site) {
    fmt::print("{:>12}  runs in which one of the {} failed\n", runs[site], sim::kFaultSiteWords[site]);
  }
}

int run_scenario(const SimOptions& options) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;
  const Result<std::string> text = read_text_file(real_file_system(), options.scenario, kMostBytes);
  if (!text.is_ok()) {
    fmt::print(stderr, "larder sim: {}\n", text.status().message());
    return 2;
  }
  const Result<sim::Story> story = sim::parse_story(*text);
  if (!story.is_ok()) {
    fmt::print(stderr, "larder sim: {}: {}\n", options.scenario, story.status().message());
    return 2;
  }
  const TimePoint begin = real_clock().now();
  if (options.every_fault) {
    sim::SimTotals totals;
    std::array<std::uint64_t, sim::kFaultSiteCount> runs{};
    const int failed = fail_everywhere(*story, options, totals, runs);
    if (failed == 0) print_totals(totals, seconds_since(begin)), print_runs(runs);
    return failed;
  }
  if (options.tell) fmt::print("{}", sim::to_text(*story));
  const sim::SimOutcome outcome = sim::run_story(*story, options.check_every);
  print_totals(outcome.totals, seconds_since(begin));
  if (options.probes) (void)print_probes();  // one story need not reach all of them
  if (outcome.failure.empty()) return 0;
  fmt::print(stderr, "FAILED after {} events: {}\n", outcome.took, outcome.failure);
  return 1;
}

sim::Story story_of(std::uint64_t seed, const SimOptions& options) {
  return options.every_fault ? sim::draw_calm_story(seed, options.events, options.wishes)
                             : sim::draw_story(seed, options.events, options.wishes);
}

int run_seeds(const SimOptions& options) {
  Progress progress;
  std::array<std::uint64_t, sim::kFaultSiteCount> runs{};
  sim::LastWords last_words;
  for (std::uint64_t seed = options.first; seed < options.first + options.seeds; ++seed) {
    last_words.set(
        fmt::format("\nlarder sim: the process ended in the world of seed {}, which is not made short\n", seed));
    const sim::Story story = story_of(seed, options);
    if (options.tell) fmt::print("{}", sim::to_text(story));
    if (options.every_fault) {
      if (const int failed = fail_everywhere(story, options, progress.totals, runs); failed != 0) return failed;
      continue;
    }
    const sim::SimOutcome outcome = sim::run_story(story, options.check_every);
    progress.totals.add(outcome.totals);
    if (!outcome.failure.empty()) {
      fmt::print(stderr, "\nseed {}: {}\n", seed, sim::to_text(story.world));
      return report_failure(story, outcome, options);
    }
    if (seconds_since(progress.last) < 5) continue;
    progress.last = real_clock().now();
    fmt::print(stderr, "{} of {} worlds, {:.0f} events per second\n", seed - options.first + 1, options.seeds,
               static_cast<double>(progress.totals.events) / seconds_since(progress.begin));
  }
  print_totals(progress.totals, seconds_since(progress.begin));
  if (options.every_fault) print_runs(runs);
  if (!options.probes) return 0;
  const std::size_t missing = print_probes();
  if (missing == 0) return 0;
  fmt::print(stderr, "{} probes were never reached: run more worlds, or find out what keeps them away\n", missing);
  return 1;
}

}  // namespace

int sim_command(int argc, char** argv) {
  SimOptions options;
  CLI::App app{
      "The production cache, storage and metadata service in simulated worlds: time, disks, copies, ranks, clients\n"
      "and operators in one thread, each world from a seed. Every restored byte is compared; slots are counted."};
  app.name("larder sim");
  const auto number = [&](const char* flag, auto& value, const char* unit, const char* help, std::uint64_t least) {
    app.add_option(flag, value, help)->type_name(unit)->check(whole_number(least, kMostNumber))->capture_default_str();
  };
  const auto text = [&](const char* flag, std::string& value, const char* unit, const char* help) {
    app.add_option(flag, value, help)->type_name(unit);
  };
  number("--seeds", options.seeds, "COUNT", "worlds to run", 1);
  number("--first", options.first, "SEED", "seed of the first one", 0);
  number("--events", options.events, "COUNT", "events of each world", 1);
  number("--check-every", options.check_every, "EVENTS", "between two full comparisons of tree and pools", 1);
  text("--scenario", options.scenario, "FILE",
       "run this story instead of seeds; of the other options only --check-every, --every-fault, --probes and --tell\n"
       "count (with --every-fault those of a failure, too)");
  text("--model", options.wishes.model, "NAME",
       "in every world this model: full, full_swa, full_mamba, full_swa_mamba, full_sidecar, or a tiny preset");
  text("--storage", options.wishes.storage, "NAME", "in every world this storage: memory, file or hf3fs");
  text("--door", options.wishes.door, "NAME",
       "in every world this door: cache or connector (the engine keeps its own memory)");
  text("--write-failure", options.write_to, "FILE", "where a shrunk failing story goes (sim-failure-SEED.txt)");
  app.add_flag("--every-fault", options.every_fault,
               "run each story once for each call it makes of disks, copies, storage, metadata service and executors,\n"
               "with that call failing; for short stories without other trouble: --seeds 20 --events 120");
  app.add_flag("--probes", options.probes,
               "print which rare branches were reached; 1 if one never was (with --scenario: not). It takes some\n"
               "10,000 worlds of all models and storages: --seeds 10000 --events 1000");
  app.add_flag("--no-shrink", options.keeps_long, "do not make a failing story short");
  app.add_flag("--tell", options.tell, "print the stories");
  app.footer(
      "\nExit codes: 0 every rule held; 1 one did not, or with --probes a branch was never reached; 2 wrong "
      "arguments,\n"
      "or no such story.");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  sim::WorldSpec wanted;
  if (!options.wishes.model.empty()) wanted.model = options.wishes.model;
  if (!options.wishes.storage.empty()) wanted.storage = options.wishes.storage;
  if (!options.wishes.door.empty()) wanted.door = options.wishes.door;
  if (const Status fits = sim::check_world(wanted); !fits.is_ok()) {
    fmt::print(stderr, "larder sim: {}\n", fits.message());
    return 2;
  }
  set_log_level(options.tell ? LogLevel::kInfo : LogLevel::kOff);  // injected faults make thousands of warnings
  return options.scenario.empty() ? run_seeds(options) : run_scenario(options);
}

}  // namespace larder
