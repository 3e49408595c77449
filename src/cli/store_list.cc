// SPDX-License-Identifier: Apache-2.0
// `larder store ls` and `larder store stat`: what a store holds.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "cli/store.h"
#include "server/text_table.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;
using file_store::InspectedPage;
using file_store::PageState;
using file_store::StoreReport;

constexpr std::size_t kStates = 3;

struct Tally {
  std::array<std::uint64_t, kStates> pages{}, bytes{};
  void add(const InspectedPage& page) {
    const auto state = static_cast<std::size_t>(page.state);
    ++pages[state];
    bytes[state] += page.page.location.payload_bytes;
  }
  [[nodiscard]] std::uint64_t live_pages() const { return pages[0]; }
  [[nodiscard]] std::uint64_t live_bytes() const { return bytes[0]; }
  [[nodiscard]] std::uint64_t dead_pages() const { return pages[1] + pages[2]; }
  [[nodiscard]] std::uint64_t dead_bytes() const { return bytes[1] + bytes[2]; }
};

Json tally_json(const Tally& tally) {
  Json out;
  for (std::size_t s = 0; s < kStates; ++s) {
    const std::string name(file_store::page_state_name(static_cast<PageState>(s)));
    out[name + "_pages"] = tally.pages[s];
    out[name + "_bytes"] = tally.bytes[s];
  }
  return out;
}

struct ListOptions {
  StoreArguments store;
  bool with_pages = false, with_dead = false;
  std::uint64_t limit = 100;
};

using PoolId = std::tuple<Digest256, PoolName, Digest256>;

std::vector<const InspectedPage*> chosen_pages(const StoreReport& report, const file_store::PageSelection& selection,
                                               bool with_dead) {
  std::vector<const InspectedPage*> out;
  for (const InspectedPage& page : report.pages) {
    if (!with_dead && page.state != PageState::kLive) continue;
    if (file_store::is_selected(selection, page.page)) out.push_back(&page);
  }
  return out;
}

std::map<PoolId, Tally> by_pool(const std::vector<const InspectedPage*>& pages) {
  std::map<PoolId, Tally> out;
  for (const InspectedPage* page : pages) {
    const file_store::PageIdentity& identity = page->page.identity;
    out[{identity.namespace_digest, identity.pool, identity.layout_fingerprint}].add(*page);
  }
  return out;
}

void print_pools(const std::map<PoolId, Tally>& pools) {
  TextTable table({"namespace", "pool", "layout", "pages", "bytes", "dead pages"});
  for (const auto& [id, tally] : pools) {
    const auto& [space, pool, layout] = id;
    table.add_row({short_hex(space), std::string(pool_name(pool)), short_hex(layout), count_text(tally.live_pages()),
                   bytes_text(tally.live_bytes()), count_text(tally.dead_pages())});
  }
  std::printf("%s", table.text().c_str());
}

void print_pages(const StoreReport& report, const std::vector<const InspectedPage*>& pages, std::size_t shown) {
  TextTable table({"key", "parent", "namespace", "pool", "bytes", "generation", "state", "segment", "offset"});
  for (std::size_t i = 0; i < shown; ++i) {
    const file_store::ListedPage& page = pages[i]->page;
    table.add_row({short_hex(page.key), page.parent.is_zero() ? "-" : short_hex(page.parent),
                   short_hex(page.identity.namespace_digest), std::string(pool_name(page.identity.pool)),
                   std::to_string(page.location.payload_bytes), std::to_string(page.location.generation),
                   std::string(file_store::page_state_name(pages[i]->state)),
                   std::to_string(report.segments[pages[i]->segment].number), std::to_string(page.location.offset)});
  }
  std::printf("\n%s", table.text().c_str());
  if (shown < pages.size()) {
    std::printf("... and %s more (--limit 0 shows all)\n", count_text(pages.size() - shown).c_str());
  }
}

int run_ls(const ListOptions& o) {
  const Result<file_store::PageSelection> selection = selection_of(o.store);
  if (!selection.is_ok()) return store_failure("ls", selection.status());
  const Result<StoreReport> report = read_store(o.store);
  if (!report.is_ok()) return store_failure("ls", report.status());
  const auto pages = chosen_pages(*report, *selection, o.with_dead);
  const auto pools = by_pool(o.with_dead ? pages : chosen_pages(*report, *selection, true));
  const std::size_t shown = o.limit == 0 ? pages.size() : std::min<std::size_t>(o.limit, pages.size());
  if (!o.store.as_json) {
    print_pools(pools);
    if (o.with_pages) print_pages(*report, pages, shown);
    return print_problems("ls", *report) ? kStoreDamage : kStoreDone;
  }
  Json out = {{"store_id", hex_encode(report->store)},
              {"unreadable_segments", problems_json(*report)},
              {"pools", Json::array()}};
  for (const auto& [id, tally] : pools) {
    const auto& [space, pool, layout] = id;
    Json entry = {{"namespace", space.hex()}, {"pool", pool_name(pool)}, {"layout", layout.hex()}};
    entry.update(tally_json(tally));
    out["pools"].push_back(std::move(entry));
  }
  if (o.with_pages) {
    out["pages"] = Json::array();
    for (std::size_t i = 0; i < shown; ++i) out["pages"].push_back(page_json(*report, *pages[i]));
    out["pages_left_out"] = pages.size() - shown;
  }
  print_json(out);
  return print_problems("ls", *report) ? kStoreDamage : kStoreDone;
}

