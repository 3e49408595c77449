// SPDX-License-Identifier: Apache-2.0
// `larder`: one executable, a handful of subcommands.

#include <malloc.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/nearest_word.h"
#include "bench/plan.h"
#include "bench/replay.h"
#include "cli/commands.h"
#include "server/version.h"

namespace larder {
namespace {

constexpr const char* kHelp =
    "Larder: a three-tier prefix cache for LLM inference, with a reference engine and server.\n"
    "\n"
    "usage: larder COMMAND [OPTIONS]\n"
    "\n"
    "  serve            serve a model over HTTP (SGLang's API)\n"
    "  proxy            before llama-server: hybrid and sliding-window GGUF models that remember\n"
    "  bench NAME       measure: multiturn (through HTTP), llama, storage, cache, ... (larder bench)\n"
    "  stat             the state of each tier, pool and backend of a running server\n"
    "  attach, detach   the storage of running servers, SGLang's too: all of them, or none\n"
    "  store COMMAND    look into file stores: ls, stat, verify, fsck, export, import, clear, forget\n"
    "  conformance      check a storage backend, also one from a shared library, against the port's contract\n"
    "  metadata-server  the page index of shared 3FS files, over HTTP (SGLang's protocol, and our own)\n"
    "  explain          why does a prompt hit what it hits? Asks a running server\n"
    "  plan             what it costs to keep prefixes of a model; a trace against sizes of the tiers\n"
    "  replay           a recorded trace through the cache, in simulated time: what would it hit?\n"
    "  sim              the whole cache in a simulated world, from a seed: faults, crashes, operators\n"
    "  quickstart       conversations, a flush and a restart, beside the ideal: in one command\n"
    "  version          print the version\n"
    "  help [COMMAND]   this text, or a command's options\n"
    "\n"
    "examples:\n"
    "  larder quickstart\n"
    "  larder serve --model gdn-tiny --hicache-storage-backend file \\\n"
    "      --hicache-storage-backend-extra-config '{\"directory\": \"/var/tmp/larder\"}'\n"
    "  larder bench multiturn --url http://127.0.0.1:30000 --num-rounds 6\n"
    "  larder explain --text 'Once upon a time'\n";

struct Command {
  const char* name;
  int (*run)(int argc, char** argv);
  bool is_server = false;  // what it prints is no result: whoever read its first line may be gone
};
constexpr Command kCommands[] = {
    {"serve", serve_command, true},
    {"proxy", proxy_command, true},
    {"metadata-server", metadata_server_command, true},
    {"bench", bench_command},
    {"stat", stat_command},
    {"store", store_command},
    {"conformance", conformance_command},
    {"explain", explain_command},
    {"quickstart", quickstart_command},
    {"plan", plan_command},
    {"replay", replay_command},
    {"sim", sim_command},
    {"attach", attach_command},
    {"detach", detach_command},
};

int unknown_command(std::string_view name) {
  std::vector<std::string_view> known = {"version", "help"};
  for (const Command& command : kCommands) known.emplace_back(command.name);
  std::fprintf(stderr, "larder: unknown command '%.*s'%s; larder help lists the commands\n",
               static_cast<int>(name.size()), name.data(), did_you_mean(name, known).c_str());
  return 2;
}

// Each connection is a descriptor, and so is each file: servers soon have more than the usual 1024.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

// The exit code of a command that ended with `code`: a result that nobody can read is none.
int with_output(int code) {
  errno = 0;
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (is_written) return code;
  // errno is 0 where a write failed before this one, and nothing was left to write.
  const std::string why = errno != 0 ? std::generic_category().message(errno) : "part of it is lost";
  std::fprintf(stderr, "larder: cannot write standard output: %s\n", why.c_str());
  return code == 0 ? 1 : code;
}

int run(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name.empty()) {
    std::fputs(kHelp, stderr);
    return 2;
  }
  if (name == "version" || name == "--version") {
    std::printf("larder %.*s\n", static_cast<int>(kLarderVersion.size()), kLarderVersion.data());
    return with_output(0);
  }
  const bool is_help = name == "help" || name == "--help" || name == "-h";
  if (is_help && argc < 3) {
    std::fputs(kHelp, stdout);
    return with_output(0);
  }
  std::string help = "--help";
  char* help_arguments[] = {argv[is_help ? 2 : 1], help.data(), nullptr};
  const std::string_view wanted = is_help ? argv[2] : argv[1];
  for (const Command& command : kCommands) {
    if (wanted != command.name) continue;
    const int code = is_help ? command.run(2, help_arguments) : command.run(argc - 1, argv + 1);
    return command.is_server && !is_help ? code : with_output(code);
  }
  return unknown_command(wanted);
}

}  // namespace

}  // namespace larder

int main(int argc, char** argv) {
  // Large blocks, such as bodies of requests, go back to the system when they are freed. Without this, glibc keeps them
  // once it has seen some.
  (void)::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  larder::raise_descriptor_limit();
  try {
    return larder::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "larder: %s\n", error.what());
    return 1;
  }
}
