// SPDX-License-Identifier: Apache-2.0
// A volume that is missing is noticed, and one that was dropped does not come back (docs/formats.md 5.1).
#include "storage/file/volume_set.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"
#include "sim/sim_file_system.h"
#include "storage/factory.h"
#include "storage/file/file_backend.h"
#include "storage/file/store_check.h"
#include "storage/file/store_inspect.h"
#include "storage/file/volume.h"
#include "tests/disk/mounted_files.h"

namespace larder::file_store {
namespace {

constexpr std::size_t kPageBytes = 20'000;

// Three disks. What lies in a directory can be taken away and put back, as unmounting and mounting does.
class Machine {
 public:
  explicit Machine(std::uint64_t seed) : files(seed) {
    EXPECT_TRUE(register_file_backend(factory_).is_ok());
    for (const char* disk : {"/a", "/b", "/c"}) files.add_disk(disk);
    for (unsigned i = 0; i < 2; ++i) {
      scopes_[i] = std::make_shared<StoreScope>();
      scopes_[i]->namespace_digest.bytes[0] = static_cast<std::uint8_t>(i + 1);
      scopes_[i]->set_pool(PoolName::kKv, Digest256{{1}});
    }
  }
  Result<std::unique_ptr<StorageBackend>> open(const std::string& directories) { return open(directories, files); }
  Result<std::unique_ptr<StorageBackend>> open(const std::string& directories, FileSystem& with) {
    const BackendOptions options = {{"directory", directories}, {"segment_size", "64Ki"}, {"direct", "off"}};
    return factory_.create("file", options, {&with, &clock, &executor_, {}});
  }
  Status code_of(const std::string& directories) { return open(directories).status(); }
  // Keys [first, first + 12) of a namespace.
  void put(StorageBackend& store, std::uint64_t first, unsigned space = 0) {
    for (std::uint64_t i = first; i < first + 12; ++i) {
      std::vector<std::byte> content(kPageBytes, static_cast<std::byte>(i));
      WriteRequest request{scopes_[space], {}, true, {}};
      request.groups.push_back({{{PoolName::kKv, key(i), {{content.data(), content.size()}}, PageKey{}}}});
      Status status = internal_error("no callback");
      ASSERT_TRUE(store.submit_write(std::move(request), [&](WriteResult r) { status = r.groups.at(0); }).is_ok());
      ASSERT_TRUE(status.is_ok()) << status.to_string();
    }
  }
  std::size_t count(StorageBackend& store, std::uint64_t first, unsigned space = 0) {
    std::vector<PageKey> keys;
    for (std::uint64_t i = first; i < first + 12; ++i) keys.push_back(key(i));
    std::size_t found = 0;
    EXPECT_TRUE(store
                    .submit_exists({scopes_[space], keys, {PoolName::kKv}, {}},
                                   [&](ExistsResult r) {
                                     for (std::size_t i = 0; i < keys.size(); ++i) {
                                       found += r.presence.at(0).present[i] ? 1 : 0;
                                     }
                                   })
                    .is_ok());
    return found;
  }
  void clear(StorageBackend& store, unsigned space) {
    Status status = internal_error("no callback");
    ASSERT_TRUE(store.submit_clear(scopes_[space], [&](Status s) { status = s; }).is_ok());
    ASSERT_TRUE(status.is_ok()) << status.to_string();
  }

  [[nodiscard]] const std::shared_ptr<StoreScope>& scope(unsigned space) const { return scopes_[space]; }

