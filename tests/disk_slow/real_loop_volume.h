// SPDX-License-Identifier: Apache-2.0
// An ext4 file system in a file, on a loop device, mounted: a disk that a test may fill, take away and break.
//
// Needs root. The mount lives in a mount namespace of this process, the loop device goes with its last user, and the
// image has no name: nothing is left of them when the process ends, however it ends, but for an empty directory.
// Threads: confined to the thread that called create(), which must be the one that starts all others: they see the
// mount only if they came later.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace larder::disk {

class LoopVolume {
 public:
  // kUnsupported: this process may not, or this machine cannot; the message says what is missing.
  [[nodiscard]] static Result<std::unique_ptr<LoopVolume>> create(std::uint64_t bytes);
  ~LoopVolume();
  LoopVolume(const LoopVolume&) = delete;
  LoopVolume& operator=(const LoopVolume&) = delete;

  // Where it is, or would be, mounted.
  [[nodiscard]] const std::string& path() const { return path_; }
  // Takes the mount away (umount -l): files that are open stay usable.
  [[nodiscard]] Status unmount();
  [[nodiscard]] Status mount();
  // A directory of the volume and what is in it, for whoever looks it up from now on: files that are open stay
  // writable, as they do when an ordinary user's permission goes.
  [[nodiscard]] Status make_read_only(const std::string& directory);
  [[nodiscard]] Status make_writable(const std::string& directory);
  // The disk dies: every operation fails with EIO, also those on open files.
  [[nodiscard]] Status shut_down();
  // The disk is there again, as another device; mounted.
  [[nodiscard]] Status come_back();

 private:
  LoopVolume() = default;
  [[nodiscard]] Status make_image(std::uint64_t bytes);
  [[nodiscard]] Status attach_device();

  std::string path_, device_;
  int image_ = -1, loop_ = -1;  // open as long as the volume lives
};

}  // namespace larder::disk
