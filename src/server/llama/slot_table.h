// SPDX-License-Identifier: Apache-2.0
// The slots of a llama-server: who uses which, in what order those who wait get one, and what each holds.
//
//   acquire() ─► Hold: contents to look at and to note ─► (it dies) ─► free, with what was noted
//
// Whoever composes what is in a slot must own all slots: nobody else sends this llama-server requests.
//
// Slots with one context for all (EngineHabits::shared_context): when it is full, llama-server empties the first slot
// that computes nothing, and tells nobody. So the table keeps how much each slot holds, answers included, has the
// oldest ones emptied before a prompt that does not fit beside them (take_crowding()), and doubts what the others hold
// once all together may have been too much.
//
// Threads: any. acquire() blocks until its turn, its limit, or until the client is gone (it looks ten times a second).
// Lifetime: holds die before the table. Limits: max_waiting; more are refused.
// Cost: a comparison of the prompt with what each free slot holds.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "base/status.h"
#include "server/llama/slot_contents.h"

namespace larder::llama {

class SlotTable {
 public:
  SlotTable(std::uint32_t slots, std::uint32_t max_waiting, Clock& clock);

  class Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept { *this = std::move(other); }
    Hold& operator=(Hold&& other) noexcept;
    ~Hold() { give_back(); }

    [[nodiscard]] std::uint32_t slot() const { return slots_.front(); }
    // Of slot(), while it is held. Not of the others: what becomes of these is not known.
    [[nodiscard]] SlotContents& contents() { return contents_; }
    [[nodiscard]] bool is_held() const { return table_ != nullptr; }
    // slot() holds at most so many tokens now, and while its request is under way it may get `growth` more.
    void note_size(std::uint64_t tokens, std::uint64_t growth = 0);
    // Or so many: llama-server has put a request into it, or into another one.
    void note_possible_size(std::uint64_t tokens);
    // llama-server has run out of cells: what other slots held may be gone.
    void doubt_others();
    // It computes for this request: whatever others grew to has not emptied it.
    void trust();
    void give_back();

   private:
    friend class SlotTable;
    SlotTable* table_ = nullptr;
    std::vector<std::uint32_t> slots_;
    SlotContents contents_;
    std::uint64_t epoch_ = 0;
  };

  struct Wish {
    std::span<const TokenId> prompt{};  // the slot that holds most of it, if that is most of what it holds
    // Whose it is: of what is another's nothing is used. nullopt: it shares with nobody.
    std::optional<std::string> owner = "";
    std::uint32_t count = 1;  // at most size()
    // The one that llama-server would take by itself: that begins most like the prompt, whether it can use that or not,
    // and whoever's it is.
    bool by_likeness = false;
    Nanos limit = std::chrono::hours(1);
    std::function<bool()> is_gone{};  // called under a lock: a look at a flag
  };
  // kOverloaded: too many wait. kDeadlineExceeded, kCancelled: limit, is_gone.
  [[nodiscard]] Result<Hold> acquire(const Wish& wish) LARDER_EXCLUDES(mutex_);
  // All slots, one each, whatever `count` says: for a request that llama-server may put into any.
  [[nodiscard]] Result<std::vector<Hold>> acquire_all(Wish wish) LARDER_EXCLUDES(mutex_);

  static constexpr std::uint64_t kAnySize = UINT64_MAX;

  // Free slots to be emptied so that `tokens` fit into the slot of `mine`: those of unknown content first, then the
  // ones not used for longest. None: there is room, or each slot has its own.
  [[nodiscard]] std::vector<Hold> take_crowding(const Hold& mine, std::uint64_t tokens) LARDER_EXCLUDES(mutex_);

  // All that nobody has, one each; of_composed: those alone that hold something of a slot file.
  [[nodiscard]] std::vector<Hold> take_free(bool of_composed = false) LARDER_EXCLUDES(mutex_);

  // llama-server has been started anew, or something used slots that we did not choose: nobody knows what they hold.
  // most: tokens that it may have left in one of them.
  void forget_all(std::uint64_t most = kAnySize) LARDER_EXCLUDES(mutex_);
  // Of those that nobody has: a request for several answers has used some of them.
  void forget_free(std::uint64_t most = kAnySize) LARDER_EXCLUDES(mutex_);
  // Whether llama-server, left to choose, took the slot that holds all of a prompt.
  void note_choice(bool is_ours) LARDER_EXCLUDES(mutex_);
  // False: it has not so often that it is not worth the work (--slot-prompt-similarity 0); it stays so.
  [[nodiscard]] bool chooses_by_likeness() const LARDER_EXCLUDES(mutex_);
  // From now on not all requests share what they leave in slots.
  void note_salt() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool has_salts() const LARDER_EXCLUDES(mutex_);
  void set_habits(const EngineHabits& habits) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] EngineHabits habits() const LARDER_EXCLUDES(mutex_);
  // The free slot that could use most of it.
  [[nodiscard]] SlotHit best(std::span<const TokenId> prompt, const std::string& owner) const LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(slots_.size()); }
  struct Use {
    std::uint32_t busy = 0, waiting = 0;
  };
  [[nodiscard]] Use use() const LARDER_EXCLUDES(mutex_);

 private:
  struct Slot {
    SlotContents contents;
    bool is_busy = false;
    bool is_doubted = false;          // while it is busy: its contents are with the hold
    std::uint64_t used = 0;           // counts up with each use
    std::uint64_t tokens = kAnySize;  // that it holds, at most
    std::uint64_t growth = 0;         // that may come while it is busy
  };
  [[nodiscard]] std::uint32_t free_slots() const LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::uint32_t choose(const Wish& wish) const LARDER_REQUIRES(mutex_);
  // Until it is the wish's turn, and there are as many free slots.
  [[nodiscard]] Status wait_for_turn(const Wish& wish) LARDER_REQUIRES(mutex_);
  [[nodiscard]] Hold take(const Wish& wish) LARDER_REQUIRES(mutex_);
  void take_one(std::uint32_t slot, Hold& hold) LARDER_REQUIRES(mutex_);
  // Whether so many tokens may be more than the context of all slots has; false: each has its own.
  [[nodiscard]] bool is_too_much(std::uint64_t tokens) const LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t tokens_of(const Slot& slot) const LARDER_REQUIRES(mutex_);
  // In all slots together. with_growth: that may be there before anybody tells.
  [[nodiscard]] std::uint64_t all_tokens(bool with_growth) const LARDER_REQUIRES(mutex_);
  void doubt_but(std::uint32_t slot) LARDER_REQUIRES(mutex_);

  const std::uint32_t max_waiting_;
  Clock& clock_;
  mutable RankedMutex mutex_{LockRank::kEngine};
  RankedCondition changed_;
  std::vector<Slot> slots_;  // their number is constant; the rest under mutex_
  std::list<const Wish*> queue_ LARDER_GUARDED_BY(mutex_);
  EngineHabits habits_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t epoch_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint64_t uses_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint32_t other_choices_ LARDER_GUARDED_BY(mutex_) = 0;  // up for each, down for each of ours
  bool has_salts_ LARDER_GUARDED_BY(mutex_) = false;
};

}  // namespace larder::llama
