// SPDX-License-Identifier: Apache-2.0
// `larder bench cache`: options in, table or JSON out.

#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/bench_cache.h"
#include "bench/real_storage_machine.h"
#include "server/command_line.h"
#include "server/json_reader.h"

namespace larder {

int bench_cache(int argc, char** argv) {
  CLI::App app("What each call of the cache costs its thread, with an engine and tiers that take no time.",
               "larder bench cache");
  app.get_formatter()->column_width(34);
  CacheBenchOptions o;
  app.add_option("--model", o.model, "components (all)")
      ->type_name("MODEL")
      ->check(CLI::IsMember({"full", "full+swa", "full+mamba"}));
  app.add_option("--load", o.load, "live requests, a long prompt, a fetch of one, or aborts (all)")
      ->type_name("LOAD")
      ->check(CLI::IsMember({"live", "long", "fetch", "abort"}));
  app.add_option("--tiers", o.tiers, "the lowest tier of live and long: device, host or storage")
      ->type_name("TIER")
      ->check(CLI::IsMember({"device", "host", "storage"}))
      ->capture_default_str();
  app.add_flag("--events", o.has_events, "as for a router that is told of pages that come and go");
  const auto number = [&](const char* flag, auto& value, const char* unit, const char* help, std::uint64_t most) {
    app.add_option(flag, value, help)->type_name(unit)->check(whole_number(1, most))->capture_default_str();
  };
  number("--requests", o.requests, "REQUESTS", "under way at once", 100'000);
  number("--nodes", o.nodes, "NODES", "of the tree", 100'000'000);
  number("--tokens", o.tokens, "TOKENS", "of the long prompt", 100'000'000);
  number("--page-size", o.page_size, "TOKENS", "in a page", 1024);
  number("--repeats", o.repeats, "TIMES", "of each load", 100);
  number("--seed", o.seed, "NUMBER", "of the order of conversations", ~std::uint64_t{0});
  app.add_flag("--json", o.as_json, "print JSON");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  const MachineInfo machine = machine_info(".");
  const Result<CacheBenchResult> result = run_cache_bench(o);
  if (!result.is_ok()) return fail_command("larder bench cache", result.status());
  if (o.as_json) {
    std::printf("%s\n", dump_json(cache_bench_json(o, machine, *result), 2).c_str());
  } else {
    std::printf("%s\n%s", cache_bench_header(o, machine).c_str(), cache_bench_table(*result).c_str());
  }
  return 0;
}

}  // namespace larder
