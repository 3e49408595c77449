// The conformance tests (storage_conformance.h). Each test is about the port's contract, none about a backend.
#include "tests/conformance/storage_conformance.h"

#include <atomic>
#include <stdexcept>

namespace larder::conformance {

void StorageConformance::SetUp() {
  RecordProperty("seed", std::to_string(seed_));
  harness_ = GetParam().make(seed_);
  open();
}

void StorageConformance::TearDown() {
  if (backend_) harness_->drain();
  backend_.reset();
  if (HasFailure()) printf("replay with LARDER_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed_));
}

void StorageConformance::open(const BackendOptions& extra) {
  if (backend_) harness_->drain();
  backend_.reset();
  auto opened = harness_->open(extra);
  if (!opened.is_ok()) throw std::runtime_error("open: " + opened.status().to_string());  // fails the test, and ends it
  backend_ = std::move(opened).value();
}

WriteResult StorageConformance::write_groups(const std::vector<std::vector<Spec>>& groups, std::uint64_t scope,
                                             bool durable) {
  std::vector<std::unique_ptr<PageBuffer>> buffers;
  WriteRequest request{test_scope(scope), {}, durable};
  request.terms.caller_waits = rng_.chance(1, 3);
  for (const auto& group : groups) {
    PageGroup& out = request.groups.emplace_back();
    for (const Spec& page : group) {
      buffers.push_back(std::make_unique<PageBuffer>(page.bytes, 1 + rng_.below(4), rng_));
      buffers.back()->fill(test_key(page.key), page.pool, page.salt);
      out.items.push_back({page.pool, test_key(page.key), buffers.back()->segments()});
    }
  }
  return write(*harness_, *backend_, std::move(request));
}

std::vector<Status> StorageConformance::read_pages(const std::vector<Spec>& pages, std::uint64_t scope) {
  std::vector<std::unique_ptr<PageBuffer>> buffers;
  ReadRequest request{test_scope(scope), {}};
  request.terms.caller_waits = rng_.chance(1, 3);
  for (const Spec& page : pages) {
    buffers.push_back(std::make_unique<PageBuffer>(page.bytes, 1 + rng_.below(4), rng_));
    request.items.push_back({page.pool, test_key(page.key), buffers.back()->segments()});
  }
  ReadResult result = read(*harness_, *backend_, std::move(request));
  EXPECT_EQ(result.items.size(), pages.size());
  result.items.resize(pages.size(), internal_error("no status"));
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (!result.items[i].is_ok()) continue;
    EXPECT_TRUE(buffers[i]->holds(test_key(pages[i].key), pages[i].pool, pages[i].salt))
        << "wrong bytes: pool " << pool_name(pages[i].pool) << " key " << pages[i].key << " seed " << seed_;
  }
  return result.items;
}

std::string StorageConformance::presence(PoolName pool, const std::vector<std::uint64_t>& keys, std::uint64_t scope) {
  ExistsRequest request{test_scope(scope), {}, {pool}};
  for (const std::uint64_t key : keys) request.keys.push_back(test_key(key));
  const ExistsResult result = exists(*harness_, *backend_, std::move(request));
  if (!result.status.is_ok() || result.presence.size() != 1) return result.status.to_string();
  std::string out;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    out += i < result.presence[0].present.size() && result.presence[0].present[i] ? '1' : '0';
  }
  return out;
}

