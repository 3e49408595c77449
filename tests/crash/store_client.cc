// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/store_client.h"

#include <algorithm>

#include "base/log.h"
#include "storage/file/file_backend.h"

namespace larder::crash {
namespace {

std::size_t count_ok(const std::vector<Status>& pages) {
  return static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.end(), [](const Status& status) { return status.is_ok(); }));
}

// Existence must say what reading said. (Reading a damaged page drops it; so this comes after.)
void check_existence(StorageBackend& store, const GroupId& group, const std::vector<Status>& pages, const Drain& drain,
                     const std::string& where) {
  ExistsRequest request{scope_of(group.scope), {key_of(group)}, {}};
  for (const PageShape& shape : pages_of(group)) request.pools.push_back(shape.pool);
  const auto result = wait_for<ExistsResult>(
      drain, [&](StorageBackend::ExistsDone done) { return store.submit_exists(std::move(request), std::move(done)); });
  ASSERT_EQ(result.presence.size(), pages.size()) << where << result.status.to_string();
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (!pages[i].is_ok() && pages[i].code() != StatusCode::kNotFound) continue;
    EXPECT_EQ(result.presence[i].present.at(0), pages[i].is_ok()) << where << to_text(group);
  }
}

}  // namespace

Result<std::unique_ptr<StorageBackend>> open_file_store(const BackendOptions& options, FileSystem& files, Clock& clock,
                                                        Executor& executor) {
  BackendFactory factory;
  LARDER_RETURN_IF_ERROR(register_file_backend(factory));
  return factory.create("file", options, {&files, &clock, &executor});
}

std::vector<Status> read_pages(StorageBackend& store, const GroupId& group, const Drain& drain, Rng& rng,
                               const std::string& where) {
  const GroupBuffers buffers(group, rng);
  ReadRequest request{scope_of(group.scope), buffers.read_items()};
  const auto result = wait_for<ReadResult>(
      drain, [&](StorageBackend::ReadDone done) { return store.submit_read(std::move(request), std::move(done)); });
  EXPECT_EQ(result.items.size(), pages_of(group).size()) << where;
  for (std::size_t i = 0; i < result.items.size(); ++i) {
    EXPECT_TRUE(!result.items[i].is_ok() || buffers.is_right(i)) << where << to_text(group) << ": wrong bytes";
  }
  return result.items;
}

WriteResult write_groups(StorageBackend& store, const std::vector<GroupId>& groups, bool is_durable, const Drain& drain,
                         Rng& rng) {
  std::vector<std::unique_ptr<GroupBuffers>> buffers;
  WriteRequest request{scope_of(groups.at(0).scope), {}, is_durable};
  for (const GroupId& group : groups) {
    buffers.push_back(std::make_unique<GroupBuffers>(group, rng));
    buffers.back()->fill();
    request.groups.push_back(buffers.back()->write_group());
  }
  return wait_for<WriteResult>(
      drain, [&](StorageBackend::WriteDone done) { return store.submit_write(std::move(request), std::move(done)); });
}

CheckTally check_promises(StorageBackend& store, Promises& promises, const Drain& drain, Rng& rng,
                          const std::string& where, std::size_t tolerated) {
  const bool is_atomic = store.info().atomic_groups;
  CheckTally tally;
  std::vector<std::string> losses;
  for (const GroupId& group : promises.groups()) {
    const std::string what = where + ", " + to_text(group);
    std::vector<Status> pages = read_pages(store, group, drain, rng, where + ", ");
    // An eviction during the read may take the rest of a group whose marks (pages of 0 bytes) were seen before.
    if (promises.may_evict() && count_ok(pages) < pages.size()) {
      pages = read_pages(store, group, drain, rng, where + ", ");
    }
    if (!promises.may_evict()) check_existence(store, group, pages, drain, where + ", ");
    const std::size_t there = count_ok(pages);
    const bool is_whole = there == pages.size(), is_absent = there == 0;
    ++(is_whole ? tally.whole : is_absent ? tally.absent : tally.torn);
    const Expectation expected = promises.expected(group);
    EXPECT_TRUE(is_absent || expected != Expectation::kAbsent) << what << ": cleared and back, or never written";
    if (expected == Expectation::kWhole && !is_whole) {
      losses.push_back(what + ": lost: " + pages.back().to_string());
    } else if (is_atomic && !is_whole && !is_absent) {
      losses.push_back(what + ": " + std::to_string(there) + " of " + std::to_string(pages.size()) + " pages");
    }
    for (const Status& page : pages) {
      const bool is_plain = page.is_ok() || page.code() == StatusCode::kNotFound;
      EXPECT_TRUE(is_plain || !is_atomic) << what << ": " << page.to_string();
    }
    if (is_atomic || is_whole) promises.found(group, is_whole);
  }
  if (losses.size() > tolerated) {
    for (const std::string& loss : losses) ADD_FAILURE() << loss;
  }
  for (std::uint64_t scope = 1; scope <= 3; ++scope) {
    for (const Status& page : read_pages(store, {scope, 5'000'000}, drain, rng, where)) {
      EXPECT_EQ(page.code(), StatusCode::kNotFound) << where;
    }
  }
  return tally;
}

QuietLog::QuietLog() {
  set_log_sink([](LogLevel, std::string_view, std::string_view) {});
}
QuietLog::~QuietLog() { set_log_sink({}); }

}  // namespace larder::crash
