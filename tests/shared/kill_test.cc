// SPDX-License-Identifier: Apache-2.0
// Processes of a shared store that are killed in the middle of what they do.
#include "sim/faulty_backend.h"
#include "tests/shared/killed_sharer.h"
#include "tests/shared/shared_rig.h"
#include "tests/support/real_killed_process.h"

namespace larder::shared_tests {
namespace {

using support::KilledProcess;
constexpr std::size_t kBytes = 20'000;
constexpr std::uint64_t kPages = 12;

struct Kill : testing::Test {
  support::TemporaryDirectory directory;
  Environment environment;
  const std::string share = directory.path() + "/share", store = directory.path() + "/store";

  std::unique_ptr<SharedBackend> open(RoleWatch& watch) {
    SharedStoreOptions options = options_in(share);
    options.on_role = watch.listener();
    auto backend = environment.open(options, [this] { return environment.create("file", store); });
    EXPECT_TRUE(backend.is_ok()) << backend.status().to_string();
    return backend.is_ok() ? std::move(*backend) : nullptr;
  }
  void start_host(KilledProcess& host, std::uint64_t operations) {
    const Status started =
        host.start({"host", std::string(kSharerArgument), share, "host", store, std::to_string(operations)});
    ASSERT_TRUE(started.is_ok()) << started.to_string();
    host.read_lines(1, kAnswerLimit, 'h');
    ASSERT_EQ(host.lines(), (std::vector<std::string>{"host"}));
  }
};

// A host dies with operations of two clients in flight. They end at once, one of the clients takes its place, and what
// the dead host had acknowledged as durable is there for both.
TEST_F(Kill, AHostInMidOperation) {
  for (std::uint64_t round = 0; round < 3; ++round) {
    const std::uint64_t base = 100 * round;
    KilledProcess host;
    start_host(host, kPages);
    RoleWatch watches[2];
    const std::unique_ptr<SharedBackend> clients[2] = {open(watches[0]), open(watches[1])};
    ASSERT_TRUE(clients[0] && clients[1]);
    EXPECT_EQ(clients[0]->role(), SharedRole::kClient);
    for (std::uint64_t i = 0; i < kPages; ++i) {
      const Status written = write_page(*clients[i % 2], base + i, kBytes, true);
      ASSERT_TRUE(written.is_ok()) << written.to_string();
    }
    auto write = start_write(*clients[0], base + 50, kBytes, true);
    auto large_write = start_write(*clients[1], base + 51, 400'000, true);  // copied by the executor
    auto read = start_read(*clients[0], base, kBytes);
    auto exists = start_exists(*clients[1], base + 1);
    host.read_lines(kPages + 4, kAnswerLimit, 'o');
    ASSERT_EQ(host.lines().size(), 1 + kPages + 4) << "the host has them all, and answers none";
    ASSERT_TRUE(host.kill().is_ok());
    EXPECT_EQ(write.wait().groups.at(0).code(), StatusCode::kUnavailable);
    EXPECT_EQ(large_write.wait().groups.at(0).code(), StatusCode::kUnavailable);
    EXPECT_EQ(read.wait().items.at(0).code(), StatusCode::kUnavailable);
    EXPECT_EQ(exists.wait().status.code(), StatusCode::kUnavailable);
    for (std::size_t i = 0; i < 2; ++i) {
      // After kSeeking, which came before the operations ended.
      const SharedRole role = watches[i].wait_for_role();
      EXPECT_NE(role, SharedRole::kSeeking);
    }
    EXPECT_NE(clients[0]->role(), clients[1]->role()) << "one hosts, and the other is its client";
    for (const auto& client : clients) {
      for (std::uint64_t i = 0; i < kPages; ++i) {
        const Status status = read_page(*client, base + i, kBytes);
        EXPECT_TRUE(status.is_ok()) << "page " << i << ", acknowledged as durable: " << status.to_string();
      }
      const Status unknown = read_page(*client, base + 50, kBytes);
      EXPECT_TRUE(unknown.is_ok() || unknown.code() == StatusCode::kNotFound) << unknown.to_string();
    }
    EXPECT_TRUE(write_page(*clients[1], base + 60, kBytes).is_ok());
    EXPECT_TRUE(read_page(*clients[0], base + 60, kBytes).is_ok());
  }
}

// A host that cleared the store for one client dies. What another one had kept is refused by whoever comes next.
TEST_F(Kill, AHostThatHadCleared) {
  KilledProcess host;
  start_host(host, 1000);
  RoleWatch watches[2];
  const std::unique_ptr<SharedBackend> clients[2] = {open(watches[0]), open(watches[1])};
  ASSERT_TRUE(clients[0] && clients[1]);
  const ClearMark before = clients[0]->clear_mark(), emptied = clients[0]->emptied_mark();
  ASSERT_TRUE(write_page(*clients[0], 1, kBytes, true, before).is_ok());
  ASSERT_TRUE(clear_store(*clients[1]).is_ok());
  EXPECT_NE(clients[0]->emptied_mark(), emptied);
  const ClearMark after = clients[0]->clear_mark();
  ASSERT_TRUE(host.kill().is_ok());
  ASSERT_TRUE(watches[0].wait_for_changes(3) && watches[1].wait_for_changes(3)) << "client, seeking, and a role again";
  for (const auto& client : clients) {
    EXPECT_EQ(client->clear_mark(), after);
    EXPECT_EQ(write_page(*client, 1, kBytes, true, before).code(), StatusCode::kCancelled);
    EXPECT_EQ(read_page(*client, 1, kBytes).code(), StatusCode::kNotFound);
    EXPECT_TRUE(write_page(*client, 2, kBytes, true, after).is_ok());
  }
}

// A client dies while the inner backend has its buffers. Nobody else notices, and its operations end in memory that is
// nobody's any more.
TEST_F(Kill, AClientInMidOperation) {
  Counter arrived;
  sim::FaultyBackend* holder = nullptr;
  auto host = environment.open(options_in(share), [&]() -> Result<std::unique_ptr<StorageBackend>> {
    auto memory = environment.create("memory", "");
    auto faulty = std::make_unique<sim::FaultyBackend>(std::move(memory).value(), 1);
    holder = faulty.get();
    return std::unique_ptr<StorageBackend>(
        std::make_unique<HookedBackend>(std::move(faulty), [&arrived] { arrived.add(); }));
  });
  ASSERT_TRUE(host.is_ok()) << host.status().to_string();
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(write_page(**host, i, kBytes).is_ok());
  RoleWatch watch;
  const std::unique_ptr<SharedBackend> other = open(watch);
  ASSERT_TRUE(other);
  holder->set_plan({.is_holding = true});
  KilledProcess client;
  ASSERT_TRUE(client.start({"client", std::string(kSharerArgument), share, "client", "4"}).is_ok());
  ASSERT_TRUE(arrived.wait_for(4 + 8)) << "4 writes before, 4 writes and 4 reads of the client";
  auto read = start_read(*other, 2, kBytes);
  ASSERT_TRUE(arrived.wait_for(4 + 8 + 1));
  ASSERT_TRUE(client.kill().is_ok());
  EXPECT_EQ(client.lines(), (std::vector<std::string>{"client"})) << "none was answered";
  holder->set_plan({});
  EXPECT_EQ(holder->release_all(), 9u);
  EXPECT_TRUE(read.wait().items.at(0).is_ok());
  EXPECT_EQ(watch.wait_for_role(), SharedRole::kClient);
  // Its writes had begun: they are done, from memory that outlived it, and whole.
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(read_page(*other, 1000 + i, kBytes).is_ok());
  EXPECT_EQ((*host)->role(), SharedRole::kHost);
}

}  // namespace
}  // namespace larder::shared_tests
