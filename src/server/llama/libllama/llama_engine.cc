// SPDX-License-Identifier: Apache-2.0
#include "server/llama/libllama/llama_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"

namespace larder::llama {
namespace {

std::uint64_t common_length(std::span<const TokenId> a, std::span<const TokenId> b) {
  return static_cast<std::uint64_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

struct LlamaEngine::Request {
  EngineRequest asked;
  std::uint64_t order = 0;
};

struct LlamaEngine::Answer {
  std::shared_ptr<AnswerWriter> writer;
  std::vector<TokenId> tokens;  // prompt, and what was sampled: the last one is computed next
  std::shared_ptr<Request> request;
  std::deque<std::uint64_t> stops;     // restore points that are still ahead
  std::uint64_t last_stop = 0;         // the prompt without its last token; 0: no checkpoint is taken
  std::vector<std::uint32_t> waiting;  // slots of the other answers, that begin where this prompt ends
  std::uint64_t kept = 0;              // tokens whose pages are kept
  bool waits = false;                  // for the first answer of its request
};

LlamaEngine::LlamaEngine(LlamaHost& host, const SlotFormat& format, const EngineSettings& settings, Keep keep)
    : host_(host),
      format_(format),
      settings_(settings),
      keep_(std::move(keep)),
      slots_(settings.slots),
      thread_("llama", 1, 1) {
  use_.slots = settings.slots;
  const Status posted = thread_.post([this] { run(); });
  if (!posted.is_ok()) log_warning("llama", "the engine did not start: " + posted.to_string());
}

LlamaEngine::~LlamaEngine() { end_requests(); }

void LlamaEngine::end_requests() {
  LockGuard guard(mutex_);
  is_stopping_ = true;
  work_.notify_all();
}

Status LlamaEngine::submit(EngineRequest request) {
  const std::uint32_t context = host_.settings().context_tokens;
  if (request.prompt.empty()) return invalid_argument("the prompt has no tokens");
  if (request.prompt.size() >= context) {
    return invalid_argument(
        fmt::format("the prompt has {} tokens: the context has room for {}", request.prompt.size(), context - 1));
  }
  if (request.answers.empty() || request.answers.size() > settings_.slots) {
    return invalid_argument(
        fmt::format("{} answers at once: there are {} slots (--parallel)", request.answers.size(), settings_.slots));
  }
  LockGuard guard(mutex_);
  if (is_stopping_) return cancelled("the server is stopping");
  if (waiting_.size() >= settings_.max_waiting) return overloaded("too many requests wait; try again");
  auto mine = std::make_shared<Request>();
  mine->asked = std::move(request);
  waiting_.push_back(std::move(mine));
  work_.notify_all();
  return Status::ok();
}

SlotHit LlamaEngine::best(std::span<const TokenId> prompt, const std::string& owner) const {
  LockGuard guard(mutex_);
  SlotHit best;
  for (std::uint32_t index = 0; index < slots_.size(); ++index) {
    if (slots_[index].answer && !format_.is_dense()) continue;  // a dense model shares with busy slots, too
    const std::uint64_t held = usable(slots_[index], prompt, owner);
    if (held > best.tokens) best = {index, held};
  }
  return best;
}

LlamaEngine::Use LlamaEngine::use() const {
  LockGuard guard(mutex_);
  Use now = use_;
  now.waiting = static_cast<std::uint32_t>(waiting_.size());
  now.busy =
      static_cast<std::uint32_t>(std::ranges::count_if(slots_, [](const Slot& s) { return s.answer != nullptr; }));
  return now;
}

// ---- the loop

void LlamaEngine::run() {
  try {
    while (wait_for_work()) {
      try {
        step();
      } catch (const std::exception& error) {
        end_all(internal_error(fmt::format("llama.cpp: {}", error.what())));
        for (std::uint32_t index = 0; index < slots_.size(); ++index) empty(index);
      }
    }
    end_all(cancelled("the server is stopping"));
  } catch (const std::exception& error) {  // while it ended requests
    log_warning("llama", fmt::format("the engine has ended: {}", error.what()));
    give_up();
  }
}

// Answers that go tell their clients so.
void LlamaEngine::give_up() {
  std::deque<std::shared_ptr<Request>> waiting;
  std::vector<std::unique_ptr<Answer>> answers;
  LockGuard guard(mutex_);
  is_stopping_ = true;
  waiting.swap(waiting_);
  for (Slot& slot : slots_) answers.push_back(std::move(slot.answer));
}

bool LlamaEngine::wait_for_work() {
  LockGuard guard(mutex_);
  const auto is_busy = [](const Slot& slot) { return slot.answer != nullptr; };
  while (!is_stopping_ && waiting_.empty() && std::ranges::none_of(slots_, is_busy)) work_.wait(mutex_);
  return !is_stopping_;
}

void LlamaEngine::step() {
  drop_abandoned();
  admit();
  fill_rows();
  while (!rows_.empty()) {
    const Status computed = host_.decode(rows_);
    if (computed.is_ok()) break;
    if (computed.code() != StatusCode::kOverloaded) {
      end_all(computed);
      for (std::uint32_t index = 0; index < slots_.size(); ++index) empty(index);
      return;
    }
    if (!make_room()) return;
    fill_rows();
  }
  note_computed();
}

void LlamaEngine::drop_abandoned() {
  const auto is_gone = [](const std::shared_ptr<AnswerWriter>& writer) { return writer->is_gone(); };
  std::vector<std::shared_ptr<Request>> gone;
  {
    LockGuard guard(mutex_);
    std::erase_if(waiting_, [&](const std::shared_ptr<Request>& request) {
      if (!std::ranges::all_of(request->asked.answers, is_gone)) return false;
      gone.push_back(request);
      return true;
    });
  }
  const Status nobody = cancelled("the client is gone");
  for (const auto& request : gone) {
    for (const auto& writer : request->asked.answers) writer->end(nobody);
  }
  for (std::uint32_t index = 0; index < slots_.size(); ++index) {
    const Answer* answer = slots_[index].answer.get();
    if (answer != nullptr && !answer->waits && answer->writer->is_gone()) finish(index, nobody);
  }
}

void LlamaEngine::end_all(const Status& status) {
  std::deque<std::shared_ptr<Request>> waiting;
  {
    LockGuard guard(mutex_);
    waiting.swap(waiting_);
  }
  for (const auto& request : waiting) {
    for (const auto& writer : request->asked.answers) writer->end(status);
  }
  for (std::uint32_t index = 0; index < slots_.size(); ++index) {
    if (slots_[index].answer && !slots_[index].answer->waits) finish(index, status);
  }
}

// ---- admission

void LlamaEngine::admit() {
  for (;;) {
    std::uint32_t first = 0;
    {
      LockGuard guard(mutex_);
      if (waiting_.empty() || use_.is_crowded) return;
      const std::shared_ptr<Request> request = waiting_.front();
      const auto free = std::ranges::count_if(slots_, [](const Slot& slot) { return slot.answer == nullptr; });
      if (static_cast<std::size_t>(free) < request->asked.answers.size()) return;
      waiting_.pop_front();
      first = place(request);
    }
    prepare(first);
  }
}

std::uint32_t LlamaEngine::place(const std::shared_ptr<Request>& request) {
  if (request->order == 0) request->order = ++orders_;
  std::uint32_t first = 0;
  for (std::size_t i = 0; i < request->asked.answers.size(); ++i) {
    const std::uint32_t index = choose(*request, i == 0);
    slots_[index].answer = std::make_unique<Answer>();
    Answer& answer = *slots_[index].answer;
    answer.writer = request->asked.answers[i];
    answer.tokens = request->asked.prompt;
    answer.request = request;
    answer.waits = i > 0;
    if (i == 0) first = index;
    if (i > 0) slots_[first].answer->waiting.push_back(index);
  }
  return first;
}

std::uint32_t LlamaEngine::choose(const Request& request, bool looks_at_prompt) const {
  std::optional<std::uint32_t> oldest, best;
  std::uint64_t most = 0;
  for (std::uint32_t index = 0; index < slots_.size(); ++index) {
    const Slot& slot = slots_[index];
    if (slot.answer) continue;
    if (!oldest || slot.used < slots_[*oldest].used) oldest = index;
    const std::uint64_t held = looks_at_prompt ? usable(slot, request.asked.prompt, request.asked.owner) : 0;
    if (held > most && 2 * held >= slot.tokens.size()) {
      most = held;
      best = index;
    }
  }
  return best ? *best : *oldest;
}

std::uint64_t LlamaEngine::usable(const Slot& slot, std::span<const TokenId> prompt, const std::string& owner) const {
  if (slot.is_private || slot.owner != owner || prompt.empty()) return 0;
  const std::uint64_t common = common_length(slot.tokens, prompt.first(prompt.size() - 1));
  if (format_.is_dense() || common == slot.tokens.size()) return common;
  std::uint64_t best = 0;
  for (const Checkpoint& checkpoint : slot.checkpoints) {
    if (checkpoint.tokens <= common) best = checkpoint.tokens;
  }
  return best;
}

void LlamaEngine::prepare(std::uint32_t index) {
  Slot& slot = slots_[index];
  Answer& answer = *slot.answer;
  const EngineRequest& asked = answer.request->asked;
  const PromptUse use = reuse(index);
  {
    LockGuard guard(mutex_);
    slot.owner = asked.owner;
    slot.is_private = !asked.may_reuse;
  }
  answer.kept = asked.known;
  if (!format_.is_dense() && asked.may_reuse) {
    const PromptFacts facts{answer.tokens.size(), use.tokens, asked.known, asked.marks};
    const std::vector<std::uint64_t> stops = save_points(settings_.saves, facts);
    answer.stops.assign(stops.begin(), stops.end());
  }
  answer.last_stop = format_.is_dense() ? 0 : answer.tokens.size() - 1;
  answer.writer->begin(use);
  for (const std::uint32_t other : answer.waiting) slots_[other].answer->writer->begin(use);
}

// The sequence holds then what of the prompt need not be computed, and nothing else.
PromptUse LlamaEngine::reuse(std::uint32_t index) {
  EngineRequest& asked = slots_[index].answer->request->asked;
  SlotHit donor = asked.may_reuse ? best_donor(index) : SlotHit{index, 0};
  PromptUse use;
  if (asked.may_reuse && asked.restorable > donor.tokens) {
    const Status restored = restore(index);
    if (restored.is_ok()) {
      use = {asked.restorable, asked.restores_from};
    } else {
      log_warning("llama",
                  fmt::format("a prefix of {} tokens was not restored: {}", asked.restorable, restored.to_string()));
      use.has_failed_load = true;
      donor = best_donor(index);
    }
  }
  if (use.from == ReusedFrom::kNothing && resume_from(donor, index)) {
    use.tokens = donor.tokens;
    use.from = ReusedFrom::kSlot;
  }
  if (!use.has_failed_load) asked.forget_load();  // else it is tried again, should the request be set back
  return use;
}

Status LlamaEngine::restore(std::uint32_t index) {
  const EngineRequest& asked = slots_[index].answer->request->asked;
  LARDER_ASSIGN_OR_RETURN(const EngineRequest::Blob blob, asked.load(asked.prompt));
  empty(index);
  // llama.cpp does not say what it lacks: cells, as far as is known.
  const auto load = [&] { return host_.load(index, std::as_const(*blob).bytes(), false); };
  Status loaded = load();
  while (!loaded.is_ok() && empty_idle()) loaded = load();
  LARDER_RETURN_IF_ERROR(loaded);
  LockGuard guard(mutex_);
  slots_[index].tokens.assign(asked.prompt.begin(),
                              asked.prompt.begin() + static_cast<std::ptrdiff_t>(asked.restorable));
  return Status::ok();
}

// The slot that holds most of what slot `index` is to compute; itself, where another has no more.
SlotHit LlamaEngine::best_donor(std::uint32_t index) const {
  const Answer& answer = *slots_[index].answer;
  const std::string& owner = answer.request->asked.owner;
  SlotHit best{index, usable(slots_[index], answer.tokens, owner)};
  for (std::uint32_t other = 0; format_.is_dense() && other < slots_.size(); ++other) {
    const std::uint64_t held = usable(slots_[other], answer.tokens, owner);
    if (held > best.tokens) best = {other, held};
  }
  return best;
}

// False: nothing of the prompt is in the sequence.
bool LlamaEngine::resume_from(const SlotHit& donor, std::uint32_t index) {
  Slot& slot = slots_[index];
  if (donor.slot != index) {
    empty(index);
    host_.share(donor.slot, index, 0, static_cast<std::uint32_t>(donor.tokens));
  } else if (donor.tokens == 0 || (slot.tokens.size() > donor.tokens && !go_back(index, donor.tokens))) {
    empty(index);
    return false;
  }
  LockGuard guard(mutex_);
  const std::vector<TokenId>& tokens = slot.answer->tokens;
  slot.tokens.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(donor.tokens));
  return true;
}

// The sequence as it was at `tokens`. False: it is to be emptied.
bool LlamaEngine::go_back(std::uint32_t index, std::uint64_t tokens) {
  Slot& slot = slots_[index];
  if (!format_.is_dense()) {
    const auto found = std::ranges::find(slot.checkpoints, tokens, &Checkpoint::tokens);
    if (found == slot.checkpoints.end()) return false;
    const Status loaded = host_.load(index, found->blob, true);
    if (!loaded.is_ok()) {
      log_warning("llama", "a checkpoint was not restored: " + loaded.to_string());
      return false;
    }
  }
  if (!host_.trim(index, static_cast<std::uint32_t>(tokens))) return false;
  LockGuard guard(mutex_);
  while (!slot.checkpoints.empty() && slot.checkpoints.back().tokens > tokens) slot.checkpoints.pop_back();
  return true;
}

// ---- a batch

void LlamaEngine::fill_rows() {
  rows_.clear();
  pieces_.clear();
  std::vector<std::uint32_t> prompts;
  for (std::uint32_t index = 0; index < slots_.size(); ++index) {
    const Slot& slot = slots_[index];
    if (!slot.answer || slot.answer->waits) continue;
    if (slot.tokens.size() + 1 < slot.answer->tokens.size()) {
      prompts.push_back(index);
    } else {
      add_rows(index, 1);
    }
  }
  std::ranges::sort(prompts, {}, [this](std::uint32_t index) { return slots_[index].answer->request->order; });
  for (const std::uint32_t index : prompts) add_rows(index, host_.settings().batch_tokens);
}

void LlamaEngine::add_rows(std::uint32_t index, std::size_t most) {
  const Slot& slot = slots_[index];
  const Answer& answer = *slot.answer;
  const std::size_t begin = slot.tokens.size();
  std::size_t stop = answer.tokens.size();
  if (begin < answer.last_stop) stop = static_cast<std::size_t>(answer.last_stop);
  if (!answer.stops.empty()) stop = std::min(stop, static_cast<std::size_t>(answer.stops.front()));
  const std::size_t room = host_.settings().batch_tokens - rows_.size();
  const std::size_t count = std::min({most, room, stop - begin});
  if (count == 0) return;
  pieces_.push_back({index, rows_.size(), count});
  for (std::size_t i = begin; i < begin + count; ++i) {
    rows_.push_back({index, static_cast<std::uint32_t>(i), answer.tokens[i], i + 1 == answer.tokens.size()});
  }
}

void LlamaEngine::note_computed() {
  if (rows_.empty()) return;
  {
    LockGuard guard(mutex_);
    ++use_.batches;
    for (const Piece& piece : pieces_) {
      Slot& slot = slots_[piece.slot];
      for (std::size_t i = 0; i < piece.count; ++i) slot.tokens.push_back(rows_[piece.first + i].token);
    }
  }
  for (const Piece& piece : pieces_) {
    Answer& answer = *slots_[piece.slot].answer;
    const std::size_t computed = slots_[piece.slot].tokens.size();
    if (!answer.stops.empty() && computed == answer.stops.front()) {
      answer.stops.pop_front();
      keep(piece.slot);
    }
    if (computed <= answer.last_stop && answer.last_stop - computed < host_.settings().batch_tokens) {
      remember(piece.slot);
    }
    if (computed == answer.tokens.size()) {
      answer_row(piece.slot, static_cast<std::int32_t>(piece.first + piece.count - 1));
    }
  }
}

// Others of the same request begin where its prompt ends, with the same logits.
void LlamaEngine::answer_row(std::uint32_t index, std::int32_t row) {
  slots_[index].answer->request->asked.forget_load();
  std::vector<std::uint32_t>& waiting = slots_[index].answer->waiting;
  if (!waiting.empty()) {
    if (const Status dropped = drop_behind_window(index); !dropped.is_ok()) {
      finish(index, dropped);
      return empty(index);
    }
  }
  while (!waiting.empty()) {
    const std::uint32_t other = waiting.back();
    empty(other);
    host_.share(index, other, 0, static_cast<std::uint32_t>(slots_[index].tokens.size()));
    {
      LockGuard guard(mutex_);
      slots_[other].tokens = slots_[index].tokens;
      slots_[other].owner = slots_[index].owner;
      slots_[other].is_private = slots_[index].is_private;
    }
    slots_[other].answer->kept = slots_[index].answer->kept;
    slots_[other].answer->waits = false;
    waiting.pop_back();
    continue_answer(other, row);
  }
  continue_answer(index, row);
}

// Of sliding layers the sequence keeps the window alone. llama.cpp gives a cell that is behind the window to another
// token, unless several sequences share it: then nobody gets it while they last.
Status LlamaEngine::drop_behind_window(std::uint32_t index) {
  if (!format_.geometry.window) return Status::ok();
  LARDER_ASSIGN_OR_RETURN(const std::vector<std::byte> window, host_.save(index, true));
  return host_.load(index, window, true);
}

void LlamaEngine::continue_answer(std::uint32_t index, std::int32_t row) {
  Answer& answer = *slots_[index].answer;
  Status failed = Status::ok();
  try {
    const std::optional<TokenId> token = answer.writer->next(host_.context(), row);
    if (token) return answer.tokens.push_back(*token);
  } catch (const std::exception& error) {  // of a grammar, say
    failed = internal_error(error.what());
  }
  finish(index, failed);
}

void LlamaEngine::keep(std::uint32_t index) {
  const Slot& slot = slots_[index];
  const std::uint64_t page = format_.page_size(), end = slot.tokens.size() / page * page;
  const std::uint64_t begin = std::min(slot.answer->kept / page * page, end - page);
  auto exported = SequenceExport::take(host_, format_.geometry, index, settings_.slots,
                                       static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end));
  if (!exported.is_ok()) return log_warning("llama", "a sequence was not saved: " + exported.status().to_string());
  const auto tokens = std::span(slot.tokens).first(static_cast<std::size_t>(end));
  const std::string& owner = slot.answer->request->asked.owner;
  if (keep_({tokens.begin(), tokens.end()}, std::move(*exported), owner)) slot.answer->kept = end;
}

void LlamaEngine::remember(std::uint32_t index) {
  Slot& slot = slots_[index];
  Result<std::vector<std::byte>> blob = host_.save(index, true);
  if (!blob.is_ok()) return log_warning("llama", "a checkpoint was not taken: " + blob.status().to_string());
  LockGuard guard(mutex_);
  slot.checkpoints.push_back({slot.tokens.size(), std::move(*blob)});
  if (slot.checkpoints.size() > kSlotCheckpoints) slot.checkpoints.pop_front();
}

// False: nothing is left that could go; the request that has all of it has failed.
bool LlamaEngine::make_room() {
  if (empty_idle()) return true;
  std::vector<std::uint32_t> busy;
  for (std::uint32_t index = 0; index < slots_.size(); ++index) {
    if (slots_[index].answer && !slots_[index].answer->waits) busy.push_back(index);
  }
  if (busy.empty()) return false;
  const std::uint32_t last =
      *std::ranges::max_element(busy, {}, [this](std::uint32_t index) { return slots_[index].answer->request->order; });
  if (busy.size() > 1) {
    set_back(last);
    return true;
  }
  finish(last, overloaded("the context has no room for this request: give the server a larger one (-c)"));
  empty(last);
  return false;
}

// Slots that wait go first: they are emptied in any case. False: all that is held is busy.
bool LlamaEngine::empty_idle() {
  const auto age = [this](std::uint32_t index) { return slots_[index].answer ? 0 : slots_[index].used; };
  std::optional<std::uint32_t> oldest;
  for (std::uint32_t index = 0; index < slots_.size(); ++index) {
    const Slot& slot = slots_[index];
    if (slot.tokens.empty() || (slot.answer && !slot.answer->waits)) continue;
    if (!oldest || age(index) < age(*oldest)) oldest = index;
  }
  if (oldest) empty(*oldest);
  return oldest.has_value();
}

void LlamaEngine::set_back(std::uint32_t index) {
  const std::vector<std::unique_ptr<Answer>> answers = take_answers(index);
  empty(index);
  const Answer& first = *answers.front();
  auto again = std::make_shared<Request>(*first.request);
  again->asked.prompt = first.tokens;
  again->asked.known = std::max(again->asked.known, first.kept);
  again->asked.answers.clear();
  for (const auto& answer : answers) again->asked.answers.push_back(answer->writer);
  LockGuard guard(mutex_);
  waiting_.push_front(std::move(again));
  ++use_.set_back;
  use_.is_crowded = true;
}

// ---- the end

void LlamaEngine::finish(std::uint32_t index, const Status& status) {
  Slot& slot = slots_[index];
  const std::uint64_t page = format_.page_size();
  const bool is_sound = status.is_ok() || status.code() == StatusCode::kCancelled;
  const bool is_new = slot.tokens.size() / page * page > slot.answer->kept;
  if (format_.is_dense() && is_sound && !slot.is_private && is_new) keep(index);
  const std::vector<std::unique_ptr<Answer>> answers = take_answers(index);
  {
    LockGuard guard(mutex_);
    slot.used = ++uses_;
    use_.is_crowded = false;
  }
  if (slot.is_private) empty(index);
  for (const auto& answer : answers) answer->writer->end(status);
}

// The answer of a slot, and behind it those that wait for it: their slots are free.
std::vector<std::unique_ptr<LlamaEngine::Answer>> LlamaEngine::take_answers(std::uint32_t index) {
  std::vector<std::unique_ptr<Answer>> taken;
  LockGuard guard(mutex_);
  taken.push_back(std::move(slots_[index].answer));
  for (const std::uint32_t other : taken.front()->waiting) taken.push_back(std::move(slots_[other].answer));
  return taken;
}

void LlamaEngine::empty(std::uint32_t index) {
  host_.clear(index);
  LockGuard guard(mutex_);
  slots_[index].tokens.clear();
  slots_[index].checkpoints.clear();
}

}  // namespace larder::llama
