// SPDX-License-Identifier: Apache-2.0
// What an operator has set in a way that costs, and no error tells of, is said to the log.
#include <algorithm>
#include <mutex>
#include <string_view>

#include "base/log.h"
#include "tests/hf3fs/hf3fs_rig.h"

namespace larder::hf3fs_test {
namespace {

class Warnings : public Rig {
 protected:
  void SetUp() override {
    Rig::SetUp();
    set_log_sink([this](LogLevel level, std::string_view, std::string_view message) {
      const std::lock_guard guard(mutex_);
      if (level == LogLevel::kWarning) said_.emplace_back(message);
    });
  }
  void TearDown() override {
    set_log_sink({});
    Rig::TearDown();
  }
  // How often these words were said.
  std::ptrdiff_t said(std::string_view words) {
    const std::lock_guard guard(mutex_);
    return std::count_if(said_.begin(), said_.end(),
                         [&](const std::string& line) { return line.find(words) != std::string::npos; });
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> said_;
};

TEST_F(Warnings, AFileSizeThatTheServiceDoesNotTakeUp) {
  open();
  ASSERT_TRUE(write({{kv(1)}}).at(0).is_ok());
  EXPECT_EQ(said("file_size"), 0);
  for (const bool looks_first : {true, false}) {  // it meets the namespace at the service, or in a write
    open({{"file_size", "8Mi"}});
    if (looks_first) {
      EXPECT_EQ(presence(PoolName::kKv, {1}), "1");
    }
    for (std::uint64_t key = 1; key < 4; ++key) ASSERT_TRUE(write({{kv(key)}}).at(0).is_ok());
    EXPECT_TRUE(read_one(kv(1)).is_ok());
    EXPECT_EQ(said("option 'file_size' asks for"), looks_first ? 1 : 2) << "once a process and namespace";
  }
}

TEST_F(Warnings, TwoFoldersWithOneService) {
  constexpr std::uint64_t kFound = 100;
  open();
  std::vector<Page> pages;
  for (std::uint64_t key = 0; key < kFound; ++key) {
    ASSERT_TRUE(write({{kv(key)}}).at(0).is_ok());
    pages.push_back(kv(key));
  }
  for (const Status& status : read(pages)) EXPECT_TRUE(status.is_ok());
  EXPECT_EQ(said("does another folder share this service"), 0);
  std::filesystem::create_directories(mount_ + "/other");
  open({{"file_path_prefix", mount_ + "/other/pages"}});
  for (const Status& status : read(pages)) EXPECT_FALSE(status.is_ok());
  EXPECT_EQ(said("100 of the last 100 pages that the metadata service names are not in the files " + mount_ +
                 "/other/pages.*"),
            1);
  (void)read(pages);
  EXPECT_EQ(said("does another folder share this service"), 1) << "what is not found is not wrong";
}

}  // namespace
}  // namespace larder::hf3fs_test
