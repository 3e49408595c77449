// SPDX-License-Identifier: Apache-2.0
#include "storage/file/volume_set.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "storage/file/store_check.h"
#include "storage/file/volume.h"

namespace larder::file_store {
namespace {

bool is_same(const VolumeMember& a, const VolumeMember& b) { return a.volume == b.volume && a.id == b.id; }

bool is_listed(std::span<const VolumeMember> list, const VolumeFormat& format) {
  return std::any_of(list.begin(), list.end(), [&](const VolumeMember& member) {
    return member.volume == format.volume && member.id == format.id;
  });
}

std::string name_of(const VolumeMember& member) {
  return "volume " + std::to_string(member.volume) + " (last in " + member.directory + ")";
}

Status refuse_missing(const VolumeSet& set, std::span<const VolumeSeen> seen) {
  std::string names, options, directories;
  for (const VolumeMember& member : set.missing) {
    names += (names.empty() ? "" : ", ") + name_of(member);
    options += " --volume " + std::to_string(member.volume);
  }
  for (const VolumeSeen& volume : seen) {
    if (is_listed(set.members, *volume.format)) directories += " " + *volume.directory;
  }
  if (directories.empty()) directories = " DIRECTORY...";
  return unavailable("file store: missing of the store: " + names +
                     "; is its disk mounted, and are all directories of the store named? To go on without it and its "
                     "pages for good: larder store forget" +
                     options + directories);
}

// A store begins with a volume whose id is 0; others join it, and get the list only then. Of those alone it is not
// known what they belong to.
const VolumeSeen* joined_nobody(const VolumeSet& set, std::span<const VolumeSeen> seen) {
  if (set.version > 0) return nullptr;
  const auto is_first = [](const VolumeSeen& volume) { return volume.format->id == 0; };
  return seen.empty() || std::any_of(seen.begin(), seen.end(), is_first) ? nullptr : &seen.front();
}

Result<std::vector<VolumeFormat>> read_formats(FileSystem& files, std::span<const std::string> directories) {
  std::vector<VolumeFormat> out;
  for (const std::string& directory : directories) {
    Result<VolumeFormat> format = read_format(files, directory);
    if (format.status().code() == StatusCode::kNotFound) {
      return not_found(directory + ": no file store is there (it has no file FORMAT)");
    }
    if (!format.is_ok()) return Status(format.status().code(), directory + ": " + format.status().message());
    if (!out.empty() && format->store != out.front().store) {
      return conflict(directory + " and " + directories.front() + " are volumes of two different stores");
    }
    for (const VolumeFormat& other : out) {
      if (other.volume != format->volume) continue;
      return conflict(directory + ": a second directory with volume number " + std::to_string(format->volume) +
                      "; is it a copy of another one?");
    }
    out.push_back(std::move(*format));
  }
  return out;
}

// Takes the volumes to be dropped out of `set`, which says then what is still in the way.
Status drop(VolumeSet& set, std::span<const unsigned> volumes) {
  for (const unsigned volume : volumes) {
    const auto has_number = [volume](const VolumeMember& member) { return member.volume == volume; };
    const std::string name = "volume " + std::to_string(volume);
    if (std::none_of(set.members.begin(), set.members.end(), has_number)) {
      return not_found("the store has no " + name + (set.version == 0 ? ": it has no list of volumes yet" : ""));
    }
    if (std::erase_if(set.missing, has_number) == 0) {
      return invalid_argument(name + " is there: name the other directories only, or empty its own one afterwards");
    }
    std::erase_if(set.members, has_number);
  }
  return Status::ok();
}

}  // namespace

Result<VolumeSet> join_lists(std::span<const VolumeSeen> seen) {
  VolumeSet set;
  const VolumeSeen* from = nullptr;
  for (const VolumeSeen& volume : seen) {
    const VolumeFormat& format = *volume.format;
    if (format.set_version == 0 || format.set_version < set.version) continue;
    if (format.set_version == set.version &&
        !std::equal(format.members.begin(), format.members.end(), set.members.begin(), set.members.end(), is_same)) {
      return conflict("file store: " + *from->directory + " and " + *volume.directory +
                      " disagree on which volumes the store has; leave out, or empty, the one that was used without "
                      "the others");
    }
    if (format.set_version == set.version) continue;
    set.version = format.set_version;
    set.members = format.members;
    from = &volume;
  }
  for (const VolumeMember& member : set.members) {
    const bool is_seen = std::any_of(seen.begin(), seen.end(), [&](const VolumeSeen& volume) {
      return volume.format->volume == member.volume && volume.format->id == member.id;
    });
    if (!is_seen) set.missing.push_back(member);
  }
  for (std::size_t i = 0; i < seen.size() && set.version > 0; ++i) {
    if (!is_listed(set.members, *seen[i].format)) set.outsiders.push_back(i);
  }
  return set;
}

Status check_set(const VolumeSet& set, std::span<const VolumeSeen> seen) {
  for (const std::size_t i : set.outsiders) {
    if (!seen[i].has_segments) continue;
    return conflict("file store: " + *seen[i].directory +
                    " holds a volume that was dropped from the store, and may hold pages that were cleared since; "
                    "leave it out, or empty it: then it joins as a new one");
  }
  if (const VolumeSeen* const alone = joined_nobody(set, seen)) {
    return unavailable("file store: " + *alone->directory +
                       " was joining a store that is not there; is its disk mounted, and are all directories of the "
                       "store named? Nothing was stored in it yet: to use it otherwise, empty it");
  }
  return set.missing.empty() ? Status::ok() : refuse_missing(set, seen);
}

Result<std::vector<VolumeMember>> forget_volumes(FileSystem& files, std::span<const std::string> directories,
                                                 std::span<const unsigned> volumes) {
  const Result<std::vector<VolumeFormat>> before = read_formats(files, directories);  // before a LOCK is made
  if (!before.is_ok()) return before.status();
  LARDER_ASSIGN_OR_RETURN(const auto locks, lock_volumes(files, directories));
  LARDER_ASSIGN_OR_RETURN(std::vector<VolumeFormat> formats, read_formats(files, directories));
  std::vector<VolumeSeen> seen;
  for (std::size_t i = 0; i < formats.size(); ++i) seen.push_back({&directories[i], &formats[i], true});
  LARDER_ASSIGN_OR_RETURN(VolumeSet set, join_lists(seen));
  LARDER_RETURN_IF_ERROR(drop(set, volumes));
  LARDER_RETURN_IF_ERROR(check_set(set, seen));
  for (std::size_t i = 0; i < formats.size(); ++i) {
    VolumeFormat& format = formats[i];
    format.set_version = set.version + 1;
    format.members = set.members;
    LARDER_RETURN_IF_ERROR(write_format(files, directories[i], format));
  }
  return std::move(set.members);
}

}  // namespace larder::file_store
