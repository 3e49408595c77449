// SPDX-License-Identifier: Apache-2.0
// The engine of a simulated world and its clients: what comes in through one of the doors. The same calls go to every
// rank, and every rank must answer alike.
//
//   cache_engine.h       Larder keeps the books of the device; the engine takes steps
//   connector_engine.h   the engine keeps them, looks up, loads, computes and saves
//
// An engine does not compute: it fills pages with the pattern of what they must hold (pattern.h), and compares what it
// resumes from.
// Threads: confined to one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/world/sim_rank.h"
#include "sim/world/story.h"

namespace larder::sim {

// What a run came to; sums over runs say how far a seed range reached.
struct SimTotals {
  std::uint64_t stories = 0, events = 0;  // events: of stories, and background tasks and timers
  std::uint64_t begun = 0, finished = 0, aborted = 0, dropped = 0;  // requests; dropped: by a restart or a crash
  std::uint64_t prompt_tokens = 0, device_tokens = 0, host_tokens = 0, storage_tokens = 0;
  std::uint64_t restarts = 0, crashes = 0, attaches = 0, failed_attaches = 0, checked_pages = 0;
  std::uint64_t retracts = 0, starved = 0;  // starved: of these, so that another request could go on
  std::uint64_t late_steps = 0;             // ended before their kernels
  std::uint64_t late_loads = 0;             // of these, before what they read was there
  std::uint64_t steps_left = 0;             // open when their requests let go
  std::uint64_t forks = 0, cancelled = 0;   // cancelled: steps, of requests that go on
  std::uint64_t refused = 0, parted = 0;    // requests, for there were too many or of too many tenants; groups of ranks
  std::uint64_t loads = 0, saves = 0;       // of connectors, that ended well
  void add(const SimTotals& other);
};

using EventArguments = std::array<std::uint64_t, kMaxArguments>;

class SimEngine {
 public:
  struct World {  // all outlive the engine
    const WorldSpec& spec;
    const ModelSpec& model;
    SimClock& clock;
    std::vector<std::unique_ptr<SimRank>>& ranks;
    SimTotals& totals;
    std::string& failure;  // the first broken rule; empty: all holds
  };
  explicit SimEngine(const World& world) : world_(world) {}
  virtual ~SimEngine() = default;

  // ---- events (story.h); numbers of requests are taken modulo those there are
  virtual void begin(const EventArguments& a) = 0;
  virtual void move(const EventArguments& a) = 0;
  virtual void abort(const EventArguments& a) = 0;
  virtual void retract(const EventArguments& a) = 0;
  virtual void fork(const EventArguments& /*a*/) {}
  virtual void cancel(const EventArguments& /*a*/) {}
  virtual void explain(const EventArguments& a) = 0;
  virtual void set_policies(PrefetchPolicy prefetch, WritePolicy write) = 0;
  virtual void time_has_passed() = 0;
  // The device does what it has yet to do.
  virtual void device_runs() {}
  // The ranks have lost each other: requests are refused everything, and let go.
  virtual void has_parted() {}

  // ---- ends
  [[nodiscard]] virtual std::size_t requests() const = 0;
  // Each request moves, if it can. True: one did.
  virtual bool move_all() = 0;
  // No request is left: what else it holds it lets go.
  virtual void let_go() = 0;
  // The process ends, with whatever is under way.
  virtual void drop_all() = 0;

 protected:
  // What a conversation begins or goes on with: arguments of kBegin.
  [[nodiscard]] std::vector<TokenId> prompt_of(const EventArguments& a) const;
  void remember(std::vector<TokenId> conversation);
  // By the number in kBegin: nobody, one with a salt, or one with an adapter.
  [[nodiscard]] static std::string tenant_of(std::uint64_t number) {
    constexpr std::uint64_t kMostSalts = 3;
    if (number == 0) return "";
    return (number <= kMostSalts ? "tenant " : "adapter ") + std::to_string(number);
  }
  [[nodiscard]] static bool is_adapter(std::string_view tenant) { return tenant.starts_with("adapter"); }
  void fail(const std::string& what) {
    if (world_.failure.empty()) world_.failure = what;
  }
  // Compares a page of a rank with what it must be.
  void check_page(std::size_t rank, ComponentKind c, std::span<const TokenId> content, std::uint64_t tokens,
                  const std::string& tenant, DeviceSlot slot);

  const World world_;

 private:
  std::vector<std::vector<TokenId>> history_;
};

}  // namespace larder::sim
