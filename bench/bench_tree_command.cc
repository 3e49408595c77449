// SPDX-License-Identifier: Apache-2.0
// `larder bench tree`: options in.

#include <CLI/CLI.hpp>

#include "bench/bench_tree.h"
#include "server/command_line.h"

namespace larder {

int bench_tree(int argc, char** argv) {
  CLI::App app("Match, extend, evict and lock of the radix tree, in this process.", "larder bench tree");
  app.get_formatter()->column_width(34);
  TreeBenchOptions o;
  app.add_option("--sequences", o.sequences, "prompts that the tree gets")
      ->type_name("NUMBER")
      ->check(whole_number(1, 100'000'000))
      ->capture_default_str();
  app.add_option("--shape", o.shape, "components (all)")
      ->type_name("SHAPE")
      ->check(CLI::IsMember({"full", "full+swa", "full+mamba"}));
  app.add_option("--page-size", o.page_size, "tokens (1 and 64)")
      ->type_name("TOKENS")
      ->check(CLI::IsMember({1, 2, 4, 8, 16, 32, 64}));
  app.add_option("--seed", o.seed, "of prompts and order")
      ->type_name("NUMBER")
      ->check(whole_number())
      ->capture_default_str();
  app.add_flag("--json", o.as_json, "print JSON");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  run_tree_bench(o);
  return 0;
}

}  // namespace larder
