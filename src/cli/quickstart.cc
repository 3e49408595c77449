// SPDX-License-Identifier: Apache-2.0
// `larder quickstart`: the main job in one command.
//
//   1  conversations through HTTP, with little device memory: the rest lives on the host and in files
//   2  the device and host tiers are flushed; each client's last prompt comes again: from storage
//   3  the server stops and starts again on the same files; the same prompts once more: from storage
//   4  the same conversations with the cache off: every output token must be the same
//
// It fails (exit code 1) unless the hit rate is the ideal of page granularity exactly, phases 2 and 3 hit at least what
// round 11 hit, from storage, and all outputs are identical.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "base/thread_pool.h"
#include "bench/bench_multiturn.h"
#include "cli/commands.h"
#include "cli/quickstart_server.h"
#include "cli/real_signals.h"
#include "server/command_line.h"
#include "server/text_table.h"

namespace larder {
namespace {

constexpr std::uint32_t kPageSize = 64;
constexpr std::uint32_t kRunning = 4;

struct QuickstartOptions {
  MultiturnOptions load;
  std::string model = "gdn-tiny";
  std::uint32_t states = 16;  // device slots for recurrent states
  double host_ratio = 2;
  bool control = false;
  bool keep = false;
};

void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

// Removes the directory at every end, also when a signal ends the process.
class Workplace {
 public:
  Workplace(std::string path, bool keep) : path_(std::move(path)), keep_(keep) {}
  ~Workplace() { clean(); }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  void clean() const {
    if (!keep_) remove_directory_tree(path_);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  const std::string path_;
  const bool keep_;
};

class Quickstart {
 public:
  Quickstart(QuickstartOptions options, QuickstartServer& server, std::string directory)
      : options_(std::move(options)), server_(server), directory_(std::move(directory)) {}

  // ok: everything held. kConflict: a promise was broken (said already); others: it could not be carried out.
  Status run_main_job();
  Status run_control();

 private:
  std::vector<std::string> serve_arguments(bool with_cache) const;
  std::string store_directory() const { return directory_ + "/store"; }
  std::uint64_t device_tokens() const;
  void promise(bool held, const std::string& text);
  Status converse(MultiturnResult& out, const std::string& label);
  Status send_last_prompts(MultiturnResult& out, const std::string& label);
  Status print_tiers() const;
  void print_counters() const;
  void check_hit_rate();
  void check_resent();
  Status run_without_cache();
  Status run_control_case(const std::string& flag, const std::string& what);

