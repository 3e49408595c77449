// SPDX-License-Identifier: Apache-2.0
// `larder plan`: what it costs to keep prefixes of a model, before anything runs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/file_system.h"
#include "cli/commands.h"
#include "engine/llama/gguf_geometry.h"
#include "engine/llama/model_plan.h"
#include "server/command_line.h"
#include "server/text_table.h"

namespace larder {
namespace {

using llama::GgufGeometry;
using llama::ModelPlan;

constexpr std::uint64_t kGib = std::uint64_t{1} << 30;
// Distances between restore points: of a busy chat, of long documents, of what servers take today.
constexpr std::uint64_t kDistances[] = {512, 2048, 8192};

struct PlanOptions {
  std::string gguf, keys = "f16", values = "f16";
  std::uint32_t page_size = 64;
  bool as_json = false;
};

std::string tokens_text(std::uint64_t tokens) {
  return tokens == std::numeric_limits<std::uint64_t>::max() ? "any number" : count_text(tokens);
}

void print_plan(const GgufGeometry& model, const ModelPlan& plan, const llama::GgufModel& file) {
  std::printf("%s, %s: %u layers, context of %s tokens, %zu %s, identity %s\n\n",
              model.name.empty() ? "a model without a name" : model.name.c_str(), model.architecture.c_str(),
              model.layers, count_text(model.context_length).c_str(), file.paths.size(),
              file.paths.size() == 1 ? "file" : "files", file.identity.hex().substr(0, 16).c_str());
  TextTable pools({"what is kept", "layers", "bytes", "when"});
  const llama::BlobGeometry& blob = model.blob;
  if (blob.full) {
    pools.add_row({fmt::format("page of {} tokens", plan.page_size), count_text(blob.full->keys.size()),
                   bytes_text(plan.page_bytes), "always"});
  }
  if (blob.window) {
    pools.add_row({fmt::format("window of {} tokens", count_text(blob.window_tokens)),
                   count_text(blob.window->keys.size()), bytes_text(plan.window_bytes), "restore point"});
  }
  if (blob.recurrent) {
    pools.add_row({"recurrent state", count_text(blob.recurrent->state.size()), bytes_text(plan.checkpoint_bytes),
                   "restore point"});
  }
  std::printf("%s\n", pools.text().c_str());
  if (plan.restore_point_tokens() > 0) {
    std::printf("a restore point weighs as much as the pages of %s tokens\n\n",
                count_text(plan.restore_point_tokens()).c_str());
  }
  TextTable sizes({"a restore point every", "tokens in 1 GiB", "in 16 GiB", "in 100 GiB", "bytes of 32,768 tokens"});
  for (const std::uint64_t distance : kDistances) {
    const bool is_any = plan.restore_point_bytes() == 0;  // of a dense model each page is one
    sizes.add_row({is_any ? "page" : count_text(distance) + " tokens", tokens_text(plan.tokens_in(kGib, distance)),
                   tokens_text(plan.tokens_in(16 * kGib, distance)), tokens_text(plan.tokens_in(100 * kGib, distance)),
                   bytes_text(plan.prefix_bytes(32768, 32768 / distance))});
    if (is_any) break;
  }
  std::printf("%s", sizes.text().c_str());
}

nlohmann::ordered_json plan_json(const GgufGeometry& model, const ModelPlan& plan, const llama::GgufModel& file) {
  return {{"name", model.name},
          {"architecture", model.architecture},
          {"layers", model.layers},
          {"context_length", model.context_length},
          {"identity", file.identity.hex()},
          {"page_size", plan.page_size},
          {"page_bytes", plan.page_bytes},
          {"window_tokens", model.blob.window_tokens},
          {"window_bytes", plan.window_bytes},
          {"checkpoint_bytes", plan.checkpoint_bytes},
          {"restore_point_tokens", plan.restore_point_tokens()}};
}

Status plan(const PlanOptions& o) {
  const Result<llama::GgufModel> file = llama::read_gguf(real_file_system(), o.gguf);
  if (!file.is_ok()) return file.status();
  const Result<llama::CacheType> keys = llama::cache_type(o.keys), values = llama::cache_type(o.values);
  if (!keys.is_ok()) return keys.status();
  if (!values.is_ok()) return values.status();
  const Result<GgufGeometry> model = llama::gguf_geometry(file->first, *keys, *values);
  if (!model.is_ok()) return model.status();
  const Result<llama::ModelPools> pools = llama::model_pools(model->blob, {.page_size = o.page_size});
  if (!pools.is_ok()) return pools.status();
  const ModelPlan found = llama::plan_of(*pools);
  if (o.as_json) {
    std::printf("%s\n", plan_json(*model, found, *file).dump(2).c_str());
  } else {
    print_plan(*model, found, *file);
  }
  return Status::ok();
}

}  // namespace

int plan_command(int argc, char** argv) {
  PlanOptions options;
  CLI::App app{"What it costs to keep prefixes of a model: bytes of a page and of a restore point, tokens in a GiB.",
               "larder plan"};
  app.add_option("--gguf", options.gguf, "the model's file (of several the first); its head is read, its data not")
      ->required()
      ->type_name("FILE");
  app.add_option("--page-size", options.page_size, "in a page")
      ->check(whole_number(1, llama::kPageTokensMax))
      ->capture_default_str()
      ->type_name("TOKENS");
  app.add_option("--cache-type-k", options.keys, "of keys, as llama-server has it")
      ->capture_default_str()
      ->type_name("TYPE");
  app.add_option("--cache-type-v", options.values, "of values")->capture_default_str()->type_name("TYPE");
  app.add_flag("--json", options.as_json, "print JSON");
  app.footer(
      "\nA hybrid model resumes only where all of its layers can: at a restore point, which has a state of the\n"
      "recurrent layers and the window of the sliding ones beside the pages before it.\n"
      "Exit codes: 0 done; 1 the file is no such model; 2 wrong arguments.");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  const Status done = plan(options);
  if (done.is_ok()) return 0;
  std::fprintf(stderr, "larder plan: %s\n", done.message().c_str());
  return 1;
}

}  // namespace larder
