// SPDX-License-Identifier: Apache-2.0
#include "storage/file/store_archive.h"

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace larder::file_store {
namespace {

std::uint64_t checksum_of_heads(const std::vector<std::uint64_t>& checksums) {
  return XXH3_64bits(checksums.data(), checksums.size() * sizeof(std::uint64_t));
}
// The checksum field of an encoded group.
std::uint64_t head_checksum(std::span<const std::byte> head) { return load_le<std::uint64_t>(head.data() + 16); }

// Live pages by (namespace, key).
using KeyId = std::pair<Digest256, PageKey>;
struct KeyIdHash {
  std::size_t operator()(const KeyId& id) const noexcept { return id.first.prefix64() * 31 ^ id.second.prefix64(); }
};
using KeySet = std::unordered_set<KeyId, KeyIdHash>;

KeyId key_id_of(const ListedPage& page) { return {page.identity.namespace_digest, page.key}; }

// The keys of the selection, and those before them in their chains.
KeySet selected_keys(const StoreReport& report, const PageSelection& selection) {
  std::unordered_map<KeyId, PageKey, KeyIdHash> parents;
  std::vector<KeyId> waiting;
  for (const InspectedPage& page : report.pages) {
    if (page.state != PageState::kLive) continue;
    if (!page.page.parent.is_zero()) parents[key_id_of(page.page)] = page.page.parent;
    if (is_selected(selection, page.page)) waiting.push_back(key_id_of(page.page));
  }
  KeySet keys;
  while (!waiting.empty()) {
    const KeyId id = waiting.back();
    waiting.pop_back();
    if (!keys.insert(id).second) continue;
    const auto parent = parents.find(id);
    if (parent != parents.end()) waiting.push_back({id.first, parent->second});
  }
  return keys;
}

// Sidecars first: the anchor pools of components (kv, mamba, swa) have the lowest numbers, and kv is the mark of all.
unsigned order_in_group(PoolName pool) { return static_cast<unsigned>(kPoolNumberCount) - static_cast<unsigned>(pool); }

// Splits what would put a pool twice into a group (the same key under two layouts), or make it too large.
void append_group(const StoreReport& report, std::vector<std::uint32_t> pages, ExportPlan& plan) {
  std::sort(pages.begin(), pages.end(), [&](std::uint32_t a, std::uint32_t b) {
    const PageIdentity& left = report.pages[a].page.identity;
    const PageIdentity& right = report.pages[b].page.identity;
    return std::pair(order_in_group(left.pool), left.layout_fingerprint) <
           std::pair(order_in_group(right.pool), right.layout_fingerprint);
  });
  while (!pages.empty()) {
    std::vector<std::uint32_t> group, rest;
    std::array<bool, kPoolNumberCount> has{};
    for (const std::uint32_t page : pages) {
      bool& taken = has[static_cast<std::size_t>(report.pages[page].page.identity.pool)];
      (taken ? rest : group).push_back(page);
      taken = true;
    }
    for (const std::uint32_t page : group) plan.payload_bytes += report.pages[page].page.location.payload_bytes;
    plan.pages += group.size();
    plan.groups.push_back(std::move(group));
    pages = std::move(rest);
  }
}

struct LoadedGroup {
  ArchiveGroup head;
  std::vector<std::vector<std::byte>> payloads;
};

Result<LoadedGroup> load_group(PayloadReader& reader, const StoreReport& report,
                               const std::vector<std::uint32_t>& pages) {
  LoadedGroup out;
  for (const std::uint32_t index : pages) {
    const ListedPage& page = report.pages[index].page;
    out.head.namespace_digest = page.identity.namespace_digest;
    out.head.pages.push_back({page.identity.pool, page.identity.layout_fingerprint, page.key, page.parent,
                              page.location.checksum, page.location.payload_bytes});
    out.payloads.emplace_back();
    LARDER_RETURN_IF_ERROR(reader.read_page(report.path_of(report.pages[index]), page.location, &out.payloads.back()));
  }
  return out;
}

// Appends to `out` and counts.
class ArchiveWriter {
 public:
  explicit ArchiveWriter(File& out) : out_(out) {}
  [[nodiscard]] Status append(std::span<const std::byte> bytes) {
    LARDER_RETURN_IF_ERROR(write_fully(out_, bytes, at_));
    at_ += bytes.size();
    return Status::ok();
  }
  [[nodiscard]] Status append(LoadedGroup& group) {
    group.head.number = end_.groups;
    const std::vector<std::byte> head = encode_archive_group(group.head);
    checksums_.push_back(head_checksum(head));
    LARDER_RETURN_IF_ERROR(append(head));
    for (const std::vector<std::byte>& payload : group.payloads) {
      LARDER_RETURN_IF_ERROR(append(payload));
      end_.payload_bytes += payload.size();
    }
    ++end_.groups;
    end_.pages += group.head.pages.size();
    return Status::ok();
  }
  [[nodiscard]] Status finish() {
    end_.heads_checksum = checksum_of_heads(checksums_);
    LARDER_RETURN_IF_ERROR(append(encode_archive_end(end_)));
    return out_.sync_all();
  }
  [[nodiscard]] const ArchiveEnd& end() const { return end_; }
  [[nodiscard]] std::uint64_t position() const { return at_; }

 private:
  File& out_;
  ArchiveEnd end_;
  std::vector<std::uint64_t> checksums_;
  std::uint64_t at_ = 0;
};

}  // namespace

ExportPlan plan_export(const StoreReport& report, const PageSelection& selection) {
  const KeySet keys = selected_keys(report, selection);
  PageSelection pools;  // a chain's earlier keys are taken in the same pools
  pools.pools = selection.pools;
  std::unordered_map<KeyId, std::vector<std::uint32_t>, KeyIdHash> by_key;
  for (std::uint32_t i = 0; i < report.pages.size(); ++i) {
    const InspectedPage& page = report.pages[i];
    if (page.state != PageState::kLive || !keys.contains(key_id_of(page.page)) || !is_selected(pools, page.page))
      continue;
    by_key[key_id_of(page.page)].push_back(i);
  }
  // In the order of writing, which has parents before children.
  std::vector<std::tuple<std::uint64_t, PageKey, std::vector<std::uint32_t>>> order;
  for (auto& [id, pages] : by_key) {
    std::uint64_t first = ~std::uint64_t{0};
    for (const std::uint32_t page : pages) first = std::min(first, report.pages[page].page.location.generation);
    order.emplace_back(first, id.second, std::move(pages));
  }
  std::sort(order.begin(), order.end());
  ExportPlan plan;
  for (auto& [first, key, pages] : order) append_group(report, std::move(pages), plan);
  return plan;
}

Result<ExportResult> export_archive(FileSystem& files, const StoreReport& report, const ExportPlan& plan,
                                    std::uint64_t now, File& out, const ProgressSink& progress) {
  PayloadReader reader(files);
  ArchiveWriter writer(out);
  ExportResult result;
  LARDER_RETURN_IF_ERROR(writer.append(encode_archive_header({report.store, now})));
  std::uint64_t done = 0;
  for (const std::vector<std::uint32_t>& pages : plan.groups) {
    for (const std::uint32_t page : pages) done += report.pages[page].page.location.payload_bytes;
    Result<LoadedGroup> group = load_group(reader, report, pages);
    if (group.is_ok()) {
      LARDER_RETURN_IF_ERROR(writer.append(*group));
    } else {
      if (result.left_out_groups++ == 0) result.first_problem = group.status();
    }
    if (progress) progress(done, plan.payload_bytes);
  }
  LARDER_RETURN_IF_ERROR(writer.finish());
  result.groups = writer.end().groups;
  result.pages = writer.end().pages;
  result.payload_bytes = writer.end().payload_bytes;
  result.archive_bytes = writer.position();
  return result;
}

Result<ArchiveReader> ArchiveReader::open(File& file) {
  ArchiveReader reader(file);
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t size, file.size_bytes());
  reader.file_bytes_ = size;
  std::array<std::byte, kArchiveHeaderBytes> bytes{};
  if (size < bytes.size()) return corrupt(file.path() + ": shorter than an archive can be");
  LARDER_RETURN_IF_ERROR(read_exactly(file, bytes, 0));
  const Result<ArchiveHeader> header = decode_archive_header(bytes);
  if (!header.is_ok()) return Status(header.status().code(), file.path() + ": " + header.status().message());
  reader.header_ = *header;
  reader.at_ = bytes.size();
  return reader;
}

