// SPDX-License-Identifier: Apache-2.0
// What this process and the helper (helper/mooncake_helper.py) say to each other over their sockets.
//
//   request   "LMQ1"  u32 bytes of the body  u64 number                                   body: one JSON object
//   reply     "LMR1"  u32 bytes of the body  u64 number  i32 has it failed  u32 codes     body: i64 codes, then words
//
// Little-endian. A reply has the number of its request. What the helper sends is checked as if a stranger had sent it:
// no reply makes the reader take memory that has not arrived, or run past it.
// Threads: pure, ReplyReader is confined. Limits: kMaxBodyBytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace larder::mooncake {

inline constexpr std::size_t kMaxBodyBytes = std::size_t{64} << 20;
inline constexpr std::size_t kRequestHeadBytes = 16, kReplyHeadBytes = 24;

// A piece of an object in memory that both processes have mapped.
struct Place {
  std::uint32_t memory = 0;  // which of those that the helper was started with
  std::uint64_t offset = 0, bytes = 0;
};
struct NamedObject {
  std::string name;
  std::vector<Place> places;  // in order
};
struct ObjectGroup {
  std::string tag;        // group_name()
  std::size_t count = 0;  // of the objects: the next so many
};

// As the helper's setup() takes it. Sizes in bytes.
struct SetupRequest {
  std::string master_server_address, local_hostname, metadata_server, protocol, device_name, package_directory;
  std::uint64_t global_segment_size = 0, local_buffer_size = 0;
  std::uint32_t replica_num = 1;
  bool soft_pin = false, groups = true;
};

// Bodies of requests.
[[nodiscard]] std::string setup_request(const SetupRequest& request);
[[nodiscard]] std::string exists_request(const std::vector<std::string>& names);
// parts: how many of the objects, in order, were asked for together. They sum to all.
[[nodiscard]] std::string get_request(const std::vector<NamedObject>& objects, const std::vector<std::size_t>& parts);
// The anchor of a group is its last object.
[[nodiscard]] std::string put_request(const std::vector<NamedObject>& objects, const std::vector<ObjectGroup>& groups);
[[nodiscard]] std::string remove_request(const std::vector<std::string>& names);
[[nodiscard]] std::string clear_request(const std::string& pattern);

[[nodiscard]] std::string encode_request(std::uint64_t number, std::string_view body);

struct Reply {
  std::uint64_t number = 0;
  bool has_failed = false;
  std::vector<std::int64_t> codes;
  std::string words;
};

// Cuts a stream of bytes into replies.
class ReplyReader {
 public:
  void append(std::string_view bytes) { waiting_.append(bytes); }
  // The next whole reply; none yet. kCorrupt: no reply looks like this; nothing that follows can be read.
  [[nodiscard]] Result<std::optional<Reply>> next();

 private:
  std::string waiting_;
};

}  // namespace larder::mooncake
