// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without libFuzzer: the files of its corpus, then mutations of them from a seed.
//
//   larder_fuzz_replay TARGET [--mutations N] [--seed S] [FILE or FOLDER]...
//   larder_fuzz_replay --list
//   larder_fuzz_replay --write-seeds FOLDER    makes the seeds of fuzz/corpus (fuzz/replay_seeds.h)
//   larder_fuzz_replay --check-seeds FOLDER    1, and a line each: seeds that are not as they would be made
//
// The inputs run in a child process, and the one at work lies in memory that the parent shares: however the child dies
// (a failed check, a sanitizer, a signal, an input that takes longer than a minute), the parent says which input it was
// and writes it to TARGET.crash in the working directory, to be replayed as a FILE.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/file_system.h"
#include "fuzz/fuzz_input.h"
#include "fuzz/replay_mutator.h"
#include "fuzz/replay_seeds.h"

using FuzzTarget = int (*)(const std::uint8_t*, std::size_t);
// One line LARDER_FUZZ_TARGET(name) for each fuzz/<name>_fuzz.cc; cmake writes it.
#define LARDER_FUZZ_TARGET(name) extern "C" int fuzz_##name(const std::uint8_t* data, std::size_t size);
#include "fuzz_targets.inc"
#undef LARDER_FUZZ_TARGET

namespace larder::fuzz {
namespace {

constexpr unsigned kSecondsPerInput = 60;

// Fails on what a mutation soon makes of an empty corpus: proof that a failure is seen (test
// fuzz_replay_sees_failures).
int fuzz_broken(const std::uint8_t* data, std::size_t size) {
  fuzz_check(size < 12 || data[0] < 0xc0, "the broken target breaks");
  return 0;
}

const std::map<std::string_view, FuzzTarget>& targets() {
  static const std::map<std::string_view, FuzzTarget> kTargets = {
      {"broken", &fuzz_broken},
#define LARDER_FUZZ_TARGET(name) {#name, &::fuzz_##name},
#include "fuzz_targets.inc"
#undef LARDER_FUZZ_TARGET
  };
  return kTargets;
}

// In memory that parent and child share.
struct AtWork {
  std::uint64_t inputs = 0;  // begun
  char name[512] = {};
  std::size_t size = 0;
  std::uint8_t bytes[kMaxInputBytes] = {};
};

struct Arguments {
  std::string target;
  std::uint64_t mutations = 0, seed = 1;
  std::vector<std::string> paths;
};

int usage() {
  std::fprintf(stderr,
               "usage: larder_fuzz_replay TARGET [--mutations N] [--seed S] [FILE or FOLDER]...\n"
               "       larder_fuzz_replay --list\n"
               "       larder_fuzz_replay --write-seeds FOLDER\n"
               "       larder_fuzz_replay --check-seeds FOLDER\n");
  return 2;
}

bool parse_number(std::string_view text, std::uint64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

bool parse(int argc, char** argv, Arguments& out) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool is_mutations = word == "--mutations";
    if (is_mutations || word == "--seed") {
      if (++i == argc || !parse_number(argv[i], is_mutations ? out.mutations : out.seed)) return false;
    } else if (out.target.empty()) {
      out.target = word;
    } else {
      out.paths.emplace_back(word);
    }
  }
  return targets().contains(out.target);
}

struct CorpusFile {
  std::string path;
  Bytes bytes;
};

Status read_file(const std::string& path, std::vector<CorpusFile>& out) {
  Result<std::unique_ptr<File>> file = real_file_system().open(path, {});
  if (!file.is_ok()) return file.status();
  const Result<std::uint64_t> size = (*file)->size_bytes();
  if (!size.is_ok()) return size.status();
  if (*size > kMaxInputBytes) return invalid_argument(path + ": an input has at most 64 KiB");
  Bytes bytes(static_cast<std::size_t>(*size));
  LARDER_RETURN_IF_ERROR(read_exactly(**file, std::as_writable_bytes(std::span(bytes)), 0));
  out.push_back({path, std::move(bytes)});
  return Status::ok();
}

Status read_path(const std::string& path, std::vector<CorpusFile>& out) {
  FileSystem& files = real_file_system();
  const Result<FileInfo> info = files.stat(path);
  if (!info.is_ok()) return info.status();
  if (!info->is_directory) return read_file(path, out);
  const Result<std::vector<std::string>> names = files.list(path);
  if (!names.is_ok()) return names.status();
  for (const std::string& name : *names) LARDER_RETURN_IF_ERROR(read_file(join_path(path, name), out));
  return Status::ok();
}

void run_one(FuzzTarget target, const Bytes& input, const std::string& name, AtWork& at_work) {
  ++at_work.inputs;
  std::snprintf(at_work.name, sizeof at_work.name, "%s", name.c_str());
  at_work.size = input.size();
  if (!input.empty()) std::memcpy(at_work.bytes, input.data(), input.size());
  ::alarm(kSecondsPerInput);
  // A block of exactly this size: a sanitizer sees the first byte read behind it.
  const Bytes exact(input);
  (void)target(exact.data(), exact.size());
}

[[noreturn]] void run_all(const Arguments& arguments, const std::vector<CorpusFile>& corpus, AtWork& at_work) {
  const FuzzTarget target = targets().at(arguments.target);
  std::vector<Bytes> inputs;
  for (const CorpusFile& file : corpus) {
    run_one(target, file.bytes, "file " + file.path, at_work);
    inputs.push_back(file.bytes);
  }
  Mutator mutator(inputs, arguments.seed);
  for (std::uint64_t i = 0; i < arguments.mutations; ++i) {
    run_one(target, mutator.next(), "mutation " + std::to_string(i) + " of seed " + std::to_string(arguments.seed),
            at_work);
  }
  inputs.clear();
  std::exit(0);  // a leak sanitizer looks now
}

void report_failure(const Arguments& arguments, const AtWork& at_work, int state) {
  const std::string path = arguments.target + ".crash";
  std::fprintf(stderr, "%s: failed at %s (%s %d)\n", arguments.target.c_str(), at_work.name,
               WIFSIGNALED(state) ? "signal" : "exit", WIFSIGNALED(state) ? WTERMSIG(state) : WEXITSTATUS(state));
  const std::span<const std::uint8_t> input(at_work.bytes, at_work.size);
  Result<std::unique_ptr<File>> file = real_file_system().open(path, {.write = true, .create = true, .truncate = true});
  const Status status = file.is_ok() ? write_fully(**file, std::as_bytes(input), 0) : file.status();
  if (status.is_ok()) {
    std::fprintf(stderr, "the input is in %s; again: larder_fuzz_replay %s %s\n", path.c_str(),
                 arguments.target.c_str(), path.c_str());
  } else {
    std::fprintf(stderr, "the input (%s) cannot be kept: %s\n",
                 hex_encode(input.first(std::min<std::size_t>(input.size(), 512))).c_str(), status.to_string().c_str());
  }
}

int fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 2;
}

