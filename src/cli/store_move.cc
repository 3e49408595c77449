// SPDX-License-Identifier: Apache-2.0
// `larder store export`, `import`, `clear` and `forget`: pages out of a store, into one, and away.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "base/inbox.h"
#include "base/plain_path.h"
#include "cli/real_store_owner.h"
#include "cli/store.h"
#include "server/text_table.h"
#include "storage/file/store_archive.h"
#include "storage/file/volume_set.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;
using file_store::ExportResult;
using file_store::ImportResult;
using file_store::StoreReport;

struct MoveOptions {
  StoreArguments store;
  std::string archive;
  std::vector<std::string> extra;
  bool overwrite = false, dry_run = false;
};

std::string temporary_of(const MoveOptions& o) { return o.archive + ".tmp"; }

// The archive, or what a broken export leaves of it, would be a strange file there: the store would not open any more.
Status check_archive_place(const MoveOptions& o) {
  const std::filesystem::path folder = plain_path(parent_path(temporary_of(o)));
  for (const std::string& name : o.store.directories) {
    const std::filesystem::path directory = plain_path(name);
    if (!lies_in(folder, directory)) continue;
    return invalid_argument(o.archive + " is in the store's own directory " + directory.string() +
                            ", which takes no other files: name one elsewhere, such as " + directory.string() + ".arc");
  }
  return Status::ok();
}

// Written beside its place and renamed when it is whole.
Result<ExportResult> write_archive(const MoveOptions& o, const StoreReport& report,
                                   const file_store::ExportPlan& plan) {
  FileSystem& files = real_file_system();
  if (!o.overwrite && files.stat(o.archive).is_ok()) {
    return conflict(o.archive + ": is there already; --overwrite replaces it");
  }
  const std::string temporary = temporary_of(o);
  Result<std::unique_ptr<File>> file = files.open(temporary, {.write = true, .create = true, .truncate = true});
  if (!file.is_ok()) return file.status();
  Result<ExportResult> result = internal_error("not run");
  {
    ProgressBar bar("export");
    const auto now = static_cast<std::uint64_t>(real_clock().wall_unix_seconds());
    result = file_store::export_archive(files, report, plan, now, **file, bar.sink());
  }
  const Status renamed = result.is_ok() ? files.rename(temporary, o.archive) : result.status();
  if (!renamed.is_ok()) {
    (void)files.remove(temporary);
    return renamed;
  }
  LARDER_RETURN_IF_ERROR(files.sync_dir(parent_path(o.archive)));
  return result;
}

int run_export(const MoveOptions& o) {
  if (const Status place = check_archive_place(o); !place.is_ok()) return store_failure("export", place);
  const Result<file_store::PageSelection> selection = selection_of(o.store);
  if (!selection.is_ok()) return store_failure("export", selection.status());
  const Result<StoreReport> report = read_store(o.store);
  if (!report.is_ok()) return store_failure("export", report.status());
  const file_store::ExportPlan plan = file_store::plan_export(*report, *selection);
  const Result<ExportResult> result = write_archive(o, *report, plan);
  if (!result.is_ok()) return store_failure("export", result.status());
  if (o.store.as_json) {
    print_json({{"archive", o.archive},
                {"groups", result->groups},
                {"pages", result->pages},
                {"payload_bytes", result->payload_bytes},
                {"archive_bytes", result->archive_bytes},
                {"left_out_groups", result->left_out_groups},
                {"unreadable_segments", problems_json(*report)},
                {"first_problem", result->first_problem.message()}});
  } else {
    std::printf("%s: %s in %s, %s\n", o.archive.c_str(), counted_text(result->pages, "page").c_str(),
                counted_text(result->groups, "group").c_str(), bytes_text(result->archive_bytes).c_str());
  }
  const bool has_problems = print_problems("export", *report);
  if (result->left_out_groups == 0) return has_problems ? kStoreDamage : kStoreDone;
  std::fprintf(stderr, "larder store export: %s left out; the first: %s\n",
               counted_text(result->left_out_groups, "group").c_str(), result->first_problem.message().c_str());
  return kStoreDamage;
}

// Imports and closes: then everything is on disk.
Result<ImportResult> read_archive(const MoveOptions& o, const file_store::ImportOptions& options) {
  Result<std::unique_ptr<File>> file = real_file_system().open(o.archive, {});
  if (!file.is_ok()) return file.status();
  if (o.dry_run) return file_store::import_archive(**file, nullptr, options);
  const Result<file_store::ArchiveReader> reader = file_store::ArchiveReader::open(**file);  // before a store is made
  if (!reader.is_ok()) return reader.status();
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<OpenedBackend> opened, OpenedBackend::open(o.store.directories, o.extra));
  Result<ImportResult> result = file_store::import_archive(**file, &opened->backend(), options);
  const Status closed = opened->close();
  if (result.is_ok() && !closed.is_ok()) return closed;
  return result;
}

