// SPDX-License-Identifier: Apache-2.0
// Clears of a shared store: what one process cleared, no other one brings back, and each knows of it.
#include <filesystem>

#include "sim/faulty_backend.h"
#include "storage/shared/clears_file.h"
#include "tests/shared/shared_rig.h"
#include "tests/support/rest.h"

namespace larder::shared_tests {
namespace {

constexpr std::size_t kClearedBytes = 3000;

struct Clears : testing::Test {
  support::TemporaryDirectory directory;
  Environment environment;
  const std::string place = directory.path() + "/share", store = directory.path() + "/store",
                    file = place + "/" + share::kClearsName;

  std::unique_ptr<SharedBackend> open(const std::string& kind = "memory", RoleWatch* watch = nullptr) {
    SharedStoreOptions options = options_in(place);
    if (watch != nullptr) options.on_role = watch->listener();
    auto backend = environment.open(options, [this, kind] { return environment.create(kind, store); });
    EXPECT_TRUE(backend.is_ok()) << backend.status().to_string();
    return backend.is_ok() ? std::move(*backend) : nullptr;
  }
  static bool is_refused(StorageBackend& backend, std::uint64_t number, const ClearMark& as_of) {
    const Status status = write_page(backend, number, kClearedBytes, false, as_of);
    EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.to_string();
    EXPECT_EQ(read_page(backend, number, kClearedBytes).code(), StatusCode::kNotFound);
    return status.code() == StatusCode::kCancelled;
  }
};

TEST_F(Clears, WhatAnotherProcessKeptIsRefusedAndAllHearOfIt) {
  const auto host = open(), one = open(), two = open();
  ASSERT_TRUE(host && one && two);
  StorageBackend* const all[] = {host.get(), one.get(), two.get()};
  EXPECT_NE(host->clear_mark().store, 0u);
  for (std::uint64_t round = 0; round < 50; ++round) {
    const ClearMark mark = host->clear_mark(), emptied = host->emptied_mark();
    for (StorageBackend* const each : all) {
      ASSERT_EQ(each->clear_mark(), mark);
      ASSERT_EQ(each->emptied_mark(), emptied);
      ASSERT_TRUE(write_page(*each, round, kClearedBytes, false, mark).is_ok());
    }
    const bool is_whole = round % 2 == 0;
    ASSERT_TRUE(clear_store(*all[round % 3], is_whole ? nullptr : scope_of_tests()).is_ok());
    // At once, without a wait: who hears of the clear by other ways puts pages of after it.
    for (StorageBackend* const each : all) {
      ASSERT_EQ(each->clear_mark(), (ClearMark{mark.store, mark.count + 1}));
      ASSERT_EQ(each->emptied_mark() != emptied, is_whole);
      ASSERT_TRUE(is_refused(*each, round, mark));
    }
    for (std::size_t i = 0; i < 3; ++i) ASSERT_TRUE(write_page(*all[i], 1000 + i, kClearedBytes).is_ok());
    ASSERT_TRUE(write_page(*one, round, kClearedBytes, false, one->clear_mark()).is_ok());
  }
  const auto late = open();
  ASSERT_TRUE(late);
  EXPECT_EQ(late->clear_mark(), host->clear_mark());
  EXPECT_EQ(late->emptied_mark(), host->emptied_mark());
}

// A write of one client hangs in the host's backend.
struct ClearsBehindAHungWrite : Clears {
  sim::FaultyBackend* faulty = nullptr;
  Counter arrived;
  std::unique_ptr<SharedBackend> host, one, two;

