// SPDX-License-Identifier: Apache-2.0
// How the ranks of one model agree on events that arrive at different times on each (rule 7).
//
// Requests reach every rank in the same order, so the only nondeterminism is *when* a copy or a storage operation
// completes, what storage answered, and clocks. Each such event is reported here with its outcome as a bit string;
// the outcome that counts is the AND over ranks (a page is there if it is there on every rank). The leader (rank 0)
// fixes the order: its plan for step s says "apply the first n agreed events". Every rank applies the same events in
// the same order before the same step, so trees, pools and decisions stay identical.
//
//   rank r: report(op, bits) ──► reduction (asynchronous, pipelined) ──► agreed list, in the leader's order
//   leader: plan(step, n) ─────► followers: take(step) returns events [applied, n)
//
// No collective in the request loop: report() never blocks; take() waits only on followers, only while operations are
// pending, and only until `deadline`; with nothing pending it returns at once without touching the group.
// Groups: of one process (below); of processes, over TCP (ranks/real_tcp_ranks.h, docs/ranks.md).
// Threads: one caller per rank (its cache thread). An engine with its own broadcast implements this interface by
// piggybacking on the batch it broadcasts anyway.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/strong.h"

namespace larder {

using OutcomeBits = std::vector<std::uint64_t>;  // reduced with AND; a shorter one is padded with zeros

struct AgreedEvent {
  OpId op;           // the same on all ranks: operations are numbered in request order
  OutcomeBits bits;  // AND over ranks
};

class RankGroup {
 public:
  virtual ~RankGroup() = default;
  [[nodiscard]] virtual std::uint32_t rank() const = 0;
  [[nodiscard]] virtual std::uint32_t size() const = 0;
  // This rank's outcome of `op`. Never blocks. kOverloaded: more than the group's limit of events is outstanding. The
  // cache reports again after this, and after kUnavailable: then nothing must have been reported. A group that is over
  // answers kUnavailable, too; take() says that it is.
  // kInvalidArgument: this rank reported the operation already, or more bits than the group carries: the end of this
  // rank (cache.h, "Ranks"), because no rank would ever see the operation's end.
  [[nodiscard]] virtual Status report(OpId op, OutcomeBits bits) = 0;
  // Events to apply before `step` (steps count up by one, from 0, on every rank). `pending`: this rank has operations
  // outstanding (the same on all ranks). kDeadlineExceeded: the leader's plan did not come in time; nothing is lost,
  // the next call with the same step goes on, and one with a later step makes up for those left out. kOverloaded,
  // leader only: a follower is thousands of steps behind. The cache asks again after these, and after kUnavailable,
  // for rank_plan_limit, and waits if this did not; `out` is then as it was. Any other code is the end of this rank
  // (cache.h, "Ranks"). kInvalidArgument: a step that was taken already. kCancelled: the group is over, because of what
  // the message says; also with nothing pending.
  [[nodiscard]] virtual Status take(std::uint64_t step, bool pending, Nanos deadline,
                                    std::vector<AgreedEvent>& out) = 0;
  // This rank decides nothing any more, because of `why`: the group is over, and the others are told. Never blocks. Of
  // a group that is over: nothing happens.
  virtual void give_up(const std::string& why) = 0;
};

// `ranks` members in one process, for tests and for several replicas in one server. Members outlive nothing; each may
// be used from its own thread. max_outstanding: events that a rank has reported and that are not applied yet: the
// leader's by any rank, another's by that rank itself. At least the operations that can be in flight (max_operations, a
// quarter more for writes to detached storages, and a timer for each prefetch), or two ranks whose events differ may
// wait for each other's room.
[[nodiscard]] std::vector<std::unique_ptr<RankGroup>> make_in_process_rank_group(std::uint32_t ranks, Clock& clock,
                                                                                 std::size_t max_outstanding);

}  // namespace larder