Status ArchiveReader::check_end(std::span<const std::byte> bytes) const {
  LARDER_ASSIGN_OR_RETURN(const ArchiveEnd end, decode_archive_end(bytes));
  if (end.groups != seen_.groups || end.pages != seen_.pages || end.payload_bytes != seen_.payload_bytes ||
      end.heads_checksum != checksum_of_heads(head_checksums_)) {
    return corrupt("archive: groups are missing, or came from another archive");
  }
  if (at_ + bytes.size() != file_bytes_) return corrupt("archive: something follows its end");
  return Status::ok();
}

Status ArchiveReader::read_payloads(Group& group) {
  for (std::size_t i = 0; i < group.head.pages.size(); ++i) {
    const ArchivePage& page = group.head.pages[i];
    if (page.payload_bytes > file_bytes_ - at_)
      return corrupt("archive: cut off at byte " + std::to_string(file_bytes_));
    std::vector<std::byte> payload(page.payload_bytes);
    LARDER_RETURN_IF_ERROR(read_exactly(*file_, payload, at_));
    const Segment piece{payload.data(), payload.size()};
    if (payload_checksum({&piece, 1}) != page.checksum && group.status.is_ok()) {
      group.status = corrupt("archive: group " + std::to_string(group.head.number) + ": the payload at byte " +
                             std::to_string(at_) + " is damaged");
    }
    at_ += payload.size();
    seen_.payload_bytes += payload.size();
    group.payloads.push_back(std::move(payload));
  }
  return Status::ok();
}

Result<std::optional<ArchiveReader::Group>> ArchiveReader::next() {
  std::array<std::byte, kArchiveHeaderBytes> start{};
  if (file_bytes_ - at_ < start.size()) return corrupt("archive: cut off at byte " + std::to_string(file_bytes_));
  LARDER_RETURN_IF_ERROR(read_exactly(*file_, start, at_));
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t length, archive_group_bytes(start));
  if (length == 0) {
    LARDER_RETURN_IF_ERROR(check_end(start));
    return std::optional<Group>();
  }
  if (file_bytes_ - at_ < length) return corrupt("archive: cut off at byte " + std::to_string(file_bytes_));
  std::vector<std::byte> head(static_cast<std::size_t>(length));
  LARDER_RETURN_IF_ERROR(read_exactly(*file_, head, at_));
  LARDER_ASSIGN_OR_RETURN(ArchiveGroup group, decode_archive_group(head));
  if (group.number != seen_.groups) return corrupt("archive: a group is missing or stands in another place");
  at_ += head.size();
  head_checksums_.push_back(head_checksum(head));
  ++seen_.groups;
  seen_.pages += group.pages.size();
  Group out;
  out.head = std::move(group);
  LARDER_RETURN_IF_ERROR(read_payloads(out));
  return std::optional<Group>(std::move(out));
}

}  // namespace larder::file_store
