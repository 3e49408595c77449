// SPDX-License-Identifier: Apache-2.0
// Talks to the mount, on a thread of its own: whether it is alive, and all that opens or closes something there.
//
//   ring's thread ── ask() ──► watch's thread: is_hf3fs(descriptor) ──► is_dead() ──► ring's thread
//
// A FUSE daemon that is stopped, not dead, answers nothing: the question waits as long as it is stopped, and so do
// opening and closing a file, making rings and removing a link. So whoever has a deadline does not talk to the mount:
// it has that done here (run()), waits for a limited time, or asks, and reads what is known. At a session's end its
// remains are given back here as well (end()). A thread that hangs then is left, with all that it needs, and joined by
// a later end() when it has come back.
//
// Threads: any. Locks: one, never while the mount is asked.
#pragma once

#include <functional>
#include <memory>

#include "base/clock.h"
#include "storage/hf3fs/usrbio_library.h"

namespace larder::hf3fs {

class MountWatch {
 public:
  // Starts the thread. The library stays loaded for as long as it runs.
  explicit MountWatch(std::shared_ptr<UsrbioLibrary> library);
  ~MountWatch();  // end() that waits for nothing
  MountWatch(const MountWatch&) = delete;
  MountWatch& operator=(const MountWatch&) = delete;

  // A descriptor on the mount, to be asked about; not closed but by what end() runs. Once, before ask().
  void set_descriptor(int descriptor);
  // Asks the mount, soon. The answer is is_dead(), or none.
  void ask();
  [[nodiscard]] bool is_dead() const;
  // Whoever knows it from elsewhere.
  void set_dead();
  // Dead because the mount said so: its daemon, and all I/O of it, are no more. Otherwise they may only be slow.
  [[nodiscard]] bool is_gone() const;
  // Has the thread do that. False: not within `limit`; if it has been begun, it goes on, so it keeps all that it needs.
  // False at once as long as the thread hangs in a task that somebody has given up. Not after end().
  [[nodiscard]] bool run(std::function<void()> task, Nanos limit);
  [[nodiscard]] bool is_hanging() const;  // in such a task
  // Lets the thread run `last` behind what it does now, and end. False: that takes longer than `limit`. The first call
  // counts.
  bool end(std::function<void()> last, Nanos limit);

 private:
  struct State;
  struct Runner;
  class LeftThreads;
  static void work(State& state);
  const std::shared_ptr<State> state_;
  std::unique_ptr<Runner> runner_;  // null: ended
};

}  // namespace larder::hf3fs