  using Contents = std::map<std::string, std::vector<std::byte>>;
  Contents look(const std::string& directory) {
    Contents out;
    const std::vector<std::string> names = files.list(directory).value();
    for (const std::string& name : names) {
      if (name == kLockName) continue;
      const auto file = files.open(join_path(directory, name), {}).value();
      std::vector<std::byte> bytes(static_cast<std::size_t>(file->size_bytes().value()));
      EXPECT_TRUE(read_exactly(*file, bytes, 0).is_ok());
      out[name] = std::move(bytes);
    }
    return out;
  }
  Contents unmount(const std::string& directory) {
    Contents out = look(directory);
    const std::vector<std::string> names = files.list(directory).value();
    for (const std::string& name : names) EXPECT_TRUE(files.remove(join_path(directory, name)).is_ok());
    EXPECT_TRUE(files.sync_dir(directory).is_ok());
    return out;
  }
  void mount(const std::string& directory, const Contents& contents) {
    (void)unmount(directory);
    for (const auto& [name, bytes] : contents) {
      const auto file = files.open(join_path(directory, name), {.write = true, .create = true, .truncate = true});
      ASSERT_TRUE(file.is_ok());
      ASSERT_TRUE(write_fully(**file, bytes, 0).is_ok() && (*file)->sync_all().is_ok());
    }
    ASSERT_TRUE(files.sync_dir(directory).is_ok());
  }
  VolumeFormat format(const std::string& directory) {
    const Result<VolumeFormat> format = read_format(files, directory);
    EXPECT_TRUE(format.is_ok()) << directory << ": " << format.status().to_string();
    return format.is_ok() ? *format : VolumeFormat{};
  }
  // As a build from before there were lists left it.
  void make_old(const std::string& directory) {
    const VolumeFormat now = format(directory);
    ASSERT_TRUE(write_format(files, directory, {now.store, now.volume, 0, 0, {}}).is_ok());
  }
  Status forget(std::vector<std::string> directories, std::vector<unsigned> volumes) {
    return forget_volumes(files, directories, volumes).status();
  }

