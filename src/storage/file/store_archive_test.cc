// SPDX-License-Identifier: Apache-2.0
#include "storage/file/store_archive.h"

#include <xxhash.h>

#include "base/executor.h"
#include "sim/sim_file_system.h"
#include "storage/factory.h"
#include "storage/file/file_backend.h"
#include "storage/file/store_tools_test_util.h"
#include "storage/memory/memory_backend.h"
#include "tests/support/passing_backend.h"

namespace larder::file_store {
namespace {

using sim::SimFileSystem;

const std::vector<std::string> kOne = {"/a"};

// Of each write, it refuses one group.
class RefusesOne final : public support::PassingBackend {
 public:
  RefusesOne(StorageBackend& inner, std::size_t refused) : PassingBackend(inner), refused_(refused) {}
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    return inner_->submit_write(std::move(request), [refused = refused_, done = std::move(done)](WriteResult result) {
      if (refused < result.groups.size()) result.groups[refused] = overloaded("no room now");
      done(std::move(result));
    });
  }

 private:
  const std::size_t refused_;
};

// Chain 1 <- 2 <- 3 with states at 2, in namespace 1; key 8 in namespace 2; old generations of key 3.
class StoreArchive : public ::testing::Test {
 protected:
  void SetUp() override {
    make_test_volume(files_, "/a", store_, 0);
    SegmentBuilder segment(files_, "/a", store_, 1);
    segment.record({{.key = 3, .parent = 2, .bytes = 5000, .generation = 1}});
    places_ = segment.record({{.key = 1, .bytes = 5000, .generation = 2},
                              {.key = 2, .parent = 1, .bytes = 5000, .generation = 3},
                              {.key = 2, .parent = 1, .pool = PoolName::kMamba, .bytes = 20'000, .generation = 4},
                              {.key = 3, .parent = 2, .bytes = 5000, .generation = 5},
                              {.key = 8, .space = 2, .bytes = 0, .generation = 6, .group = 1}});
    path_ = segment.path();
    segment.seal();
    auto report = inspect_store(files_, kOne, {});
    ASSERT_TRUE(report.is_ok());
    report_ = std::move(*report);
  }

  ExportResult save(const PageSelection& selection = {}) {
    auto file = files_.open("/x", {.write = true, .create = true, .truncate = true});
    EXPECT_TRUE(file.is_ok());
    auto result = export_archive(files_, report_, plan_export(report_, selection), 5, **file, {});
    EXPECT_TRUE(result.is_ok()) << result.status().to_string();
    return result.is_ok() ? *result : ExportResult{};
  }
  ImportResult load(StorageBackend* backend, const ImportOptions& options) {
    auto file = files_.open("/x", {});
    EXPECT_TRUE(file.is_ok());
    auto result = import_archive(**file, backend, options);
    EXPECT_TRUE(result.is_ok()) << result.status().to_string();
    return result.is_ok() ? *result : ImportResult{};
  }
  std::unique_ptr<StorageBackend> memory() {
    BackendFactory factory;
    EXPECT_TRUE(register_memory_backend(factory).is_ok());
    auto made = factory.create("memory", {}, {&files_, &real_clock(), &executor_});
    EXPECT_TRUE(made.is_ok()) << made.status().to_string();
    return std::move(made).value();
  }
  // The page's bytes; empty: not there.
  std::vector<std::byte> read(StorageBackend& backend, std::uint64_t space, std::uint64_t key, PoolName pool,
                              std::size_t bytes) {
    auto scope = std::make_shared<StoreScope>();
    scope->namespace_digest = test_digest(space);
    scope->set_pool(pool, test_digest(100 + static_cast<std::uint64_t>(pool)));
    std::vector<std::byte> into(bytes);
    ReadRequest request;
    request.scope = scope;
    request.items.push_back({pool, test_digest(key), {{into.data(), into.size()}}});
    Status status = internal_error("no answer");
    EXPECT_TRUE(backend.submit_read(std::move(request), [&](ReadResult r) { status = r.items.at(0); }).is_ok());
    if (!status.is_ok()) into.clear();
    return into;
  }

  SimFileSystem files_{3};
  InlineExecutor executor_;
  StoreId store_ = test_store_id(5);
  StoreReport report_;
  std::vector<std::uint64_t> places_;
  std::string path_;
};

TEST_F(StoreArchive, WhatWasExportedIsImported) {
  const ExportResult saved = save();
  EXPECT_EQ(saved.groups, 4u);
  EXPECT_EQ(saved.pages, 5u);
  EXPECT_EQ(saved.payload_bytes, 35'000u);
  EXPECT_EQ(saved.left_out_groups, 0u);
  EXPECT_EQ(files_.stat("/x")->size_bytes, saved.archive_bytes);
  const auto backend = memory();
  const ImportResult loaded = load(backend.get(), {});
  EXPECT_TRUE(loaded.end.is_ok());
  EXPECT_EQ(loaded.groups, 4u);
  EXPECT_EQ(loaded.pages, 5u);
  EXPECT_EQ(backend->stats().pages, 5u);
  for (const std::uint64_t key : {1u, 2u, 3u}) {
    EXPECT_EQ(read(*backend, 1, key, PoolName::kKv, 5000), test_payload(key * 16, 5000)) << key;
  }
  EXPECT_EQ(read(*backend, 1, 2, PoolName::kMamba, 20'000), test_payload(2 * 16 + 1, 20'000));
  EXPECT_EQ(load(backend.get(), {}).pages, 5u);  // again: all there already
  EXPECT_EQ(backend->stats().pages, 5u);
}

// The defect: one group that found no room for a moment ended the import, also where eviction makes some.
TEST_F(StoreArchive, OneRefusedGroupDoesNotEndTheImport) {
  ASSERT_EQ(save().groups, 4u);  // namespace 1 goes in a request of 3, and then namespace 2
  const auto backend = memory();
  RefusesOne middle(*backend, 1), last(*backend, 2);
  ImportResult loaded = load(&middle, {});
  EXPECT_TRUE(loaded.end.is_ok()) << loaded.end.to_string();
  EXPECT_EQ(loaded.refused_groups, 1u);
  EXPECT_EQ(loaded.groups, 3u);
  loaded = load(&last, {});
  EXPECT_EQ(loaded.end.code(), StatusCode::kOverloaded) << "it would not take what follows";
  EXPECT_EQ(loaded.groups, 2u);
}

TEST_F(StoreArchive, AKeyBringsItsChainAndParentsComeFirst) {
  const ExportPlan plan = plan_export(report_, {"", {}, {test_digest(3).hex()}});
  ASSERT_EQ(plan.groups.size(), 3u);
  EXPECT_EQ(report_.pages[plan.groups[0].at(0)].page.key, test_digest(1));
  ASSERT_EQ(plan.groups[1].size(), 2u);
  EXPECT_EQ(report_.pages[plan.groups[1][0]].page.identity.pool, PoolName::kMamba);  // the mark of the group is last
  EXPECT_EQ(report_.pages[plan.groups[1][1]].page.identity.pool, PoolName::kKv);
  EXPECT_EQ(report_.pages[plan.groups[2].at(0)].page.location.generation, 5u);
  EXPECT_EQ(plan_export(report_, {test_digest(2).hex(), {}, {}}).pages, 1u);
  EXPECT_EQ(plan_export(report_, {"", {PoolName::kMamba}, {}}).pages, 1u);
  EXPECT_EQ(plan_export(report_, {"", {}, {"0000000000"}}).pages, 0u);
}

TEST_F(StoreArchive, ADamagedPageIsLeftOutWithItsGroup) {
  ASSERT_TRUE(files_.corrupt_byte(path_, places_[2] + 100, 1).is_ok());  // the state of key 2
  const ExportResult saved = save();
  EXPECT_EQ(saved.left_out_groups, 1u);
  EXPECT_EQ(saved.first_problem.code(), StatusCode::kCorrupt);
  EXPECT_EQ(saved.pages, 3u);
  EXPECT_TRUE(load(nullptr, {.selection = {}, .dry_run = true, .progress = {}}).end.is_ok());
}

TEST_F(StoreArchive, EveryFlippedBitIsNoticed) {
  const ExportResult saved = save();
  Rng rng(5);
  for (int round = 0; round < 300; ++round) {
    const std::uint64_t at = round < 150 ? rng.below(saved.archive_bytes) : rng.below(128 * 3);
    const auto mask = static_cast<std::uint8_t>(1u << rng.below(8));
    SCOPED_TRACE("byte " + std::to_string(at) + ", mask " + std::to_string(mask));
    ASSERT_TRUE(files_.corrupt_byte("/x", at, mask).is_ok());
    auto file = files_.open("/x", {});
    const auto backend = memory();
    const auto result = import_archive(**file, backend.get(), {});
    EXPECT_TRUE(!result.is_ok() || !result->end.is_ok() || result->damaged_groups == 1);
    for (const std::uint64_t key : {1u, 2u, 3u}) {
      const auto bytes = read(*backend, 1, key, PoolName::kKv, 5000);
      EXPECT_TRUE(bytes.empty() || bytes == test_payload(key * 16, 5000));
    }
    ASSERT_TRUE(files_.corrupt_byte("/x", at, mask).is_ok());
  }
}

TEST_F(StoreArchive, EveryCutIsNoticed) {
  const ExportResult saved = save();
  std::vector<std::byte> whole(static_cast<std::size_t>(saved.archive_bytes));
  auto file = files_.open("/x", {});
  ASSERT_TRUE(read_exactly(**file, whole, 0).is_ok());
  Rng rng(6);
  for (int round = 0; round < 100; ++round) {
    const std::size_t length =
        round < 20 ? static_cast<std::size_t>(round) * 32 : static_cast<std::size_t>(rng.below(whole.size()));
    write_test_file(files_, "/cut", std::span(whole).first(length));
    auto cut = files_.open("/cut", {});
    const auto result = import_archive(**cut, nullptr, {.selection = {}, .dry_run = true, .progress = {}});
    EXPECT_TRUE(!result.is_ok() || result->end.code() == StatusCode::kCorrupt) << length;
  }
  whole.push_back(std::byte{0});  // and what is too much
  write_test_file(files_, "/cut", whole);
  auto longer = files_.open("/cut", {});
  EXPECT_EQ(import_archive(**longer, nullptr, {.selection = {}, .dry_run = true, .progress = {}})->end.code(),
            StatusCode::kCorrupt);
}

TEST_F(StoreArchive, ImportsASelection) {
  (void)save();
  const auto backend = memory();
  ImportOptions options;
  options.selection.namespace_prefix = test_digest(2).hex();
  const ImportResult loaded = load(backend.get(), options);
  EXPECT_EQ(loaded.pages, 1u);
  EXPECT_EQ(loaded.unselected_groups, 3u);
  EXPECT_EQ(backend->stats().pages, 1u);
}

// The defect: the pages of other pools came along, because their groups hold one of this pool.
TEST_F(StoreArchive, ImportsOnePoolOfItsGroups) {
  (void)save();
  ImportOptions options;
  options.selection.pools = {PoolName::kMamba};
  options.dry_run = true;
  EXPECT_EQ(load(nullptr, options).payload_bytes, 20'000u);
  options.dry_run = false;
  const auto backend = memory();
  const ImportResult loaded = load(backend.get(), options);
  EXPECT_EQ(loaded.pages, 1u);
  EXPECT_EQ(loaded.unselected_groups, 3u);
  EXPECT_EQ(backend->stats().pages, 1u);
  EXPECT_EQ(read(*backend, 1, 2, PoolName::kMamba, 20'000), test_payload(2 * 16 + 1, 20'000));
}

Digest256 numbered(std::uint8_t first) {
  Digest256 digest;
  for (std::size_t i = 0; i < digest.bytes.size(); ++i) digest.bytes[i] = static_cast<std::uint8_t>(first + i);
  return digest;
}
std::vector<std::byte> golden_payload(std::size_t page, std::size_t length) {
  std::vector<std::byte> bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(page * 37 + i * 7 + (i >> 8));
  return bytes;
}
Checksum128 checksum_of(std::vector<std::byte> bytes) {
  const Segment piece{bytes.data(), bytes.size()};
  return payload_checksum({&piece, 1});
}

// tests/golden/archive_v1.larder: made from docs/formats.md by make_archive_golden.py; a change is a new version.
TEST(ArchiveFormat, EqualsTheGoldenFile) {
  const auto one = golden_payload(1, 100), two = golden_payload(2, 3000), three = golden_payload(3, 300);
  ArchiveHeader header;
  for (std::size_t i = 0; i < header.store.size(); ++i) header.store[i] = static_cast<std::uint8_t>(0xf0 + i);
  header.created_unix_seconds = 0x1122334455667788;
  const std::vector<ArchiveGroup> groups = {
      {0,
       numbered(0x40),
       {{PoolName::kIndexer, numbered(0x60), numbered(0x10), {}, checksum_of(one), 100},
        {PoolName::kKv, numbered(0x70), numbered(0x10), {}, checksum_of(two), 3000}}},
      {1, numbered(0x40), {{PoolName::kKv, numbered(0x70), numbered(0x20), numbered(0x10), checksum_of({}), 0}}},
      {2, numbered(0x50), {{PoolName::kKv, numbered(0x70), numbered(0x30), {}, checksum_of(three), 300}}}};
  const std::vector<std::vector<std::byte>> payloads = {one, two, {}, three};
  std::vector<std::byte> made;
  const auto append = [&](std::span<const std::byte> bytes) { made.insert(made.end(), bytes.begin(), bytes.end()); };
  append(encode_archive_header(header));
  std::vector<std::byte> checksums;
  std::size_t next = 0;
  for (const ArchiveGroup& group : groups) {
    const auto head = encode_archive_group(group);
    append(head);
    for (std::size_t i = 0; i < group.pages.size(); ++i) append(payloads[next++]);
    checksums.insert(checksums.end(), head.begin() + 16, head.begin() + 24);
  }
  append(encode_archive_end({3, 4, 3400, XXH3_64bits(checksums.data(), checksums.size())}));

  const std::string path = std::string(LARDER_SOURCE_DIR) + "/tests/golden/archive_v1.larder";
  auto file = real_file_system().open(path, {});
  ASSERT_TRUE(file.is_ok()) << file.status().to_string();
  std::vector<std::byte> golden(static_cast<std::size_t>(*(*file)->size_bytes()));
  ASSERT_TRUE(read_exactly(**file, golden, 0).is_ok());
  EXPECT_EQ(made, golden);
  const auto read = import_archive(**file, nullptr, {.selection = {}, .dry_run = true, .progress = {}});
  ASSERT_TRUE(read.is_ok()) << read.status().to_string();
  EXPECT_TRUE(read->end.is_ok()) << read->end.to_string();
  EXPECT_EQ(read->pages, 4u);
}

TEST(ArchiveFormat, AnotherVersionIsNotDamage) {
  const auto header = encode_archive_header({test_store_id(0xab), 7});
  auto newer = header;
  newer[8] = std::byte{2};
  EXPECT_EQ(decode_archive_header(newer).status().code(), StatusCode::kCorrupt);  // a flipped bit
  store_le<std::uint64_t>(newer.data() + 16, 0);
  store_le<std::uint64_t>(newer.data() + 16, XXH3_64bits(newer.data(), newer.size()));
  EXPECT_EQ(decode_archive_header(newer).status().code(), StatusCode::kUnsupported);
}

// What of the archive's five pages a backend has, none with a wrong byte.
class StoreArchiveFaults : public StoreArchive, public ::testing::WithParamInterface<sim::FileFault> {
 protected:
  std::size_t right_pages(StorageBackend& backend) {
    std::size_t found = 0;
    const auto count = [&](std::uint64_t space, std::uint64_t key, PoolName pool, std::size_t bytes) {
      const std::vector<std::byte> page = read(backend, space, key, pool, bytes);
      if (page.empty()) return;
      ++found;
      EXPECT_EQ(page, test_payload(key * 16 + static_cast<std::uint64_t>(pool), bytes)) << "key " << key;
    };
    for (const std::uint64_t key : {1u, 2u, 3u}) count(1, key, PoolName::kKv, 5000);
    count(1, 2, PoolName::kMamba, 20'000);
    return found;
  }
};

// The n-th file operation of an export fails, for each n: what the archive has is right, and what it lacks was said.
TEST_P(StoreArchiveFaults, AnyOperationOfAnExportMayFail) {
  std::uint64_t n = 1;
  for (bool has_fired = true; has_fired; ++n) {
    SCOPED_TRACE("operation " + std::to_string(n));
    files_.fail_nth(n, GetParam());
    auto out = files_.open("/x", {.write = true, .create = true, .truncate = true});
    Result<ExportResult> saved = out.status();
    if (out.is_ok()) saved = export_archive(files_, report_, plan_export(report_, {}), 5, **out, {});
    has_fired = files_.fault_fired();
    files_.clear_fault();
    const auto backend = memory();
    auto file = files_.open("/x", {});
    if (!file.is_ok()) continue;  // it could not be created
    const Result<ImportResult> loaded = import_archive(**file, backend.get(), {});
    const std::size_t found = right_pages(*backend);
    if (!saved.is_ok()) continue;  // said: the archive is not to be used. All of it that can be read is right
    ASSERT_TRUE(loaded.is_ok()) << loaded.status().to_string();
    EXPECT_TRUE(loaded->end.is_ok()) << loaded->end.to_string();
    EXPECT_EQ(loaded->pages, saved->pages);
    EXPECT_EQ(saved->groups + saved->left_out_groups, 4u);
    EXPECT_TRUE(saved->left_out_groups > 0 || found == 4);
    EXPECT_EQ(saved->left_out_groups == 0, saved->first_problem.is_ok());
  }
  EXPECT_GT(n, 10u);
}

// The same of an import: what came is right, what did not was said, and once more brings all of it.
TEST_P(StoreArchiveFaults, AnyOperationOfAnImportMayFail) {
  (void)save();
  std::uint64_t n = 1;
  for (bool has_fired = true; has_fired; ++n) {
    SCOPED_TRACE("operation " + std::to_string(n));
    const auto backend = memory();
    files_.fail_nth(n, GetParam());
    auto file = files_.open("/x", {});
    Result<ImportResult> loaded = file.status();
    if (file.is_ok()) loaded = import_archive(**file, backend.get(), {});
    has_fired = files_.fault_fired();
    files_.clear_fault();
    const std::size_t found = right_pages(*backend);
    if (loaded.is_ok() && loaded->end.is_ok() && loaded->damaged_groups == 0) {
      EXPECT_EQ(found, 4u);
    }
    EXPECT_EQ(load(backend.get(), {}).pages, 5u);
    EXPECT_EQ(right_pages(*backend), 4u);
  }
  EXPECT_GT(n, 5u);
}

INSTANTIATE_TEST_SUITE_P(Fault, StoreArchiveFaults,
                         ::testing::Values(sim::FileFault::kIoError, sim::FileFault::kNoSpace, sim::FileFault::kShort,
                                           sim::FileFault::kWriteTorn, sim::FileFault::kSyncLost));

// A file store on a disk of its own, which is smaller than what is to be imported.
class StoreArchiveFullDisk : public StoreArchive {
 protected:
  static constexpr std::uint64_t kEarlier = 40, kAll = 200;
  static constexpr std::size_t kBytes = 20'000;

  // An archive of kAll pages; the first kEarlier of them are in a namespace of their own.
  void SetUp() override {
    make_test_volume(files_, "/a", store_, 0);
    SegmentBuilder segment(files_, "/a", store_, 1);
    for (std::uint64_t key = 1; key <= kAll; ++key) {
      (void)segment.record({{.key = key, .space = space_of(key), .bytes = kBytes, .generation = key}});
    }
    segment.seal();
    auto report = inspect_store(files_, kOne, {});
    ASSERT_TRUE(report.is_ok());
    report_ = std::move(*report);
    ASSERT_EQ(save().pages, kAll);
  }
  std::unique_ptr<StorageBackend> open(BackendOptions options) {
    BackendFactory factory;
    EXPECT_TRUE(register_file_backend(factory).is_ok());
    options.insert({{"directory", "/d"}, {"segment_size", "64Ki"}});
    auto made = factory.create("file", options, {&disk_, &clock_, &executor_});
    EXPECT_TRUE(made.is_ok()) << made.status().to_string();
    return std::move(made).value();
  }
  static std::uint64_t space_of(std::uint64_t key) { return key <= kEarlier ? 2 : 1; }
  std::uint64_t count_right(StorageBackend& backend, std::uint64_t from, std::uint64_t to) {
    std::uint64_t right = 0;
    for (std::uint64_t key = from; key <= to; ++key) {
      right += read(backend, space_of(key), key, PoolName::kKv, kBytes) == test_payload(key * 16, kBytes) ? 1 : 0;
    }
    return right;
  }

  SimFileSystem disk_{3, std::uint64_t{2} << 20};
  ManualClock clock_;
};

// The defect: the store made room by evicting what it had and what had just been imported, and the import said that all
// was well.
TEST_F(StoreArchiveFullDisk, WithoutEvictionWhatIsThereStaysAndTheImportSaysThatItStopped) {
  const auto backend = open({{"max_size", "unlimited"}, {"evict", "off"}});
  ImportOptions earlier;
  earlier.selection.namespace_prefix = test_digest(2).hex();
  EXPECT_EQ(load(backend.get(), earlier).pages, kEarlier);
  for (int round = 0; round < 2; ++round) {  // again: what is there is kept, and the disk is as full
    const ImportResult loaded = load(backend.get(), {});
    EXPECT_GT(loaded.refused_groups, 0u);
    EXPECT_FALSE(loaded.first_problem.is_ok());
    // In smaller pieces, once the limit is known.
    const StatusCode full = round == 0 ? StatusCode::kOverloaded : StatusCode::kUnsupported;
    EXPECT_EQ(loaded.end.code(), full) << loaded.end.to_string();
    EXPECT_EQ(loaded.evicted_pages, 0u);
    if (round == 1) {
      EXPECT_GE(loaded.pages, kEarlier + 20) << "in smaller pieces, once the limit is known";
    }
    EXPECT_EQ(count_right(*backend, 1, kEarlier), kEarlier);
    EXPECT_EQ(count_right(*backend, kEarlier + 1, kAll) + kEarlier, loaded.pages) << "what it counts is there";
  }
  ASSERT_TRUE(backend->close(std::chrono::seconds(10)).is_ok());
}

TEST_F(StoreArchiveFullDisk, WithEvictionTheImportSaysHowManyPagesWent) {
  const auto backend = open({{"max_size", "1Mi"}});
  const ImportResult loaded = load(backend.get(), {});
  EXPECT_TRUE(loaded.end.is_ok()) << loaded.end.to_string();
  EXPECT_EQ(loaded.evicted_pages, backend->stats().evicted);
  EXPECT_GE(loaded.evicted_pages, kAll - 60);
  ASSERT_TRUE(backend->close(std::chrono::seconds(10)).is_ok());
}

}  // namespace
}  // namespace larder::file_store
