// SPDX-License-Identifier: Apache-2.0
// Continuous batching on a context of libllama: sequences that prompts are continued in, and when they are kept.
//
//   submit() ─► waiting ─► a slot ─► restored or shared ─► prompt, in pieces ─► answer, token by token ─► end()
//                                                            └ at each restore point: keep()
//
// One batch a step: a token of each answer first, then as much of the prompts as fits, in the order in which they came.
// A slot keeps its sequence after the answer, for a prompt that continues it. A model of full attention shares what any
// slot holds (cells are shared, no row is copied); all others resume where the state is known exactly: the end of what
// the slot has computed, a checkpoint of the slot (before the last token of a prompt, and a batch before that), or a
// restore point that find() of a PrefixStore gave.
// When cells run out, for a batch or a restore, idle slots are emptied: first those that wait for another answer's
// prompt, then the one that was not used for longest. A prefix that finds no room beside the busy slots is computed. A
// batch that finds none sets back the request that came last, all of its answers: it waits with the tokens that it has,
// and begins again, with the prefix that found no room.
//
// Threads: submit(), best(), use(), end_requests() from any thread; AnswerWriter, load() and keep() are called on the
// engine's own thread, and must not block. Lifetime: host, format and keep() outlive the engine; its destructor ends
// all requests (kCancelled).
// Limits: max_waiting requests wait; more: kOverloaded.
// Memory: kSlotCheckpoints states (and windows) for each slot.
// Cost: of a step, besides llama.cpp's own: a pass over the slots; of a restore: a copy of the bytes of the
// whole sequence; of a restore point: of its pages that are new, and of its state; of a checkpoint: of its state, and a
// batch of one token.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "engine/llama/libllama/llama_host.h"
#include "engine/llama/sequence_moves.h"
#include "server/llama/byte_buffers.h"
#include "server/llama/save_points.h"
#include "server/llama/slot_contents.h"
#include "server/llama/slot_pages.h"

namespace larder::llama {

enum class ReusedFrom : unsigned char { kNothing, kSlot, kHost, kStorage };

struct PromptUse {
  std::uint64_t tokens = 0;  // of the prompt that need not be computed
  ReusedFrom from = ReusedFrom::kNothing;
  bool has_failed_load = false;  // more was kept, and did not come into the slot
};

// One answer on its way. Engine thread only, but for is_gone().
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // Nobody wants it any more. Any thread; a look at a flag.
  [[nodiscard]] virtual bool is_gone() const = 0;
  // It has a slot. Again after a request was set back.
  virtual void begin(const PromptUse& use) = 0;
  // Row `row` of the last batch has the logits behind what was computed. nullopt: the answer is complete.
  [[nodiscard]] virtual std::optional<TokenId> next(llama_context& context, std::int32_t row) = 0;
  // Once, last of all. Not ok: why there is no (whole) answer.
  virtual void end(const Status& status) = 0;
};

struct EngineRequest {
  std::vector<TokenId> prompt;  // not empty
  std::string owner;            // what is another's is not used
  bool may_reuse = true;
  // A blob of the whole sequence at `restorable` tokens, below the prompt's (0: there is none). load() is called on the
  // engine's thread when the request has a slot, so that those that wait hold no blobs; it may copy, and not wait long.
  // Again after it has failed, if the request is set back.
  std::uint64_t restorable = 0;
  ReusedFrom restores_from = ReusedFrom::kHost;
  using Blob = std::shared_ptr<ByteBuffers::Buffer>;
  std::function<Result<Blob>(std::span<const TokenId> prompt)> load;
  void forget_load() {  // what it holds of host memory may go
    restorable = 0;
    load = nullptr;
  }
  std::uint64_t known = 0;                             // tokens whose pages are kept already
  std::vector<std::uint64_t> marks;                    // as PromptFacts::marks
  std::vector<std::shared_ptr<AnswerWriter>> answers;  // at most as many as slots; all of the same prompt
};

inline constexpr std::size_t kSlotCheckpoints = 8;

struct EngineSettings {
  std::uint32_t slots = 4;
  std::uint32_t max_waiting = 64;
  SavePolicy saves;
};