  QuickstartOptions options_;
  QuickstartServer& server_;
  const std::string directory_;
  MultiturnResult first_, flushed_, restarted_;
  std::vector<std::pair<bool, std::string>> promises_;
};

// A quarter of what all conversations weigh, but at least one whole conversation.
std::uint64_t Quickstart::device_tokens() const {
  const MultiturnOptions& load = options_.load;
  const std::uint64_t one = std::uint64_t{load.num_rounds} * (load.request_length + load.output_length);
  const std::uint64_t tokens = std::max(one * load.num_clients / 4, one + kPageSize);
  return (tokens + kPageSize - 1) / kPageSize * kPageSize;
}

std::vector<std::string> Quickstart::serve_arguments(bool with_cache) const {
  std::vector<std::string> out = {"--model", options_.model, "--page-size", std::to_string(kPageSize)};
  const auto add = [&](const char* name, const std::string& value) {
    out.emplace_back(name);
    out.push_back(value);
  };
  add("--max-running-requests", std::to_string(kRunning));
  add("--max-total-tokens", std::to_string(device_tokens()));
  if (!with_cache) {
    out.emplace_back("--disable-radix-cache");
    return out;
  }
  add("--max-mamba-cache-size", std::to_string(options_.states));
  add("--hicache-ratio", fmt::format("{}", options_.host_ratio));
  add("--hicache-write-policy", "write_through");
  add("--hicache-storage-backend", "file");
  add("--hicache-storage-prefetch-policy", "wait_complete");
  // One page is worth a read here: the default of 256 tokens is for stores with a network in front of them.
  const nlohmann::json extra = {{"directory", store_directory()}, {"prefetch_threshold", kPageSize}};
  add("--hicache-storage-backend-extra-config", extra.dump());
  return out;
}

void Quickstart::promise(bool held, const std::string& text) {
  promises_.emplace_back(held, text);
  say(fmt::format("{} {}", held ? "ok  " : "FAIL", text));
}

Status Quickstart::converse(MultiturnResult& out, const std::string& label) {
  MultiturnOptions load = options_.load;
  load.url = server_.url();
  load.label = label;
  Result<MultiturnResult> result = run_multiturn(load);
  if (!result.is_ok()) return server_.with_log(result.status());
  out = std::move(*result);
  return Status::ok();
}

Status Quickstart::send_last_prompts(MultiturnResult& out, const std::string& label) {
  MultiturnOptions load = options_.load;
  load.url = server_.url();
  load.label = label;
  Result<MultiturnResult> result = run_prompts(load, first_.last_prompts, load.num_rounds - 1);
  if (!result.is_ok()) return server_.with_log(result.status());
  out = std::move(*result);
  return Status::ok();
}

Status Quickstart::print_tiers() const {
  LARDER_ASSIGN_OR_RETURN(const nlohmann::json info, server_.get_json("/server_info"));
  TextTable table({"tier", "component", "slots used", "of", "bytes used", "of"});
  try {
    for (const nlohmann::json& tier : info.at("internal_states").at(0).at("tiers")) {
      const auto number = [&](const char* name) { return tier.at(name).get<std::uint64_t>(); };
      const bool is_bounded = number("capacity") > 0;
      table.add_row({tier.at("tier"), tier.at("component"), count_text(number("slots")),
                     is_bounded ? count_text(number("capacity")) : "", bytes_text(number("bytes")),
                     is_bounded ? bytes_text(number("capacity_bytes")) : ""});
    }
  } catch (const nlohmann::json::exception& error) {
    return corrupt(fmt::format("/server_info has another shape: {}", error.what()));
  }
  say(table.text());
  return Status::ok();
}

// What the cache counted, for a run that missed: without it nobody can tell why.
void Quickstart::print_counters() const {
  const Result<nlohmann::json> info = server_.get_json("/server_info");
  if (!info.is_ok()) return say("   (no counters: " + info.status().message() + ")");
  const nlohmann::json states = info->value("internal_states", nlohmann::json::array());
  if (!states.empty() && states[0].is_object()) say("     cache: " + states[0].value("cache", nlohmann::json()).dump());
}

void Quickstart::check_hit_rate() {
  const RoundSummary all = summarize(first_, -1);
  std::string wrong;
  for (const TurnRecord& turn : first_.turns) {
    if (turn.cached == turn.ideal_cached || !wrong.empty()) continue;
    wrong = fmt::format("; first miss: client {}, round {}: {} of {} ideal tokens, stop {}, TTFT {} ms", turn.client,
                        turn.round, turn.cached, turn.ideal_cached, turn.stop, millis_text(turn.ttft));
  }
  promise(wrong.empty(), fmt::format("hit rate {:.6f}, the ideal of page granularity is {:.6f}{}", all.hit_rate(),
                                     all.ideal_rate(), wrong));
  if (!wrong.empty()) print_counters();
}

void Quickstart::check_resent() {
  const std::uint32_t last = options_.load.num_rounds - 1;
  TextTable table({"client", "prompt tokens", fmt::format("hit in round {}", last), "after flush", "from storage",
                   "TTFT ms", "after restart", "from storage", "TTFT ms"});
  bool flush_held = true, restart_held = true, outputs_held = true;
  for (std::size_t c = 0; c < flushed_.turns.size(); ++c) {
    const TurnRecord& before = first_.turns[first_.turns.size() - flushed_.turns.size() + c];
    const TurnRecord& flush = flushed_.turns[c];
    const TurnRecord& restart = restarted_.turns[c];
    table.add_row({std::to_string(before.client), count_text(before.prompt_tokens), count_text(before.cached),
                   count_text(flush.cached), count_text(flush.storage), millis_text(flush.ttft),
                   count_text(restart.cached), count_text(restart.storage), millis_text(restart.ttft)});
    flush_held = flush_held && flush.storage >= before.cached;
    restart_held = restart_held && restart.storage >= before.cached;
    outputs_held = outputs_held && flush.output == before.output && restart.output == before.output;
  }
  say(table.text());
  promise(flush_held, "after the flush every last prompt hits at least as before, from storage");
  promise(restart_held, "after the restart too");
  promise(outputs_held, "both gave the same output tokens as the first time");
}

Status Quickstart::run_without_cache() {
  say("4  the same conversations with the cache off, for comparison (the slow part) ...");
  MultiturnResult plain;
  LARDER_RETURN_IF_ERROR(server_.start(serve_arguments(false)));
  LARDER_RETURN_IF_ERROR(converse(plain, "cache off"));
  LARDER_RETURN_IF_ERROR(server_.stop());
  const RoundSummary with = summarize(first_, -1), without = summarize(plain, -1);
  say(fmt::format("   {:.1f} s with the cache, {:.1f} s without; mean TTFT {} ms with, {} ms without",
                  first_.wall_seconds, plain.wall_seconds, millis_text(with.ttft_mean),
                  millis_text(without.ttft_mean)));
  const std::string found = first_difference(first_, plain);
  promise(found.empty() && without.cached == 0,
          fmt::format("all {} output tokens are identical to the run with the cache off{}{}",
                      count_text(std::uint64_t{options_.load.output_length} * first_.turns.size()),
                      found.empty() ? "" : ": ", found));
  return Status::ok();
}

Status Quickstart::run_main_job() {
  const MultiturnOptions& load = options_.load;
  say(fmt::format("model {}: {} clients x {} rounds, {} new prompt tokens and {} output tokens a round, page {} tokens",
                  options_.model, load.num_clients, load.num_rounds, load.request_length, load.output_length,
                  kPageSize));
  say(fmt::format("device: {} tokens of KV and {} recurrent states; host: {} x the device's bytes; the rest in files\n",
                  count_text(device_tokens()), options_.states, options_.host_ratio));
  say("1  conversations ...");
  LARDER_RETURN_IF_ERROR(server_.start(serve_arguments(true)));
  LARDER_RETURN_IF_ERROR(converse(first_, "conversations"));
  say(multiturn_table(first_));
  say(multiturn_total_line(first_) + "\n");
  LARDER_RETURN_IF_ERROR(server_.post("/quiesce?timeout=120"));
  LARDER_RETURN_IF_ERROR(print_tiers());
  check_hit_rate();

  say("\n2  flush of device and host, then each client's last prompt again ...");
  LARDER_RETURN_IF_ERROR(server_.post("/flush_cache?timeout=30"));
  LARDER_RETURN_IF_ERROR(send_last_prompts(flushed_, "after flush"));
  say("3  restart of the server on the same files, then the same prompts once more ...");
  LARDER_RETURN_IF_ERROR(server_.stop());
  LARDER_RETURN_IF_ERROR(server_.start(serve_arguments(true)));
  LARDER_RETURN_IF_ERROR(send_last_prompts(restarted_, "after restart"));
  LARDER_RETURN_IF_ERROR(server_.stop());
  check_resent();
  remove_directory_tree(store_directory());

  say("");
  LARDER_RETURN_IF_ERROR(run_without_cache());
  for (const auto& [held, text] : promises_) {
    if (!held) return conflict(text);
  }
  return Status::ok();
}

// The same conversations with one component kept on the device only: what the tiers are worth.
Status Quickstart::run_control_case(const std::string& flag, const std::string& what) {
  std::vector<std::string> arguments = serve_arguments(true);
  arguments.push_back(flag);
  MultiturnResult result;
  LARDER_RETURN_IF_ERROR(server_.start(arguments));
  LARDER_RETURN_IF_ERROR(converse(result, flag));
  LARDER_RETURN_IF_ERROR(server_.stop());
  remove_directory_tree(store_directory());
  const RoundSummary all = summarize(result, -1);
  promise(all.hit_rate() < 0.5, fmt::format("{}: hit rate {:.6f}, the ideal is {:.6f} ({:.1f} s)", what, all.hit_rate(),
                                            all.ideal_rate(), result.wall_seconds));
  return Status::ok();
}

Status Quickstart::run_control() {
  say("control runs: the same conversations, one component kept on the device only; each must hit below 0.5");
  LARDER_RETURN_IF_ERROR(run_control_case("--hicache-state-on-device-only", "recurrent states on the device only"));
  LARDER_RETURN_IF_ERROR(run_control_case("--hicache-kv-on-device-only", "KV on the device only"));
  for (const auto& [held, text] : promises_) {
    if (!held) return conflict(text);
  }
  return Status::ok();
}

int carry_out(const QuickstartOptions& options) {
  // The servers take them over, and would ask for keys that our requests do not bring. No thread is there yet.
  for (const char* key : {"LARDER_API_KEY", "LARDER_ADMIN_API_KEY"}) (void)::unsetenv(key);
  StopSignals signals;  // before any thread that takes signals
  const Result<std::string> executable = own_executable_path();
  const Result<std::string> directory = make_temporary_directory("larder-quickstart-");
  for (const Status& status : {executable.status(), directory.status()}) {
    if (status.is_ok()) continue;
    std::fprintf(stderr, "larder quickstart: %s\n", status.message().c_str());
    return 1;
  }
  const Workplace workplace(*directory, options.keep);
  QuickstartServer server(*executable, workplace.path() + "/server.log");
  std::atomic<bool> is_over{false};
  ThreadPoolExecutor watcher("signals", 1, 1);
  const Status watching = watcher.post([&] {
    const int signal = signals.wait();
    if (is_over.load()) return;
    server.kill_now();
    workplace.clean();
    std::_Exit(128 + signal);
  });
  Quickstart quickstart(options, server, workplace.path());
  Status status = watching;
  if (status.is_ok()) status = options.control ? quickstart.run_control() : quickstart.run_main_job();
  is_over.store(true);
  signals.wake();
  if (options.keep) say("kept: " + workplace.path());
  if (status.is_ok()) {
    say("\nquickstart: everything held");
    return 0;
  }
  std::fflush(stdout);
  std::fprintf(stderr, "\nlarder quickstart: %s: %s\n",
               status.code() == StatusCode::kConflict ? "a promise was broken" : "could not be carried out",
               status.message().c_str());
  return 1;
}

void add_options(CLI::App& app, QuickstartOptions& o) {
  const auto number = [&](const char* flag, std::uint32_t& value, std::uint32_t most, const char* unit,
                          const char* help) {
    app.add_option(flag, value, help)->type_name(unit)->check(whole_number(1, most))->capture_default_str();
  };
  app.add_option("--model", o.model, "a hybrid preset with recurrent layers")->type_name("NAME")->capture_default_str();
  number("--num-clients", o.load.num_clients, kMostConversations, "CLIENTS", "conversations");
  number("--num-rounds", o.load.num_rounds, kMostConversations, "ROUNDS", "turns of each");
  number("--request-length", o.load.request_length, kMostTurnTokens, "TOKENS", "new prompt tokens of a turn");
  number("--output-length", o.load.output_length, kMostTurnTokens, "TOKENS", "tokens of an answer");
  number("--max-mamba-cache-size", o.states, 1'000'000, "STATES", "device slots for recurrent states");
  app.add_option("--hicache-ratio", o.host_ratio, "host bytes / device bytes")
      ->type_name("RATIO")
      ->check(number_in(0.001, 1e6))
      ->capture_default_str();
  app.add_option("--seed", o.load.seed, "of the random prompt tokens")
      ->type_name("NUMBER")
      ->check(whole_number())
      ->capture_default_str();
  app.add_flag("--control", o.control, "instead: the same load with states, then KV, kept on the device only");
  app.add_flag("--keep", o.keep, "keep the temporary directory (files of the storage tier, the server's log)");
}

}  // namespace

int quickstart_command(int argc, char** argv) {
  CLI::App app(
      "Conversations, a flush, a restart, and the same with the cache off: what the three tiers give, beside the\n"
      "ideal. Starts servers of its own; needs no network, and some 50 MB of disk for a moment.",
      "larder quickstart");
  app.get_formatter()->column_width(40);
  QuickstartOptions options;
  options.load.max_parallel = kRunning;
  add_options(app, options);
  app.footer(
      "\nExit codes: 0 everything held; 1 a promise was broken, or a part could not be carried out; 2 wrong "
      "arguments.");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  return carry_out(options);
}

}  // namespace larder
