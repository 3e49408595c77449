// SPDX-License-Identifier: Apache-2.0
// The line between a rank and a metadata service on another machine, as the simulator has it. It carries the client's
// own messages (metadata/wire_metadata.h); each takes its time both ways, in which everything else goes on.
//
//   request lost   nothing happened, and the caller does not know
//   answer lost    it happened, and the caller does not know
//   twice          a client that got no answer asked again: the same request arrives twice, the second answer counts
//   forgotten      the service began anew with nothing, before this call
//   late           the caller waits in vain; up to a minute after it has given up, the request arrives
//
// The service itself may have a journal, whose disk has moods and loses power (metadata/memory_journal.h).
//
// A call that waits lets other events of the clock run inside it: its caller is a thread that sleeps, and the other
// threads go on. A call that they make meanwhile ends before it. Only stats() takes no time.
//
// Threads: confined to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/rng.h"
#include "metadata/embedded_metadata.h"
#include "metadata/memory_journal.h"
#include "metadata/wire_metadata.h"
#include "sim/sim_clock.h"

namespace larder::sim {

enum class LineFault : std::uint8_t { kRequestLost, kAnswerLost, kTwice, kForgotten, kLate };
inline constexpr std::size_t kLineFaultCount = 5;

// Where the lines of all ranks end.
class SimService {
 public:
  SimService(SimClock& clock, bool has_journal) : clock_(clock), has_journal_(has_journal) { forget(); }
  [[nodiscard]] std::shared_ptr<MetadataService> shared() const { return now_; }
  // It begins anew with nothing.
  void forget();
  // Its machine loses power and comes back: of what was not synced, the first `kept` writes are in the journal. Without
  // a journal nothing happens.
  void lose_power(std::size_t kept);
  // It is killed and comes back: what was written is there.
  void restart();
  void set_mood(metadata::MemoryDisk::Mood mood);
  // kInternal: an invariant of its tables is broken, or it did not come back.
  [[nodiscard]] Status check() const;
  // It arrives with the first message that comes at `when` or after it, before that one.
  void keep_late(TimePoint when, std::string message) { late_.emplace(when, std::move(message)); }
  [[nodiscard]] std::string answer(const std::string& message, TimePoint now);
  // A message is on its way: what happens meanwhile may send others, whose ways lie within this one's. False: too many
  // do so already, and this one takes no time. (With eight ranks they would never come to an end.)
  [[nodiscard]] bool begin_way() { return ways_ < kMostWays && ++ways_ > 0; }
  void end_way() { --ways_; }

 private:
  static constexpr unsigned kMostWays = 2;
  void begin();

  SimClock& clock_;
  const bool has_journal_;
  std::shared_ptr<metadata::MemoryDisk> disk_;
  std::shared_ptr<EmbeddedMetadata> now_;
  Status begun_;
  std::multimap<TimePoint, std::string> late_;
  unsigned ways_ = 0;
};

class ServiceLine final : public WireMetadata {
 public:
  // A message takes up to `most`. `fired` counts the calls that something happened to. All outlive the line.
  ServiceLine(SimService& service, SimClock& clock, std::uint64_t seed, Nanos most, std::uint64_t& fired)
      : service_(service), clock_(clock), most_(most), rng_(seed), fired_(fired) {}
  // The n-th call from now (1: the next), and the `count` - 1 after it.
  void fail_nth(std::uint64_t n, LineFault fault, std::uint64_t count = 1) {
    fail_from_ = calls_ + n, fail_until_ = fail_from_ + count, fault_ = fault;
  }
  void clear_fault() { fail_from_ = fail_until_ = 0; }

 private:
  [[nodiscard]] Result<std::string> exchange(const std::string& message) override;
  void travel();

  SimService& service_;
  SimClock& clock_;
  const Nanos most_;
  Rng rng_;
  std::uint64_t& fired_;
  std::uint64_t calls_ = 0, fail_from_ = 0, fail_until_ = 0;
  LineFault fault_ = LineFault::kRequestLost;
};

}  // namespace larder::sim
