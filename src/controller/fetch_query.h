// SPDX-License-Identifier: Apache-2.0
// The existence query of a fetch: which of its pages storage has, asked in parts.
//
//   keys     ██████████████░░░░░░░              hashed as far as the parts that are under way
//   parts    │ part │ part │ part │ ...         kMostParts at once, answers in any order
//   scan     ──────►                            in order, until all is known, or no restore point can follow
//
// A prompt of a million tokens neither holds up the call that begins it nor the poll in which storage answers: each
// part is one piece of work (work_budget.h). And what storage has little of costs little: where its pages end, no more
// of the prompt is hashed.
//
// Threads: the cache thread. Ranks: each part is an operation whose outcome they agree on; all else follows from that.
// Cost: begin() O(1); go_on() the pages that it hashes, and O(nodes of the path in the tree) for each part; answered()
// O(pages of the part x pools).
#pragma once

#include <cstdint>

#include "controller/fetch.h"
#include "controller/fetch_plan.h"
#include "controller/op_table.h"
#include "controller/space_table.h"

namespace larder {

class FetchQuery {
 public:
  struct Parts {  // all outlive the query
    const ModelSpec& model;
    RadixTree& tree;
    OpTable& ops;
    const SpaceTable& spaces;
    const FetchPlanner& planner;
  };
  explicit FetchQuery(const Parts& parts) : parts_(parts) {}

  void attach_storage(StorageBackend* backend) { storage_ = backend; }  // null: it was detached

  // The fetch has its locks, and `first`, an operation, is its own. Nothing is hashed or asked yet.
  void begin(Fetch& f, const Op& first);
  // Hashes at most `most` pages, and submits the parts that have all of their keys. False: some lack theirs still.
  // Precondition: begun, not closed, and f.device_lock is held.
  [[nodiscard]] bool go_on(Fetch& f, std::uint64_t most);
  // Parts that were not submitted end, and no more begin.
  void close(Fetch& f);

  // This rank's answer to a part.
  [[nodiscard]] OutcomeBits outcome_of(const Fetch& f, const Op& op) const;
  // The agreed one. True: f.candidates are complete. While it is false there is more to ask: go_on().
  [[nodiscard]] bool answered(Fetch& f, const Op& op, const OutcomeBits& bits);
  // The part has ended, and nobody wants to know.
  void forget(Fetch& f, const Op& op) const;

 private:
  static constexpr std::size_t kMostParts = 4;
  void add_parts(Fetch& f);
  [[nodiscard]] bool hash(Fetch& f, std::uint64_t to, std::uint64_t& most);
  void copy_keys_of_tree(Fetch& f, std::uint64_t to);
  void submit(Fetch& f, QueryPart& part);
  void forget_lost(const Fetch& f, const QueryPart& part) const;

  const Parts parts_;
  StorageBackend* storage_ = nullptr;
};

}  // namespace larder
