// SPDX-License-Identifier: Apache-2.0
// Shared stores with all ends in one process: roles, what each sees, limits, errors, peers that misbehave.
#include <sys/stat.h>

#include <filesystem>

#include "sim/faulty_backend.h"
#include "tests/shared/real_raw_peer.h"
#include "tests/shared/shared_rig.h"

namespace larder::shared_tests {
namespace {

using share::Kind;

struct Shared : testing::Test {
  support::TemporaryDirectory directory;
  Environment environment;
  std::string share = directory.path() + "/share";
  const std::string store = directory.path() + "/store";

  Result<std::unique_ptr<SharedBackend>> try_open(const SharedStoreOptions& options, const std::string& kind) {
    return environment.open(options, [this, kind] { return environment.create(kind, store); });
  }
  std::unique_ptr<SharedBackend> open(const std::string& kind = "memory", RoleWatch* watch = nullptr) {
    SharedStoreOptions options = options_in(share);
    if (watch != nullptr) options.on_role = watch->listener();
    auto backend = try_open(options, kind);
    EXPECT_TRUE(backend.is_ok()) << backend.status().to_string();
    return backend.is_ok() ? std::move(*backend) : nullptr;
  }
  // A host whose operations wait for holder->release_all(); `arrived` counts them.
  std::unique_ptr<SharedBackend> open_holding() {
    auto backend = environment.open(options_in(share), [this]() -> Result<std::unique_ptr<StorageBackend>> {
      auto faulty = std::make_unique<sim::FaultyBackend>(environment.create("memory", "").value(), 1);
      holder = faulty.get();
      holder->set_plan({.is_holding = true});
      return std::unique_ptr<StorageBackend>(
          std::make_unique<HookedBackend>(std::move(faulty), [this] { arrived.add(); }));
    });
    EXPECT_TRUE(backend.is_ok()) << backend.status().to_string();
    return std::move(*backend);
  }
  sim::FaultyBackend* holder = nullptr;
  Counter arrived;
};

TEST_F(Shared, TheFirstHostsAndAllSeeTheSamePages) {
  const auto host = open(), one = open(), two = open();
  ASSERT_TRUE(host && one && two);
  EXPECT_EQ(host->role(), SharedRole::kHost);
  EXPECT_EQ(one->role(), SharedRole::kClient);
  EXPECT_EQ(two->role(), SharedRole::kClient);
  EXPECT_EQ(host->info().name, "shared(memory)");
  EXPECT_EQ(one->info().name, "shared(memory)");
  EXPECT_TRUE(one->info().atomic_groups);
  StorageBackend* const all[] = {host.get(), one.get(), two.get()};
  for (std::uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(write_page(*all[i], i, 3000).is_ok());
    for (StorageBackend* reader : all) EXPECT_TRUE(read_page(*reader, i, 3000).is_ok()) << i;
  }
  EXPECT_TRUE(start_exists(*two, 1).wait().presence.at(0).present.at(0));
  EXPECT_EQ(two->stats().pages, 3u) << "as of its last answer";
  EXPECT_EQ(read_page(*one, 7, 3000).code(), StatusCode::kNotFound);
}

// What is larger than the arena's parts, by several at once.
TEST_F(Shared, ManyLargeOperationsAtOnce) {
  const auto host = open(), one = open(), two = open();
  ASSERT_TRUE(host && one && two);
  std::vector<Pending<WriteResult>> writes;
  for (std::uint64_t i = 0; i < 40; ++i) writes.push_back(start_write(i % 2 == 0 ? *one : *two, i, 300'000));
  for (auto& write : writes) EXPECT_TRUE(write.wait().groups.at(0).is_ok());
  std::vector<Pending<ReadResult>> reads;
  for (std::uint64_t i = 0; i < 40; ++i) reads.push_back(start_read(i % 2 == 0 ? *two : *one, i, 300'000));
  for (auto& read : reads) EXPECT_TRUE(read.wait().items.at(0).is_ok());
}

// The host ends in good order: a client hosts, the other one finds it, and the pages are there.
TEST_F(Shared, AClientTakesTheHostsPlace) {
  RoleWatch watches[2];
  auto host = open("file");
  std::unique_ptr<SharedBackend> clients[2] = {open("file", &watches[0]), open("file", &watches[1])};
  ASSERT_TRUE(host && clients[0] && clients[1]);
  for (std::uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(write_page(*clients[i % 2], i, 3000).is_ok());
  EXPECT_TRUE(host->close(kAnswerLimit).is_ok());
  // Client, seeking, and a role again.
  ASSERT_TRUE(watches[0].wait_for_changes(3) && watches[1].wait_for_changes(3));
  const std::size_t heir = clients[0]->role() == SharedRole::kHost ? 0 : 1;
  EXPECT_EQ(clients[heir]->role(), SharedRole::kHost);
  EXPECT_EQ(clients[1 - heir]->role(), SharedRole::kClient);
  for (const auto& client : clients) {
    for (std::uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(read_page(*client, i, 3000).is_ok()) << i;
  }
  host.reset();
  clients[heir].reset();
  EXPECT_TRUE(watches[1 - heir].wait_for(SharedRole::kHost));
  EXPECT_TRUE(read_page(*clients[1 - heir], 4, 3000).is_ok());
  host = open("file");
  EXPECT_EQ(host->role(), SharedRole::kClient);
  EXPECT_TRUE(read_page(*host, 3, 3000).is_ok());
}

TEST_F(Shared, AFullQueueRefusesAndCloseWaits) {
  const auto host = open_holding();
  SharedStoreOptions options = options_in(share);
  options.queue_limit = 2;
  auto opened = try_open(options, "memory");
  ASSERT_TRUE(opened.is_ok());
  SharedBackend& client = **opened;
  auto first = start_write(client, 1, 100), second = start_write(client, 2, 100);
  EXPECT_EQ(write_page(client, 3, 100).code(), StatusCode::kOverloaded);
  EXPECT_EQ(client.stats().queued, 2u);
  ASSERT_TRUE(arrived.wait_for(2));
  EXPECT_EQ(client.close(std::chrono::nanoseconds(0)).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(write_page(client, 3, 100).code(), StatusCode::kUnavailable) << "it closes";
  EXPECT_EQ(host->close(std::chrono::nanoseconds(0)).code(), StatusCode::kDeadlineExceeded) << "so does its host";
  holder->release_all();
  EXPECT_TRUE(first.wait().groups.at(0).is_ok() && second.wait().groups.at(0).is_ok());
  EXPECT_TRUE(client.close(kAnswerLimit).is_ok());
  EXPECT_TRUE(host->close(kAnswerLimit).is_ok());
}

TEST_F(Shared, ErrorsOfTheInnerStoreAreTold) {
  const auto failed =
      environment.open(options_in(share), [] { return Result<std::unique_ptr<StorageBackend>>(conflict("mine")); });
  EXPECT_EQ(failed.status().code(), StatusCode::kConflict);
  EXPECT_EQ(failed.status().message(), "mine") << "after some tries";
  const auto host = open();
  ASSERT_TRUE(host);
  EXPECT_EQ(host->role(), SharedRole::kHost) << "the lock is free again";
}

TEST_F(Shared, AnInnerStoreThatThrowsIsAnError) {
  const auto failed = environment.open(
      options_in(share), []() -> Result<std::unique_ptr<StorageBackend>> { throw std::runtime_error("no threads"); });
  EXPECT_EQ(failed.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(failed.status().message().find("no threads"), std::string::npos) << failed.status().message();
  EXPECT_TRUE(open()) << "the lock is free again";
}

// Opening the inner store takes long: who comes meanwhile waits, and is a client then.
TEST_F(Shared, ClientsWaitForTheStoreToBeOpened) {
  std::promise<void> has_begun, may_end;
  std::promise<SharedRole> roles[2];
  ThreadPoolExecutor openers("openers", 2, 10);
  std::shared_future<void> go(may_end.get_future());
  ASSERT_TRUE(openers
                  .post([&] {
                    auto backend = environment.open(options_in(share), [&] {
                      has_begun.set_value();
                      go.wait();
                      return environment.create("memory", "");
                    });
                    roles[0].set_value(backend.is_ok() ? (*backend)->role() : SharedRole::kSeeking);
                    roles[1].get_future().wait();  // lives until the other has seen it
                  })
                  .is_ok());
  has_begun.get_future().wait();
  std::promise<SharedRole> other;
  ASSERT_TRUE(openers
                  .post([&] {
                    const auto backend = open();
                    other.set_value(backend ? backend->role() : SharedRole::kSeeking);
                    roles[1].set_value(SharedRole::kClient);
                  })
                  .is_ok());
  may_end.set_value();
  EXPECT_EQ(roles[0].get_future().get(), SharedRole::kHost);
  EXPECT_EQ(other.get_future().get(), SharedRole::kClient);
}

std::ptrdiff_t entries_of(const std::string& directory) {
  return std::distance(std::filesystem::directory_iterator(directory), std::filesystem::directory_iterator());
}

// The process that has the lock opens its store for ever. Who waits for it ends with its limit, and with all it had.
TEST_F(Shared, AnOpeningThatNobodySettlesEndsWithItsLimit) {
  std::promise<void> has_begun, may_end;
  std::promise<bool> has_hosted;
  ThreadPoolExecutor opener("opener", 1, 10);
  ASSERT_TRUE(opener
                  .post([&] {
                    const auto host = environment.open(options_in(share), [&] {
                      has_begun.set_value();
                      may_end.get_future().wait();
                      return environment.create("memory", "");
                    });
                    has_hosted.set_value(host.is_ok());
                  })
                  .is_ok());
  has_begun.get_future().wait();
  const std::ptrdiff_t files = entries_of(share), descriptors = entries_of("/proc/self/fd"),
                       threads = entries_of("/proc/self/task");
  SharedStoreOptions options = options_in(share);
  options.open_limit = std::chrono::milliseconds(50);
  unsigned roles = 0;
  options.on_role = [&roles](SharedRole) { ++roles; };
  for (int i = 0; i < 3; ++i) {
    const Status status = try_open(options, "memory").status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_NE(status.message().find("in time"), std::string::npos) << status.to_string();
    EXPECT_NE(status.message().find(share), std::string::npos) << "it does not say where: " << status.to_string();
  }
  EXPECT_EQ(roles, 0u);
  EXPECT_EQ(entries_of(share), files);
  EXPECT_LE(entries_of("/proc/self/fd"), descriptors);
  EXPECT_LE(entries_of("/proc/self/task"), threads);
  may_end.set_value();
  EXPECT_TRUE(has_hosted.get_future().get());
}

// Whoever hosts: that is chance.
TEST_F(Shared, WhatIsLargerThanTheArenaIsRefusedByAllAlike) {
  const auto host = open(), client = open();
  ASSERT_EQ(client->role(), SharedRole::kClient);
  constexpr std::size_t kArena = std::size_t{1} << 20;
  for (SharedBackend* const backend : {host.get(), client.get()}) {
    SCOPED_TRACE(shared_role_name(backend->role()));
    std::vector<std::byte> bytes(kArena + 1);
    const std::vector<Segment> half = {{bytes.data(), kArena / 2 + 1}}, all = {{bytes.data(), bytes.size()}};
    const auto nothing = [](const auto&) { FAIL() << "refused, and called back"; };
    const Status read = backend->submit_read({scope_of_tests(), {{PoolName::kKv, key_of(1), all}}, {}}, nothing);
    WriteRequest group{scope_of_tests(), {{{{PoolName::kSwa, key_of(1), half}, {PoolName::kKv, key_of(1), half}}}}};
    const Status write = backend->submit_write(std::move(group), nothing);
    for (const Status& status : {read, write}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
      EXPECT_NE(status.message().find("raise arena_bytes"), std::string::npos) << status.to_string();
    }
    EXPECT_TRUE(write_page(*backend, 2, kArena).is_ok());
    EXPECT_TRUE(read_page(*backend, 2, kArena).is_ok());
  }
}

TEST_F(Shared, WhoComesTooLateOrTooLargeIsRefused) {
  SharedStoreOptions options = options_in(share);
  options.max_clients = 1;
  options.max_arena_bytes = options.arena_bytes;
  const auto host = try_open(options, "memory");
  ASSERT_TRUE(host.is_ok());
  SharedStoreOptions large = options;
  large.arena_bytes *= 2;
  EXPECT_EQ(try_open(large, "memory").status().code(), StatusCode::kInvalidArgument);
  const auto client = try_open(options, "memory");
  if (client.is_ok()) {  // the one before may still count
    EXPECT_EQ(try_open(options, "memory").status().code(), StatusCode::kOverloaded);
  } else {
    EXPECT_EQ(client.status().code(), StatusCode::kOverloaded);
  }
}

TEST_F(Shared, WhoMeansAnotherStoreIsRefused) {
  SharedStoreOptions options = options_in(share);
  options.store.bytes[0] = 1;
  options.store_text = "backend file, directory /mnt/a";
  const auto host = try_open(options, "memory"), client = try_open(options, "memory");
  ASSERT_TRUE(host.is_ok() && client.is_ok()) << client.status().to_string();
  options.store.bytes[0] = 2;
  const auto other = try_open(options, "memory");
  EXPECT_EQ(other.status().code(), StatusCode::kConflict);
  EXPECT_NE(other.status().message().find("directory /mnt/a"), std::string::npos) << other.status().message();
}

TEST_F(Shared, DirectoriesOfAnyLengthAndNoOthers) {
  SharedStoreOptions options = options_in(share + "/" + std::string(200, 'x') + "/" + std::string(200, 'y'));
  const auto host = try_open(options, "memory"), client = try_open(options, "memory");
  ASSERT_TRUE(host.is_ok() && client.is_ok()) << client.status().to_string();
  EXPECT_EQ((*client)->role(), SharedRole::kClient);
  EXPECT_EQ(std::filesystem::status(share).permissions(), std::filesystem::perms::owner_all);
  options.directory = options.directory + "/larder-share.lock";
  EXPECT_FALSE(try_open(options, "memory").is_ok()) << "a file";
  options.directory = directory.path() + "/open";
  std::filesystem::create_directory(options.directory);
  std::filesystem::permissions(options.directory, std::filesystem::perms::all);
  EXPECT_EQ(try_open(options, "memory").status().code(), StatusCode::kConflict);
  options.directory.clear();
  EXPECT_EQ(try_open(options, "memory").status().code(), StatusCode::kInvalidArgument);
  options.directory = share;
  options.arena_bytes = 1000;
  EXPECT_EQ(try_open(options, "memory").status().code(), StatusCode::kInvalidArgument);
}

struct HostilePeer : Shared {
  RawPeer peer() {
    auto connected = RawPeer::connect(share);
    EXPECT_TRUE(connected.is_ok()) << connected.status().to_string();
    return std::move(*connected);
  }
  // One that was welcomed, with an arena of 64 KiB.
  RawPeer welcomed_peer() {
    RawPeer out = peer();
    out.pass(share::make_client_arena(64 << 10).value().descriptor);
    out.send(share::encode_hello({share::kVersion, 64 << 10}));
    const std::string answer = out.next_frame();
    EXPECT_EQ(answer.at(0), static_cast<char>(Kind::kWelcome));
    EXPECT_TRUE(share::decode_welcome(answer.substr(1))->status.is_ok());
    return out;
  }
  // The code of the refusal; the connection has ended.
  StatusCode refusal(RawPeer out) {
    const std::string answer = out.next_frame();
    EXPECT_EQ(answer.at(0), static_cast<char>(Kind::kWelcome));
    EXPECT_TRUE(out.is_dropped());
    return share::decode_welcome(answer.substr(1))->status.code();
  }
};

TEST_F(HostilePeer, CostsItselfTheConnectionAndNobodyElse) {
  const auto host = open(), client = open();
  ASSERT_TRUE(host && client);
  ASSERT_TRUE(write_page(*client, 1, 5000).is_ok());
  const std::string scope = share::encode_scope({0, *scope_of_tests()});
  const std::vector<std::string> before_hello = {std::string(100, '\xff'),  std::string(16, '\0'),
                                                 "GET / HTTP/1.1\r\n\r\n",  share::encode_ask_stats(),
                                                 share::encode_welcome({}), scope,
                                                 share::encode_read(1, {})};
  for (const std::string& bytes : before_hello) {
    RawPeer bad = peer();
    bad.send(bytes);
    EXPECT_TRUE(bad.is_dropped()) << hex_encode({reinterpret_cast<const std::uint8_t*>(bytes.data()), 8});
  }
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  const share::Place outside{60 << 10, 8 << 10}, wrapping{kMost - 100, 200};
  const std::vector<std::string> after_hello = {
      share::encode_hello({}),
      share::encode_read(1, {}),
      scope + share::encode_read(1, {{}, {{PoolName::kKv, key_of(1), outside}}}),
      scope + share::encode_read(1, {{}, {{PoolName::kKv, key_of(1), wrapping}}}),
      scope + share::encode_write(1, {{}, false, {{{PoolName::kKv, key_of(2), {}, outside}}}}),
      scope + std::string(16, '\x7f'),
      share::encode_clear(1, 200)};
  for (const std::string& bytes : after_hello) {
    RawPeer bad = welcomed_peer();
    bad.send(bytes);
    EXPECT_TRUE(bad.is_dropped());
  }
  RawPeer silent = peer(), cut = welcomed_peer();
  cut.send(scope.substr(0, scope.size() - 1));
  EXPECT_TRUE(read_page(*client, 1, 5000).is_ok());
  EXPECT_TRUE(write_page(*client, 3, 5000).is_ok());
  EXPECT_EQ(host->stats().pages, 2u);
}

// Without a question, and though it has nothing under way.
TEST_F(HostilePeer, AClientThatAsksForNothingHearsOfChanges) {
  const auto host = open();
  ASSERT_TRUE(host);
  RawPeer idle = welcomed_peer();
  ASSERT_TRUE(write_page(*host, 1, 5000).is_ok());
  std::uint64_t pages = 0;
  while (pages == 0) {
    const std::string frame = idle.next_frame();
    ASSERT_FALSE(frame.empty()) << "none came";
    ASSERT_EQ(frame.at(0), static_cast<char>(Kind::kStats));
    pages = share::decode_stats(frame.substr(1))->pages;
  }
  EXPECT_EQ(pages, 1u);
}

TEST_F(HostilePeer, ArenasThatAreNoneAreRefused) {
  const auto host = open();
  ASSERT_TRUE(host);
  constexpr std::size_t kArenaBytes = 64 << 10;
  const auto hello = [&](share::Descriptor arena, std::uint64_t bytes, std::uint16_t version = share::kVersion) {
    RawPeer out = peer();
    if (arena.is_open()) out.pass(std::move(arena));
    out.send(share::encode_hello({version, bytes, {}}));
    return out;
  };
  EXPECT_EQ(refusal(hello({}, kArenaBytes)), StatusCode::kCorrupt);
  EXPECT_EQ(refusal(hello(no_memory(), kArenaBytes)), StatusCode::kCorrupt);
  EXPECT_EQ(refusal(hello(unsealed_memory(kArenaBytes), kArenaBytes)), StatusCode::kCorrupt);
  EXPECT_EQ(refusal(hello(share::make_client_arena(kArenaBytes).value().descriptor, kArenaBytes + 1)),
            StatusCode::kCorrupt);
  EXPECT_EQ(refusal(hello(share::make_client_arena(kArenaBytes).value().descriptor, 0)), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(hello(share::make_client_arena(kArenaBytes).value().descriptor, std::uint64_t{1} << 60)),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(hello({}, kArenaBytes, share::kVersion - 1)), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace larder::shared_tests
