// SPDX-License-Identifier: Apache-2.0
#include "pool/control_group.h"

#include <algorithm>
#include <fstream>
#include <limits>

namespace larder {
namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

// A number in a one-line kernel file; kUnlimited when there is none ("max", no such file).
std::size_t read_limit(const std::string& path) {
  std::ifstream file(path);
  std::size_t value = 0;
  return file >> value ? value : kUnlimited;
}

// memory.stat: a word and a number a line.
std::size_t read_statistic(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  for (std::size_t value = 0; file >> word >> value;) {
    if (word == name) return value;
  }
  return 0;
}

std::size_t room_of(const std::string& group) {
  const std::size_t limit = read_limit(group + "/memory.max");
  const std::size_t used = read_limit(group + "/memory.current");
  if (limit == kUnlimited || used == kUnlimited) return kUnlimited;
  const std::size_t held = used - std::min(used, read_statistic(group + "/memory.stat", "inactive_file"));
  return limit - std::min(limit, held);
}

}  // namespace

std::size_t control_group_room(const std::string& mount, std::string own) {
  std::size_t room = room_of(mount);
  for (; own.size() > 1; own.resize(own.rfind('/'))) room = std::min(room, room_of(mount + own));
  return room;
}

std::string own_control_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return "/";
}

}  // namespace larder
