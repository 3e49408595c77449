// SPDX-License-Identifier: Apache-2.0
// The files of a share are deleted under its host, by a cleaner of old files or by hand.
#include <filesystem>

#include "storage/shared/clears_file.h"
#include "storage/shared/real_share_socket.h"
#include "tests/shared/shared_rig.h"
#include "tests/support/rest.h"

namespace larder::shared_tests {
namespace {

constexpr const char* kLockFile = "/larder-share.lock";
constexpr const char* kSocketFile = "/larder-share.sock";
constexpr std::size_t kPageBytes = 3000;

struct DeletedFiles : testing::Test {
  support::TemporaryDirectory directory;
  Environment environment;
  const std::string place = directory.path() + "/share", store = directory.path() + "/store";

  std::unique_ptr<SharedBackend> join(const std::string& kind, RoleWatch& watch) {
    SharedStoreOptions options = options_in(place);
    options.on_role = watch.listener();
    auto backend = environment.open(options, [this, kind] { return environment.create(kind, store); });
    EXPECT_TRUE(backend.is_ok()) << backend.status().to_string();
    return backend.is_ok() ? std::move(*backend) : nullptr;
  }
};

struct Deletion {
  const char* name;
  std::vector<std::string> what;  // below the directory
  friend void PrintTo(const Deletion& deletion, std::ostream* out) { *out << deletion.name; }
};

struct AfterDeletion : DeletedFiles, testing::WithParamInterface<Deletion> {};

TEST_P(AfterDeletion, NewcomersFindTheHostAndItsClientsNoticeNothing) {
  RoleWatch watches[3];
  auto host = join("file", watches[0]);
  const auto client = join("file", watches[1]);
  ASSERT_TRUE(host && client);
  ASSERT_EQ(client->role(), SharedRole::kClient);
  ASSERT_TRUE(write_page(*client, 1, kPageBytes).is_ok());
  for (const std::string& name : GetParam().what) ASSERT_GT(std::filesystem::remove_all(place + name), 0u) << name;
  const auto newcomer = join("file", watches[2]);
  ASSERT_TRUE(newcomer);
  EXPECT_EQ(newcomer->role(), SharedRole::kClient);
  EXPECT_EQ(host->role(), SharedRole::kHost);
  EXPECT_TRUE(read_page(*newcomer, 1, kPageBytes).is_ok());
  EXPECT_TRUE(write_page(*newcomer, 2, kPageBytes).is_ok());
  EXPECT_TRUE(read_page(*client, 2, kPageBytes).is_ok());
  EXPECT_EQ(watches[0].changes(), 1u);
  EXPECT_EQ(watches[1].changes(), 1u) << "its connection has not broken";
  EXPECT_TRUE(host->close(kAnswerLimit).is_ok());
  ASSERT_TRUE(watches[1].wait_for_changes(3) && watches[2].wait_for_changes(3)) << "client, seeking, and a role again";
  EXPECT_NE(client->role(), newcomer->role()) << "one hosts, and the other is its client";
  for (const auto& reader : {client.get(), newcomer.get()}) {
    EXPECT_TRUE(read_page(*reader, 1, kPageBytes).is_ok());
    EXPECT_TRUE(read_page(*reader, 2, kPageBytes).is_ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Share, AfterDeletion,
                         testing::Values(Deletion{"Lock", {kLockFile}}, Deletion{"Socket", {kSocketFile}},
                                         Deletion{"Both", {kLockFile, kSocketFile}}, Deletion{"Directory", {""}}),
                         [](const auto& test) { return std::string(test.param.name); });

// Without a lock of the inner store, too: the host has the lock again before the socket is gone as well.
TEST_F(DeletedFiles, TheHostTakesTheNewLock) {
  RoleWatch watches[3];
  const auto host = join("memory", watches[0]);
  ASSERT_TRUE(host);
  ASSERT_TRUE(write_page(*host, 1, kPageBytes).is_ok());
  ASSERT_TRUE(std::filesystem::remove(place + kLockFile));
  const auto newcomer = join("memory", watches[1]);  // makes a lock, and lets go of it
  ASSERT_TRUE(newcomer);
  EXPECT_EQ(newcomer->role(), SharedRole::kClient);
  const auto opened = share::ShareDirectory::open(place);
  ASSERT_TRUE(opened.is_ok());
  const auto until = real_clock().now() + kAnswerLimit;
  bool is_taken = false;
  while (!is_taken && real_clock().now() < until) {
    (void)std::promise<void>().get_future().wait_for(std::chrono::milliseconds(50));  // the host can have it
    const auto held = opened->try_lock();
    ASSERT_TRUE(held.is_ok()) << held.status().to_string();
    is_taken = !held->lock;
  }
  EXPECT_TRUE(is_taken);
  // Perhaps the host makes it anew just now.
  while (!std::filesystem::remove(place + kSocketFile) && real_clock().now() < until) rest();
  const auto last = join("memory", watches[2]);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->role(), SharedRole::kClient);
  EXPECT_TRUE(read_page(*last, 1, kPageBytes).is_ok());
}

// Where the file is gone, the next host would not know what was cleared.
TEST_F(DeletedFiles, WhatWasClearedIsWrittenAgain) {
  for (const std::string& name : {std::string("/") + share::kClearsName, std::string()}) {
    SCOPED_TRACE(name);
    RoleWatch watches[2];
    auto host = join("file", watches[0]);
    const auto client = join("file", watches[1]);
    ASSERT_TRUE(host && client);
    ASSERT_TRUE(clear_store(*client).is_ok());
    const ClearMark mark = client->clear_mark();
    ASSERT_GT(std::filesystem::remove_all(place + name), 0u);
    const auto until = real_clock().now() + kAnswerLimit;
    const std::string file = place + "/" + share::kClearsName;
    while (!std::filesystem::exists(file) && real_clock().now() < until) rest();
    ASSERT_TRUE(std::filesystem::exists(file));
    EXPECT_TRUE(host->close(kAnswerLimit).is_ok());
    ASSERT_TRUE(watches[1].wait_for(SharedRole::kHost));
    EXPECT_EQ(client->clear_mark(), mark);
    EXPECT_TRUE(write_page(*client, 1, kPageBytes, false, mark).is_ok());
  }
}

// As of a host that was killed, whose lock ends before its store's, or that has not made its files again yet.
TEST_F(DeletedFiles, AnInnerStoreThatAnotherProcessHasIsTriedAgainForAWhile) {
  unsigned tries = 0;
  const auto opened = environment.open(options_in(place), [this, &tries]() -> Result<std::unique_ptr<StorageBackend>> {
    if (++tries < 4) return conflict("held by another process");
    return environment.create("memory", store);
  });
  ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
  EXPECT_EQ((*opened)->role(), SharedRole::kHost);
  EXPECT_EQ(tries, 4u);
}

TEST_F(DeletedFiles, SocketsOfOthersStay) {
  const auto opened = share::ShareDirectory::open(place);
  ASSERT_TRUE(opened.is_ok());
  EXPECT_EQ(opened->connect().status().code(), StatusCode::kNotFound);
  const auto old = opened->listen(1);
  ASSERT_TRUE(old.is_ok());
  EXPECT_TRUE(opened->connect().is_ok());
  const auto next = opened->listen(1);
  ASSERT_TRUE(next.is_ok());
  EXPECT_NE(old->file, next->file);
  opened->remove_socket(old->file);
  EXPECT_EQ(opened->socket_file(), next->file);
  opened->remove_socket(next->file);
  EXPECT_EQ(opened->socket_file(), share::FileId{});
}

}  // namespace
}  // namespace larder::shared_tests
