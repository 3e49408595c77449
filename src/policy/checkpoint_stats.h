// SPDX-License-Identifier: Apache-2.0
// What a tree has learnt of its checkpoints of recurrent state: how often each kind is used, and which of those that
// were evicted would have been.
//
//   chance(kind)  checkpoints that a later request used / checkpoints taken, of late: most ends of prompts are never
//                 used again, most forks are
//   chance_again  the same of those that have had one use: the end of a turn has no second one, as a rule, because the
//                 next turn has an end of its own
//   uses          of one checkpoint: each counts 1, and fades. What is evicted is remembered by its path, so a
//                 checkpoint that is computed again has the uses that it had
//   reuse_age()   how long it takes until a checkpoint that is used at all is used first: seconds between the turns of
//                 a conversation, or hours
//
// Time is the tree's tick, which grows by a token for each token that is computed.
// Threads: confined to the cache thread. Ranks: equal calls, equal answers. Cost: O(1); 24 bytes for each entry, in
// rows of kWays, where the oldest goes.
// Source: SGLang has neither; ghosts of evicted entries as in ARC (Megiddo and Modha, FAST '03).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "key/path_hash.h"
#include "policy/facts.h"

namespace larder {

// What is known of a checkpoint when it is planned.
struct CheckpointOrigin {
  CheckpointKind kind = CheckpointKind::kOutput;
  float uses = 0;                  // that one at this place had before it was evicted (RadixTree::recall())
  std::optional<PathHash> path{};  // of all tokens up to it, where somebody has hashed them
};

struct CheckpointParameters {
  double fade_tokens = 1 << 24;                    // in which a use comes to count half
  double unknown_taken = 4, unknown_chance = 0.1;  // a kind begins as if so many had been taken, and so often used
  double unknown_again = 0.4;                      // and so many of those once more
  double most_taken = 2048;                        // of a kind; then those so far count half
  double unknown_age_tokens = 1 << 21, unknown_ages = 8;  // begins as if so many had been used after so long
  double most_ages = 256;                                 // then those so far count half
  std::size_t entries = 32768;  // evicted ones that are remembered; kWays at least, and whole rows of them
};

class CheckpointStats {
 public:
  static constexpr std::size_t kWays = 4;
  static constexpr float kLeastUses = 0.35F;           // fewer are none
  static constexpr float kMostOfOne = 1 + kLeastUses;  // fewer than this, but not none, are one
  explicit CheckpointStats(const CheckpointParameters& parameters = {});

  // One was taken; one that has had `uses` was the restore point of a later request, `age` tokens after it was taken or
  // used before.
  void came(CheckpointKind kind);
  void used(CheckpointKind kind, float uses, std::uint64_t age);
  static constexpr std::size_t kUsedKinds = 3;  // ends of prompts, ends of outputs, and what is shared
  [[nodiscard]] static std::size_t used_kind(CheckpointKind kind) {
    return std::min(static_cast<std::size_t>(base_kind(kind)), kUsedKinds - 1);
  }
  // In [0, 1].
  [[nodiscard]] double chance(CheckpointKind kind) const { return chances_[place_of(kind)]; }
  [[nodiscard]] double chance_again(std::size_t used_kind) const { return chances_[kCheckpointKinds + used_kind]; }
  // Tokens: the median, rounded to a power of two.
  [[nodiscard]] double reuse_age() const { return reuse_age_; }
  // Of chances and the reuse age.
  [[nodiscard]] std::uint64_t changes() const { return changes_; }

  [[nodiscard]] float faded(float uses, std::uint64_t tokens) const;

  // Its last copy on device and host is gone. tick: when it had these uses, which is when it was taken or used last.
  void lost(PathHash path, CheckpointKind kind, float uses, std::uint64_t tick);
  [[nodiscard]] bool remembers(PathHash path) const { return find(path) != nullptr; }
  [[nodiscard]] std::optional<CheckpointKind> kind_of(PathHash path) const;  // nullopt: it is not remembered
  // A request would have resumed there, which counts as a use of its kind. Nothing if it is not remembered. wanted():
  // it is taken again, and has one use more; missed(): it is not.
  void wanted(PathHash path, std::uint64_t tick);
  void missed(PathHash path, std::uint64_t tick);
  // Of one that is computed again; 0: not remembered.
  [[nodiscard]] float uses_of(PathHash path, std::uint64_t tick) const;

 private:
  struct Entry {
    std::uint64_t path = 0;  // 0: none
    std::uint64_t tick = 0;  // when `uses` was right
    float uses = 0;
    CheckpointKind kind{};
  };
  struct Count {
    double taken = 0, used = 0;
  };
  [[nodiscard]] static std::size_t place_of(CheckpointKind kind) { return static_cast<std::size_t>(kind); }
  [[nodiscard]] static std::size_t place_of_once(CheckpointKind kind) { return kCheckpointKinds + used_kind(kind); }
  [[nodiscard]] static std::size_t place_of_age(double tokens);  // in ages_
  [[nodiscard]] static std::uint64_t name_of(PathHash path) { return path.spread() | 1; }
  [[nodiscard]] std::size_t row_of(std::uint64_t name) const;
  [[nodiscard]] const Entry* find(PathHash path) const;  // null: there is none
  void prefetch(PathHash path) const;                    // into the processor's cache
  void enter_last();
  void count(std::size_t place, double taken, double used);
  void note_age(std::uint64_t age);
  void set_chance(std::size_t place) {
    chances_[place] = std::min(1.0, counts_[place].used / counts_[place].taken);
    ++changes_;
  }

  static constexpr std::size_t kPlaces = kCheckpointKinds + kUsedKinds;
  const CheckpointParameters parameters_;
  std::array<Count, kPlaces> counts_{};     // of each kind, then of each used kind
  std::array<double, kPlaces> chances_{};   // of counts_
  static constexpr std::size_t kAges = 48;  // powers of two of tokens
  std::array<double, kAges> ages_{};        // first uses, by how long they took
  double reuse_age_ = 0;                    // of ages_
  std::uint64_t changes_ = 0;
  std::vector<Entry> entries_;  // empty until something is lost
  Entry last_;                  // of lost(): the next one enters it into its row, which has come from memory by then
};

}  // namespace larder