int run(const Arguments& arguments) {
  std::vector<CorpusFile> corpus;
  for (const std::string& path : arguments.paths) {
    const Status status = read_path(path, corpus);
    if (!status.is_ok()) return fail(status);
  }
  void* const shared = ::mmap(nullptr, sizeof(AtWork), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    std::fprintf(stderr, "no shared memory: %s\n", std::strerror(errno));
    return 2;
  }
  AtWork& at_work = *new (shared) AtWork;
  const pid_t child = ::fork();
  if (child == 0) run_all(arguments, corpus, at_work);
  int state = 0;
  while (child > 0 && ::waitpid(child, &state, 0) < 0 && errno == EINTR) {}
  if (child < 0) {
    std::fprintf(stderr, "no child process: %s\n", std::strerror(errno));
    return 2;
  }
  if (state != 0) {
    report_failure(arguments, at_work, state);
    return 1;
  }
  std::printf("%s: %llu inputs\n", arguments.target.c_str(), static_cast<unsigned long long>(at_work.inputs));
  return at_work.inputs == 0 ? 2 : 0;  // a test that ran nothing must not pass
}

int make_seeds(const std::string& folder) {
  const Status status = write_seeds(folder);
  return status.is_ok() ? 0 : fail(status);
}

int check_seeds(const std::string& folder) {
  const Result<std::vector<std::string>> strange = strange_seeds(folder);
  if (!strange.is_ok()) return fail(strange.status());
  for (const std::string& line : *strange) std::fprintf(stderr, "%s\n", line.c_str());
  if (!strange->empty()) std::fprintf(stderr, "write them anew: larder_fuzz_replay --write-seeds %s\n", folder.c_str());
  return strange->empty() ? 0 : 1;
}

}  // namespace
}  // namespace larder::fuzz

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--list") {
    for (const auto& [name, target] : larder::fuzz::targets()) std::printf("%s\n", std::string(name).c_str());
    return 0;
  }
  if (argc == 3 && std::string_view(argv[1]) == "--write-seeds") return larder::fuzz::make_seeds(argv[2]);
  if (argc == 3 && std::string_view(argv[1]) == "--check-seeds") return larder::fuzz::check_seeds(argv[2]);
  larder::fuzz::Arguments arguments;
  return larder::fuzz::parse(argc, argv, arguments) ? larder::fuzz::run(arguments) : larder::fuzz::usage();
}