  sim::SimFileSystem files;
  ManualClock clock{std::chrono::seconds(1'700'000'000)};

 private:
  static PageKey key(std::uint64_t i) {
    PageKey k;
    store_le<std::uint64_t>(k.bytes.data() + 8, i + 1);
    return k;
  }
  InlineExecutor executor_;
  BackendFactory factory_;
  std::shared_ptr<StoreScope> scopes_[2];
};

// A store in /a and /b with twelve pages of each namespace, on both.
void make_two(Machine& machine) {
  auto store = machine.open("/a:/b");
  ASSERT_TRUE(store.is_ok()) << store.status().to_string();
  machine.put(**store, 0, 0);
  machine.put(**store, 0, 1);
}

std::size_t pages_of(Machine& machine, const std::string& directories) {
  auto store = machine.open(directories);
  EXPECT_TRUE(store.is_ok()) << directories << ": " << store.status().to_string();
  return store.is_ok() ? (*store)->stats().pages : 0;
}

TEST(VolumeSet, AMissingVolumeIsNamedAndNothingIsChanged) {
  Machine machine(1);
  make_two(machine);
  const auto disk = machine.unmount("/b");
  const auto before = machine.look("/a");
  for (const char* directories : {"/a:/b", "/a", "/b:/a", "/a:/c"}) {
    const Status status = machine.code_of(directories);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << directories;
    EXPECT_NE(status.message().find("volume 1 (last in /b)"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("larder store forget --volume 1 /a"), std::string::npos) << status.message();
  }
  EXPECT_TRUE(machine.look("/a") == before);
  EXPECT_TRUE(machine.look("/b").empty() && machine.look("/c").empty());
  machine.mount("/b", disk);
  EXPECT_EQ(pages_of(machine, "/a:/b"), 24u);
  EXPECT_EQ(machine.code_of("/b").code(), StatusCode::kUnavailable);
}

// The defect: a clear while a disk was away never reached it, and its entry was dropped when no segment was older.
TEST(VolumeSet, AClearedNamespaceStaysClearedWhenADiskComesBack) {
  Machine machine(2);
  make_two(machine);
  const auto disk = machine.unmount("/b");
  bool is_cleared = false;
  if (auto store = machine.open("/a:/b"); store.is_ok()) {
    for (const unsigned space : {0u, 1u}) machine.clear(**store, space);
    is_cleared = true;
  }
  (void)machine.open("/a:/b");
  machine.mount("/b", disk);
  auto store = machine.open("/a:/b");
  ASSERT_TRUE(store.is_ok()) << store.status().to_string();
  EXPECT_EQ(machine.count(**store, 0, 1), is_cleared ? 0u : 12u);
  EXPECT_FALSE(is_cleared);
}

// The defect: the clear went below the mount point and was acknowledged, and with the disk its pages came back.
TEST(VolumeSet, AClearWhileTheDiskIsAwayIsRefused) {
  disk::MountedFiles files("/disk", 1);
  Machine machine(1);
  const auto open = [&] { return machine.open("/disk", files); };
  const auto clear = [&](StorageBackend& store) {
    Status status = internal_error("no callback");
    EXPECT_TRUE(store.submit_clear(machine.scope(0), [&](Status s) { status = s; }).is_ok());
    return status;
  };
  {
    auto store = open();
    ASSERT_TRUE(store.is_ok()) << store.status().to_string();
    machine.put(**store, 0, 0);
    files.is_mounted = false;
    EXPECT_EQ(clear(**store).code(), StatusCode::kUnavailable);
    EXPECT_EQ(files.below.list("/disk")->size(), 0u) << "the disk below was written to";
    files.is_mounted = true;
    EXPECT_TRUE(clear(**store).is_ok());
  }
  auto store = open();
  ASSERT_TRUE(store.is_ok()) << store.status().to_string();
  EXPECT_EQ(machine.count(**store, 0, 0), 0u);
}

TEST(VolumeSet, AForgottenVolumeDoesNotComeBack) {
  Machine machine(3);
  make_two(machine);
  const auto disk = machine.unmount("/b");
  EXPECT_EQ(machine.forget({"/a"}, {0}).code(), StatusCode::kInvalidArgument) << "it is there";
  EXPECT_EQ(machine.forget({"/a"}, {2}).code(), StatusCode::kNotFound);
  EXPECT_EQ(machine.forget({"/c"}, {1}).code(), StatusCode::kNotFound) << "no store";
  ASSERT_TRUE(machine.forget({"/a"}, {1}).is_ok());
  const std::size_t left = pages_of(machine, "/a");
  EXPECT_GT(left, 0u);
  EXPECT_LT(left, 24u);
  {
    auto store = machine.open("/a");
    ASSERT_TRUE(store.is_ok());
    machine.clear(**store, 1);
    machine.clear(**store, 0);
  }
  EXPECT_EQ(pages_of(machine, "/a"), 0u);
  machine.mount("/b", disk);
  const Status refused = machine.code_of("/a:/b");
  EXPECT_EQ(refused.code(), StatusCode::kConflict);
  EXPECT_NE(refused.message().find("/b holds a volume that was dropped"), std::string::npos) << refused.message();
  EXPECT_EQ(machine.code_of("/b").code(), StatusCode::kUnavailable);
  EXPECT_TRUE(machine.look("/b") == disk);
  // Its number goes to another one: it is still not let in.
  EXPECT_EQ(pages_of(machine, "/a:/c"), 0u);
  EXPECT_EQ(machine.format("/c").volume, 1u);
  EXPECT_EQ(machine.code_of("/a:/b").code(), StatusCode::kConflict);
  EXPECT_EQ(machine.code_of("/a:/b:/c").code(), StatusCode::kConflict);
  (void)machine.unmount("/b");
  EXPECT_EQ(pages_of(machine, "/a:/b:/c"), 0u) << "emptied: it joins as a new one";
  EXPECT_EQ(machine.format("/b").volume, 2u);
  EXPECT_EQ(machine.code_of("/a:/c").code(), StatusCode::kUnavailable);
}

TEST(VolumeSet, AnEmptyVolumeThatWasForgottenJoinsAnew) {
  Machine machine(4);
  EXPECT_EQ(pages_of(machine, "/a:/b"), 0u);
  const auto disk = machine.unmount("/b");
  ASSERT_TRUE(machine.forget({"/a"}, {1}).is_ok());
  machine.mount("/b", disk);
  EXPECT_EQ(pages_of(machine, "/a:/b"), 0u);
  EXPECT_NE(machine.format("/b").id, 0u);
  EXPECT_EQ(machine.format("/a").set_version, 3u);
}

TEST(VolumeSet, NewDirectoriesJoinAndEmptyStoresStartAgain) {
  Machine machine(5);
  {
    auto store = machine.open("/a");
    ASSERT_TRUE(store.is_ok());
    machine.put(**store, 0);
  }
  EXPECT_EQ(machine.format("/a").set_version, 0u) << "a store of one volume cannot lack one";
  EXPECT_EQ(pages_of(machine, "/a:/b"), 12u);
  EXPECT_EQ(pages_of(machine, "/c:/b:/a"), 12u);
  EXPECT_EQ(machine.format("/b").set_version, 2u);
  EXPECT_EQ(machine.format("/c").volume, 2u);
  EXPECT_EQ(machine.format("/c").members.size(), 3u);
  const StoreId store = machine.format("/a").store;
  for (const char* directory : {"/a", "/b", "/c"}) (void)machine.unmount(directory);
  machine.clock.advance(std::chrono::seconds(5));
  EXPECT_EQ(pages_of(machine, "/a:/b"), 0u);
  EXPECT_NE(machine.format("/a").store, store);
}

TEST(VolumeSet, AnOldStoreIsReadAndGetsItsList) {
  Machine machine(6);
  make_two(machine);
  for (const char* directory : {"/a", "/b"}) machine.make_old(directory);
  EXPECT_EQ(pages_of(machine, "/a:/b"), 24u);
  EXPECT_EQ(machine.format("/b").set_version, 1u);
  machine.make_old("/b");  // as a crash would leave it
  EXPECT_EQ(machine.code_of("/a").code(), StatusCode::kUnavailable);
  EXPECT_EQ(pages_of(machine, "/a:/b"), 24u);
  EXPECT_EQ(machine.format("/b").set_version, 1u);
}

// An old volume that was away when its store got a list.
TEST(VolumeSet, AnOldVolumeThatIsNotListedIsRefused) {
  Machine machine(7);
  make_two(machine);
  for (const char* directory : {"/a", "/b"}) machine.make_old(directory);
  const auto disk = machine.unmount("/b");
  (void)pages_of(machine, "/a:/c");
  EXPECT_EQ(machine.format("/c").volume, 1u);
  machine.mount("/b", disk);
  EXPECT_EQ(machine.code_of("/a:/b").code(), StatusCode::kConflict);
  EXPECT_EQ(machine.code_of("/a:/b:/c").code(), StatusCode::kConflict);
}

TEST(VolumeSet, HalvesThatWentTheirOwnWaysAreNotJoined) {
  Machine machine(8);
  make_two(machine);
  const auto first = machine.unmount("/a");
  ASSERT_TRUE(machine.forget({"/b"}, {0}).is_ok());
  const auto second = machine.unmount("/b");
  machine.mount("/a", first);
  ASSERT_TRUE(machine.forget({"/a"}, {1}).is_ok());
  machine.mount("/b", second);
  EXPECT_EQ(machine.code_of("/a:/b").code(), StatusCode::kConflict);
  EXPECT_EQ(machine.forget({"/a", "/b"}, {1}).code(), StatusCode::kConflict);
}

TEST(VolumeSet, ToolsNoticeItToo) {
  Machine machine(9);
  make_two(machine);
  const auto disk = machine.unmount("/b");
  const std::vector<std::string> one = {"/a"}, two = {"/a", "/b"};
  EXPECT_EQ(check_volumes(inspect_store(machine.files, one, {}).value()).code(), StatusCode::kUnavailable);
  const auto checked = check_store(machine.files, machine.clock, one, {.repair = true, .progress = {}});
  ASSERT_TRUE(checked.is_ok()) << checked.status().to_string();
  ASSERT_EQ(checked->findings.size(), 1u);
  EXPECT_EQ(checked->findings[0].kind, FindingKind::kFormat);
  // The text that fsck gives for a FORMAT that is lost.
  machine.mount("/b", disk);
  EXPECT_TRUE(check_volumes(inspect_store(machine.files, two, {}).value()).is_ok());
  const std::string text = format_text(machine.format("/b"));
  ASSERT_TRUE(machine.files.remove("/b/FORMAT").is_ok());
  const auto lost = check_store(machine.files, machine.clock, two, {});
  ASSERT_TRUE(lost.is_ok() && !lost->findings.empty());
  EXPECT_NE(lost->findings[0].remedy.find(text), std::string::npos) << lost->findings[0].remedy;
  EXPECT_FALSE(machine.open("/a:/b").is_ok());
  machine.mount("/b", disk);
  auto locked = machine.open("/a:/b");
  ASSERT_TRUE(locked.is_ok());
  EXPECT_EQ(machine.forget({"/a", "/b"}, {1}).code(), StatusCode::kConflict);
}

// Every operation from `n` on fails, then the power goes. Calls `act` for n = 1, 2, ... until it gets through.
template <typename Make, typename Act, typename Check>
void cut_everywhere(Make make, Act act, Check check) {
  for (std::uint64_t n = 1; n < 10'000; ++n) {
    SCOPED_TRACE("operation " + std::to_string(n));
    Machine machine(n);
    make(machine);
    if (testing::Test::HasFailure()) return;
    machine.files.fail_nth(n, sim::FileFault::kWriteTorn, 1'000'000'000);
    act(machine);
    const bool fired = machine.files.fault_fired();
    machine.files.clear_fault();
    machine.files.crash();
    check(machine, fired);
    if (testing::Test::HasFailure() || !fired) return;
  }
  FAIL() << "it never got through";
}

TEST(VolumeSet, PowerCutWhileVolumesJoin) {
  const auto make_old = [](Machine& machine) {
    make_two(machine);
    for (const char* directory : {"/a", "/b"}) machine.make_old(directory);
  };
  const auto act = [](Machine& machine) { (void)machine.open("/a:/b:/c"); };
  const auto check = [](Machine& machine, bool) {
    // With all that were named it goes on; and if it does without the new one, that one holds nothing.
    const bool goes_without = machine.open("/a:/b").is_ok();
    EXPECT_EQ(goes_without ? pages_of(machine, "/a:/b") : 24u, 24u);
    EXPECT_EQ(pages_of(machine, "/a:/b:/c"), 24u);
    EXPECT_EQ(machine.code_of("/a:/b").code(), StatusCode::kUnavailable);
    for (const char* directory : {"/a", "/b", "/c"}) EXPECT_EQ(machine.format(directory).members.size(), 3u);
  };
  cut_everywhere(make_two, act, check);
  cut_everywhere(make_old, act, check);
}

// After the cut the disk of the old volume is not mounted: the new one alone is no store.
TEST(VolumeSet, PowerCutWhileAVolumeJoinsAndTheFirstOneIsGone) {
  const auto make = [](Machine& machine) {
    auto store = machine.open("/a");
    ASSERT_TRUE(store.is_ok());
    machine.put(**store, 0, 0);
  };
  const auto act = [](Machine& machine) { (void)machine.open("/a:/c"); };
  std::size_t refused = 0;
  cut_everywhere(make, act, [&refused](Machine& machine, bool) {
    const bool has_begun = machine.files.stat(join_path("/c", kFormatName)).is_ok();
    const auto disk = machine.unmount("/a");
    if (has_begun) {
      ++refused;
      for (const char* directories : {"/a:/c", "/c"}) {
        EXPECT_EQ(machine.code_of(directories).code(), StatusCode::kUnavailable) << directories;
      }
    }
    machine.mount("/a", disk);
    EXPECT_EQ(pages_of(machine, "/a:/c"), 12u);
  });
  EXPECT_GT(refused, 3u);
}

// Two disks that say different things of what was cleared, each as much as a file can say, for the other was not to be
// written to. Together they are more than that.
TEST(VolumeSet, ListsOfClearsThatAreTooLongTogetherCostOldPagesOnly) {
  Machine machine(1);
  make_two(machine);
  for (const std::uint64_t disk : {1, 2}) {
    std::vector<Cleared> list(kMaxCleared);
    for (std::uint64_t i = 0; i < list.size(); ++i) {
      store_le<std::uint64_t>(list[i].namespace_digest.bytes.data() + 8 * disk, i + 1);
      list[i].generation = i == 0 ? 1 : 4;  // the first of them has done its work
    }
    auto volume = machine.unmount(disk == 1 ? "/a" : "/b");
    volume[std::string(kClearedName)] = encode_cleared(list);
    machine.mount(disk == 1 ? "/a" : "/b", volume);
  }
  const std::size_t left = pages_of(machine, "/a:/b");
  EXPECT_GE(left, 20u) << "of 24: those that were written since";
  EXPECT_EQ(pages_of(machine, "/a:/b"), left) << "what the first opening wrote can be read";
  for (const char* disk : {"/a", "/b"}) {
    const auto list = decode_cleared(machine.look(disk)[std::string(kClearedName)]);
    ASSERT_TRUE(list.is_ok()) << disk << ": " << list.status().to_string();
  }
}

// A volume that was given up comes back emptied of its pages, but with what had been cleared: that was another life.
TEST(VolumeSet, WhatAJoiningDirectoryHadClearedIsForgotten) {
  Machine machine(1);
  make_two(machine);
  {
    auto store = machine.open("/a:/b");
    ASSERT_TRUE(store.is_ok());
    machine.clear(**store, 0);
  }
  auto disk = machine.unmount("/b");
  ASSERT_TRUE(disk.contains(std::string(kClearedName)));
  std::erase_if(disk, [](const auto& file) { return file.first != kClearedName; });
  machine.mount("/b", {});
  ASSERT_TRUE(machine.files.remove("/a/FORMAT").is_ok());  // a new store, whose generations begin anew
  for (const auto& [name, bytes] : machine.look("/a")) ASSERT_TRUE(machine.files.remove(join_path("/a", name)).is_ok());
  {
    auto store = machine.open("/a");
    ASSERT_TRUE(store.is_ok()) << store.status().to_string();
    machine.put(**store, 0, 0);
  }
  machine.mount("/b", disk);
  EXPECT_EQ(pages_of(machine, "/a:/b"), 12u);
  EXPECT_EQ(pages_of(machine, "/a:/b"), 12u);
}

TEST(VolumeSet, PowerCutWhileAStoreIsMade) {
  const auto act = [](Machine& machine) { (void)machine.open("/a:/b:/c"); };
  cut_everywhere([](Machine&) {}, act,
                 [](Machine& machine, bool) {
                   EXPECT_EQ(pages_of(machine, "/a:/b:/c"), 0u);
                   EXPECT_EQ(machine.code_of("/a:/b").code(), StatusCode::kUnavailable);
                 });
}

TEST(VolumeSet, PowerCutWhileAVolumeIsForgotten) {
  Machine::Contents disk;
  const auto make = [&disk](Machine& machine) {
    auto store = machine.open("/a:/b:/c");
    ASSERT_TRUE(store.is_ok());
    machine.put(**store, 0, 0);
    store->reset();
    disk = machine.unmount("/b");
  };
  const auto act = [](Machine& machine) { (void)machine.forget({"/a", "/c"}, {1}); };
  cut_everywhere(make, act, [&disk](Machine& machine, bool fired) {
    const bool is_forgotten = machine.open("/a:/c").is_ok();
    EXPECT_TRUE(is_forgotten || fired);
    machine.mount("/b", disk);
    if (is_forgotten) {
      EXPECT_EQ(machine.code_of("/a:/b:/c").code(), StatusCode::kConflict);
    } else {
      EXPECT_EQ(pages_of(machine, "/a:/b:/c"), 12u);
    }
  });
}

// A list that cannot be written, where nothing joins, is no reason to refuse.
TEST(VolumeSet, AFullDiskDoesNotKeepAnOldStoreFromOpening) {
  unsigned tolerated = 0;
  bool fired = true;
  for (std::uint64_t n = 1; fired && !HasFailure(); ++n) {
    SCOPED_TRACE("operation " + std::to_string(n));
    Machine machine(n);
    make_two(machine);
    for (const char* directory : {"/a", "/b"}) machine.make_old(directory);
    machine.files.fail_nth(n, sim::FileFault::kNoSpace);
    auto store = machine.open("/a:/b");
    fired = machine.files.fault_fired();
    machine.files.clear_fault();
    if (!store.is_ok()) continue;
    tolerated += machine.format("/a").set_version == 0 || machine.format("/b").set_version == 0 ? 1 : 0;
    const bool is_whole = (*store)->stats().pages == 24;  // else it was a segment that could not be read
    store->reset();
    EXPECT_EQ(is_whole ? pages_of(machine, "/a:/b") : 24u, 24u);
    if (!is_whole) continue;
    for (const char* directory : {"/a", "/b"}) EXPECT_EQ(machine.format(directory).set_version, 1u);
  }
  EXPECT_GT(tolerated, 4u);
}

}  // namespace
}  // namespace larder::file_store
