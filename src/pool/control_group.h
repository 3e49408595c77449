// SPDX-License-Identifier: Apache-2.0
// What the control groups of this process (cgroup v2: a container, a unit of systemd with MemoryMax=) leave of memory.
#pragma once

#include <cstddef>
#include <string>

namespace larder {

// Bytes that can be taken before the limit of a group is met, the least over the group `own`
// ("/system.slice/x.service") and those that it is in; SIZE_MAX: none has a limit. What the kernel can give back (the
// page cache of files that were read once, `inactive_file`) counts as free, as Kubernetes counts it. mount:
// "/sys/fs/cgroup". Reads two to three small files a level.
[[nodiscard]] std::size_t control_group_room(const std::string& mount, std::string own);

// The group of this process, as /proc/self/cgroup names it; "/" where it does not.
[[nodiscard]] std::string own_control_group();

}  // namespace larder
