// SPDX-License-Identifier: Apache-2.0
// How tests and benches steer the fake 3FS client library.
//
// The fake (libhf3fs_api_shared.so in the build folder) has the symbols of the real library (usrbio_abi.h), those that
// stand in for the operating system on its paths, and the ones below. Its "mount" is any directory that has a
// sub-directory "3fs-virt"; files under it are 3FS files, kept as sparse files. Data survives the process; lengths and
// sessions of open files do not. Several processes may use one mount, each with its own daemon.
//
// Modes
//   threads  workers move bytes and post completions; the order is drawn from the seed. Fast. The default.
//   sync     the caller of submit does the work before submit returns.
//   sim      nothing happens but in step(), one event at a time, drawn from the seed: a scan of a ring, one I/O of a
//   job,
//            a job's completions, or the next due time. Same seed and calls: same `trace_hash`.
//
// Configuration (JSON object; keys that are left out stay as they are; defaults in fake_config.h)
//   mode, seed, workers; chunk_bytes (for files opened afterwards)
//   start_at_prep_permille  chance that a prep starts what is prepared, without submit (threads; sim scans anyway)
//   shuffle                 permute completions within a job, and jobs
//   poison                  "off" | "tail": bytes that a read does not deliver | "prep": also the whole target, at prep
//   check_ownership         find buffers that the client touches between prep and completion (costs two hashes an I/O)
//   check_overlap           overlapping read buffers in a job fail the job
//   roles                   "off" | "count" | "abort" on a second preparing or waiting thread of a ring
//   latency_us              [least, most] of a job
//   stall_permille, stall_ms, stall_error     jobs that stall, and then fail
//   error_permille, error, short_permille     single I/O
//   lazy_length_ms          how long the inode's length lags behind; 0: not at all
//   capacity_bytes          0: no limit; read_only; max_fds: registered and opened, 0: no limit
//   fail_registration       [block numbers] whose registration fails in iovs created afterwards; [-1]: all
//   die_after_events        the daemon dies after so many executed I/Os; 0: does not
//   probe_blocks            the daemon is stopped: calls that ask the mount about a descriptor (is_hf3fs, reg_fd,
//                           dereg_fd) wait until this is false again
//   fail_call, call_error   the number of the call that fails, counted from 1 since this configuration (0: none), and
//   its
//                           errno. Calls that cannot say so (destroy, dereg_fd, unlink of memory) and iovwrap
//                           are not counted; of waits, the first after a submit is
//   defects                 list of "D1" "D2" "D4" "D8" (3FS's own; default: D1 and D2)
//   semaphores_fail         rings cannot have their semaphore: -EIO, or with D4 a ring that never does anything
//   entry_bytes             what a ring entry takes, to look like another version
//   report_leaks            print what was left open when the process ends
// The variable LARDER_FAKE_HF3FS_CONFIG, read when the library is loaded, is what reset() goes back to.
// LARDER_FAKE_HF3FS_D3=<n> in the environment: end the process while loading when the hard limit of open files is above
// n, as the real library does for want of memory (D3).
//
// Faults (JSON object; rules are tried in order, an I/O takes the first that fits)
//   op "read" | "write" | "any"; skip, count: pass over the first `skip` that fit, then hit `count`
//   error          errno of the completion
//   chunks         [numbers within the I/O] or "random": a write stores these chunks only, then fails (error or EIO)
//   short_bytes    move only so many bytes, and say so
//   delay_ms       of the whole job
//   hold           "before": the job stops before bytes move; "after": before its completions; until release()
//   drop           true: the job never completes
//   lands_late     true: a write fails at once (error or EIO); its bytes, as they are then, land at release()
#pragma once

#include <cstddef>
#include <cstdint>