// A volume's segments and pages in numbers.
struct VolumeTally {
  std::uint64_t bytes = 0, sealed = 0, open = 0, unreadable = 0;
  Tally pages;
};

std::vector<VolumeTally> by_volume(const StoreReport& report) {
  std::vector<VolumeTally> out(report.volumes.size());
  for (const file_store::SegmentReport& segment : report.segments) {
    VolumeTally& tally = out[segment.volume];
    if (!segment.status.is_ok() && !segment.is_unwritten) {
      ++tally.unreadable;
      continue;
    }
    ++(segment.scan.has_footer ? tally.sealed : tally.open);
    tally.bytes += segment.scan.file_bytes;
  }
  for (const InspectedPage& page : report.pages) out[report.segments[page.segment].volume].pages.add(page);
  return out;
}

Json segment_json(const StoreReport& report, const file_store::SegmentReport& segment) {
  Tally tally;
  for (std::uint32_t i = segment.first_page; i < segment.first_page + segment.pages; ++i) tally.add(report.pages[i]);
  Json out = {{"segment", segment.number},
              {"file", segment.path},
              {"status", segment.status.to_string()},
              {"bytes", segment.scan.file_bytes},
              {"is_sealed", segment.scan.has_footer},
              {"records", segment.scan.records},
              {"corrupt_groups", segment.damaged_groups()}};
  out.update(tally_json(tally));
  return out;
}

Json stat_json(const StoreReport& report, const std::vector<VolumeTally>& tallies, bool with_segments) {
  Json out = {{"store_id", hex_encode(report.store)}, {"volumes", Json::array()}, {"cleared", Json::array()}};
  for (std::size_t v = 0; v < tallies.size(); ++v) {
    const VolumeTally& tally = tallies[v];
    Json volume = {{"volume", report.volumes[v].format.volume},
                   {"directory", report.volumes[v].directory},
                   {"bytes", tally.bytes},
                   {"sealed_segments", tally.sealed},
                   {"unsealed_segments", tally.open},
                   {"unreadable_segments", tally.unreadable},
                   {"cleared_entries", report.volumes[v].cleared.size()}};
    volume.update(tally_json(tally.pages));
    if (with_segments) {
      volume["segments"] = Json::array();
      for (const file_store::SegmentReport& segment : report.segments) {
        if (segment.volume == v) volume["segments"].push_back(segment_json(report, segment));
      }
    }
    out["volumes"].push_back(std::move(volume));
  }
  for (const file_store::Cleared& entry : report.cleared) {
    const bool is_all = entry.namespace_digest.is_zero();
    out["cleared"].push_back(
        {{"namespace", is_all ? Json("all") : Json(entry.namespace_digest.hex())}, {"generation", entry.generation}});
  }
  return out;
}

void print_stat(const StoreReport& report, const std::vector<VolumeTally>& tallies) {
  std::printf("store %s\n\n", hex_encode(report.store).c_str());
  TextTable table({"volume", "directory", "on disk", "sealed", "unsealed", "unreadable", "live pages", "live bytes",
                   "superseded", "cleared", "dead bytes"});
  for (std::size_t v = 0; v < tallies.size(); ++v) {
    const VolumeTally& t = tallies[v];
    table.add_row({std::to_string(report.volumes[v].format.volume), report.volumes[v].directory, bytes_text(t.bytes),
                   count_text(t.sealed), count_text(t.open), count_text(t.unreadable), count_text(t.pages.live_pages()),
                   bytes_text(t.pages.live_bytes()), count_text(t.pages.pages[1]), count_text(t.pages.pages[2]),
                   bytes_text(t.pages.dead_bytes())});
  }
  std::printf("%s\n", table.text().c_str());
  if (!report.cleared.empty()) {
    std::printf("%s on record: pages from before %s do not count\n",
                counted_text(report.cleared.size(), "clear").c_str(), report.cleared.size() == 1 ? "it" : "them");
  }
  if (report.is_all_dropped) {
    std::printf("CLEARED is damaged in every volume: a server will drop all pages; see larder store fsck\n");
  }
}

}  // namespace

int store_ls(int argc, char** argv) {
  CLI::App app("Lists the namespaces and pools of a file store, and its pages.", "larder store ls");
  ListOptions o;
  add_store_arguments(app, o.store, kBesideServer);
  add_selection(app, o.store, true);
  app.add_flag("--pages", o.with_pages, "list pages, too");
  app.add_flag("--dead", o.with_dead, "with those that are superseded or cleared, but still on disk");
  app.add_option("--limit", o.limit, "at most this many pages; 0: all")
      ->type_name("PAGES")
      ->check(whole_number())
      ->capture_default_str();
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  return run_ls(o);
}

int store_stat(int argc, char** argv) {
  CLI::App app("Volumes and segments of a file store, and how much in them is alive.", "larder store stat");
  StoreArguments arguments;
  bool with_segments = false;
  add_store_arguments(app, arguments, kBesideServer);
  app.add_flag("--segments", with_segments, "with --json: every segment by itself");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  const Result<StoreReport> report = read_store(arguments);
  if (!report.is_ok()) return store_failure("stat", report.status());
  const std::vector<VolumeTally> tallies = by_volume(*report);
  if (arguments.as_json) {
    print_json(stat_json(*report, tallies, with_segments));
  } else {
    print_stat(*report, tallies);
  }
  return kStoreDone;
}

}  // namespace larder
