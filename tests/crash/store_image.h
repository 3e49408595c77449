// SPDX-License-Identifier: Apache-2.0
// The bytes of a file store, to be damaged, and what lies where in them.
//
// An image is taken from simulated files and put onto fresh ones, as often as a test has ideas.
// Threads: confined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/sim_file_system.h"
#include "tests/crash/crash_pages.h"

namespace larder::crash {

struct StoreImage {
  std::vector<std::string> directories;
  std::map<std::string, std::vector<std::byte>> files;  // by path; without LOCK
  [[nodiscard]] std::string directory_option() const;
};
[[nodiscard]] StoreImage take_image(FileSystem& files, const std::vector<std::string>& directories);
void put_image(const StoreImage& image, FileSystem& files);

enum class PlaceKind : std::uint8_t { kFormat, kCleared, kHeader, kHead, kPayload, kFooter, kTrailer, kUnused };

// A stretch of a file that is one thing. kUnused: padding, and space reserved ahead.
struct Place {
  PlaceKind kind = PlaceKind::kUnused;
  std::string path;
  std::uint64_t begin = 0, end = 0;
  std::uint64_t record = 0;    // head, payload: where their record starts
  bool is_sealed = false;      // the segment has a footer
  std::set<GroupId> groups{};  // a head's: all of its record; a payload's: one
  std::size_t page = 0;        // a payload's: index into pages_of() its group
};
// Every byte of every file is in exactly one place, in the order of the files. `groups`: all that were ever written.
[[nodiscard]] std::vector<Place> places_of(const StoreImage& image, const std::set<GroupId>& groups);
// Where each record of a file ends, and the groups in it, by where it starts.
struct RecordPlace {
  std::uint64_t begin = 0, end = 0;
  bool is_sealed = false;
  std::set<GroupId> groups;
};
[[nodiscard]] std::map<std::string, std::vector<RecordPlace>> records_of(const StoreImage& image,
                                                                         const std::set<GroupId>& groups);

}  // namespace larder::crash
