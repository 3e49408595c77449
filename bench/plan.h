// SPDX-License-Identifier: Apache-2.0
// `larder plan`: what it costs to keep prefixes of a model, and, with a trace, what each size of each tier would bring.
//
// Threads: one call at a time; with a trace it starts threads of its own and joins them.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "bench/plan_model.h"
#include "bench/plan_sweep.h"

namespace larder {

struct PlanOptions {
  PlanSource source;
  std::string kv_dtype;  // a name; empty: the model's
  // 0: 64, with a trace the tokens of its blocks; or the least multiple that the model takes
  std::uint32_t page_size = 0;
  PlanSweepOptions sweep;  // sweep.trace empty: the model alone
  bool as_json = false;
  std::string csv;                 // empty: nowhere
  std::vector<std::string> plots;  // .svg, .png
};

struct PlanOutput {
  std::string text;  // to be printed
  Status written;    // of the files that `options` names: the first that failed
};

// kInvalidArgument, kNotFound: the options, or what they name.
[[nodiscard]] Result<PlanOutput> run_plan(const PlanOptions& options);

// argv[0] is the command's name. 0: done; 1: failed; 2: usage.
int plan_command(int argc, char** argv);

}  // namespace larder
