// SPDX-License-Identifier: Apache-2.0
#include "cli/real_store_owner.h"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

namespace larder {
namespace {

using StatBuffer = struct ::stat;
constexpr uid_t kRoot = 0;

}  // namespace

Status check_store_owner(const std::vector<std::string>& directories) {
  if (::geteuid() != kRoot) return Status::ok();
  for (const std::string& directory : directories) {
    StatBuffer found = {};
    if (::stat(directory.c_str(), &found) != 0 || found.st_uid == kRoot) continue;
    const passwd* const owner = ::getpwuid(found.st_uid);  // null: a number without a name, of a container for example
    return unavailable(fmt::format(
        "{} belongs to user {}, who could not open what root writes there. Run the command as that user: {} larder ...",
        directory, owner != nullptr ? owner->pw_name : std::to_string(found.st_uid),
        owner != nullptr ? fmt::format("runuser -u {} --", owner->pw_name)
                         : fmt::format("setpriv --reuid {} --regid {} --clear-groups", found.st_uid, found.st_gid)));
  }
  return Status::ok();
}

}  // namespace larder
