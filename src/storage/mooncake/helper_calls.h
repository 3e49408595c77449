// SPDX-License-Identifier: Apache-2.0
// Calls of the helper, and which of them go as one.
//
//   get(), put() ─► begins: no get runs, or fewer than two puts; or those that wait fill a call, and fewer than
//                   `large_at_once` of the kind run
//                ─► waits: goes with others that wait, as one call, when a call of its kind ends; or when one more is
//                   asked for 50 ms after the last call began, so that a call that hangs does not hold up all others
//
// A call that is late (helper_link.h) holds up no other. Where most_at_once of a kind are, those that wait are refused:
// they would be late, too, or take the last lanes.
//
// No call names an object twice: the store's client fills one place for each name, and says that it has filled both
// (0.3.13.post1).
// Why: a call costs the store's client 0.4 ms of messages, whatever it moves, and calls beside each other disturb each
// other: over TCP, four pages of 64 KiB in one call take 0.6 ms. Who asks alone never waits.
// What is joined fails together only where the helper or its library fails as a whole; each object has its own code.
// Threads: any; the constructor's arguments outlive all calls. Locks: one, for the lists here; never during a call.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/ranked_mutex.h"
#include "storage/mooncake/helper_link.h"
#include "storage/mooncake/helper_wire.h"

namespace larder::mooncake {

struct JoinLimits {
  std::size_t objects = 128;      // of one call; what asks for more goes alone
  std::uint64_t bytes = 9 << 20;  // likewise; 16 pages of 512 KiB with their envelopes
  std::size_t large_at_once = 2;  // calls of a kind, where these limits are reached
  std::size_t most_at_once = 6;   // calls of a kind, where the last one began long ago; of those that are late, too
};

class HelperCalls {
 public:
  // One code per object, in order; or why there are none.
  using Codes = Result<std::vector<std::int64_t>>;
  using Done = std::function<void(const Codes&)>;
  using Late = HelperLink::Late;
  // Where `done` runs: kHere is the link's thread, for what takes no longer than waking another. `late`, and the
  // `done` of what is late, run there always.
  enum class Where : std::uint8_t { kHere, kElsewhere };

  HelperCalls(HelperLink& link, const JoinLimits& limits, Executor& executor, Clock& clock = real_clock())
      : link_(link), limits_(limits), executor_(executor), clock_(clock) {}

  // As with a link, `done` runs once, and `late` perhaps before it.
  // Reads objects, none twice. Those of one call of get() are looked at again while a part of them is missing (helper,
  // get).
  void get(std::vector<NamedObject> objects, Where where, Done done, Late late) LARDER_EXCLUDES(mutex_);
  // Writes groups of objects.
  void put(std::vector<NamedObject> objects, std::vector<ObjectGroup> groups, Where where, Done done, Late late)
      LARDER_EXCLUDES(mutex_);
  // Any other request, whose answer has `count` codes. Without `late`, for what holds nothing that the helper uses:
  // `done` has an error when it is late, and what comes after that is dropped.
  void call(std::string body, std::size_t count, Where where, Done done, Late late = nullptr);
  // On one of the executor's threads, or here if the executor is full: what has begun must not be lost.
  void post(std::function<void()> task);

 private:
  enum class Kind : std::uint8_t { kGet, kPut };
  struct Part {
    std::vector<NamedObject> objects;
    std::vector<ObjectGroup> groups;
    std::uint64_t bytes = 0;
    Where where = Where::kHere;
    Done done;
    Late late;
  };
  using Parts = std::vector<Part>;
  struct Line {
    std::deque<Part> waiting;
    std::uint64_t waiting_bytes = 0;
    std::size_t waiting_objects = 0, running = 0, late = 0;
    TimePoint last_begun{};
  };
  struct Sent {  // the link's thread's
    Kind kind = Kind::kGet;
    Parts parts;
    std::vector<std::size_t> counts;  // of objects of each part
    bool is_late = false;
  };

  void add(Kind kind, Part part) LARDER_EXCLUDES(mutex_);
  void begin(Kind kind) LARDER_EXCLUDES(mutex_);
  // What goes as the next call now; empty: nothing.
  [[nodiscard]] Parts take(Kind kind) LARDER_REQUIRES(mutex_);
  // What is refused now.
  [[nodiscard]] std::deque<Part> take_refused(Kind kind) LARDER_REQUIRES(mutex_);
  void send(Kind kind, Parts parts) LARDER_EXCLUDES(mutex_);
  void set_late(Sent& sent, const Status& why) LARDER_EXCLUDES(mutex_);
  void finish(Sent& sent, const Codes& codes) LARDER_EXCLUDES(mutex_);
  void tell(Where where, Done done, Codes codes);

  HelperLink& link_;
  const JoinLimits limits_;
  Executor& executor_;
  Clock& clock_;

  RankedMutex mutex_{LockRank::kStorage};
  std::array<Line, 2> lines_ LARDER_GUARDED_BY(mutex_);  // by kind
};

}  // namespace larder::mooncake