class LlamaEngine {
 public:
  // A sequence stood at tokens.size(); `pages` begin with the first whose rows are not known to be kept. False: they
  // will not be kept; the next ones begin there, too.
  using Keep = std::function<bool(std::vector<TokenId> tokens, SequenceExport pages, const std::string& owner)>;
  // The host has slots + 1 sequences or more: the last one is for exports.
  LlamaEngine(LlamaHost& host, const SlotFormat& format, const EngineSettings& settings, Keep keep);
  ~LlamaEngine();
  LlamaEngine(const LlamaEngine&) = delete;
  LlamaEngine& operator=(const LlamaEngine&) = delete;

  // kInvalidArgument: a prompt that does not fit the context, or more answers than slots. kOverloaded.
  [[nodiscard]] Status submit(EngineRequest request) LARDER_EXCLUDES(mutex_);
  // The slot that holds most of a prompt that could be used.
  [[nodiscard]] SlotHit best(std::span<const TokenId> prompt, const std::string& owner) const LARDER_EXCLUDES(mutex_);
  struct Use {
    std::uint32_t slots = 0, busy = 0, waiting = 0;
    std::uint64_t batches = 0, set_back = 0;  // requests that made room for others
    bool is_crowded = false;                  // one was set back: none begins before another has ended
  };
  [[nodiscard]] Use use() const LARDER_EXCLUDES(mutex_);
  // Ends all requests once the batch under way is computed (kCancelled), and takes no more. Returns at once.
  void end_requests() LARDER_EXCLUDES(mutex_);

 private:
  struct Request;
  struct Answer;
  struct Checkpoint {
    std::uint64_t tokens = 0;     // where it resumes
    std::vector<std::byte> blob;  // window and state
  };
  struct Slot {
    std::vector<TokenId> tokens;         // computed
    std::deque<Checkpoint> checkpoints;  // ascending, below tokens.size()
    std::string owner;
    bool is_private = false;  // nobody else may use what it holds
    std::uint64_t used = 0;   // counts up; 0: never
    std::unique_ptr<Answer> answer;
  };

  void run();
  [[nodiscard]] bool wait_for_work() LARDER_EXCLUDES(mutex_);
  void step();
  void drop_abandoned();
  void end_all(const Status& status);
  void give_up();
  // ---- admission
  void admit();
  [[nodiscard]] std::uint32_t place(const std::shared_ptr<Request>& request) LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::uint32_t choose(const Request& request, bool looks_at_prompt) const;
  [[nodiscard]] std::uint64_t usable(const Slot& slot, std::span<const TokenId> prompt, const std::string& owner) const;
  void prepare(std::uint32_t index);
  [[nodiscard]] PromptUse reuse(std::uint32_t index);
  [[nodiscard]] Status restore(std::uint32_t index);
  [[nodiscard]] SlotHit best_donor(std::uint32_t index) const;
  [[nodiscard]] bool resume_from(const SlotHit& donor, std::uint32_t index);
  [[nodiscard]] bool go_back(std::uint32_t index, std::uint64_t tokens);
  // ---- a batch
  void fill_rows();
  void add_rows(std::uint32_t index, std::size_t most);
  void note_computed();
  void answer_row(std::uint32_t index, std::int32_t row);
  [[nodiscard]] Status drop_behind_window(std::uint32_t index);
  void continue_answer(std::uint32_t index, std::int32_t row);
  void keep(std::uint32_t index);
  void remember(std::uint32_t index);
  [[nodiscard]] bool make_room();
  [[nodiscard]] bool empty_idle();
  void set_back(std::uint32_t index);
  // ---- the end
  void finish(std::uint32_t index, const Status& status);
  [[nodiscard]] std::vector<std::unique_ptr<Answer>> take_answers(std::uint32_t index) LARDER_EXCLUDES(mutex_);
  void empty(std::uint32_t index);

  LlamaHost& host_;
  const SlotFormat& format_;
  const EngineSettings settings_;
  const Keep keep_;

  mutable RankedMutex mutex_{LockRank::kEngine};
  RankedCondition work_;
  bool is_stopping_ LARDER_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<Request>> waiting_ LARDER_GUARDED_BY(mutex_);
  // Written by the engine's thread under mutex_, read by others under it.
  std::vector<Slot> slots_;
  Use use_;
  // engine's thread
  std::vector<BatchRow> rows_;
  struct Piece {
    std::uint32_t slot = 0;
    std::size_t first = 0, count = 0;
  };
  std::vector<Piece> pieces_;  // of the batch in rows_
  std::uint64_t uses_ = 0, orders_ = 0;
  ThreadPoolExecutor thread_;  // last: it uses the rest
};

}  // namespace larder::llama
