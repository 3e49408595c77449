// SPDX-License-Identifier: Apache-2.0
#include "server/metadata_import.h"

#include <fmt/format.h>

#include <charconv>
#include <deque>
#include <map>
#include <set>
#include <unordered_set>

#include "metadata/journal_records.h"
#include "metadata/request_checks.h"
#include "server/json_reader.h"
#include "server/reference_routes.h"
#include "server/text_table.h"

namespace larder {
namespace {

using nlohmann::json;

Result<MetadataNamespace> parse_name(const std::string& text) {
  MetadataNamespace name;
  const std::size_t colon = text.find(':');
  const std::string_view rank = std::string_view(text).substr(0, colon);
  if (colon != std::string::npos) name.name = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), name.rank);
  if (error != std::errc{} || end != rank.data() + rank.size()) {
    return invalid_argument("'" + text + "': a namespace is \"<rank>:<name>\" or \"<rank>\", and the rank a number");
  }
  // What the service would refuse must not get into its journal, which it could not read any more.
  const Status named = metadata::check_namespace(&name);
  if (!named.is_ok()) return invalid_argument("'" + text + "': " + named.message());
  return name;
}

// Each page once, and below the number of pages.
class PageCheck {
 public:
  PageCheck(std::string name, std::uint64_t pages) : name_(std::move(name)), pages_(pages) {}

  Result<std::uint64_t> take(const json& value, std::string_view where) {
    if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<std::int64_t>() < 0)) {
      return invalid_argument(fmt::format("'{}': {} must be a page, got {}", name_, where, describe_json(value)));
    }
    const auto page = value.get<std::uint64_t>();
    if (page >= pages_) {
      return invalid_argument(fmt::format("'{}': {} is page {}, but there are {} pages", name_, where, page, pages_));
    }
    if (!seen_.insert(page).second) {
      return invalid_argument(fmt::format("'{}': page {} is there twice, the second time in {}", name_, page, where));
    }
    return page;
  }
  // The last page that was not taken.
  [[nodiscard]] std::optional<std::uint64_t> last_left() const {
    for (std::uint64_t page = pages_; page-- > 0;) {
      if (!seen_.contains(page)) return page;
    }
    return std::nullopt;
  }

 private:
  const std::string name_;
  const std::uint64_t pages_;
  std::unordered_set<std::uint64_t> seen_;
};

Status parse_keys(const std::string& name, const json& list, PageCheck& check, ImportedNamespace& out) {
  std::unordered_set<std::string_view> seen;
  std::deque<std::string> place;
  out.keys.reserve(list.size());  // `seen` has views into it
  for (std::size_t i = 0; i < list.size(); ++i) {
    const json& entry = list[i];
    const std::string where = fmt::format("key_to_index[{}]", i);
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string()) {
      return invalid_argument(fmt::format("'{}': {} must be [key, page], got {}", name, where, describe_json(entry)));
    }
    LARDER_ASSIGN_OR_RETURN(const std::uint64_t page, check.take(entry[1], where));
    out.keys.emplace_back(std::string(stored_key(entry[0].get_ref<const std::string&>(), place)), page);
    if (!seen.insert(out.keys.back().first).second) {
      return invalid_argument(fmt::format("'{}': {} names a key that was there before", name, where));
    }
  }
  return Status::ok();
}

Status parse_namespace(const std::string& name, const json& value, ImportedNamespace& out) {
  if (!value.is_object()) return invalid_argument("'" + name + "' must be an object, got " + describe_json(value));
  const auto pages = value.find("num_pages");
  const auto free = value.find("free_pages");
  const auto keys = value.find("key_to_index");
  if (pages == value.end() || free == value.end() || keys == value.end()) {
    return invalid_argument("'" + name + "' must have num_pages, free_pages and key_to_index");
  }
  const bool is_count = pages->is_number_unsigned() && pages->get<std::uint64_t>() > 0 &&
                        pages->get<std::uint64_t>() <= kMaxNamespacePages;
  if (!is_count) {
    return invalid_argument(fmt::format("'{}': num_pages must be an integer in [1, {}], got {}", name,
                                        kMaxNamespacePages, describe_json(*pages)));
  }
  if (!free->is_array() || !keys->is_array()) {
    return invalid_argument("'" + name + "': free_pages and key_to_index must be arrays");
  }
  out.pages = pages->get<std::uint64_t>();
  PageCheck check(name, out.pages);
  LARDER_RETURN_IF_ERROR(parse_keys(name, *keys, check, out));
  for (std::size_t i = 0; i < free->size(); ++i) {
    const Result<std::uint64_t> page = check.take((*free)[i], fmt::format("free_pages[{}]", i));
    if (!page.is_ok()) return page.status();
  }
  out.free_pages = free->size();
  out.last_unknown = check.last_left();
  return Status::ok();
}

