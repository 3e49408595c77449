// SPDX-License-Identifier: Apache-2.0
#include "storage/shared/clears_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file_system.h"
#include "storage/shared/real_clears_keeper.h"
#include "storage/shared/real_share_socket.h"
#include "tests/support/temporary_directory.h"

namespace larder::share {
namespace {

ClearHistory sample() {
  ClearHistory history;
  history.store = 0x1122334455667788u;
  Digest256 digest{{1}};
  (void)history.begin(&digest);
  (void)history.begin(nullptr);
  (void)history.begin(&digest);
  digest.bytes[0] = 9;
  (void)history.begin(&digest);
  return history;
}

TEST(ClearsFile, ComesBackAsItWas) {
  const Digest256 store{{7}};
  ClearHistory history = sample();
  EXPECT_EQ(decode_clears(store, encode_clears(store, history)).value(), history);
  history = ClearHistory::anew(real_clock(), 1);
  EXPECT_EQ(decode_clears(store, encode_clears(store, history)).value(), history);
  for (std::uint64_t i = 0; i < 2 * ClearHistory::kMostNamespaces; ++i) {
    Digest256 digest{};
    store_le(digest.bytes.data(), i);
    (void)history.begin(&digest);
  }
  const std::string most = encode_clears(store, history);
  EXPECT_EQ(most.size(), kMaxClearsBytes);
  EXPECT_EQ(decode_clears(store, most).value(), history);
  EXPECT_EQ(decode_clears(Digest256{{8}}, most).status().code(), StatusCode::kConflict);
}

TEST(ClearsFile, BrokenBytesAreNoHistory) {
  const Digest256 store{{7}};
  const std::string good = encode_clears(store, sample());
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(decode_clears(store, std::string_view(good).substr(0, size)).status().code(), StatusCode::kCorrupt);
  }
  EXPECT_EQ(decode_clears(store, good + '\0').status().code(), StatusCode::kCorrupt);
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    EXPECT_EQ(decode_clears(store, bad).status().code(), StatusCode::kCorrupt) << at;
  }
  // Right checksums, impossible numbers.
  const auto is_refused = [&](auto change) {
    ClearHistory history = sample();
    change(history);
    return decode_clears(store, encode_clears(store, history)).status().code() == StatusCode::kCorrupt;
  };
  EXPECT_TRUE(is_refused([](ClearHistory& h) { h.store = 0; }));
  EXPECT_TRUE(is_refused([](ClearHistory& h) { h.count = 1; }));
  EXPECT_TRUE(is_refused([](ClearHistory& h) { h.whole = h.floor + 1; }));
  EXPECT_TRUE(is_refused([](ClearHistory& h) { h.namespaces[Digest256{{5}}] = 1; }));
}

// docs/formats.md, section 9.1: other bytes are another version.
TEST(ClearsFile, GoldenBytes) {
  ClearHistory history;
  history.store = 0x1122334455667788u;
  history.count = 5;
  history.floor = 3;
  history.whole = 2;
  history.namespaces[Digest256{{4}}] = 5;
  const std::string bytes = encode_clears(Digest256{{7}}, history);
  const std::string zeros(62, '0');
  EXPECT_EQ(hex_encode({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size() - 16}),
            "4c4152444552434c"
            "0100"
            "07" +
                zeros +
                "8877665544332211"
                "0500000000000000"
                "0300000000000000"
                "0200000000000000"
                "01000000"
                "04" +
                zeros + "0500000000000000");
}

struct KeptClearsTest : testing::Test {
  support::TemporaryDirectory directory;
  const std::string place = directory.path() + "/share", path = place + "/" + kClearsName;
  const Digest256 store{{7}};
};

