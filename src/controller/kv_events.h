// SPDX-License-Identifier: Apache-2.0
// Events of pages that came to a tier or left it, for routers that send a prompt to where its pages are.
//
//   tree ── came, went ──► KvEventRecorder ── a poll's events at a time ──► KvEventSink (src/events: ZeroMQ)
//
// A block is a page: its hash is event_block_hash() of its key, which is SGLang's form. What is told is what a request
// could use: copies under way are not there yet, and what an operation still reads when it is evicted is gone.
//
// The sink never blocks the cache. When it has no room, what happens until it has room again is not told; then, and
// when a reader asks for what the sink does not keep any more, the story begins anew: kCleared, and every page that is
// there. So whoever has heard the last beginning and all since knows what is there. Beginnings are at least a second
// apart, and twenty times what the last one took: readers cannot make the cache busy with them.
//
// Sources: the events of vLLM and SGLang (BlockStored, BlockRemoved, AllBlocksCleared); the beginning anew is ours.
// Threads: the cache thread. Ranks: decides nothing; one rank's events are enough, and the others hash pages as early.
// Cost: keys are hashed when pages come (0.3 us per page of 64 tokens), which storage would do later anyway; the tokens
// are copied. A beginning anew is O(tree), in one poll.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/strong.h"
#include "controller/space_table.h"
#include "model/pool_spec.h"
#include "pool/tier.h"
#include "tree/tree_observer.h"

namespace larder {

class RadixTree;

enum class KvEventKind : std::uint8_t { kStored, kRemoved, kCleared };

// Who a prompt is of. A name of more than 256 bytes is told by its hash: "sha256:" and hex digits.
struct KvEventNames {
  std::string adapter, salt;  // LoRA id and tenant salt; empty: none
};

struct KvEvent {
  KvEventKind kind = KvEventKind::kCleared;
  ComponentKind component = ComponentKind::kFull;
  Tier tier = Tier::kDevice;
  std::vector<std::int64_t> blocks;    // mamba: of the page at whose end the state is
  std::optional<std::int64_t> parent;  // kStored: the page before the first; nullopt: that is the first of its prompt
  std::vector<TokenId> tokens;         // kStored: of these pages
  std::shared_ptr<const KvEventNames> names;  // kStored
};

// Takes events away. Outlives the cache.
class KvEventSink {
 public:
  enum class Wish : std::uint8_t {
    kChanges,
    kAll,      // and the story anew, soon: somebody has lost the thread. Said once
    kNothing,  // no room
  };
  virtual ~KvEventSink() = default;
  // Asked before take(). None of these blocks.
  [[nodiscard]] virtual Wish wish() = 0;
  virtual void take(std::vector<KvEvent> events) = 0;
  // Events were dropped for want of room; a beginning follows when there is.
  virtual void dropped() {}
  // Windows and states, too, or full attention alone.
  [[nodiscard]] virtual bool wants_all_components() const = 0;
};

class KvEventRecorder final : public PageObserver {
 public:
  // All outlive it. Observes the tree from now on.
  KvEventRecorder(RadixTree& tree, const SpaceTable& spaces, KvEventSink& sink, Clock& clock);
  ~KvEventRecorder() override;
  KvEventRecorder(const KvEventRecorder&) = delete;
  KvEventRecorder& operator=(const KvEventRecorder&) = delete;

  void came(const PageChange& change) override;
  void went(const PageChange& change) override;
  // Gives the sink what has happened since the last call. Between operations of the tree.
  void hand_over();

 private:
  // A beginning anew comes in pieces of about so many tokens.
  static constexpr std::size_t kTokensAtATime = 65'536;

  [[nodiscard]] const std::shared_ptr<const KvEventNames>& names_of(NamespaceId space);
  void drop_events();
  void tell_all();
  void give();

  RadixTree& tree_;
  const SpaceTable& spaces_;
  KvEventSink& sink_;
  Clock& clock_;
  std::vector<KvEvent> events_;
  std::size_t tokens_ = 0;       // in events_
  bool knows_story_ = false;     // the sink has had a beginning, and all since
  bool owes_beginning_ = false;  // it has asked for one
  bool is_in_pieces_ = false;
  std::optional<TimePoint> next_beginning_;  // not before
  // Of the last event, as most in a row are of one request: names_ is how named_ is told.
  SpaceTable::Name named_;
  std::shared_ptr<const KvEventNames> names_;
};

}  // namespace larder
