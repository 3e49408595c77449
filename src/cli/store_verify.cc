// SPDX-License-Identifier: Apache-2.0
// `larder store verify` and `larder store fsck`: is what a store holds right?
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "cli/real_store_owner.h"
#include "cli/store.h"
#include "server/text_table.h"
#include "storage/file/store_check.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;
using file_store::CheckReport;
using file_store::Finding;
using file_store::StoreReport;
using file_store::VerifyReport;

// Stretches between the records of unsealed segments where none is.
std::uint64_t unfinished_gaps(const StoreReport& report) {
  std::uint64_t gaps = 0;
  for (const file_store::SegmentReport& segment : report.segments) gaps += segment.scan.unsynced_gaps;
  return gaps;
}

Json verify_json(const StoreReport& report, const VerifyReport& verified) {
  Json damaged = Json::array();
  for (const file_store::DamagedPage& page : verified.damaged) {
    Json entry = page_json(report, report.pages[page.page]);
    entry["problem"] = page.status.message();
    damaged.push_back(std::move(entry));
  }
  return {{"pages", verified.pages},
          {"bytes", verified.bytes},
          {"unfinished", verified.unfinished},
          {"vanished", verified.vanished},
          {"damaged", std::move(damaged)},
          {"unreadable_segments", problems_json(report)},
          {"unfinished_gaps", unfinished_gaps(report)}};
}

void print_verified(const StoreReport& report, const VerifyReport& verified) {
  for (const file_store::SegmentReport& segment : report.segments) {
    const Status problem = segment.problem();
    if (!problem.is_ok()) std::printf("damaged: %s\n", problem.message().c_str());
  }
  for (const file_store::DamagedPage& damaged : verified.damaged) {
    const file_store::InspectedPage& page = report.pages[damaged.page];
    std::printf("damaged: page %s of pool %s, namespace %s (%s): %s\n", page.page.key.hex().c_str(),
                std::string(pool_name(page.page.identity.pool)).c_str(),
                short_hex(page.page.identity.namespace_digest).c_str(),
                std::string(file_store::page_state_name(page.state)).c_str(), damaged.status.message().c_str());
  }
  std::printf("%s, %s: right\n", counted_text(verified.pages, "page").c_str(), bytes_text(verified.bytes).c_str());
  if (verified.unfinished > 0) {
    std::printf("%s at the end of an open segment: not written yet, or torn by a crash\n",
                counted_text(verified.unfinished, "page").c_str());
  }
  if (const std::uint64_t gaps = unfinished_gaps(report); gaps > 0) {
    std::printf("%s between the records of open segments: not written yet, or torn by a crash\n",
                counted_text(gaps, "gap").c_str());
  }
  if (verified.vanished > 0) {
    std::printf("%s went away meanwhile: a server evicts or cleans\n", counted_text(verified.vanished, "page").c_str());
  }
  if (!verified.damaged.empty()) {
    std::printf("damaged: %s; a server treats such as misses. larder store fsck --repair removes them\n",
                counted_text(verified.damaged.size(), "page").c_str());
  }
}

int run_verify(const StoreArguments& arguments) {
  const Result<StoreReport> report = read_store(arguments);
  if (!report.is_ok()) return store_failure("verify", report.status());
  VerifyReport verified;
  {
    ProgressBar bar("verify");
    verified = file_store::verify_pages(real_file_system(), *report, bar.sink());
  }
  if (arguments.as_json) {
    print_json(verify_json(*report, verified));
  } else {
    print_verified(*report, verified);
  }
  const bool is_right = verified.damaged.empty() &&
                        std::all_of(report->segments.begin(), report->segments.end(),
                                    [](const file_store::SegmentReport& segment) { return segment.problem().is_ok(); });
  return is_right ? kStoreDone : kStoreDamage;
}

Json check_json(const CheckReport& report) {
  Json findings = Json::array();
  for (const Finding& finding : report.findings) {
    findings.push_back({{"kind", file_store::finding_kind_name(finding.kind)},
                        {"path", finding.path},
                        {"what", finding.what},
                        {"remedy", finding.remedy},
                        {"is_damage", finding.is_damage},
                        {"is_repairable", finding.is_repairable},
                        {"is_repaired", finding.is_repaired}});
  }
  return {{"segments", report.segments},
          {"pages", report.pages},
          {"bytes", report.bytes},
          {"removed_pages", report.removed_pages},
          {"removed_groups", report.removed_groups},
          {"findings", std::move(findings)}};
}

void print_check(const CheckReport& report, bool repair) {
  bool can_repair = false;
  for (const Finding& finding : report.findings) {
    const char* word = finding.is_repaired ? "repaired" : finding.is_damage ? "damaged" : "untidy";
    const bool has_path = finding.what.find(finding.path) != std::string::npos;
    std::printf("%s: %s%s%s\n    %s: %s\n", word, has_path ? "" : finding.path.c_str(), has_path ? "" : ": ",
                finding.what.c_str(),
                finding.is_repaired     ? "done"
                : finding.is_repairable ? "--repair would"
                                        : "by hand",
                finding.remedy.c_str());
    can_repair = can_repair || (finding.is_repairable && !finding.is_repaired);
  }
  std::printf("%s; %s, %s: right\n", counted_text(report.segments, "segment").c_str(),
              counted_text(report.pages, "page").c_str(), bytes_text(report.bytes).c_str());
  if (report.removed_pages > 0) {
    std::printf("removed %s in %s\n", counted_text(report.removed_pages, "page").c_str(),
                counted_text(report.removed_groups, "damaged group").c_str());
  }
  if (report.findings.empty()) std::printf("nothing wrong\n");
  if (can_repair && !repair) std::printf("larder store fsck --repair mends what it can\n");
}

}  // namespace

int store_verify(int argc, char** argv) {
  CLI::App app("Reads every page of a file store and checks its length and checksum.", "larder store verify");
  StoreArguments arguments;
  add_store_arguments(app, arguments, kBesideServer);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  return run_verify(arguments);
}

int store_fsck(int argc, char** argv) {
  CLI::App app("Checks every page and every structure of a file store, and mends what can be mended.",
               "larder store fsck");
  StoreArguments arguments;
  file_store::CheckOptions options;
  add_store_arguments(app, arguments, kNeedsStore);
  app.add_flag("--repair", options.repair,
               "mend: cut torn tails, write missing footers and headers, remove groups with damaged pages");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  if (options.repair) {
    if (const Status owner = check_store_owner(arguments.directories); !owner.is_ok())
      return store_failure("fsck", owner);
  }
  Result<CheckReport> report = CheckReport{};
  {
    ProgressBar bar("fsck");
    options.progress = bar.sink();
    report = file_store::check_store(real_file_system(), real_clock(), arguments.directories, options);
  }
  if (!report.is_ok()) return store_failure("fsck", report.status());
  if (arguments.as_json) {
    print_json(check_json(*report));
  } else {
    print_check(*report, options.repair);
  }
  return report->has_damage() ? kStoreDamage : kStoreDone;
}

}  // namespace larder
