// SPDX-License-Identifier: Apache-2.0
// An engine behind the Cache: it serves requests some steps ahead of what it knows, has drafts rejected, sets requests
// aside when another cannot go on, and lets steps run on whose requests have let go.
//
// Threads: confined to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/world/sim_engine.h"

namespace larder::sim {

class CacheEngine final : public SimEngine {
 public:
  using SimEngine::SimEngine;
  void begin(const EventArguments& a) override;
  void move(const EventArguments& a) override;
  void abort(const EventArguments& a) override;
  void retract(const EventArguments& a) override;
  void fork(const EventArguments& a) override;
  void cancel(const EventArguments& a) override;
  void explain(const EventArguments& a) override;
  void set_policies(PrefetchPolicy prefetch, WritePolicy write) override;
  void time_has_passed() override { end_left_step(); }
  void device_runs() override;  // steps that were ended before their kernels
  void has_parted() override;
  [[nodiscard]] std::size_t requests() const override { return jobs_.size(); }
  bool move_all() override;
  void let_go() override;
  void drop_all() override;

 private:
  // A step that the device works on: it writes where its table says, whatever became of its request. One per rank.
  struct Launched {
    std::uint64_t from = 0, until = 0;  // tokens
    std::vector<StepGrant> grants;
    std::vector<PageTable> tables;  // as they were at its launch
    bool has_run = false;           // before its request gave it up
  };
  struct Job {
    std::vector<RequestId> ids;           // one per rank
    std::vector<TokenId> prompt, tokens;  // tokens: and what was "generated"
    std::vector<TokenId> written;         // of what its last page is
    bool is_fork = false;
    std::uint64_t new_tokens = 0, computed = 0;
    std::string tenant;
    bool is_started = false;
    CachedTokens cached;
    std::uint64_t resumed = 0;  // tokens: what the last start gave back
    int restarts = 0, retracts = 0;
    [[nodiscard]] int begun() const { return restarts + retracts; }
    std::vector<Launched> open;  // each built on those before it
  };

  // False: it cannot move now.
  bool move(Job& job, std::uint64_t chunk, std::uint64_t leave);
  bool start(Job& job);
  [[nodiscard]] bool launch(Job& job, std::uint64_t chunk);
  [[nodiscard]] bool prepare(Job& job, std::uint64_t until, std::vector<StepGrant>& grants);
  [[nodiscard]] bool let_come(const LayerGate& gate);
  [[nodiscard]] bool wait_for_gates(const std::vector<StepGrant>& grants);
  // Its oldest step is over, of which `leave` tokens at the end were not computed, or were drafts that do not count.
  void land(Job& job, std::uint64_t leave);
  void start_again(Job& job);  // its load-back failed
  // The device does the step: what `content` is made of, right or wrong.
  void compute(const Launched& step, std::size_t rank, std::span<const TokenId> content, std::uint64_t until,
               const std::string& tenant);
  void check_restored(std::span<const TokenId> tokens, const std::string& tenant, const Launched& step,
                      std::size_t rank);
  void write_last_page(const Launched& step, std::size_t rank, std::span<const TokenId> content, std::uint64_t until,
                       const std::string& tenant);
  void check_last_page(const Job& job, const Launched& step);
  void retract(Job& job);
  // What counts for nothing has run: into the pages that nothing else is in.
  void scribble(const Launched& step);
  void cancel(const Launched& step, bool runs_later);
  void relieve(const Job& starved);
  // The request lets go; its open steps end later.
  void leave_steps(Job& job);
  void end_left_step();
  [[nodiscard]] static std::uint64_t last_token(const Job& job);
  void end_if_done(std::size_t number);

  // A step of known tokens: the cache has its tokens, and the device has yet to run it, perhaps upon what is still
  // being loaded back.
  struct Late {
    Launched step;
    std::vector<TokenId> content;
    std::string tenant;
    std::shared_ptr<DeviceEvent> over;
    bool is_compared = false;  // what it reads
    RequestId request;         // on the first rank, and how often it had begun by then
    int begun = 0;
    bool is_void = false;
  };
  void run_late(const Late& late);
  void run_late_steps();

  std::vector<Job> jobs_;
  std::vector<Late> late_;      // in the order of their launch
  std::uint64_t looks_ = 0;     // how often time has passed
  std::vector<Launched> left_;  // steps of requests that let go, in the order of their launch
};

}  // namespace larder::sim