TEST_P(StorageConformance, RoundTripPerPool) {
  const std::vector<Spec> group = {{PoolName::kIndexer, 1, 133},
                                   {PoolName::kSwa, 1, 1},
                                   {PoolName::kMamba, 1, 70'001},
                                   {PoolName::kDeepseekV4C4, 1, 4096},
                                   {PoolName::kKv, 1, 65'536}};
  ASSERT_TRUE(write_groups({group}).groups.at(0).is_ok());
  for (const Status& status : read_pages(group)) EXPECT_TRUE(status.is_ok()) << status.to_string();
  const BackendStats stats = backend_->stats();
  EXPECT_EQ(stats.pages, 5u);
  EXPECT_EQ(stats.bytes, 133u + 1 + 70'001 + 4096 + 65'536);
  EXPECT_GE(stats.physical_bytes, stats.bytes);
  EXPECT_EQ(stats.read_hits, 5u);
}

TEST_P(StorageConformance, ZeroLengthAnchor) {
  const std::vector<Spec> group = {{PoolName::kDeepseekV4C4, 2, 500}, {PoolName::kKv, 2, 0}};
  ASSERT_TRUE(write_groups({group}).groups.at(0).is_ok());
  EXPECT_EQ(presence(PoolName::kKv, {1, 2}), "01");
  for (const Status& status : read_pages(group)) EXPECT_TRUE(status.is_ok()) << status.to_string();
  // A payload of no segments at all, rather than of empty ones.
  ReadRequest request{test_scope(1), {{PoolName::kKv, test_key(2), {}}}};
  EXPECT_TRUE(read(*harness_, *backend_, std::move(request)).items.at(0).is_ok());
}

TEST_P(StorageConformance, ManySmallSegments) {
  Rng rng(seed_);
  PageBuffer buffer(5000, 3000, rng);  // more pieces than one preadv or pwritev takes
  buffer.fill(test_key(3), PoolName::kKv);
  WriteRequest request{test_scope(1), {{{{PoolName::kKv, test_key(3), buffer.segments()}}}}};
  ASSERT_TRUE(write(*harness_, *backend_, std::move(request)).groups.at(0).is_ok());
  PageBuffer back(5000, 2500, rng);
  ReadRequest wanted{test_scope(1), {{PoolName::kKv, test_key(3), back.segments()}}};
  ASSERT_TRUE(read(*harness_, *backend_, std::move(wanted)).items.at(0).is_ok());
  EXPECT_TRUE(back.holds(test_key(3), PoolName::kKv));
}

TEST_P(StorageConformance, JointExistsWithHoles) {
  ASSERT_TRUE(write_groups({{{PoolName::kIndexer, 10, 10}, {PoolName::kKv, 10, 100}},
                            {{PoolName::kKv, 11, 100}},
                            {{PoolName::kSwa, 13, 50}}})
                  .groups.at(2)
                  .is_ok());
  ExistsRequest request{test_scope(1), {}, {PoolName::kKv, PoolName::kIndexer, PoolName::kSwa, PoolName::kDraft}};
  for (std::uint64_t key = 10; key < 15; ++key) request.keys.push_back(test_key(key));
  const ExistsResult result = exists(*harness_, *backend_, std::move(request));
  ASSERT_TRUE(result.status.is_ok()) << result.status.to_string();
  ASSERT_EQ(result.presence.size(), 4u);
  EXPECT_EQ(result.presence[0].pool, PoolName::kKv);
  EXPECT_EQ(result.presence[0].present, (Presence{true, true, false, false, false}));
  EXPECT_EQ(result.presence[1].present, (Presence{true, false, false, false, false}));
  EXPECT_EQ(result.presence[2].present, (Presence{false, false, false, true, false}));
  EXPECT_EQ(result.presence[3].pool, PoolName::kDraft);  // the scope's model has none
  EXPECT_EQ(result.presence[3].present, (Presence{false, false, false, false, false}));
}

TEST_P(StorageConformance, EmptyRequests) {
  EXPECT_TRUE(exists(*harness_, *backend_, {test_scope(1), {}, {}}).status.is_ok());
  EXPECT_TRUE(read(*harness_, *backend_, {test_scope(1), {}}).items.empty());
  EXPECT_TRUE(write(*harness_, *backend_, {test_scope(1), {}}).groups.empty());
  EXPECT_EQ(backend_->submit_read({nullptr, {}}, [](ReadResult) {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(backend_->submit_write({nullptr, {}}, [](WriteResult) {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(backend_->submit_exists({nullptr, {}, {}}, [](ExistsResult) {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(backend_->submit_exists({test_scope(1), {}, {}}, nullptr).code(), StatusCode::kInvalidArgument);
}

TEST_P(StorageConformance, MissingKeysAreMisses) {
  ASSERT_TRUE(write_groups({{{PoolName::kKv, 20, 64}}}).groups.at(0).is_ok());
  const std::vector<Status> got =
      read_pages({{PoolName::kKv, 19, 64}, {PoolName::kKv, 20, 64}, {PoolName::kSwa, 20, 64}});
  EXPECT_EQ(got[0].code(), StatusCode::kNotFound);
  EXPECT_TRUE(got[1].is_ok());
  EXPECT_EQ(got[2].code(), StatusCode::kNotFound);
  EXPECT_EQ(backend_->stats().read_misses, 2u);
}

TEST_P(StorageConformance, AnotherIdentityIsAMiss) {
  ASSERT_TRUE(write_groups({{{PoolName::kKv, 30, 256}}}).groups.at(0).is_ok());
  EXPECT_EQ(presence(PoolName::kKv, {30}, 2), "0");
  EXPECT_EQ(read_page({PoolName::kKv, 30, 256}, 2).code(), StatusCode::kNotFound);
  EXPECT_EQ(read_page({PoolName::kKv, 30, 255}).code(), StatusCode::kNotFound) << "another length";
  // The same namespace with another layout of the pool.
  auto other_layout = std::make_shared<StoreScope>(*test_scope(1));
  other_layout->layout_fingerprints[0] = test_key(999);
  Rng rng(seed_);
  PageBuffer buffer(256, 1, rng);
  ReadRequest request{other_layout, {{PoolName::kKv, test_key(30), buffer.segments()}}};
  EXPECT_EQ(read(*harness_, *backend_, std::move(request)).items.at(0).code(), StatusCode::kNotFound);
  // Both may be there side by side under one key.
  ASSERT_TRUE(write_groups({{{PoolName::kKv, 30, 256, 5}}}, 2).groups.at(0).is_ok());
  EXPECT_TRUE(read_page({PoolName::kKv, 30, 256, 5}, 2).is_ok());
  EXPECT_TRUE(read_page({PoolName::kKv, 30, 256}, 1).is_ok());
}

TEST_P(StorageConformance, DuplicatesAreCheapAndOk) {
  const std::vector<Spec> group = {{PoolName::kSwa, 40, 900}, {PoolName::kKv, 40, 8000}};
  ASSERT_TRUE(write_groups({group}).groups.at(0).is_ok());
  const BackendStats before = backend_->stats();
  const WriteResult again = write_groups({group, group, {group[1], group[1]}});
  for (const Status& status : again.groups) EXPECT_TRUE(status.is_ok()) << status.to_string();
  const BackendStats after = backend_->stats();
  EXPECT_EQ(after.pages, 2u);
  EXPECT_EQ(after.bytes, before.bytes);
  EXPECT_EQ(after.physical_bytes, before.physical_bytes) << "a duplicate takes no room";
  EXPECT_EQ(after.duplicate_writes, before.duplicate_writes + 6);
  for (const Status& status : read_pages(group)) EXPECT_TRUE(status.is_ok());
}

TEST_P(StorageConformance, DuplicatesInOneRequest) {
  const WriteResult result = write_groups(
      {{{PoolName::kKv, 41, 3000}}, {{PoolName::kKv, 41, 3000}}, {{PoolName::kKv, 42, 10}, {PoolName::kKv, 42, 10}}});
  for (const Status& status : result.groups) EXPECT_TRUE(status.is_ok()) << status.to_string();
  EXPECT_EQ(backend_->stats().pages, 2u);
  EXPECT_EQ(backend_->stats().duplicate_writes, 2u);
  EXPECT_TRUE(read_page({PoolName::kKv, 41, 3000}).is_ok());
}

TEST_P(StorageConformance, AFailedGroupStopsNoOther) {
  const WriteResult result = write_groups({{{PoolName::kKv, 50, 100}},
                                           {{PoolName::kKv, 51, 100}, {PoolName::kDraft, 51, 10}},  // no such pool
                                           {},
                                           {{PoolName::kKv, 52, 100}}});
  ASSERT_EQ(result.groups.size(), 4u);
  EXPECT_TRUE(result.groups[0].is_ok());
  EXPECT_EQ(result.groups[1].code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(result.groups[2].code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(result.groups[3].is_ok());
  EXPECT_EQ(presence(PoolName::kKv, {50, 51, 52}), "101") << "all of a group or nothing";
}

TEST_P(StorageConformance, ClearByScope) {
  ASSERT_TRUE(write_groups({{{PoolName::kKv, 60, 100}}, {{PoolName::kSwa, 61, 100}}}, 1).groups.at(1).is_ok());
  ASSERT_TRUE(write_groups({{{PoolName::kKv, 60, 100}}}, 2).groups.at(0).is_ok());
  ASSERT_TRUE(clear(*harness_, *backend_, test_scope(1)).is_ok());
  EXPECT_EQ(presence(PoolName::kKv, {60}, 1), "0");
  EXPECT_EQ(presence(PoolName::kSwa, {61}, 1), "0");
  EXPECT_EQ(presence(PoolName::kKv, {60}, 2), "1");
  EXPECT_TRUE(read_page({PoolName::kKv, 60, 100}, 2).is_ok());
  ASSERT_TRUE(write_groups({{{PoolName::kKv, 60, 100, 9}}}, 1).groups.at(0).is_ok()) << "may be written anew";
  EXPECT_TRUE(read_page({PoolName::kKv, 60, 100, 9}, 1).is_ok());
  ASSERT_TRUE(clear(*harness_, *backend_, nullptr).is_ok());
  EXPECT_EQ(presence(PoolName::kKv, {60}, 1), "0");
  EXPECT_EQ(presence(PoolName::kKv, {60}, 2), "0");
  EXPECT_EQ(backend_->stats().pages, 0u);
  EXPECT_EQ(backend_->stats().bytes, 0u);
  ASSERT_TRUE(write_groups({{{PoolName::kKv, 60, 100}}}, 2).groups.at(0).is_ok());
  EXPECT_TRUE(read_page({PoolName::kKv, 60, 100}, 2).is_ok());
}

TEST_P(StorageConformance, RefusesAfterClose) {
  ASSERT_TRUE(write_groups({{{PoolName::kKv, 70, 100}}}).groups.at(0).is_ok());
  ASSERT_TRUE(backend_->close(std::chrono::seconds(10)).is_ok());
  EXPECT_TRUE(backend_->close(std::chrono::nanoseconds(0)).is_ok()) << "idempotent";
  bool ran = false;
  EXPECT_EQ(backend_->submit_exists({test_scope(1), {}, {}}, [&](ExistsResult) { ran = true; }).code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(backend_->submit_read({test_scope(1), {}}, [&](ReadResult) { ran = true; }).code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(backend_->submit_write({test_scope(1), {}}, [&](WriteResult) { ran = true; }).code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(backend_->submit_clear(nullptr, [&](Status) { ran = true; }).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(ran);
}

TEST_P(StorageConformance, BoundedQueueAndCloseWithWorkInFlight) {
  if (!harness_->is_manual()) GTEST_SKIP() << "needs to hold tasks back";
  open({{"queue_limit", "3"}});
  Rng rng(seed_);
  PageBuffer buffer(100, 1, rng);
  buffer.fill(test_key(80), PoolName::kKv);
  int done = 0;
  std::uint64_t next = 80;  // a page that is there already may end inside submit
  const auto submit = [&] {
    WriteRequest request{test_scope(1), {{{{PoolName::kKv, test_key(next++), buffer.segments()}}}}};
    return backend_->submit_write(std::move(request), [&](WriteResult) { ++done; });
  };
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(submit().is_ok());
  EXPECT_EQ(backend_->stats().queued, 3u);
  EXPECT_EQ(submit().code(), StatusCode::kOverloaded);
  EXPECT_EQ(done, 0);
  harness_->drain();
  EXPECT_EQ(done, 3) << "the refused one's callback never runs";
  EXPECT_TRUE(submit().is_ok());
  EXPECT_EQ(backend_->close(std::chrono::nanoseconds(0)).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(submit().code(), StatusCode::kUnavailable) << "closing refuses at once";
  harness_->drain();
  EXPECT_EQ(done, 4) << "what was taken before close completes";
  EXPECT_TRUE(backend_->close(std::chrono::nanoseconds(0)).is_ok());
}

TEST_P(StorageConformance, OverwritingByLengthReplaces) {
  ASSERT_TRUE(write_groups({{{PoolName::kKv, 85, 100}}}).groups.at(0).is_ok());
  EXPECT_EQ(read_page({PoolName::kKv, 85, 200}).code(), StatusCode::kNotFound);
}

// Corrupt bytes: whatever is flipped, a read returns the right bytes or none.
TEST_P(StorageConformance, FlippedBitsAreNeverReturned) {
  constexpr std::uint64_t kPages = 40;
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(clear(*harness_, *backend_, nullptr).is_ok());
    std::vector<std::vector<Spec>> groups;
    std::vector<Spec> all;
    for (std::uint64_t key = 0; key < kPages; ++key) {
      groups.push_back({{PoolName::kSwa, key, 40 + key}, {PoolName::kKv, key, 300 + key}});
      all.insert(all.end(), groups.back().begin(), groups.back().end());
    }
    for (const Status& status : write_groups(groups).groups) ASSERT_TRUE(status.is_ok());
    const std::size_t flipped = harness_->flip_stored_bits(rng_, 1 + rng_.below(20));
    if (flipped == 0) GTEST_SKIP() << "this backend keeps no bytes outside the process";
    const std::uint64_t corrupt_before = backend_->stats().corrupt;
    std::uint64_t corrupt = 0;
    for (const Status& status : read_pages(all)) {  // read_pages compares the bytes
      if (status.code() == StatusCode::kCorrupt) ++corrupt;
    }
    EXPECT_EQ(backend_->stats().corrupt, corrupt_before + corrupt);
    std::uint64_t still_corrupt = 0;
    for (const Status& status : read_pages(all)) still_corrupt += status.code() == StatusCode::kCorrupt ? 1 : 0;
    EXPECT_EQ(still_corrupt, 0u) << "a corrupt page is dropped at the first read";
    // What was dropped can be written again.
    for (const Status& status : write_groups(groups).groups) EXPECT_TRUE(status.is_ok());
    for (const Status& status : read_pages(all)) EXPECT_TRUE(status.is_ok()) << status.to_string();
    // Flips that no read saw (commit records, padding) must not hurt a restart either.
    (void)harness_->flip_stored_bits(rng_, 5);
    open();
    (void)read_pages(all);
  }
}

TEST_P(StorageConformance, SurvivesRestart) {
  if (!backend_->info().persistent) GTEST_SKIP() << "not persistent";
  std::vector<std::vector<Spec>> groups;
  std::vector<Spec> all;
  for (std::uint64_t key = 0; key < 50; ++key) {
    groups.push_back({{PoolName::kIndexer, key, 33}, {PoolName::kKv, key, 1000 + 7 * key}});
    all.insert(all.end(), groups.back().begin(), groups.back().end());
  }
  for (const Status& status : write_groups(groups).groups) ASSERT_TRUE(status.is_ok());
  ASSERT_TRUE(write_groups({{{PoolName::kKv, 7, 64, 3}}}, 2).groups.at(0).is_ok());
  ASSERT_TRUE(clear(*harness_, *backend_, test_scope(2)).is_ok());
  ASSERT_TRUE(write_groups({{{PoolName::kKv, 8, 64, 3}}}, 2).groups.at(0).is_ok());
  for (int restart = 0; restart < 3; ++restart) {
    open();
    EXPECT_EQ(backend_->stats().pages, 101u);
    for (const Status& status : read_pages(all)) EXPECT_TRUE(status.is_ok()) << status.to_string();
    EXPECT_EQ(presence(PoolName::kKv, {7, 8}, 2), "01") << "cleared stays cleared";
    EXPECT_TRUE(read_page({PoolName::kKv, 8, 64, 3}, 2).is_ok());
  }
  ASSERT_TRUE(clear(*harness_, *backend_, nullptr).is_ok());
  open();
  EXPECT_EQ(backend_->stats().pages, 0u);
  ASSERT_TRUE(write_groups(groups).groups.at(0).is_ok()) << "pages written after a clear of everything";
  open();
  EXPECT_EQ(backend_->stats().pages, 100u) << "are there after a restart";
}

TEST_P(StorageConformance, BoundedSize) {
  open({{"max_size", "512Ki"}});
  std::uint64_t most = 0;
  for (std::uint64_t key = 0; key < 600; ++key) {
    ASSERT_TRUE(write_groups({{{PoolName::kSwa, key, 500}, {PoolName::kKv, key, 1500}}}).groups.at(0).is_ok());
    most = std::max(most, backend_->stats().physical_bytes);
    EXPECT_TRUE(read_page({PoolName::kKv, key, 1500}).is_ok()) << "the newest is there";
    (void)read_page({PoolName::kKv, 0, 1500});  // keeps page 0 in use
  }
  EXPECT_LE(most, 512u * 1024);
  EXPECT_GT(most, 256u * 1024);
  EXPECT_GT(backend_->stats().evicted, 0u);
  EXPECT_EQ(presence(PoolName::kKv, {0, 60, 599}), "101") << "what is used stays, what is not leaves";
  EXPECT_FALSE(write_groups({{{PoolName::kKv, 5000, 1'000'000}}}).groups.at(0).is_ok()) << "larger than the store";
  if (!harness_->evicts_whole_groups()) return;
  for (std::uint64_t key = 0; key < 600; ++key) {
    const std::string swa = presence(PoolName::kSwa, {key}), kv = presence(PoolName::kKv, {key});
    EXPECT_EQ(swa, kv) << "a group leaves as a whole, key " << key;
  }
}

// Real threads: writers with overlapping keys, readers, lookups, a clear. Every callback once, never wrong bytes.
TEST_P(StorageConformance, ConcurrentReadersAndWriters) {
  if (harness_->is_manual()) GTEST_SKIP() << "needs threads";
  constexpr int kThreads = 4, kRounds = 60;
  constexpr std::uint64_t kKeys = 40;
  std::atomic<int> submitted{0}, completed{0}, wrong{0};
  RankedMutex mutex(LockRank::kMetrics);
  std::string odd;  // statuses that should not be
  const auto note_odd = [&](const Status& status) {
    LockGuard guard(mutex);
    odd += status.to_string() + "\n";
  };
  const auto work = [&](std::uint64_t thread_seed) {
    Rng rng(thread_seed);
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t key = rng.below(kKeys);
      auto swa = std::make_shared<PageBuffer>(200 + key, 1 + rng.below(3), rng);
      auto kv = std::make_shared<PageBuffer>(5000 + 13 * key, 1 + rng.below(3), rng);
      const PageKey id = test_key(key);
      Status status;
      if (rng.chance(1, 50)) {
        status = backend_->submit_clear(test_scope(1), [&](Status) { ++completed; });
      } else if (rng.chance(1, 2)) {
        swa->fill(id, PoolName::kSwa);
        kv->fill(id, PoolName::kKv);
        WriteRequest request{test_scope(1),
                             {{{{PoolName::kSwa, id, swa->segments()}, {PoolName::kKv, id, kv->segments()}}}},
                             rng.chance(1, 8)};
        status = backend_->submit_write(std::move(request), [&, swa, kv](WriteResult result) {
          const StatusCode code = result.groups.at(0).code();  // a clear may overtake it
          if (code != StatusCode::kOk && code != StatusCode::kCancelled) note_odd(result.groups[0]);
          ++completed;
        });
      } else {
        ReadRequest request{test_scope(1),
                            {{PoolName::kKv, id, kv->segments()}, {PoolName::kSwa, id, swa->segments()}}};
        status = backend_->submit_read(std::move(request), [&, swa, kv, id](ReadResult result) {
          if (result.items.at(0).is_ok() && !kv->holds(id, PoolName::kKv)) ++wrong;
          if (result.items.at(1).is_ok() && !swa->holds(id, PoolName::kSwa)) ++wrong;
          for (const Status& item : result.items) {
            if (!item.is_ok() && item.code() != StatusCode::kNotFound) note_odd(item);
          }
          ++completed;
        });
      }
      if (status.is_ok()) ++submitted;
    }
  };
  {
    ThreadPoolExecutor callers("callers", kThreads, kThreads);
    for (int t = 0; t < kThreads; ++t) {
      ASSERT_TRUE(callers.post([&work, t, this] { work(seed_ + static_cast<std::uint64_t>(t)); }).is_ok());
    }
  }
  EXPECT_TRUE(backend_->close(std::chrono::seconds(60)).is_ok());
  EXPECT_EQ(completed.load(), submitted.load()) << "each callback runs exactly once; seed " << seed_;
  EXPECT_EQ(submitted.load(), kThreads * kRounds);
  EXPECT_EQ(wrong.load(), 0) << "seed " << seed_;
  EXPECT_EQ(odd, "") << "seed " << seed_;
  EXPECT_EQ(backend_->stats().corrupt, 0u);
}

}  // namespace larder::conformance