class ImportedJournal final : public metadata::Journal {
 public:
  explicit ImportedJournal(const metadata::JournalBatch& batch) {
    batch.for_each([&](std::string_view key, std::string_view value) { records_[std::string(key)] = value; },
                   [&](std::string_view key) { records_.erase(std::string(key)); });
  }
  Status replay(const Visitor& each) override {
    for (const auto& [key, value] : records_) LARDER_RETURN_IF_ERROR(each(key, value));
    return Status::ok();
  }
  Status write(const metadata::JournalBatch&, bool) override {
    records_.clear();  // read by now: frees the memory
    return Status::ok();
  }
  Status sync() override { return Status::ok(); }

 private:
  std::map<std::string, std::string> records_;
};

}  // namespace

Result<std::vector<ImportedNamespace>> parse_reference_state(std::string_view text) {
  LARDER_ASSIGN_OR_RETURN(const json document, parse_json_object(text, kAnyJsonValues));
  std::vector<ImportedNamespace> all;
  std::set<MetadataNamespace> names;
  for (const auto& [key, value] : document.items()) {
    LARDER_ASSIGN_OR_RETURN(MetadataNamespace name, parse_name(key));
    ImportedNamespace& one = all.emplace_back();
    one.name = std::move(name);
    if (!names.insert(one.name).second) {
      return invalid_argument("'" + key + "': the namespace '" + one.name.text() + "' is there twice");
    }
    LARDER_RETURN_IF_ERROR(parse_namespace(key, value, one));
  }
  return all;
}

void record_import(const std::vector<ImportedNamespace>& imported, metadata::JournalBatch& batch) {
  metadata::record_format(batch);
  metadata::NamespaceId id = 0;
  for (const ImportedNamespace& one : imported) {
    metadata::record_namespace(batch, id, one.name, one.pages);
    std::uint64_t generation = 1;  // recovery takes the order of generations for that of use
    for (const auto& [key, page] : one.keys) {
      const PageRef ref{page, generation++};
      metadata::record_reserved(batch, id, ref, 0, key);
      metadata::record_confirmed(batch, id, ref);
    }
    // Somebody may be writing to pages that are not known: at recovery what lies below a page with a record rests.
    if (one.last_unknown) metadata::record_forgotten(batch, id, {*one.last_unknown, generation++});
    metadata::record_generations(batch, id, generation);
    ++id;
  }
}

std::unique_ptr<metadata::Journal> make_imported_journal(const metadata::JournalBatch& batch) {
  return std::make_unique<ImportedJournal>(batch);
}

Status import_into(metadata::Journal& journal, const metadata::JournalBatch& batch) {
  LARDER_RETURN_IF_ERROR(journal.replay([](std::string_view, std::string_view) {
    return conflict("there is something in it already, and importing is for an empty one");
  }));
  return journal.write(batch, true);
}

std::string import_report(const std::vector<ImportedNamespace>& imported) {
  std::string out;
  for (const ImportedNamespace& one : imported) {
    const std::uint64_t unknown = one.pages - one.keys.size() - one.free_pages;
    out += fmt::format("{}: {} in {}", one.name.text(), counted_text(one.keys.size(), "key"),
                       counted_text(one.pages, "page"));
    if (unknown > 0) out += fmt::format(", {} of them neither free nor mapped", count_text(unknown));
    out += '\n';
  }
  return out;
}

}  // namespace larder