namespace larder::hf3fs {

// Counters since reset(), and what is there now (live_*).
struct FakeStats {
  std::uint64_t prepared, submitted, executed, completed, reaped;
  std::uint64_t jobs, largest_job;
  std::uint64_t started_unsubmitted;  // I/Os that were executed before submit was called
  std::uint64_t bytes_read, bytes_written;
  std::uint64_t faults;
  std::uint64_t failed_calls;     // by fail_call
  std::uint64_t role_changes;     // prep or wait from another thread than the first
  std::uint64_t role_overlaps;    // two threads in one role at once
  std::uint64_t touched_buffers;  // buffers that the client changed between prep and completion
  std::uint64_t would_crash;      // calls that the real library does not survive
  std::uint64_t stale_handles;    // rings or iovs used after they were destroyed
  std::uint64_t destroyed_in_flight;
  std::uint64_t dropped_completions;  // of rings that were destroyed or died
  std::uint64_t out_of_bounds;        // executed beyond the registered memory (D8); no byte was moved
  std::uint64_t live_iovs, live_rings, live_registered_fds, live_write_sessions, leaked_ring_links;
  std::uint64_t in_flight;  // prepared and not completed
  std::uint64_t used_bytes;
  std::uint64_t trace_hash;  // sim and sync
  const char* failed_call;   // the symbol that fail_call met last; null: none
};

extern "C" {
// Ends all work, forgets rings, iovs, registrations and faults, goes back to the first configuration. The caller has no
// call running and uses no older ring or iov afterwards. Files stay.
using fake_reset_fn = void();
// 0, or -EINVAL with fake_error() (nothing was changed).
using fake_config_fn = int(const char* json);
using fake_fault_fn = int(const char* json);
using fake_error_fn = const char*();
// Sim: does at most `max_events`; returns how many there were. 0: nothing can happen.
using fake_step_fn = std::uint64_t(std::uint64_t max_events);
// Lets held jobs go on and late bytes land; returns how many. Later jobs are held only by rules that are still there.
using fake_release_fn = std::uint64_t();
// false: the daemon dies, with all rings, iovs and open files. true: a new one comes.
using fake_daemon_fn = void(bool alive);
// Moves the fake's clock: latencies, lazy lengths, ring time-outs.
using fake_advance_fn = void(std::uint64_t milliseconds);
// Threads: returns when no job is ready or running. Delayed and held ones do not count.
using fake_idle_fn = void();
using fake_stats_fn = void(FakeStats* stats);
}

// The control symbols of a loaded fake.
struct FakeControl {
  fake_reset_fn* reset = nullptr;
  fake_config_fn* config = nullptr;
  fake_fault_fn* fault = nullptr;
  fake_error_fn* error = nullptr;
  fake_step_fn* step = nullptr;
  fake_release_fn* release = nullptr;
  fake_daemon_fn* daemon = nullptr;
  fake_advance_fn* advance = nullptr;
  fake_idle_fn* idle = nullptr;
  fake_stats_fn* stats = nullptr;

  // `lookup(name)` gives the address of a symbol: UsrbioLibrary::symbol. All stay null with the real library.
  template <class Lookup>
  [[nodiscard]] static FakeControl find(Lookup&& lookup) {
    FakeControl found;
    set(found.reset, lookup("larder_fake_hf3fs_reset"));
    set(found.config, lookup("larder_fake_hf3fs_config"));
    set(found.fault, lookup("larder_fake_hf3fs_fault"));
    set(found.error, lookup("larder_fake_hf3fs_error"));
    set(found.step, lookup("larder_fake_hf3fs_step"));
    set(found.release, lookup("larder_fake_hf3fs_release"));
    set(found.daemon, lookup("larder_fake_hf3fs_daemon"));
    set(found.advance, lookup("larder_fake_hf3fs_advance"));
    set(found.idle, lookup("larder_fake_hf3fs_idle"));
    set(found.stats, lookup("larder_fake_hf3fs_stats"));
    return found;
  }
  [[nodiscard]] bool is_fake() const { return reset != nullptr; }
  [[nodiscard]] FakeStats read_stats() const {
    FakeStats now{};
    stats(&now);
    return now;
  }

 private:
  template <class Function>
  static void set(Function*& function, void* address) {
    function = reinterpret_cast<Function*>(address);
  }
};

}  // namespace larder::hf3fs