// As OpenedBackend::open() takes them.
bool may_evict(const std::vector<std::string>& extra) {
  const auto is_given = [&](std::string_view start) {
    return std::any_of(extra.begin(), extra.end(), [&](const std::string& each) { return each.starts_with(start); });
  };
  return is_given("evict=") ? is_given("evict=on") : is_given("max_size=");
}

int run_import(const MoveOptions& o) {
  const Result<file_store::PageSelection> selection = selection_of(o.store);
  if (!selection.is_ok()) return store_failure("import", selection.status());
  Result<ImportResult> result = internal_error("not run");
  {
    ProgressBar bar("import");
    result = read_archive(
        o, {.selection = *selection, .dry_run = o.dry_run, .evicts = may_evict(o.extra), .progress = bar.sink()});
  }
  if (!result.is_ok()) return store_failure("import", result.status());
  if (o.store.as_json) {
    print_json({{"groups", result->groups},
                {"pages", result->pages},
                {"payload_bytes", result->payload_bytes},
                {"damaged_groups", result->damaged_groups},
                {"refused_groups", result->refused_groups},
                {"unselected_groups", result->unselected_groups},
                {"evicted_pages", result->evicted_pages},
                {"first_problem", result->first_problem.message()},
                {"end", result->end.to_string()}});
  } else {
    std::printf("%s: %s in %s, %s%s\n", o.archive.c_str(), counted_text(result->pages, "page").c_str(),
                counted_text(result->groups, "group").c_str(), bytes_text(result->payload_bytes).c_str(),
                o.dry_run ? ": right; nothing was written" : "");
  }
  if (!result->first_problem.is_ok()) {
    std::fprintf(stderr, "larder store import: %s damaged in the archive, %s refused by the store; the first: %s\n",
                 counted_text(result->damaged_groups, "group").c_str(), count_text(result->refused_groups).c_str(),
                 result->first_problem.message().c_str());
  }
  if (!result->end.is_ok()) {
    std::fprintf(stderr, "larder store import: stopped: %s. What came before is imported\n",
                 result->end.message().c_str());
  }
  const bool is_full = result->end.code() == StatusCode::kOverloaded || result->end.code() == StatusCode::kUnsupported;
  if (is_full && !may_evict(o.extra)) {
    std::fprintf(stderr,
                 "Make room on the store's disks and import again: pages that are there already are kept. Or let what "
                 "was used longest ago go: --extra evict=on\n");
  }
  if (result->evicted_pages > 0) {
    std::fprintf(stderr, "larder store import: %s evicted to make room, perhaps some that had just been imported\n",
                 counted_text(result->evicted_pages, "page").c_str());
  }
  const bool is_all = result->first_problem.is_ok() && result->end.is_ok() && result->evicted_pages == 0;
  return is_all ? kStoreDone : kStoreDamage;
}

// The namespace to clear; null: all.
Result<std::shared_ptr<const StoreScope>> scope_of(const StoreArguments& arguments, const StoreReport& report) {
  if (arguments.space.empty()) return std::shared_ptr<const StoreScope>();
  LARDER_ASSIGN_OR_RETURN(const std::string prefix, file_store::parse_digest_prefix("--namespace", arguments.space));
  LARDER_ASSIGN_OR_RETURN(const Digest256 digest, prefix.size() == 64 ? Digest256::from_hex(prefix)
                                                                      : file_store::find_namespace(report, prefix));
  auto scope = std::make_shared<StoreScope>();
  scope->namespace_digest = digest;
  return std::shared_ptr<const StoreScope>(scope);
}

Status clear_through(StorageBackend& backend, std::shared_ptr<const StoreScope> scope) {
  Inbox<Status> answers(1);
  LARDER_ASSIGN_OR_RETURN(auto ticket, answers.reserve());
  const auto shared = std::make_shared<Inbox<Status>::Ticket>(std::move(ticket));
  LARDER_RETURN_IF_ERROR(backend.submit_clear(
      std::move(scope), [shared](Status status) { Inbox<Status>::push(std::move(*shared), std::move(status)); }));
  std::vector<Status> got;
  while (answers.drain(got) == 0) (void)answers.wait_for(std::chrono::seconds(1));
  return got.front();
}

