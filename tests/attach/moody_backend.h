// SPDX-License-Identifier: Apache-2.0
// Backends for the attach tests: stores that outlive what is attached to them, and backends whose mood a test sets.
//
//   scheduler -> MoodyBackend -> FaultyBackend -> the store's own memory backend (lives as long as the Ward)
//
// So a store keeps its pages when its backend is detached, like a remote one, and a late operation of a backend that
// nobody uses any more still ends somewhere.
//
// Registered as "kept" and "other" (two names, one kind), with the options
//   store  which store: any text; the same text, the same pages
//   mood   the mood it is built with, so that the probe of an attach meets it; "fine" if absent
//
// Threads: any. A MoodyBackend that is destroyed while operations hang notes that (its owner would wait for ever) and
// lets them go first, as the port demands.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "sim/faulty_backend.h"
#include "storage/factory.h"

namespace larder::attach {

enum class Mood : unsigned char {
  kFine,
  kHangs,       // nothing is answered until let_go()
  kHangsOften,  // four of ten operations
  kFails,       // every operation fails
  kErrs,        // some are refused, some fail, some fail in part
  kLate,        // answers come late and out of order
  kFlips,       // a byte of each page that is read is another one; it says ok
  kShort,       // the second half of each page that is read is missing; it says ok
  kFewer,       // results have an entry less than was asked for
  kMore,        // results have an entry more
  kBoasts,      // says that it has every page
};
[[nodiscard]] std::string_view mood_name(Mood mood);
[[nodiscard]] std::optional<Mood> parse_mood(std::string_view name);

// What the test keeps of a backend that it gave away.
class Patient {
 public:
  Patient(std::unique_ptr<StorageBackend> inner, std::uint64_t seed, Mood mood);
  void set_mood(Mood mood) LARDER_EXCLUDES(mutex_);
  // What hangs or is held goes on; how many operations.
  std::size_t let_go();
  bool let_one_go() { return faulty_.release_one(); }
  [[nodiscard]] std::size_t hung() const { return faulty_.hung(); }
  [[nodiscard]] std::size_t held() const { return faulty_.held(); }
  [[nodiscard]] sim::FaultyBackend::Injected injected() const { return faulty_.injected(); }
  [[nodiscard]] std::uint64_t lies() const { return lies_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool is_attached() const LARDER_EXCLUDES(mutex_);  // the backend is not destroyed yet
  [[nodiscard]] bool died_busy() const LARDER_EXCLUDES(mutex_);

 private:
  friend class MoodyBackend;
  void begin() LARDER_EXCLUDES(mutex_);
  void end() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status wait_idle(Nanos limit) LARDER_EXCLUDES(mutex_);
  void die() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Mood mood() const LARDER_EXCLUDES(mutex_);

  sim::FaultyBackend faulty_;           // synchronises itself
  std::atomic<std::uint64_t> lies_{0};  // relaxed: a statistic
  mutable RankedMutex mutex_{LockRank::kController};
  RankedCondition idle_;
  Mood mood_ LARDER_GUARDED_BY(mutex_);
  std::size_t in_flight_ LARDER_GUARDED_BY(mutex_) = 0;
  bool is_attached_ LARDER_GUARDED_BY(mutex_) = true;
  bool died_busy_ LARDER_GUARDED_BY(mutex_) = false;
};

// The stores, and the backends made for them.
class Ward {
 public:
  explicit Ward(std::uint64_t seed);
  ~Ward();

  // Registers "kept" and "other". The factory must not outlive the ward.
  [[nodiscard]] Status add_to(BackendFactory& factory);
  // The one that was made last; null: none yet.
  [[nodiscard]] std::shared_ptr<Patient> last() const LARDER_EXCLUDES(mutex_);
  // Lets everything go that hangs, in all of them.
  std::size_t let_all_go() LARDER_EXCLUDES(mutex_);
  // Backends that are not destroyed yet.
  [[nodiscard]] std::size_t living() const LARDER_EXCLUDES(mutex_);

  struct Tally {
    std::size_t made = 0, died_busy = 0;
    std::uint64_t hung = 0, failed = 0, lies = 0;
  };
  // Of all that were ever made.
  [[nodiscard]] Tally tally() const LARDER_EXCLUDES(mutex_);

 private:
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> make(const std::string& name, const BackendOptions& options)
      LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Result<StorageBackend*> store(const std::string& name) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::vector<std::shared_ptr<Patient>> patients() const LARDER_EXCLUDES(mutex_);
  void forget_the_dead() LARDER_REQUIRES(mutex_);
  void pump() LARDER_EXCLUDES(mutex_);

  ThreadPoolExecutor threads_;
  mutable RankedMutex mutex_{LockRank::kServer};
  RankedCondition stopped_;
  Rng rng_ LARDER_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<StorageBackend>> stores_ LARDER_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Patient>> patients_ LARDER_GUARDED_BY(mutex_);
  Tally gone_ LARDER_GUARDED_BY(mutex_);  // of patients that are forgotten
  bool is_stopping_ LARDER_GUARDED_BY(mutex_) = false;
  std::unique_ptr<ThreadPoolExecutor> pump_;  // last: it ends first
};

}  // namespace larder::attach
