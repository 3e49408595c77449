// A simulated world: ranks, clients, operators, disks and time in one thread; every run follows from its story.
//
// After every event: nobody has seen a wrong byte, ranks that get the same requests have decided alike, and the cache
// has refused nothing of its own as impossible. Every few events: tree and pools agree slot by slot. At the end,
// when the faults have gone: every request finishes, every detached storage closes, and after a flush every slot is
// free.
//
// Threads: confined to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
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
  std::uint64_t steps_left = 0;             // open when their requests let go
  void add(const SimTotals& other);
};

class SimWorld {
 public:
  explicit SimWorld(const WorldSpec& spec, std::uint64_t check_every = 64);
  ~SimWorld();

  // Each gives the first broken rule in words; empty: all holds.
  [[nodiscard]] std::string begin();
  [[nodiscard]] std::string apply(const Event& event);
  [[nodiscard]] std::string finish();
  [[nodiscard]] const SimTotals& totals() const { return totals_; }
  // Faults of the story that have struck.
  [[nodiscard]] std::uint64_t struck() const;

 private:
  static constexpr std::uint64_t kKeepsAll = 1000;  // `keep` of a conversation that goes on where it ended
  using Arguments = std::array<std::uint64_t, kMaxArguments>;
  // A step that the device works on: it writes where its table says, whatever became of its request. One per rank.
  struct Launched {
    std::uint64_t from = 0, until = 0;  // tokens
    std::vector<StepGrant> grants;
    std::vector<PageTable> tables;  // as they were at its launch
  };
  struct Job {
    std::vector<RequestId> ids;           // one per rank
    std::vector<TokenId> prompt, tokens;  // tokens: and what was "generated"
    std::uint64_t new_tokens = 0, computed = 0;
    std::string tenant;
    bool is_started = false;
    CachedTokens cached;
    std::uint64_t resumed = 0;  // tokens: what the last start gave back
    int restarts = 0, retracts = 0;
    std::vector<Launched> open;  // each built on those before it
  };

  void fail(const std::string& what);
  void start_processes();
  void drop_jobs();
  void begin_request(const Arguments& a);
  [[nodiscard]] std::vector<TokenId> prompt_of(const Arguments& a) const;
  // False: it cannot move now.
  bool move(Job& job, std::uint64_t chunk, std::uint64_t leave);
  bool start(Job& job);
  [[nodiscard]] bool launch(Job& job, std::uint64_t chunk);
  [[nodiscard]] bool prepare(Job& job, std::uint64_t until, std::vector<StepGrant>& grants);
  [[nodiscard]] bool wait_for_gates(const std::vector<StepGrant>& grants);
  // Its oldest step is over, of which `leave` tokens at the end were not computed, or were drafts that do not count.
  void land(Job& job, std::uint64_t leave);
  void start_again(Job& job);  // its load-back failed
  // The device does the step: what `content` is made of, right or wrong.
  void compute(const Launched& step, std::size_t rank, std::span<const TokenId> content, std::uint64_t until,
               const std::string& tenant);
  void check_restored(const Job& job, const Launched& step, std::size_t rank);
  void retract(Job& job);
  void relieve(const Job& starved);
  // The request lets go; its open steps end later.
  void leave_steps(Job& job);
  void end_left_step();
  void check_page(const Job& job, ComponentKind c, std::uint64_t tokens, DeviceSlot slot, SimRank& rank);
  [[nodiscard]] static std::uint64_t last_token(const Job& job);
  void end_if_done(std::size_t number);
  void pass_time(Nanos by);
  void pass_time_and_poll(Nanos by);
  void attach(std::uint64_t which);
  void detach();
  void clear();
  void end_clears();
  void operate(const Event& event);
  void damage(const Event& event);
  void restart(bool is_crash, std::uint64_t kept);
  [[nodiscard]] bool end_processes(bool is_crash);
  [[nodiscard]] std::uint64_t struck_disks() const;
  void check(bool is_full);
  void expect(const Arguments& at_least);
  void drain_jobs();
  void drain_storage();

  const WorldSpec spec_;
  const std::uint64_t check_every_;
  ModelSpec model_;
  SimClock clock_;
  std::unique_ptr<SimService> service_;
  std::unique_ptr<SimFileSystem> mount_;            // of hf3fs with a remote service: one for all ranks
  std::vector<std::unique_ptr<RankGroup>> groups_;  // of this life; empty: one rank
  std::vector<std::unique_ptr<SimRank>> ranks_;
  std::vector<Job> jobs_;
  std::vector<Launched> left_;  // steps of requests that let go, in the order of their launch
  std::vector<std::vector<TokenId>> history_;
  std::vector<std::vector<std::shared_ptr<bool>>> clears_;  // under way, one flag per rank
  std::uint64_t directory_ = 0;                             // of the storage that is attached, or was last
  std::uint64_t struck_on_disks_ = 0;
  std::string failure_;
  SimTotals totals_;
};

}  // namespace larder::sim
