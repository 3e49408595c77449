// SPDX-License-Identifier: Apache-2.0
// What a file store does when its bytes rot: flipped bits in every structure, truncated segments, swapped pages and
// segments, zeroed blocks, pages of another namespace in place of one's own, segments that come back from the past.
//
// The store under test has two volumes, sealed segments and such as a killed process left, pages of two namespaces,
// and a third one that was cleared. Each damage is done to a fresh copy, twice:
//   opened:  nothing wrong is ever read; only groups that the damage touched are lost; what is lost is counted; what
//   was
//            cleared stays away. Or the store is refused with a message, where docs/formats.md says so.
//   fsck:    reports it, mends it, then finds nothing; afterwards the store opens, and no read meets damage any more.
#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "storage/file/segment_format.h"
#include "storage/file/store_check.h"
#include "tests/crash/store_client.h"
#include "tests/crash/store_image.h"
#include "tests/support/brief.h"

namespace larder::crash {
namespace {

using file_store::check_store;
using file_store::CheckReport;
using file_store::FindingKind;
using file_store::kBlockBytes;
using Groups = std::set<GroupId>;

constexpr std::uint64_t kClearedScope = 3;
constexpr std::uint64_t kForEver = 1'000'000'000;
const std::vector<std::string> kDirectories = {"/a/store", "/b/store"};

Result<std::unique_ptr<StorageBackend>> open_on(const StoreImage& image, FileSystem& files, ManualExecutor& executor) {
  static ManualClock clock(Nanos(1'000'000'000));
  return open_file_store({{"directory", image.directory_option()}, {"segment_size", "96Ki"}}, files, clock, executor);
}

// The store as it was left, and as it was in the middle of its life.
struct Sample {
  StoreImage image, past;
  Groups written, kept;  // of all scopes; of those not cleared
};

class SampleMaker {
 public:
  explicit SampleMaker(std::uint64_t seed) : rng_(seed) {
    files_.add_disk("/a");
    files_.add_disk("/b");
    sample_.image.directories = kDirectories;
    auto opened = open_on(sample_.image, files_, executor_);
    EXPECT_TRUE(opened.is_ok()) << opened.status().to_string();
    store_ = std::move(opened).value();
  }

  Sample run() {
    write(8, {1, 2, kClearedScope});
    write(14, {kClearedScope});  // segments with nothing else: the clear removes them
    sample_.past = take_image(files_, kDirectories);
    const Status cleared = wait_for<Status>(drain(), [this](StorageBackend::ClearDone done) {
      return store_->submit_clear(scope_of(kClearedScope), std::move(done));
    });
    EXPECT_TRUE(cleared.is_ok()) << cleared.to_string();
    write(14, {1, 2});
    files_.fail_nth(1, sim::FileFault::kIoError, kForEver);  // as if it were killed: nothing is sealed
    store_.reset();
    files_.clear_fault();
    sample_.image = take_image(files_, kDirectories);
    for (const GroupId& group : sample_.written) {
      if (group.scope != kClearedScope) sample_.kept.insert(group);
    }
    return std::move(sample_);
  }

 private:
  [[nodiscard]] Drain drain() {
    return [this] { (void)executor_.run_all(); };
  }
  void write(std::uint64_t requests, const std::vector<std::uint64_t>& scopes) {
    for (std::uint64_t i = 0; i < requests; ++i) {
      const std::uint64_t scope = scopes[i % scopes.size()];
      std::vector<GroupId> groups;
      for (std::uint64_t j = 0, count = 1 + rng_.below(2); j < count; ++j) groups.push_back({scope, next_++});
      sample_.written.insert(groups.begin(), groups.end());
      for (const Status& status : write_groups(*store_, groups, rng_.chance(1, 2), drain(), rng_).groups) {
        EXPECT_TRUE(status.is_ok()) << status.to_string();
      }
    }
  }

  Rng rng_;
  sim::SimFileSystem files_{1};
  ManualExecutor executor_{100'000};
  std::unique_ptr<StorageBackend> store_;
  Sample sample_;
  std::uint64_t next_ = 0;
};

// What an opened store had.
struct Seen {
  Status opened;
  Groups lost;  // at least one page
  std::uint64_t corrupt = 0, torn_tails = 0;
  bool any_corrupt_read = false;
};

class BitRot : public testing::Test {
 protected:
  // Opens a copy and reads everything.
  Seen open_and_read(const StoreImage& image, const std::string& where) {
    sim::SimFileSystem files(1);
    put_image(image, files);
    return read_all(image, files, where);
  }
  Seen read_all(const StoreImage& image, sim::SimFileSystem& files, const std::string& where) {
    ManualExecutor executor(100'000);
    const Drain drain = [&executor] { (void)executor.run_all(); };
    auto store = open_on(image, files, executor);
    Seen seen;
    seen.opened = store.status();
    if (!store.is_ok()) {
      EXPECT_FALSE(store.status().message().empty()) << where;
      return seen;
    }
    for (const GroupId& group : sample_.written) {
      for (const Status& page : read_pages(**store, group, drain, rng_, where + ": ")) {
        const bool is_cleared = group.scope == kClearedScope;
        EXPECT_FALSE(is_cleared && page.is_ok()) << where << ": cleared and back: " << to_text(group);
        if (!page.is_ok() && !is_cleared) seen.lost.insert(group);
        seen.any_corrupt_read = seen.any_corrupt_read || page.code() == StatusCode::kCorrupt;
        const bool is_miss = page.code() == StatusCode::kNotFound || page.code() == StatusCode::kCorrupt;
        EXPECT_TRUE(page.is_ok() || is_miss) << where << ": " << page.to_string();
      }
    }
    const BackendStats stats = (*store)->stats();
    seen.corrupt = stats.corrupt;
    seen.torn_tails = stats.torn_tails;
    const GroupId again{1, 900'000};
    const WriteResult written = write_groups(**store, {again}, true, drain, rng_);
    EXPECT_TRUE(written.groups.at(0).is_ok()) << where << ": it goes on: " << written.groups.at(0).to_string();
    return seen;
  }

  CheckReport check(sim::SimFileSystem& files, bool repair, const std::string& where) {
    auto report = check_store(files, clock_, kDirectories, {.repair = repair, .progress = {}});
    EXPECT_TRUE(report.is_ok()) << where << ": " << report.status().to_string();
    return report.is_ok() ? std::move(*report) : CheckReport{};
  }

  // Reports, mends, and finds nothing then; what is lost afterwards. `is_seen`: it must be reported.
  Seen mend(const StoreImage& image, bool is_seen, const std::string& where) {
    sim::SimFileSystem files(1);
    put_image(image, files);
    const CheckReport found = check(files, false, where);
    EXPECT_TRUE(found.has_damage() || !is_seen) << where << ": fsck saw nothing";
    const CheckReport mended = check(files, true, where);
    for (const file_store::Finding& f : mended.findings) {
      EXPECT_TRUE(f.is_repaired || !f.is_damage) << where << ": " << f.path << ": " << f.what << "; " << f.remedy;
    }
    for (const file_store::Finding& f : check(files, false, where).findings) {
      ADD_FAILURE() << where << ": after the repair: " << f.path << ": " << f.what;
    }
    Seen seen = read_all(image, files, where + ", mended");
    EXPECT_TRUE(seen.opened.is_ok()) << where << ": " << seen.opened.to_string();
    EXPECT_EQ(seen.corrupt, 0u) << where;
    EXPECT_FALSE(seen.any_corrupt_read) << where;
    return seen;
  }

  // `touched`: what may be lost; `must`: what cannot be but lost.
  void expect_contained(const StoreImage& image, const Groups& touched, const Groups& must, bool is_seen,
                        const std::string& where) {
    const Seen seen = open_and_read(image, where);
    EXPECT_TRUE(seen.opened.is_ok()) << where << ": " << seen.opened.to_string();
    expect_within(seen.lost, touched, where);
    expect_within(must, seen.lost, where + ": not noticed");
    EXPECT_TRUE(must.empty() || seen.corrupt + seen.torn_tails > 0) << where << ": not counted";
    expect_within(mend(image, is_seen, where).lost, touched, where + ", mended");
  }
  static void expect_within(const Groups& part, const Groups& all, const std::string& where) {
    for (const GroupId& group : part) EXPECT_TRUE(all.contains(group)) << where << ": " << to_text(group);
  }

  [[nodiscard]] Groups only_kept(const Groups& groups) const {
    Groups out;
    for (const GroupId& group : groups) {
      if (group.scope != kClearedScope) out.insert(group);
    }
    return out;
  }
  // A footer does not list what was cleared before it was written: nobody misses such pages, and fsck does not look.
  [[nodiscard]] bool is_reported(const Place& place) const {
    const bool is_page = place.kind == PlaceKind::kHead || place.kind == PlaceKind::kPayload;
    if (is_page && place.is_sealed) return !only_kept(place.groups).empty();
    return place.kind != PlaceKind::kUnused;
  }
  [[nodiscard]] std::vector<Place> payloads() const {
    std::vector<Place> out;
    for (const Place& place : places_) {
      if (place.kind == PlaceKind::kPayload && sample_.kept.contains(*place.groups.begin())) out.push_back(place);
    }
    return out;
  }
  [[nodiscard]] std::vector<std::string> segments() const {
    std::vector<std::string> out;
    for (const auto& [path, records] : records_) out.push_back(path);
    return out;
  }

  const std::uint64_t seed_ = test_seed();
  testing::ScopedTrace trace_{__FILE__, __LINE__, "LARDER_TEST_SEED=" + std::to_string(seed_)};
  QuietLog quiet_;
  Rng rng_{seed_};
  ManualClock clock_{std::chrono::seconds(1'700'000'000)};
  const Sample sample_ = SampleMaker(seed_).run();
  const std::vector<Place> places_ = places_of(sample_.image, sample_.written);
  const std::map<std::string, std::vector<RecordPlace>> records_ = records_of(sample_.image, sample_.written);
};

std::string name_of(const Place& place) {
  constexpr std::string_view kNames[] = {"format",  "cleared", "header",  "head",
                                         "payload", "footer",  "trailer", "unused"};
  return place.path + " " + std::string(kNames[static_cast<std::size_t>(place.kind)]) + " at " +
         std::to_string(place.begin);
}

TEST_F(BitRot, TheSampleHasEverything) {
  std::map<PlaceKind, std::uint64_t> sealed, open;
  for (const Place& place : places_) ++(place.is_sealed ? sealed : open)[place.kind];
  for (const PlaceKind kind : {PlaceKind::kHeader, PlaceKind::kHead, PlaceKind::kPayload, PlaceKind::kUnused}) {
    EXPECT_GE(sealed[kind], 2u);
    EXPECT_GE(open[kind], 2u);
  }
  EXPECT_GE(sealed[PlaceKind::kFooter], 2u);
  EXPECT_EQ(open[PlaceKind::kFormat], 2u);
  EXPECT_EQ(open[PlaceKind::kCleared], 2u);
  EXPECT_GT(sample_.past.files.size(), 2u);
  const Seen seen = open_and_read(sample_.image, "whole");
  EXPECT_TRUE(seen.opened.is_ok() && seen.lost.empty()) << seen.opened.to_string();
  EXPECT_EQ(seen.corrupt + seen.torn_tails, 0u);
  EXPECT_TRUE(mend(sample_.image, false, "whole").lost.empty());
}

TEST_F(BitRot, FlippedBitsInEveryStructure) {
  for (const Place& place : places_) {
    if (place.kind == PlaceKind::kFormat || place.kind == PlaceKind::kCleared) continue;
    StoreImage image = sample_.image;
    const std::uint64_t at = rng_.between(place.begin, place.end - 1);
    const auto bit = static_cast<unsigned>(rng_.below(8));
    image.files[place.path][at] ^= std::byte{1} << bit;
    const std::string where = name_of(place) + ", byte " + std::to_string(at) + " bit " + std::to_string(bit);
    const bool is_payload = place.kind == PlaceKind::kPayload;
    const bool is_only_head = place.kind == PlaceKind::kHead && !place.is_sealed;  // else the footer knows, too
    const Groups hit = is_payload || is_only_head ? only_kept(place.groups) : Groups{};
    expect_contained(image, hit, hit, is_reported(place), where);
    if (HasFailure()) return;
  }
}

// Every byte of the structures that have no second copy.
TEST_F(BitRot, FlippedBitsInFormatAndCleared) {
  for (const Place& place : places_) {
    if (place.kind != PlaceKind::kFormat && place.kind != PlaceKind::kCleared) continue;
    for (std::uint64_t at = 0; at < place.end; ++at) {
      StoreImage image = sample_.image;
      image.files[place.path][at] ^= std::byte{1} << rng_.below(8);
      const std::string where = name_of(place) + ", byte " + std::to_string(at);
      if (place.kind == PlaceKind::kCleared) {  // the other volume knows
        expect_contained(image, {}, {}, true, where);
      } else {
        // Another number or id, or no FORMAT at all: refused, or the same store under another volume number.
        EXPECT_TRUE(open_and_read(image, where).lost.empty());
        sim::SimFileSystem files(1);
        put_image(image, files);
        (void)check(files, true, where);
        StoreImage after = take_image(files, kDirectories);
        after.files[place.path] = sample_.image.files.at(place.path);  // what a person does
        const Seen seen = open_and_read(after, where + ", put back");
        EXPECT_TRUE(seen.opened.is_ok() && seen.lost.empty()) << where << ": " << seen.opened.to_string();
      }
      if (HasFailure()) return;
    }
  }
}

// Better a cold cache than the pages of a tenant who asked for their removal.
TEST_F(BitRot, ClearedDamagedInAllVolumesDropsAllPages) {
  StoreImage image = sample_.image;
  for (const Place& place : places_) {
    if (place.kind == PlaceKind::kCleared) image.files[place.path][rng_.below(place.end)] ^= std::byte{4};
  }
  expect_contained(image, sample_.kept, sample_.kept, true, "both CLEARED");
}

TEST_F(BitRot, ZeroedBlocks) {
  for (const auto& [path, records] : records_) {
    for (std::uint64_t at = 0; at < sample_.image.files.at(path).size(); at += kBlockBytes) {
      StoreImage image = sample_.image;
      std::vector<std::byte>& bytes = image.files[path];
      const auto block = std::span(bytes).subspan(at, kBlockBytes);
      if (std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; })) continue;
      std::fill(block.begin(), block.end(), std::byte{0});
      Groups must, touched;
      bool is_seen = false;
      for (const Place& place : places_) {
        if (place.path != path || place.begin >= at + kBlockBytes || place.end <= at) continue;
        const Groups groups = only_kept(place.groups);
        is_seen = is_seen || is_reported(place);
        if (place.kind == PlaceKind::kPayload) must.insert(groups.begin(), groups.end());
        // A head that is gone takes its record along; of a sealed segment, if fsck finds a damaged page in it, too.
        if (place.kind == PlaceKind::kHead) touched.insert(groups.begin(), groups.end());
        if (place.kind == PlaceKind::kHead && !place.is_sealed) must.insert(groups.begin(), groups.end());
      }
      touched.insert(must.begin(), must.end());
      // With nothing but zeros behind it, in a segment that has no footer, it looks like one that was never written.
      const auto tail = std::span(bytes).subspan(at);
      const bool is_sealed = !records.empty() && records.front().is_sealed;
      const bool is_like_unwritten =
          !is_sealed && std::all_of(tail.begin(), tail.end(), [](std::byte b) { return b == std::byte{0}; });
      if (is_like_unwritten) must.clear();
      is_seen = is_seen && !is_like_unwritten;
      expect_contained(image, touched, must, is_seen, path + " block at " + std::to_string(at));
      if (HasFailure()) return;
    }
  }
}

TEST_F(BitRot, TruncatedSegments) {
  for (const auto& [path, records] : records_) {
    std::set<std::uint64_t> cuts = {0, 1, 100, kBlockBytes - 1, kBlockBytes};
    for (const Place& place : places_) {
      if (place.path == path) cuts.insert({place.begin, rng_.between(place.begin, place.end - 1)});
    }
    for (const std::uint64_t cut : cuts) {
      if (support::is_brief() && !rng_.chance(1, 3)) continue;
      StoreImage image = sample_.image;
      image.files[path].resize(cut);
      Groups gone;
      for (const RecordPlace& record : records) {
        const Groups kept = only_kept(record.groups);
        if (record.end > cut) gone.insert(kept.begin(), kept.end());
      }
      const std::string where = path + " cut at " + std::to_string(cut);
      const Seen seen = open_and_read(image, where);
      EXPECT_TRUE(seen.opened.is_ok()) << where << ": " << seen.opened.to_string();
      EXPECT_EQ(seen.lost, gone) << where;
      // A segment that ends where a record ends looks like one that was being written.
      const bool is_inside = std::any_of(records.begin(), records.end(), [cut](const RecordPlace& record) {
        return cut > record.begin && cut < record.end;
      });
      EXPECT_TRUE(!is_inside || seen.corrupt + seen.torn_tails > 0) << where << ": not counted";
      EXPECT_EQ(mend(image, is_inside, where).lost, gone) << where;
      if (HasFailure()) return;
    }
  }
}

TEST_F(BitRot, SwappedPagesAndPagesOfAnotherNamespace) {
  std::vector<Place> pages = payloads();
  rng_.shuffle(std::span(pages));
  std::uint64_t swaps = 0, strangers = 0, far = 0;
  for (std::size_t i = 0; i + 1 < pages.size() && swaps < 60; ++i) {
    const Place& one = pages[i];
    const auto same_size = std::find_if(pages.begin() + static_cast<std::ptrdiff_t>(i) + 1, pages.end(),
                                        [&](const Place& p) { return p.end - p.begin == one.end - one.begin; });
    if (same_size == pages.end() || one.end - one.begin < 16) continue;
    const Place& two = *same_size;
    const bool copies = rng_.chance(1, 2);
    StoreImage image = sample_.image;
    std::byte* const first = image.files[one.path].data() + one.begin;
    std::byte* const second = image.files[two.path].data() + two.begin;
    const std::vector<std::byte> saved(first, first + (one.end - one.begin));
    std::copy(second, second + saved.size(), first);
    if (!copies) std::copy(saved.begin(), saved.end(), second);
    Groups hit = one.groups;
    if (!copies) hit.insert(two.groups.begin(), two.groups.end());
    expect_contained(image, hit, hit, true,
                     name_of(one) + (copies ? " replaced by " : " swapped with ") + name_of(two));
    if (HasFailure()) return;
    ++swaps;
    strangers += one.groups.begin()->scope != two.groups.begin()->scope ? 1 : 0;
    far += one.path != two.path ? 1 : 0;
  }
  EXPECT_GT(strangers, 5u);
  EXPECT_GT(far, 5u);
}

// Whole records, with heads that are right in themselves, in a place that is not theirs.
TEST_F(BitRot, RecordsInTheWrongPlace) {
  std::uint64_t cases = 0;
  for (const auto& [path, records] : records_) {
    for (const auto& [other_path, others] : records_) {
      for (const RecordPlace& record : records) {
        const auto other = std::find_if(others.begin(), others.end(), [&](const RecordPlace& o) {
          return o.end - o.begin == record.end - record.begin && o.groups != record.groups;
        });
        if (other == others.end() || rng_.chance(1, 2)) continue;
        StoreImage image = sample_.image;
        const std::byte* const from = sample_.image.files.at(other_path).data() + other->begin;
        std::copy(from, from + (other->end - other->begin), image.files[path].data() + record.begin);
        const Groups hit = only_kept(record.groups);
        expect_contained(image, hit, hit, !hit.empty(),
                         path + " record at " + std::to_string(record.begin) + " replaced by one of " + other_path);
        if (HasFailure()) return;
        ++cases;
      }
    }
  }
  EXPECT_GT(cases, 5u);
}

// A whole header that names another store or number refuses the segment, and with it the store: a person mixed up
// files.
TEST_F(BitRot, SwappedSegmentsAreRefusedByName) {
  const std::vector<std::string> paths = segments();
  for (std::size_t i = 1; i < paths.size(); ++i) {
    StoreImage image = sample_.image;
    std::swap(image.files[paths[0]], image.files[paths[i]]);
    const std::string where = paths[0] + " and " + paths[i] + " swapped";
    const Seen seen = open_and_read(image, where);
    EXPECT_EQ(seen.opened.code(), StatusCode::kConflict) << where;
    EXPECT_NE(seen.opened.message().find("segment-"), std::string::npos) << seen.opened.message();
    sim::SimFileSystem files(1);
    put_image(image, files);
    EXPECT_TRUE(check(files, true, where).has_damage()) << where;
    StoreImage after = take_image(files, kDirectories);
    std::swap(after.files[paths[0]], after.files[paths[i]]);
    EXPECT_TRUE(open_and_read(after, where + " and back").lost.empty());
  }
}

// The body of another segment behind its own header.
TEST_F(BitRot, TheBodyOfAnotherSegmentIsNotRead) {
  const std::vector<std::string> paths = segments();
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string& path = paths[i];
    StoreImage image = sample_.image;
    std::vector<std::byte> body = sample_.image.files.at(paths[(i + 1) % paths.size()]);
    std::copy_n(sample_.image.files.at(path).begin(), kBlockBytes, body.begin());
    image.files[path] = std::move(body);
    Groups gone;
    for (const RecordPlace& record : records_.at(path)) {
      const Groups kept = only_kept(record.groups);
      gone.insert(kept.begin(), kept.end());
    }
    expect_contained(image, gone, gone, true, path + " with another's body");
    if (HasFailure()) return;
  }
}

// A copy from before the clear and before the segment was full, put back by somebody's backup.
TEST_F(BitRot, StaleCopiesOfSegments) {
  std::uint64_t replaced = 0, back = 0;
  const auto past_records = records_of(sample_.past, sample_.written);
  for (const auto& [path, records] : past_records) {
    StoreImage image = sample_.image;
    const bool is_there = image.files.contains(path);
    if (is_there && image.files[path] == sample_.past.files.at(path)) continue;
    image.files[path] = sample_.past.files.at(path);
    Groups gone;
    if (is_there) {
      for (const RecordPlace& record : records_.at(path)) gone.merge(only_kept(record.groups));
      for (const RecordPlace& record : records) {
        for (const GroupId& group : record.groups) gone.erase(group);
      }
    }
    const std::string where = path + (is_there ? " as it was" : " is back");
    const Seen seen = open_and_read(image, where);
    EXPECT_TRUE(seen.opened.is_ok()) << where << ": " << seen.opened.to_string();
    expect_within(seen.lost, gone, where);
    expect_within(mend(image, false, where).lost, gone, where);
    ++(is_there ? replaced : back);
  }
  EXPECT_GT(replaced + back, 1u);
  EXPECT_GT(back, 0u);
}

// Clears are remembered as long as any segment that is older than them is there: what a footer does not list is still
// in its records.
TEST_F(BitRot, ClearedPagesStayAwayWhenTheirFooterIsLost) {
  sim::SimFileSystem files(1);
  StoreImage image;
  image.directories = kDirectories;
  ManualExecutor executor(100'000);
  const Drain drain = [&executor] { (void)executor.run_all(); };
  const auto open = [&] {
    auto store = open_on(image, files, executor);
    EXPECT_TRUE(store.is_ok()) << store.status().to_string();
    return std::move(store).value();
  };
  const GroupId secret{1, 0}, other{2, 0};  // small ones, in one segment
  auto store = open();
  EXPECT_TRUE(write_groups(*store, {secret}, true, drain, rng_).groups.at(0).is_ok());
  EXPECT_TRUE(write_groups(*store, {secret, {1, 4}}, true, drain, rng_).groups.at(1).is_ok());
  EXPECT_TRUE(wait_for<Status>(drain, [&](StorageBackend::ClearDone done) {
                return store->submit_clear(scope_of(1), std::move(done));
              }).is_ok());
  for (std::uint64_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(write_groups(*store, {{2, 4 * i}}, true, drain, rng_).groups.at(0).is_ok());
  }
  store.reset();   // footers list scope 2 only
  open().reset();  // an opening may forget clears that have done their work
  image = take_image(files, kDirectories);
  for (auto& [path, bytes] : image.files) {
    if (path.find("segment-") != std::string::npos) bytes[bytes.size() - kBlockBytes + 20] ^= std::byte{1};
  }
  sim::SimFileSystem damaged(1);
  put_image(image, damaged);
  auto again = open_on(image, damaged, executor);
  ASSERT_TRUE(again.is_ok()) << again.status().to_string();
  for (const Status& page : read_pages(**again, secret, drain, rng_, "cleared")) {
    EXPECT_EQ(page.code(), StatusCode::kNotFound);
  }
  for (const Status& page : read_pages(**again, other, drain, rng_, "kept")) EXPECT_TRUE(page.is_ok());
}

}  // namespace
}  // namespace larder::crash
