// SPDX-License-Identifier: Apache-2.0
// `larder bench NAME`: the benchmarks that this build has.

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "base/nearest_word.h"
#include "bench/bench_cache.h"
#include "bench/bench_llama.h"
#include "bench/bench_metadata.h"
#include "bench/bench_metadata_http.h"
#include "bench/bench_multiturn.h"
#include "bench/bench_ranks.h"
#include "bench/bench_storage.h"
#include "cli/commands.h"
#if __has_include("bench/bench_tree.h")
#include "bench/bench_tree.h"
#define LARDER_HAVE_BENCH_TREE 1
#endif
#if __has_include("bench/bench_transfer.h")
#include "bench/bench_transfer.h"
#define LARDER_HAVE_BENCH_TRANSFER 1
#endif

namespace larder {
namespace {

struct Bench {
  const char* name;
  const char* help;
  int (*run)(int argc, char** argv);
};

// `--http` makes it a benchmark of its own, with options of its own.
int bench_metadata_or_http(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--http") return bench_metadata_http(argc, argv);
  }
  return bench_metadata(argc, argv);
}

constexpr Bench kBenches[] = {
    {"cache", "what each call of the cache costs its thread: many requests, a large tree, long prompts", bench_cache},
    {"llama", "llama-server alone beside larder proxy before it: reused tokens and times (needs a GGUF)", bench_llama},
    {"metadata", "the page-index service: in this process, with and without a journal; --http: the server",
     bench_metadata_or_http},
    {"multiturn", "conversations through HTTP: hit rate and time to first token (needs a running server)",
     bench_multiturn},
    {"ranks", "what it costs the ranks of a model to agree, as processes on this machine", bench_ranks},
    {"storage", "set, get and exists of a storage backend, beside fio or another backend", bench_storage},
#ifdef LARDER_HAVE_BENCH_TREE
    {"tree", "match, insert, evict and lock of the radix tree, in this process", bench_tree},
#endif
#ifdef LARDER_HAVE_BENCH_TRANSFER
    {"transfer", "copies between device and host, per layout [MEBIBYTES]", bench_transfer},
#endif
};

void print_help(std::FILE* out) {
  std::fputs("usage: larder bench NAME [OPTIONS]\n\n", out);
  for (const Bench& bench : kBenches) std::fprintf(out, "  %-12s %s\n", bench.name, bench.help);
  std::fputs("\nlarder bench NAME --help lists the options of one.\n", out);
}

}  // namespace

int bench_command(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name.empty() || name == "--help" || name == "-h") {
    print_help(name.empty() ? stderr : stdout);
    return name.empty() ? 2 : 0;
  }
  std::vector<std::string_view> known;
  for (const Bench& bench : kBenches) {
    if (name == bench.name) return bench.run(argc - 1, argv + 1);
    known.emplace_back(bench.name);
  }
  std::fprintf(stderr, "larder bench: unknown benchmark '%s'%s\n", argv[1], did_you_mean(name, known).c_str());
  print_help(stderr);
  return 2;
}

}  // namespace larder
