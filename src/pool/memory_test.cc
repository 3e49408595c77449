// SPDX-License-Identifier: Apache-2.0
#include "pool/memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>

#include "base/file_system.h"
#include "pool/control_group.h"
#include "tests/support/temporary_directory.h"

namespace larder {
namespace {

TEST(HostMemory, IsAlignedAndWritableToItsEnd) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{4097}, (std::size_t{2} << 20) + 1}) {
    auto memory = host_memory_source().allocate(bytes);
    ASSERT_TRUE(memory.is_ok()) << memory.status().to_string();
    EXPECT_EQ((*memory)->size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*memory)->data()) % 4096, 0u);
    (*memory)->data()[0] = std::byte{1};
    (*memory)->data()[bytes - 1] = std::byte{2};
  }
}

TEST(HostMemory, NothingIsAnInvalidArgument) {
  EXPECT_EQ(host_memory_source().allocate(0).status().code(), StatusCode::kInvalidArgument);
}

TEST(HostMemory, MoreThanTheMachineHasIsRefusedWithWhatItHas) {
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 4095, std::size_t{1} << 50}) {
    const auto memory = host_memory_source().allocate(bytes);
    EXPECT_EQ(memory.status().code(), StatusCode::kOverloaded);
    EXPECT_NE(memory.status().message().find("available"), std::string::npos) << memory.status().message();
  }
}

TEST(HostMemory, APartOfTheMachineStaysFree) {
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  EXPECT_TRUE(check_memory(15 * kGiB, 16 * kGiB).is_ok());
  const Status refused = check_memory(15 * kGiB + 1, 16 * kGiB);
  EXPECT_EQ(refused.code(), StatusCode::kOverloaded);
  EXPECT_NE(refused.message().find("16384 MiB is available, of which 1024 MiB stay free"), std::string::npos)
      << refused.message();
  EXPECT_NE(refused.message().find("at most 15360 MiB"), std::string::npos) << refused.message();
  EXPECT_TRUE(check_memory(990 * kGiB, 1000 * kGiB).is_ok()) << "10 GiB at most";
  EXPECT_FALSE(check_memory(991 * kGiB, 1000 * kGiB).is_ok());
  EXPECT_TRUE(check_memory(kGiB, SIZE_MAX).is_ok()) << "where the kernel does not say what it has";
  EXPECT_FALSE(check_memory(SIZE_MAX, SIZE_MAX).is_ok());
}

// A group of the kernel as files: what it may have, what it has, and how much of that are files read once.
void write_group(const std::string& directory, const std::string& limit, std::size_t used, std::size_t inactive) {
  ASSERT_TRUE(real_file_system().make_dirs(directory));
  const auto write = [&](const std::string& name, const std::string& text) {
    const auto file =
        real_file_system().open(directory + "/" + name, {.write = true, .create = true, .truncate = true});
    ASSERT_TRUE(file.is_ok()) << file.status().to_string();
    ASSERT_TRUE(write_fully(**file, std::as_bytes(std::span(text)), 0));
  };
  write("memory.max", limit + "\n");
  write("memory.current", std::to_string(used) + "\n");
  write("memory.stat", "anon 17\ninactive_anon 1\ninactive_file " + std::to_string(inactive) + "\nzswap 3\n");
}

TEST(ControlGroup, WhatTheKernelGivesBackIsFree) {
  const support::TemporaryDirectory root;
  EXPECT_EQ(control_group_room(root.path(), "/"), SIZE_MAX);
  write_group(root.path(), "1000", 900, 600);
  EXPECT_EQ(control_group_room(root.path(), "/"), 700u);
  write_group(root.path(), "1000", 1200, 100);
  EXPECT_EQ(control_group_room(root.path(), "/"), 0u);
  write_group(root.path(), "max", 1200, 100);
  EXPECT_EQ(control_group_room(root.path(), "/"), SIZE_MAX);
}

TEST(ControlGroup, TheTightestOfTheGroupsCounts) {
  const support::TemporaryDirectory root;
  const std::string slice = root.path() + "/system.slice", unit = slice + "/larder.service";
  write_group(unit, "500", 100, 0);  // MemoryMax= of a service
  EXPECT_EQ(control_group_room(root.path(), "/system.slice/larder.service"), 400u);
  write_group(slice, "600", 450, 50);
  EXPECT_EQ(control_group_room(root.path(), "/system.slice/larder.service"), 200u);
  EXPECT_EQ(control_group_room(root.path(), "/"), SIZE_MAX);
  EXPECT_EQ(own_control_group().front(), '/');
}

}  // namespace
}  // namespace larder