  void SetUp() override {
    auto opened = environment.open(options_in(place), [this]() -> Result<std::unique_ptr<StorageBackend>> {
      auto made = std::make_unique<sim::FaultyBackend>(environment.create("memory", "").value(), 1);
      faulty = made.get();
      return std::unique_ptr<StorageBackend>(
          std::make_unique<HookedBackend>(std::move(made), [this] { arrived.add(); }));
    });
    ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
    host = std::move(*opened);
    one = open();
    two = open();
    ASSERT_TRUE(one && two);
    faulty->fail_nth(1, sim::StorageFault::kHung);
  }
  void release() {
    EXPECT_EQ(faulty->release_hung(), 1u);
    faulty->release_all();
  }
};

TEST_F(ClearsBehindAHungWrite, AClearWaitsForWhatOthersHaveUnderWay) {
  auto hung = start_write(*one, 1, kClearedBytes);
  ASSERT_TRUE(arrived.wait_for(1));
  const ClearMark before = two->clear_mark();
  auto cleared = start_clear(*two, nullptr);
  const TimePoint limit = real_clock().now() + kAnswerLimit;
  while (two->clear_mark() == before && real_clock().now() < limit) rest();
  ASSERT_TRUE(write_page(*two, 2, kClearedBytes).is_ok()) << "it does not wait for the clear";
  EXPECT_NE(cleared.result.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  release();
  EXPECT_TRUE(hung.wait().groups.at(0).is_ok());
  EXPECT_TRUE(cleared.wait().status.is_ok());
  EXPECT_EQ(read_page(*one, 1, kClearedBytes).code(), StatusCode::kNotFound);
}

TEST_F(ClearsBehindAHungWrite, WhoAskedForTheClearClosesWithoutWaiting) {
  auto hung = start_write(*one, 1, kClearedBytes);
  ASSERT_TRUE(arrived.wait_for(1));
  auto cleared = start_clear(*two, nullptr);
  EXPECT_TRUE(two->close(kAnswerLimit).is_ok());
  EXPECT_EQ(cleared.wait().status.code(), StatusCode::kCancelled);
  release();
  EXPECT_TRUE(hung.wait().groups.at(0).is_ok());
}

TEST_F(Clears, ATakeoverKeepsTheMarks) {
  RoleWatch watches[2];
  auto host = open("file");
  const std::unique_ptr<SharedBackend> clients[2] = {open("file", &watches[0]), open("file", &watches[1])};
  ASSERT_TRUE(host && clients[0] && clients[1]);
  const ClearMark before = clients[0]->clear_mark(), emptied = clients[0]->emptied_mark();
  ASSERT_TRUE(clear_store(*clients[1], scope_of_tests()).is_ok());
  const ClearMark between = clients[0]->clear_mark();
  ASSERT_TRUE(write_page(*clients[0], 1, kClearedBytes, true).is_ok());
  EXPECT_TRUE(host->close(kAnswerLimit).is_ok());
  ASSERT_TRUE(watches[0].wait_for_changes(3) && watches[1].wait_for_changes(3));
  for (const auto& client : clients) {
    EXPECT_EQ(client->clear_mark(), between);
    EXPECT_EQ(client->emptied_mark(), emptied) << "nothing has happened";
    EXPECT_TRUE(is_refused(*client, 2, before));
    EXPECT_TRUE(write_page(*client, 3, kClearedBytes, false, between).is_ok());
    EXPECT_TRUE(read_page(*client, 1, kClearedBytes).is_ok());
  }
  ASSERT_TRUE(clear_store(*clients[0]).is_ok());
  for (const auto& client : clients) {
    EXPECT_EQ(client->clear_mark(), (ClearMark{between.store, between.count + 1}));
    EXPECT_NE(client->emptied_mark(), emptied);
    EXPECT_TRUE(is_refused(*client, 3, between));
  }
}

// Nobody knows what was cleared: nothing that was kept is written, and nothing counts as stored. (A file that is gone
// the host would make again.)
TEST_F(Clears, ATakeoverWithABrokenFileBeginsAnew) {
  RoleWatch watch;
  auto host = open("file");
  const auto client = open("file", &watch);
  ASSERT_TRUE(host && client);
  const ClearMark before = client->clear_mark(), emptied = client->emptied_mark();
  std::filesystem::resize_file(file, 20);
  EXPECT_TRUE(write_page(*client, 1, kClearedBytes, false, before).is_ok()) << "its host knows";
  EXPECT_TRUE(host->close(kAnswerLimit).is_ok());
  ASSERT_TRUE(watch.wait_for(SharedRole::kHost));
  EXPECT_NE(client->clear_mark().store, before.store);
  EXPECT_NE(client->emptied_mark(), emptied);
  EXPECT_TRUE(is_refused(*client, 2, before));
  EXPECT_TRUE(write_page(*client, 2, kClearedBytes).is_ok());
  EXPECT_GT(std::filesystem::file_size(file), 20u) << "for the next one";
}

TEST_F(Clears, WithoutAHostTheLastMarksCount) {
  RoleWatch watch;
  SharedStoreOptions options = options_in(place);
  options.on_role = watch.listener();
  auto host = open();
  auto opened = environment.open(options, [] { return Result<std::unique_ptr<StorageBackend>>(unavailable("no")); });
  ASSERT_TRUE(host && opened.is_ok());
  ASSERT_TRUE(clear_store(*host).is_ok());
  const ClearMark mark = host->clear_mark(), emptied = host->emptied_mark();
  EXPECT_TRUE(host->close(kAnswerLimit).is_ok());
  EXPECT_EQ(host->clear_mark(), mark);
  EXPECT_EQ(host->emptied_mark(), emptied);
  ASSERT_TRUE(watch.wait_for(SharedRole::kSeeking));
  EXPECT_EQ((*opened)->clear_mark(), mark);
  EXPECT_EQ((*opened)->emptied_mark(), emptied);
}

TEST_F(Clears, AClearThatCannotBeKeptClearsNothing) {
  const auto host = open(), client = open();
  ASSERT_TRUE(host && client);
  ASSERT_TRUE(write_page(*client, 1, kClearedBytes).is_ok());
  const ClearMark before = client->clear_mark();
  const std::filesystem::path aside = place + "/aside";
  std::filesystem::create_directories(aside / "in the way");
  for (std::error_code failed = std::make_error_code(std::errc::io_error); failed;) {  // the host makes it again
    std::filesystem::remove(file);
    std::filesystem::rename(aside, file, failed);
  }
  for (StorageBackend* const each :
       {static_cast<StorageBackend*>(host.get()), static_cast<StorageBackend*>(client.get())}) {
    const Status failed = clear_store(*each);
    EXPECT_FALSE(failed.is_ok());
    EXPECT_NE(failed.message().find("nothing was cleared"), std::string::npos) << failed.to_string();
    EXPECT_NE(failed.message().find(share::kClearsName), std::string::npos) << failed.to_string();
  }
  EXPECT_EQ(client->clear_mark(), before);
  EXPECT_TRUE(read_page(*client, 1, kClearedBytes).is_ok());
  std::filesystem::remove_all(file);
  EXPECT_TRUE(clear_store(*client).is_ok());
  EXPECT_EQ(read_page(*client, 1, kClearedBytes).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace larder::shared_tests
