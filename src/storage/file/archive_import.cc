// SPDX-License-Identifier: Apache-2.0
// import_archive(): an archive through the storage port.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/inbox.h"
#include "storage/file/store_archive.h"

namespace larder::file_store {
namespace {

constexpr std::uint64_t kBatchBytes = std::uint64_t{64} << 20;
constexpr std::size_t kBatchGroups = 4096;
constexpr auto kLook = std::chrono::seconds(1);  // how often the wait for the backend looks up

// Groups that go in one request: one namespace, one layout per pool. The request points into `groups`.
struct Batch {
  std::shared_ptr<StoreScope> scope = std::make_shared<StoreScope>();
  std::vector<ArchiveReader::Group> groups;
  std::uint64_t bytes = 0;
};

bool takes(const Batch& batch, const ArchiveGroup& group) {
  if (batch.groups.empty()) return true;
  if (batch.bytes >= kBatchBytes || batch.groups.size() >= kBatchGroups) return false;
  if (batch.scope->namespace_digest != group.namespace_digest) return false;
  return std::all_of(group.pages.begin(), group.pages.end(), [&](const ArchivePage& page) {
    const Digest256& known = batch.scope->fingerprint(page.pool);
    return known.is_zero() || known == page.layout_fingerprint;
  });
}

void add(Batch& batch, ArchiveReader::Group group) {
  batch.scope->namespace_digest = group.head.namespace_digest;
  for (const ArchivePage& page : group.head.pages) {
    batch.scope->set_pool(page.pool, page.layout_fingerprint);
    batch.bytes += page.payload_bytes;
  }
  batch.groups.push_back(std::move(group));
}

class Importer {
 public:
  Importer(StorageBackend& backend, bool evicts, ImportResult& result)
      : backend_(backend), evicts_(evicts), result_(result) {}

  // Not ok: the backend serves nothing now.
  [[nodiscard]] Status write(Batch& batch) {
    if (batch.groups.empty()) return Status::ok();
    WriteRequest request;
    request.scope = batch.scope;
    request.durable = true;
    for (ArchiveReader::Group& group : batch.groups) {
      PageGroup& out = request.groups.emplace_back();
      for (std::size_t i = 0; i < group.head.pages.size(); ++i) {
        const ArchivePage& page = group.head.pages[i];
        WriteItem& item = out.items.emplace_back(WriteItem{page.pool, page.key, {}, page.parent});
        if (page.payload_bytes > 0) item.payload.push_back({group.payloads[i].data(), group.payloads[i].size()});
      }
    }
    LARDER_ASSIGN_OR_RETURN(auto ticket, answers_.reserve());
    const auto shared = std::make_shared<Inbox<WriteResult>::Ticket>(std::move(ticket));
    LARDER_RETURN_IF_ERROR(backend_.submit_write(std::move(request), [shared](WriteResult answer) {
      Inbox<WriteResult>::push(std::move(*shared), std::move(answer));
    }));
    std::vector<WriteResult> answers;
    while (answers_.drain(answers) == 0) (void)answers_.wait_for(kLook);  // the bytes are the backend's until then
    count(batch, answers.front());
    return Status::ok();
  }

 private:
  void count(const Batch& batch, const WriteResult& answer) {
    for (std::size_t i = 0; i < batch.groups.size(); ++i) {
      const Status status = i < answer.groups.size() ? answer.groups[i] : internal_error("no answer for a group");
      if (!status.is_ok()) {
        if (result_.refused_groups++ == 0) result_.first_problem = status;
        const bool is_full =
            status.code() == StatusCode::kOverloaded || (status.code() == StatusCode::kUnsupported && !evicts_);
        // Nor would it take what follows. (After an earlier one, it has perhaps made room.)
        if (is_full && i + 1 == batch.groups.size()) result_.end = status;
        continue;
      }
      ++result_.groups;
      result_.pages += batch.groups[i].head.pages.size();
      for (const ArchivePage& page : batch.groups[i].head.pages) result_.payload_bytes += page.payload_bytes;
    }
  }

  StorageBackend& backend_;
  const bool evicts_;
  ImportResult& result_;
  Inbox<WriteResult> answers_{1};
};

// Drops the pages that are not selected. False: none is left.
bool narrow(const PageSelection& selection, ArchiveReader::Group& group) {
  std::vector<ArchivePage> pages;
  std::vector<std::vector<std::byte>> payloads;
  for (std::size_t i = 0; i < group.head.pages.size(); ++i) {
    const ArchivePage& page = group.head.pages[i];
    ListedPage listed;
    listed.identity = {group.head.namespace_digest, page.layout_fingerprint, page.pool};
    listed.key = page.key;
    if (!is_selected(selection, listed)) continue;
    pages.push_back(page);
    payloads.push_back(std::move(group.payloads[i]));
  }
  group.head.pages = std::move(pages);
  group.payloads = std::move(payloads);
  return !group.head.pages.empty();
}

// Counts a group that is not written.
void pass_over(const ArchiveReader::Group& group, ImportResult& result) {
  ++result.groups;
  result.pages += group.head.pages.size();
  for (const ArchivePage& page : group.head.pages) result.payload_bytes += page.payload_bytes;
}

}  // namespace

Result<ImportResult> import_archive(File& file, StorageBackend* backend, const ImportOptions& options) {
  if (backend == nullptr && !options.dry_run) return invalid_argument("import: no backend");
  LARDER_ASSIGN_OR_RETURN(ArchiveReader reader, ArchiveReader::open(file));
  ImportResult result;
  Batch batch;
  const std::uint64_t evicted_before = backend == nullptr ? 0 : backend->stats().evicted;
  while (result.end.is_ok()) {
    Result<std::optional<ArchiveReader::Group>> next = reader.next();
    if (!next.is_ok()) {
      result.end = next.status();
      break;
    }
    std::optional<ArchiveReader::Group>& found = *next;
    if (!found) break;
    ArchiveReader::Group& group = *found;
    if (options.progress) options.progress(reader.position(), reader.file_bytes());
    if (!group.status.is_ok()) {
      if (result.damaged_groups++ == 0) result.first_problem = group.status;
    } else if (!narrow(options.selection, group)) {
      ++result.unselected_groups;
    } else if (options.dry_run) {
      pass_over(group, result);
    } else {
      if (!takes(batch, group.head)) {
        LARDER_RETURN_IF_ERROR(Importer(*backend, options.evicts, result).write(batch));
        batch = Batch();
        if (!result.end.is_ok()) break;
      }
      add(batch, std::move(group));
    }
  }
  if (backend == nullptr) return result;
  LARDER_RETURN_IF_ERROR(Importer(*backend, options.evicts, result).write(batch));
  result.evicted_pages = backend->stats().evicted - evicted_before;
  return result;
}

}  // namespace larder::file_store
