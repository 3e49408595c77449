// SPDX-License-Identifier: Apache-2.0
#include "tests/disk_slow/real_loop_volume.h"

#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/file_system.h"

namespace larder::disk {
namespace {

constexpr unsigned long kShutDown = _IOR('X', 125, std::uint32_t);  // EXT4_IOC_SHUTDOWN
constexpr std::uint32_t kWithoutLog = 2;

Status missing(const char* what) {
  return unsupported(std::string("needs root and loop devices: ") + what + ": " + std::strerror(errno));
}

Status done(int result, const std::string& operation, const std::string& path) {
  return result == 0 ? Status::ok() : status_from_errno(errno, operation, path);
}

// A mount namespace of our own, once per process.
Status enter_namespace() {
  static const Status entered = [] {
    if (::geteuid() != 0) return unsupported("needs root: a file system is mounted");
    if (::unshare(CLONE_NEWNS) != 0) return missing("unshare");
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return missing("private mounts");
    return Status::ok();
  }();
  return entered;
}

Status run_program(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, argv[0], nullptr, nullptr, argv.data(), environ);
  if (error != 0) return unsupported(arguments[0] + ": " + std::strerror(error));
  int state = 0;
  while (::waitpid(child, &state, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(state) && WEXITSTATUS(state) == 0 ? Status::ok() : unsupported(arguments[0] + " failed");
}

}  // namespace

Result<std::unique_ptr<LoopVolume>> LoopVolume::create(std::uint64_t bytes) {
  LARDER_RETURN_IF_ERROR(enter_namespace());
  std::unique_ptr<LoopVolume> out(new LoopVolume());
  std::string directory = (std::filesystem::temp_directory_path() / "larder-volume-XXXXXX").string();
  if (::mkdtemp(directory.data()) == nullptr) return missing("mkdtemp");
  out->path_ = directory;
  LARDER_RETURN_IF_ERROR(out->make_image(bytes));
  LARDER_RETURN_IF_ERROR(out->attach_device());
  const Status mounted = out->mount();
  if (!mounted.is_ok()) return unsupported("needs a kernel that mounts ext4: " + mounted.message());
  return out;
}

Status LoopVolume::make_image(std::uint64_t bytes) {
  std::string name = path_ + ".image-XXXXXX";
  image_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (image_ < 0) return missing("an image file");
  Status made = done(::ftruncate(image_, static_cast<off_t>(bytes)), "truncate", name);
  // No blocks for root only, and nothing initialised behind our back.
  if (made.is_ok()) {
    made = run_program({"mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", name});
  }
  ::unlink(name.c_str());
  return made;
}

Status LoopVolume::attach_device() {
  const int control = ::open("/dev/loop-control", O_RDWR | O_CLOEXEC);
  if (control < 0) return missing("/dev/loop-control");
  Status attached;
  int device = -1;
  for (int tries = 0; tries < 16 && device < 0; ++tries) {  // somebody may be faster
    const int number = ::ioctl(control, LOOP_CTL_GET_FREE);
    if (number < 0) break;
    device_ = "/dev/loop" + std::to_string(number);
    device = ::open(device_.c_str(), O_RDWR | O_CLOEXEC);
    loop_config config{};
    config.fd = static_cast<std::uint32_t>(image_);
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
    if (device < 0 || ::ioctl(device, LOOP_CONFIGURE, &config) == 0) break;
    attached = missing(device_.c_str());
    ::close(std::exchange(device, -1));
  }
  if (device < 0) attached = attached.is_ok() ? missing("a free loop device") : attached;
  ::close(control);
  if (device < 0) return attached;
  if (loop_ >= 0) ::close(loop_);
  loop_ = device;
  return Status::ok();
}

LoopVolume::~LoopVolume() {
  while (!path_.empty() && ::umount2(path_.c_str(), MNT_DETACH) == 0) continue;
  if (loop_ >= 0) ::close(loop_);
  if (image_ >= 0) ::close(image_);
  if (!path_.empty()) {
    std::error_code error;  // what a test may have found itself writing to below the mount point
    std::filesystem::remove_all(path_, error);
  }
}

Status LoopVolume::unmount() { return done(::umount2(path_.c_str(), MNT_DETACH), "umount", path_); }

Status LoopVolume::mount() {
  return done(::mount(device_.c_str(), path_.c_str(), "ext4", 0, nullptr), "mount " + device_ + " on", path_);
}

Status LoopVolume::make_read_only(const std::string& directory) {
  const char* path = directory.c_str();
  LARDER_RETURN_IF_ERROR(done(::mount(path, path, nullptr, MS_BIND, nullptr), "bind", directory));
  return done(::mount(nullptr, path, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr), "remount", directory);
}

Status LoopVolume::make_writable(const std::string& directory) {
  return done(::umount2(directory.c_str(), MNT_DETACH), "umount", directory);
}

Status LoopVolume::shut_down() {
  const int root = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) return status_from_errno(errno, "open", path_);
  std::uint32_t how = kWithoutLog;
  const Status shut = done(::ioctl(root, kShutDown, &how), "shut down", path_);
  ::close(root);
  return shut;
}

Status LoopVolume::come_back() {
  LARDER_RETURN_IF_ERROR(unmount());
  LARDER_RETURN_IF_ERROR(attach_device());
  return mount();
}

}  // namespace larder::disk