TEST_F(KeptClearsTest, WhatOneHostHasSavedTheNextOneHas) {
  KeptClears first = open_clears(place, store, real_clock());
  EXPECT_EQ(first.history.count, 0u);
  EXPECT_EQ(open_clears(place, store, real_clock()).history, first.history) << "kept from the beginning";
  (void)first.history.begin(nullptr);
  EXPECT_TRUE(first.keeper->save(first.history).is_ok());
  EXPECT_EQ(open_clears(place, store, real_clock()).history, first.history);
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(KeptClearsTest, WithoutTheFileEverythingBeginsAnew) {
  const ClearHistory first = open_clears(place, store, real_clock()).history;
  std::filesystem::remove(path);
  const ClearHistory second = open_clears(place, store, real_clock()).history;
  EXPECT_NE(second.store, first.store);
  std::filesystem::resize_file(path, 20);
  const ClearHistory third = open_clears(place, store, real_clock()).history;
  EXPECT_NE(third.store, second.store);
  EXPECT_NE(open_clears(place, Digest256{{8}}, real_clock()).history.store, third.store) << "another store's";
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/etc/passwd", path);
  EXPECT_NE(open_clears(place, store, real_clock()).history.store, third.store);
  EXPECT_FALSE(std::filesystem::is_symlink(path)) << "replaced, and not followed";
  std::filesystem::remove_all(place);
  EXPECT_NE(open_clears(place, store, real_clock()).history.store, third.store);
}

TEST_F(KeptClearsTest, ADirectoryThatWasDeletedIsMadeAgain) {
  KeptClears kept = open_clears(place, store, real_clock());
  std::filesystem::remove_all(place);
  (void)kept.history.begin(nullptr);
  EXPECT_TRUE(kept.keeper->save(kept.history).is_ok());
  EXPECT_EQ(open_clears(place, store, real_clock()).history, kept.history);
}

TEST_F(KeptClearsTest, AFileThatWasDeletedIsWrittenAgain) {
  KeptClears kept = open_clears(place, store, real_clock());
  (void)kept.history.begin(nullptr);
  ASSERT_TRUE(kept.keeper->save(kept.history).is_ok());
  const auto time = std::filesystem::last_write_time(path);
  EXPECT_TRUE(kept.file->keep().is_ok());
  EXPECT_EQ(std::filesystem::last_write_time(path), time) << "it is there";
  for (const std::string& name : {path, place}) {
    std::filesystem::remove_all(name);
    EXPECT_TRUE(kept.file->keep().is_ok());
    EXPECT_EQ(open_clears(place, store, real_clock()).history, kept.history);
  }
  // What the next host has written stays.
  KeptClears next = open_clears(place, store, real_clock());
  (void)next.history.begin(nullptr);
  ASSERT_TRUE(next.keeper->save(next.history).is_ok());
  EXPECT_TRUE(kept.file->keep().is_ok());
  EXPECT_EQ(open_clears(place, store, real_clock()).history, next.history);
}

// As on a full disk, where there is no room for a second file.
TEST_F(KeptClearsTest, AFileCanBeOverwrittenInItsPlace) {
  ClearHistory history = open_clears(place, store, real_clock()).history;
  const Result<ShareDirectory> opened = ShareDirectory::open(place);
  ASSERT_TRUE(opened.is_ok());
  const auto overwrite = [&] {
    EXPECT_TRUE(opened->overwrite_file(kClearsName, encode_clears(store, history)).is_ok());
    EXPECT_EQ(open_clears(place, store, real_clock()).history, history);
  };
  for (std::uint8_t i = 1; i < 100; ++i) {
    const Digest256 digest{{i}};
    (void)history.begin(&digest);
    overwrite();  // longer
  }
  (void)history.begin(nullptr);
  overwrite();  // much shorter
  EXPECT_EQ(opened->overwrite_file("no such file", "").code(), StatusCode::kUnavailable);
}

TEST_F(KeptClearsTest, AFailureSaysWhatAndWhere) {
  KeptClears kept = open_clears(place, store, real_clock());
  std::filesystem::remove_all(place);
  OpenOptions options;
  options.write = options.create = true;
  ASSERT_TRUE(real_file_system().open(place, options).is_ok()) << "a file";
  const Status status = kept.keeper->save(kept.history);
  EXPECT_FALSE(status.is_ok());
  EXPECT_NE(status.message().find("nothing was cleared"), std::string::npos) << status.to_string();
  EXPECT_NE(status.message().find(place), std::string::npos) << status.to_string();
}

}  // namespace
}  // namespace larder::share
