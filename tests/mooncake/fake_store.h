// SPDX-License-Identifier: Apache-2.0
// The fake Mooncake Store (fakes/mooncake): a directory, and a port that answers as its master.
//
// Threads: the test's. The helper processes of backends use the directory, too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "base/rng.h"
#include "storage/factory.h"
#include "tests/support/loopback_listener.h"
#include "tests/support/temporary_directory.h"

namespace larder::mooncake_test {

class FakeStore {
 public:
  // What a backend needs to reach it.
  [[nodiscard]] BackendOptions options() const {
    return {{"master_server_address", "127.0.0.1:" + std::to_string(listener_.port())},
            {"metadata_server", "fake:" + directory_.path()},
            {"package_directory", std::string(LARDER_SOURCE_DIR) + "/fakes/mooncake"},
            {"python", "/usr/bin/python3"},
            {"local_hostname", "127.0.0.1"},
            {"protocol", "tcp"},
            {"global_segment_size", "0"},
            {"staging_size", "2Mi"}};
  }
  // control.json, as fakes/mooncake/mooncake/store.py has it. Faults are counted anew.
  void control(const std::string& json) const {
    for (const std::string& path : files("facts")) {
      if (path.find(".fault") != std::string::npos) std::filesystem::remove(path);
    }
    write("control.json.new", json);
    std::filesystem::rename(directory_.path() + "/control.json.new", directory_.path() + "/control.json");
  }
  [[nodiscard]] std::vector<std::string> files(const std::string& kind) const {
    std::vector<std::string> out;
    std::error_code absent;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path() + '/' + kind, absent)) {
      out.push_back(entry.path());
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  [[nodiscard]] std::vector<std::string> objects() const { return files("objects"); }
  // How often a call was made.
  [[nodiscard]] std::size_t calls(const std::string& name) const {
    std::ifstream file(directory_.path() + "/calls.log");
    std::size_t count = 0;
    for (std::string line; std::getline(file, line);) count += line.starts_with(name) ? 1 : 0;
    return count;
  }
  void write(const std::string& name, const std::string& text) const {
    OpenOptions open;
    open.write = open.create = open.truncate = true;
    const auto file = real_file_system().open(directory_.path() + '/' + name, open).value();
    EXPECT_TRUE(write_fully(*file, std::as_bytes(std::span(text)), 0).is_ok());
  }
  // Flips bits in objects.
  std::size_t flip_bits(Rng& rng, std::size_t flips) const {
    const std::vector<std::string> paths = objects();
    OpenOptions open;
    open.write = true;
    for (std::size_t i = 0; i < flips && !paths.empty(); ++i) {
      const auto file = real_file_system().open(paths[rng.below(paths.size())], open).value();
      const std::uint64_t at = rng.below(file->size_bytes().value());
      std::byte byte{};
      EXPECT_TRUE(read_exactly(*file, {&byte, 1}, at).is_ok());
      byte ^= static_cast<std::byte>(1u << rng.below(8));
      EXPECT_TRUE(write_fully(*file, {&byte, 1}, at).is_ok());
    }
    return paths.empty() ? 0 : flips;
  }

 private:
  support::TemporaryDirectory directory_;
  support::LoopbackListener listener_{256};
};

}  // namespace larder::mooncake_test
