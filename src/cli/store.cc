// SPDX-License-Identifier: Apache-2.0
// `larder store COMMAND`: looks at, checks and moves file stores.
#include "cli/store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/nearest_word.h"
#include "cli/commands.h"
#include "server/json_reader.h"
#include "server/text_table.h"
#include "storage/factory.h"
#include "storage/file/file_backend.h"
#include "storage/option_text.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr std::size_t kStoreThreads = 4, kStoreQueue = 4096;
constexpr std::size_t kShownDigits = 16;
constexpr const char* kExitCodes =
    "Exit codes: 0 done and nothing wrong; 1 damage was found, or not everything could be done; 2 wrong arguments;\n"
    "3 refused: no store there, in use by another process, another user's (to root), or the disk failed.";

struct StoreCommand {
  const char* name;
  const char* help;
  int (*run)(int argc, char** argv);
};
constexpr StoreCommand kStoreCommands[] = {
    {"ls", "namespaces, pools and pages of a store", store_ls},
    {"stat", "volumes, segments, live and dead pages", store_stat},
    {"verify", "read every page and check its checksum", store_verify},
    {"fsck", "verify, and check every structure; --repair mends", store_fsck},
    {"export", "write pages to an archive", store_export},
    {"import", "read pages from an archive", store_import},
    {"clear", "drop the pages of a namespace, or all", store_clear},
    {"forget", "go on without a volume that is missing, for good", store_forget},
};

void print_store_help(std::FILE* out) {
  std::fputs("usage: larder store COMMAND [FILE] DIRECTORY... [OPTIONS]\n\n", out);
  for (const StoreCommand& command : kStoreCommands) std::fprintf(out, "  %-8s %s\n", command.name, command.help);
  std::fprintf(out,
               "\nA store is one or more directories; name all of them.\n"
               "ls, stat, verify and export may run beside a server; fsck, import, clear and forget need the store.\n\n"
               "%s\n\nlarder store COMMAND --help lists the options of one.\n",
               kExitCodes);
}

}  // namespace

int store_command(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name.empty() || name == "--help" || name == "-h") {
    print_store_help(name.empty() ? stderr : stdout);
    return name.empty() ? kStoreUsage : kStoreDone;
  }
  std::vector<std::string_view> known;
  for (const StoreCommand& command : kStoreCommands) {
    if (name == command.name) return command.run(argc - 1, argv + 1);
    known.emplace_back(command.name);
  }
  std::fprintf(stderr, "larder store: unknown command '%s'%s\n", argv[1], did_you_mean(name, known).c_str());
  print_store_help(stderr);
  return kStoreUsage;
}

void add_store_arguments(CLI::App& app, StoreArguments& arguments, const char* about) {
  app.get_formatter()->column_width(34);
  app.add_option("DIRECTORY", arguments.directories, "the store: all its directories")->type_name("")->required();
  app.add_flag("--json", arguments.as_json, "print JSON");
  app.footer(fmt::format("\n{}\n\n{}", about, kExitCodes));
}

void add_selection(CLI::App& app, StoreArguments& arguments, bool with_keys) {
  app.add_option("--namespace", arguments.space, "only this namespace: its first hex digits")->type_name("HEX");
  app.add_option("--pool", arguments.pools, "only this pool (may be given again): kv, mamba, swa, ...")
      ->type_name("POOL")
      ->allow_extra_args(false);
  if (!with_keys) return;
  app.add_option("--key", arguments.keys, "only this page (may be given again): first hex digits of its key")
      ->type_name("HEX")
      ->allow_extra_args(false);
}

Result<file_store::PageSelection> selection_of(const StoreArguments& arguments) {
  file_store::PageSelection selection;
  if (!arguments.space.empty()) {
    LARDER_ASSIGN_OR_RETURN(selection.namespace_prefix,
                            file_store::parse_digest_prefix("--namespace", arguments.space));
  }
  for (const std::string& text : arguments.pools) {
    const std::optional<PoolName> pool = parse_pool_number(text);
    if (!pool) {
      std::string names;
      for (std::size_t i = 0; i < kPoolNameCount; ++i) {
        names += (i == 0 ? "" : ", ") + std::string(pool_name(static_cast<PoolName>(i)));
      }
      return invalid_argument("--pool: '" + text + "' is none of " + names + ", pool_" +
                              std::to_string(kFirstOpenPool) + " ... pool_" + std::to_string(kPoolNumberCount - 1));
    }
    selection.pools.push_back(*pool);
  }
  for (const std::string& text : arguments.keys) {
    LARDER_ASSIGN_OR_RETURN(std::string prefix, file_store::parse_digest_prefix("--key", text));
    selection.key_prefixes.push_back(std::move(prefix));
  }
  return selection;
}