int run_clear(const StoreArguments& arguments) {
  const Result<StoreReport> report = read_store(arguments);  // so that no store is made where none is
  if (!report.is_ok()) return store_failure("clear", report.status());
  const Result<std::shared_ptr<const StoreScope>> scope = scope_of(arguments, *report);
  if (!scope.is_ok()) return store_failure("clear", scope.status());
  Result<std::unique_ptr<OpenedBackend>> opened = OpenedBackend::open(arguments.directories, {});
  if (!opened.is_ok()) return store_failure("clear", opened.status());
  const std::uint64_t before = (*opened)->backend().stats().pages;
  Status status = clear_through((*opened)->backend(), *scope);
  const std::uint64_t after = (*opened)->backend().stats().pages;
  const Status closed = (*opened)->close();
  if (status.is_ok()) status = closed;
  if (!status.is_ok()) return store_failure("clear", status);
  const std::string name = *scope ? (*scope)->namespace_digest.hex() : "all";
  if (arguments.as_json) {
    print_json({{"namespace", name}, {"cleared_pages", before - std::min(before, after)}, {"pages", after}});
  } else {
    std::printf("namespace %s: %s cleared, %s left in the store\n", name.c_str(),
                counted_text(before - std::min(before, after), "page").c_str(), count_text(after).c_str());
  }
  return kStoreDone;
}

int run_forget(const StoreArguments& arguments, const std::vector<unsigned>& volumes) {
  const auto left = file_store::forget_volumes(real_file_system(), arguments.directories, volumes);
  if (!left.is_ok()) return store_failure("forget", left.status());
  Json rest = Json::array();
  for (const file_store::VolumeMember& member : *left) rest.push_back(member.volume);
  if (arguments.as_json) {
    print_json({{"forgotten", volumes}, {"volumes", std::move(rest)}});
  } else {
    std::printf("forgotten; what is left: %s. A disk of a forgotten one is refused until it is emptied\n",
                counted_text(left->size(), "volume").c_str());
  }
  return kStoreDone;
}

}  // namespace

int store_export(int argc, char** argv) {
  CLI::App app("Writes pages of a file store to an archive: one portable, checksummed file.", "larder store export");
  MoveOptions o;
  app.add_option("ARCHIVE", o.archive, "the file to write")->type_name("")->required();
  add_store_arguments(app, o.store,
                      "Pages that a selected one hangs on (those before it in its chain) are written, too.\n"
                      "May run beside a server that has the store open: pages that go away meanwhile are left out.");
  add_selection(app, o.store, true);
  app.add_flag("--overwrite", o.overwrite, "replace the file if it is there");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  return run_export(o);
}

int store_import(int argc, char** argv) {
  CLI::App app("Reads pages from an archive into a file store; pages that are there already are kept.",
               "larder store import");
  MoveOptions o;
  app.add_option("ARCHIVE", o.archive, "the file to read")->type_name("")->required();
  const std::string about = fmt::format(
      "{}\nIt evicts nothing, and stops when the disk is full, unless it is given --extra max_size=... or evict=on.",
      kNeedsStore);
  add_store_arguments(app, o.store, about.c_str());
  add_selection(app, o.store, true);
  app.add_option("--extra", o.extra, "option of the file backend, as max_size=200G (may be given again)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_flag("--dry-run", o.dry_run, "only check the archive");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  if (const Status owner = check_store_owner(o.store.directories); !owner.is_ok() && !o.dry_run) {
    return store_failure("import", owner);
  }
  return run_import(o);
}

int store_clear(int argc, char** argv) {
  CLI::App app("Drops the pages of one namespace, or all pages, of a file store.", "larder store clear");
  StoreArguments arguments;
  add_store_arguments(app, arguments, kNeedsStore);
  app.add_option("--namespace", arguments.space, "only this namespace: its first hex digits, or all 64")
      ->type_name("HEX");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  if (const Status owner = check_store_owner(arguments.directories); !owner.is_ok())
    return store_failure("clear", owner);
  return run_clear(arguments);
}

int store_forget(int argc, char** argv) {
  CLI::App app("Drops volumes that are missing from a file store, with their pages, for good.", "larder store forget");
  StoreArguments arguments;
  std::vector<unsigned> volumes;
  add_store_arguments(app, arguments, kNeedsStore);
  app.add_option("--volume", volumes, "the volume's number, as the store says it (may be given again)")
      ->type_name("NUMBER")
      ->check(whole_number())
      ->allow_extra_args(false)
      ->required();
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  if (const Status owner = check_store_owner(arguments.directories); !owner.is_ok())
    return store_failure("forget", owner);
  return run_forget(arguments, volumes);
}

}  // namespace larder