Result<file_store::StoreReport> read_store(const StoreArguments& arguments) {
  Result<file_store::StoreReport> report = file_store::inspect_store(real_file_system(), arguments.directories, {});
  if (report.is_ok()) LARDER_RETURN_IF_ERROR(file_store::check_volumes(*report));
  return report;
}

Json problems_json(const file_store::StoreReport& report) {
  Json out = Json::array();
  for (const file_store::SegmentReport& segment : report.segments) {
    const Status problem = segment.problem();
    if (!problem.is_ok()) out.push_back({{"file", segment.path}, {"problem", problem.message()}});
  }
  return out;
}

bool print_problems(const char* command, const file_store::StoreReport& report) {
  bool any = false;
  for (const file_store::SegmentReport& segment : report.segments) {
    const Status problem = segment.problem();
    if (problem.is_ok()) continue;
    any = true;
    std::fprintf(stderr, "larder store %s: pages are missing here: %s\n", command, problem.message().c_str());
  }
  return any;
}

int store_failure(const char* command, const Status& status) {
  std::fprintf(stderr, "larder store %s: %s\n", command, status.message().c_str());
  if (status.code() == StatusCode::kInvalidArgument) return kStoreUsage;
  return status.code() == StatusCode::kCorrupt ? kStoreDamage : kStoreRefused;
}

ProgressBar::ProgressBar(std::string label) : label_(std::move(label)), is_shown_(::isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (is_drawn_) std::fputs("\r\x1b[K", stderr);
}

void ProgressBar::show(std::uint64_t done, std::uint64_t total) {
  if (!is_shown_) return;
  const TimePoint now = real_clock().now();
  if (is_drawn_ && now - last_ < kRedraw) return;
  last_ = now;
  is_drawn_ = true;
  constexpr std::size_t kWidth = 30;
  const double share = total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total);
  const auto filled = std::min(kWidth, static_cast<std::size_t>(share * kWidth));
  std::fprintf(stderr, "\r%s [%s%s] %3.0f%%  %s of %s\x1b[K", label_.c_str(), std::string(filled, '#').c_str(),
               std::string(kWidth - filled, '.').c_str(), share * 100, bytes_text(done).c_str(),
               bytes_text(total).c_str());
  std::fflush(stderr);
}

Result<std::unique_ptr<OpenedBackend>> OpenedBackend::open(const std::vector<std::string>& directories,
                                                           const std::vector<std::string>& extra) {
  BackendOptions options;
  LARDER_RETURN_IF_ERROR(add_options("--extra", extra, options));
  if (!options.contains("max_size")) options.insert({{"max_size", "unlimited"}, {"evict", "off"}});  // unless told to
  std::string joined;
  for (const std::string& directory : directories) {
    if (directory.find(':') != std::string::npos) {
      return invalid_argument(directory + ": a directory with ':' in its name cannot be opened as a store");
    }
    joined += (joined.empty() ? "" : ":") + directory;
  }
  options["directory"] = joined;
  BackendFactory factory;
  LARDER_RETURN_IF_ERROR(register_file_backend(factory));
  std::unique_ptr<OpenedBackend> out(new OpenedBackend());
  out->threads_ = std::make_unique<ThreadPoolExecutor>("store", kStoreThreads, kStoreQueue);
  BackendEnvironment environment;
  environment.files = &real_file_system();
  environment.clock = &real_clock();
  environment.executor = out->threads_.get();
  LARDER_ASSIGN_OR_RETURN(out->backend_, factory.create("file", options, environment));
  return out;
}

OpenedBackend::~OpenedBackend() { backend_.reset(); }

Status OpenedBackend::close() { return backend_->close(std::chrono::hours(1)); }

std::string short_hex(const Digest256& digest) { return digest.hex().substr(0, kShownDigits); }

Json page_json(const file_store::StoreReport& report, const file_store::InspectedPage& page) {
  const file_store::ListedPage& p = page.page;
  return {{"key", p.key.hex()},
          {"parent", p.parent.is_zero() ? Json(nullptr) : Json(p.parent.hex())},
          {"namespace", p.identity.namespace_digest.hex()},
          {"pool", pool_name(p.identity.pool)},
          {"layout", p.identity.layout_fingerprint.hex()},
          {"bytes", p.location.payload_bytes},
          {"generation", p.location.generation},
          {"state", file_store::page_state_name(page.state)},
          {"file", report.path_of(page)},
          {"offset", p.location.offset}};
}

void print_json(const Json& document) { std::printf("%s\n", dump_json(document, 2).c_str()); }

}  // namespace larder
