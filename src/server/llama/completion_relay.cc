// SPDX-License-Identifier: Apache-2.0
#include "server/llama/completion_relay.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "server/json_reader.h"
#include "server/llama/restore_files.h"

namespace larder::llama {
namespace {

// Of an answer that may have more, or any number: so many tokens are kept free for it beside what slots hold, and are
// thought to be there while nothing tells how many are.
constexpr std::uint64_t kAnswerRoom = 1024, kAnswerPart = 8;  // at most that part of the context

double seconds_since(TimePoint begun, const Clock& clock) {
  return std::chrono::duration<double>(clock.now() - begun).count();
}

// X-Larder-Reused-Tokens and the others, as far as they are known.
HttpResponse reuse_fields(const std::optional<CachedTokens>& reuse) {
  HttpResponse out;
  if (!reuse) return out;
  const std::string_view from = reuse->storage > 0 ? "storage" : reuse->host > 0 ? "host" : "slot";
  add_reuse(out, reuse->cached(), from, miss_beyond(reuse->miss, reuse->cached()));
  return out;
}

// Whether the file of a slot with so many tokens may not fit into the folder.
bool is_short_of_space(const RelayParts& parts, std::uint64_t tokens) {
  const auto space = parts.files.space(parts.slot_directory);
  return space.is_ok() && space->free_bytes < slot_file_bytes(parts.format, tokens);
}

// The files of restores of free slots, and of `mine`, which has been read, make room for another one. False: there were
// none.
bool remove_restore_files(const RelayParts& parts, const SlotTable::Hold& mine) {
  std::uint64_t removed = 0;
  const auto remove = [&](const SlotTable::Hold& hold) {
    const std::string path = join_path(parts.slot_directory, restore_file_name(hold.slot()));
    removed += remove_restore_file(parts.files, path);
  };
  remove(mine);
  for (const SlotTable::Hold& other : parts.slots.take_free()) remove(other);
  return removed > 0;
}

// All slots are held, one of them for a prompt: llama-server takes the one that begins most like it, and ours has all
// but its last token.
Status erase_others(LlamaUpstream& upstream, const SlotTable& slots, const SlotTable::Hold& mine) {
  for (std::uint32_t slot = 0; slot < slots.size(); ++slot) {
    if (slot != mine.slot()) LARDER_RETURN_IF_ERROR(upstream.erase_slot(slot));
  }
  return Status::ok();
}

}  // namespace

Status erase_held(LlamaUpstream& upstream, SlotTable::Hold& hold) {
  Status emptied = upstream.erase_slot(hold.slot());
  if (!emptied.is_ok()) return emptied;
  hold.contents().restored({});
  hold.note_size(0);
  return emptied;
}

Status CompletionRelay::run(std::optional<std::uint64_t> checked) {
  is_proven_ = checked.has_value();
  checked_ = checked.value_or(0);
  Status status = answer();
  count_reuse();
  remember(status);
  return status;
}

Status CompletionRelay::answer() {
  const auto parsed = parse_llama_request(request_.method, request_.path, request_.body);
  if (const auto* reason = std::get_if<PlainReason>(&parsed)) return run_plainly(*reason);
  const auto& asked = std::get<LlamaRequest>(parsed);
  if (asked.answers > parts_.slots.size()) return run_plainly(PlainReason::kTooManyAnswers);
  if (!asked.salt.empty()) parts_.slots.note_salt();
  if (!is_proven_) return run_plainly(PlainReason::kUnknownServer);
  if (!asked.takes_slot && !parts_.slots.chooses_by_likeness()) return run_plainly(PlainReason::kOtherSlot);
  const Status status = run_cached(asked);
  const std::uint64_t made = answer_.tokens(answer_.http_status() == 200, most_answer_);
  if (asked.answers > 1) parts_.slots.forget_free(prompt_tokens_ + made);
  return status;
}

Status CompletionRelay::run_cached(const LlamaRequest& asked) {
  const std::optional<std::vector<TokenId>> prompt = tokens_of(asked);
  if (!prompt || prompt->empty() || prompt->size() >= parts_.slot_context) {
    return run_plainly(PlainReason::kNotUnderstood);
  }
  if (parts_.trace.recorder != nullptr) {
    trace_ = parts_.trace.recorder->begin(*prompt, {parts_.trace.model, "", asked.salt}, asked.answers);
  }
  // A page of another site may read only what llama-server's own head lets it.
  if (asked.streams && find_field(request_.fields, "Origin") == nullptr) answer_.begin_waiting(parts_.ping_every);
  SlotTable::Wish wish;
  wish.prompt = *prompt;
  wish.owner = asked.salt;
  wish.count = asked.answers;
  wish.by_likeness = !asked.takes_slot;
  const bool is_alone = !asked.takes_slot && parts_.goes_back_anywhere();
  if (is_alone) wish.count = parts_.slots.size();
  Result<SlotTable::Hold> hold = take_slot(wish);
  if (!hold.is_ok()) {
    trace_.refuse();
    answer_.fail(hold.status());
    return Status::ok();
  }
  hold_ = std::move(*hold);
  if (!is_current()) {  // its adapters were changed while the request waited
    trace_.refuse();
    if (!asked.takes_slot) {
      hold_ = {};
      return run_plainly(PlainReason::kAdapters);
    }
    parts_.metrics.plain(PlainReason::kAdapters).increment();
    passed_on_ = plain_reason_name(PlainReason::kAdapters);
    return go_on_plainly(parse_plain_request(request_.body), true);
  }
  if (is_alone) {
    const Status emptied = erase_others(upstream_, parts_.slots, hold_);
    if (!emptied.is_ok()) {
      trace_.refuse();
      return give_up(emptied);
    }
  }
  return run_in_slot(asked, *prompt);
}

Status CompletionRelay::run_in_slot(const LlamaRequest& asked, const std::vector<TokenId>& prompt) {
  parts_.metrics.cached.increment();
  parts_.metrics.prompt_tokens.increment(prompt.size());
  prompt_tokens_ = prompt.size();
  most_answer_ = std::min<std::uint64_t>(asked.most_tokens.value_or(parts_.slot_context), parts_.slot_context);
  const EngineHabits habits = parts_.slots.habits();
  make_room(asked, prompt);
  const std::uint64_t known = prepare_slot(asked, prompt);
  hold_.note_size(prompt.size(), asked.streams ? 0 : std::min(most_answer_, kAnswerRoom));
  // Whether what it may have lost is there shows before the client is told.
  const bool is_to_show = hold_.contents().is_doubted() && resume_ > 0;
  if (!is_to_show) answer_.set_fields(reuse_fields(reuse_));  // a head may be sent from now on
  const bool saves_after = habits.rolls_back && !parts_.shifts_context;
  if (!saves_after) save_before(asked, prompt, known);
  // llama-server cannot be told to use nothing of it. A restore that failed leaves it so, too.
  const bool needs_known = !asked.takes_slot && (parts_.slots.has_salts() || parts_.goes_back_anywhere());
  if (needs_known && hold_.contents().is_unknown() && empty_slot()) resume_ = 0;
  if (!asked.takes_slot || is_to_show) lead_here(prompt);
  if (reply_.is_gone()) return Status::ok();
  const bool is_known = !hold_.contents().is_unknown();  // of a slot that could not be emptied nothing is kept
  if (needs_known && !is_known) {
    trace_.refuse();
    return give_up(unavailable("llama-server did not make its slot ready, and may have something of others in it"));
  }
  const Result<unsigned> sent = forward(asked.takes_slot ? asked.text_for_slot(hold_.slot(), is_known) : request_.body);
  record(prompt, sent);
  const bool is_answered = sent.is_ok() && *sent == 200 && !answer_.count().has_error();
  note_size(sent);
  if (!asked.takes_slot) check_slot(prompt, is_answered);
  const bool may_have_shifted =
      parts_.shifts_context && (!asked.most_tokens || *asked.most_tokens >= parts_.slot_context - prompt.size());
  const bool has_left = sent.is_ok() && *sent == CompletionReply::kClientLeft;
  const bool is_whole = asked.streams ? answer_.count().has_output() : is_answered;  // the prompt
  if (may_have_shifted || !is_known || !(is_answered || has_left) || !is_answer_to(asked, prompt) || !is_current()) {
    hold_.contents().forget();
    return sent.status();
  }
  const bool is_doubted = has_left && !is_whole && hold_.contents().is_doubted();
  hold_.contents().computed(std::span(prompt).first(is_whole ? prompt.size() : resume_), resume_, true, habits);
  if (is_doubted) hold_.contents().doubt();
  if (has_left || !is_whole) return Status::ok();
  const std::size_t certain = asked.takes_slot ? prompt.size() : prompt.size() - 1;
  if (saves_after) save_answer(prompt, std::span(prompt).first(certain), known, asked.salt);
  return Status::ok();
}

std::uint64_t CompletionRelay::prepare_slot(const LlamaRequest& asked, std::span<const TokenId> prompt) {
  ProxyMetrics& metrics = parts_.metrics;
  // Of a slot that is not emptied nothing is used; nor is it given anything: llama-server may still read its file.
  if (hold_.contents().is_unknown() && !empty_slot()) return 0;
  // With --swa-full llama-server would go back into what was composed, where the window is not whole.
  const bool is_parted = parts_.format.geometry.window && hold_.contents().is_parted_by(prompt);
  const std::uint64_t in_slot = is_parted ? 0 : hold_.contents().reusable(prompt, parts_.slots.habits());
  resume_ = in_slot;
  CachedTokens reuse;
  // Of what llama-server may have dropped meanwhile half is worth as much as what is certain.
  const bool is_doubted = hold_.contents().is_doubted();
  const std::uint64_t certain = is_doubted ? 0 : in_slot, worth = is_doubted ? in_slot / 2 : in_slot;
  std::uint64_t known = certain;
  if (last_restore_point(prompt.size(), parts_.saves.page_size) > certain) {
    const bool asks_storage = prompt.size() - certain >= parts_.ask_storage_tokens;
    const Result<PrefixStore::Found> found = parts_.store.find(prompt, asked.salt, asks_storage);
    if (!found.is_ok()) metrics.lookups_failed.increment();
    if (found.is_ok()) {
      known = found->known();
      reuse.miss = found->miss();
      if (found->tokens() > worth) resume_ = restore(prompt, *found, in_slot, reuse);
    }
  }
  // Nor may what is saved on the way begin within it.
  const bool begins_within = parts_.format.geometry.window && resume_ < hold_.contents().composed();
  if (begins_within && !hold_.contents().is_unknown()) {
    (void)empty_slot();
    resume_ = 0;
  }
  if (reuse.cached() == 0) reuse.device = resume_;
  reuse.miss = miss_beyond(reuse.miss, resume_);
  metrics.misses.count("proxy", reuse.miss, resume_, prompt.size());
  reuse_ = reuse;
  return known;
}

Status CompletionRelay::give_up(const Status& why) {
  if (reply_.is_gone()) return Status::ok();
  parts_.metrics.failed.increment();
  answer_.fail(why);
  return why;
}

bool CompletionRelay::empty_slot() {
  const Status emptied = erase_held(upstream_, hold_);
  if (emptied.is_ok()) return true;
  hold_.contents().disown();
  if (!reply_.is_gone()) log_warning("proxy", "a slot was not emptied: " + emptied.to_string());
  return false;
}

void CompletionRelay::save_before(const LlamaRequest& asked, std::span<const TokenId> prompt, std::uint64_t known) {
  // Of a slot that could not be emptied nobody knows what a save would have.
  if (hold_.contents().is_unknown()) return;
  PromptFacts facts{prompt.size(), resume_, known, {}};
  if (save_points(parts_.saves, facts).empty()) return;
  const std::vector<std::uint64_t> marks = marks_of(asked, prompt);
  facts.marks = marks;
  for (const std::uint64_t at : save_points(parts_.saves, facts)) {
    if (reply_.is_gone() || !save_at(prompt, at, asked.salt)) return;
  }
}

std::optional<std::vector<TokenId>> CompletionRelay::tokens_of(const LlamaRequest& asked) {
  if (const auto* tokens = std::get_if<std::vector<TokenId>>(&asked.prompt)) return *tokens;
  if (const auto* text = std::get_if<std::string>(&asked.prompt)) {
    prompt_text_ = *text;
  } else {
    Result<std::string> made =
        upstream_.apply_template(asked.is_converted() ? dump_json(asked.converted) : request_.body);
    if (!made.is_ok()) return std::nullopt;
    prompt_text_ = std::move(*made);
  }
  Result<std::vector<TokenId>> tokens = upstream_.tokenize(prompt_text_);
  if (!tokens.is_ok()) return std::nullopt;
  return std::move(*tokens);
}

Result<SlotTable::Hold> CompletionRelay::take_slot(const SlotTable::Wish& wish) {
  SlotTable::Wish mine = wish;
  mine.is_gone = [this] { return reply_.is_gone(); };
  return parts_.slots.acquire(mine);
}

std::uint64_t CompletionRelay::restore(std::span<const TokenId> prompt, const PrefixStore::Found& found,
                                       std::uint64_t resume, CachedTokens& reuse) {
  const TimePoint begun = parts_.clock.now();
  const Result<std::string> file = write_file(found, prompt);
  Status given = file.status();
  if (given.is_ok() && !is_still()) given = conflict("llama-server may be another one by now");
  if (given.is_ok()) given = upstream_.restore_slot(hold_.slot(), *file);
  const bool is_refused = file.is_ok() && given.code() == StatusCode::kInvalidArgument;
  if (is_refused && empty_free_slots()) given = upstream_.restore_slot(hold_.slot(), *file);
  ProxyMetrics& metrics = parts_.metrics;
  if (!given.is_ok()) {
    metrics.restores_failed.increment();
    reuse.miss = {.reason = MissReason::kLoadFailed, .at_token = resume};
    log_warning("proxy", fmt::format("a prefix of {} tokens was not restored: {}", found.tokens(), given.to_string()));
    if (!file.is_ok()) return resume;
    // llama-server empties a slot that it cannot restore. If it did not answer, it may still be at it, or be done.
    hold_.contents().restored(prompt.first(static_cast<std::size_t>(found.tokens())));
    hold_.contents().disown();
    return 0;
  }
  metrics.restores.increment();
  metrics.restore_seconds.observe(seconds_since(begun, parts_.clock));
  reuse.storage = std::min(found.from_storage(), found.tokens());
  reuse.host = found.tokens() - reuse.storage;
  hold_.contents().restored(prompt.first(static_cast<std::size_t>(found.tokens())));
  return found.tokens();
}

bool CompletionRelay::empty_free_slots() {
  bool are_there = false;
  for (SlotTable::Hold& other : parts_.slots.take_free()) {
    if (erase_held(upstream_, other).is_ok()) {
      are_there = true;
    } else {
      other.contents().doubt();
    }
  }
  return are_there;
}

// Or llama-server would, of those that compute nothing the first one, whoever needs it next.
void CompletionRelay::make_room(const LlamaRequest& asked, std::span<const TokenId> prompt) {
  const std::uint64_t shared = parts_.slots.habits().shared_context;
  if (shared == 0) return;
  const std::uint64_t room = std::min({most_answer_, kAnswerRoom, shared / kAnswerPart}) * asked.answers;
  for (SlotTable::Hold& other : parts_.slots.take_crowding(hold_, prompt.size() + room)) {
    if (!erase_held(upstream_, other).is_ok()) other.contents().doubt();
  }
}

Result<std::string> CompletionRelay::write_file(const PrefixStore::Found& found, std::span<const TokenId> prompt) {
  LARDER_ASSIGN_OR_RETURN(const auto bytes, parts_.store.load(found, prompt));
  std::string name = restore_file_name(hold_.slot());
  const std::string path = join_path(parts_.slot_directory, name);
  const std::span<const std::byte> contents = std::as_const(*bytes).bytes();
  Status written = write_restore_file(parts_.files, path, contents);
  if (written.code() == StatusCode::kOverloaded && remove_restore_files(parts_, hold_)) {
    written = write_restore_file(parts_.files, path, contents);
  }
  if (!written.is_ok()) return written;
  return name;
}

// Where the system messages end, as others may have the same ones.
std::vector<std::uint64_t> CompletionRelay::marks_of(const LlamaRequest& asked, std::span<const TokenId> prompt) {
  const std::string body = asked.system_part();
  if (body.empty()) return {};
  const Result<std::string> text = upstream_.apply_template(body);
  if (!text.is_ok() || text->empty() || !prompt_text_.starts_with(*text)) return {};
  const Result<std::vector<TokenId>> tokens = upstream_.tokenize(*text);
  if (!tokens.is_ok()) return {};
  const auto parted = std::ranges::mismatch(*tokens, prompt);
  return {static_cast<std::uint64_t>(parted.in1 - tokens->begin())};
}

void CompletionRelay::note_cached(std::uint64_t cached) {
  note_lost(cached);
  if (cached <= resume_ || !reuse_) return;
  reuse_->device = cached;  // llama-server kept more of the slot than was guessed
  reuse_->host = reuse_->storage = 0;
}

// Some tokens less are another guess of where llama-server has a state.
void CompletionRelay::note_lost(std::uint64_t cached) {
  if (cached >= resume_ || (cached > 0 && cached + parts_.saves.page_size > resume_)) return;
  if (cached == 0) hold_.doubt_others();  // llama-server empties a slot as a whole
  if (!reuse_) return;
  if (reuse_->host + reuse_->storage > 0) parts_.metrics.restores_ignored.increment();
  reuse_->device = std::min(reuse_->device, cached);
  reuse_->storage = std::min(reuse_->storage, cached - reuse_->device);
  reuse_->host = std::min(reuse_->host, cached - reuse_->device - reuse_->storage);
}

void CompletionRelay::note_size(const Result<unsigned>& sent) {
  const bool has_left = sent.is_ok() && *sent == CompletionReply::kClientLeft;
  const std::uint64_t most = has_left ? std::min(most_answer_, kAnswerRoom) : most_answer_;
  hold_.note_size(prompt_tokens_ + answer_.tokens(sent.is_ok() && !has_left, most));
  // Whoever ran out of cells had all others emptied before.
  if (answer_.count().has_error() || (sent.is_ok() && *sent >= 500)) hold_.doubt_others();
}

bool CompletionRelay::save_at(std::span<const TokenId> prompt, std::uint64_t end, const std::string& salt) {
  const std::span<const TokenId> part = prompt.first(static_cast<std::size_t>(end));
  const Result<std::uint64_t> cached = upstream_.prefill(hold_.slot(), part);
  if (!cached.is_ok()) {
    note_broken_off(prompt);
    return false;
  }
  note_cached(*cached);
  hold_.contents().computed(part, resume_, false, parts_.slots.habits());
  resume_ = end;
  return is_current() && save_slot(part, salt, false);
}

bool CompletionRelay::save_slot(std::span<const TokenId> prompt, const std::string& salt, bool has_answer) {
  const auto write = [&](const std::string& file) {
    const TimePoint begun = parts_.clock.now();
    Status written = upstream_.save_slot(hold_.slot(), file);
    parts_.metrics.save_seconds.observe(seconds_since(begun, parts_.clock));
    return written;
  };
  std::string name = parts_.saver.name();
  Status saved = write(name);
  if (!saved.is_ok() && !reply_.is_gone()) {  // llama-server does not say that the folder is full
    if (is_short_of_space(parts_, hold_.contents().size() + answer_.tokens(true, most_answer_)) &&
        remove_restore_files(parts_, hold_)) {
      (void)parts_.files.remove(join_path(parts_.slot_directory, name));
      name = parts_.saver.name();
      saved = write(name);
    }
  }
  if (saved.is_ok() && is_still()) {
    parts_.saver.save(std::move(name), prompt, salt, has_answer);
    return true;
  }
  parts_.saver.discard(name);
  if (saved.is_ok()) return false;  // it may be of another llama-server
  parts_.metrics.saves(SaveOutcome::kRefused).increment();
  if (reply_.is_gone()) return false;
  const auto space = parts_.files.space(parts_.slot_directory);
  log_warning("proxy", fmt::format("llama-server did not save a slot: {} ({} has {} bytes free)", saved.to_string(),
                                   parts_.slot_directory, space.is_ok() ? space->free_bytes : 0));
  return false;
}

// A client that has left is no reason to empty a slot: llama-server compares the tokens of the next prompt itself. One
// that was lost may have anything in it.
void CompletionRelay::note_broken_off(std::span<const TokenId> prompt) {
  if (!reply_.is_gone()) return hold_.contents().forget();
  const bool is_doubted = hold_.contents().is_doubted();
  hold_.contents().computed(prompt.first(resume_), resume_, true, parts_.slots.habits());
  if (is_doubted) hold_.contents().doubt();
}

void CompletionRelay::lead_here(std::span<const TokenId> prompt) {
  const std::span<const TokenId> part = prompt.first(prompt.size() - 1);
  const bool is_there = part.size() <= resume_ && !hold_.contents().is_doubted();
  if (reply_.is_gone() || hold_.contents().is_unknown() || is_there || part.empty()) return;
  const Result<std::uint64_t> cached = upstream_.prefill(hold_.slot(), part);
  if (!cached.is_ok()) return note_broken_off(prompt);
  note_cached(*cached);
  hold_.contents().computed(part, resume_, false, parts_.slots.habits());
  resume_ = part.size();
}

void CompletionRelay::check_slot(std::span<const TokenId> prompt, bool answered) {
  const std::optional<std::uint64_t> cached = answer_.count().cached_tokens();
  const bool is_telling = answered && cached && answer_.count().prompt_tokens() == prompt.size();
  const bool is_here = is_telling && *cached + 1 >= prompt.size();
  if (is_telling) parts_.slots.note_choice(is_here);
  if (is_here) return;
  if (is_telling) parts_.metrics.other_slots.increment();
  parts_.slots.forget_all(prompt.size() + answer_.tokens(answered, most_answer_));
}

bool CompletionRelay::is_answer_to(const LlamaRequest& asked, std::span<const TokenId> prompt) {
  const std::optional<std::uint64_t> counted = answer_.count().prompt_tokens();
  if (!counted) return !asked.is_converted();
  if (*counted == prompt.size()) return true;
  parts_.metrics.other_prompts.increment();
  log_warning("proxy", fmt::format("{}: the prompt had {} tokens, and not {} as the proxy thought", request_.path,
                                   *counted, prompt.size()));
  return false;
}

void CompletionRelay::save_answer(std::span<const TokenId> prompt, std::span<const TokenId> certain,
                                  std::uint64_t known, const std::string& salt) {
  if (hold_.contents().is_unknown() || last_restore_point(prompt.size(), parts_.saves.page_size) <= known) return;
  (void)save_slot(certain, salt, true);
}

// A client that has left, and a llama-server that was lost, have used the cache; what llama-server refuses has not.
void CompletionRelay::record(std::span<const TokenId> prompt, const Result<unsigned>& sent) {
  if (!trace_) return;
  if (answer_.count().has_error()) return trace_.refuse();
  const std::optional<std::uint64_t> counted = answer_.count().prompt_tokens();
  if (counted && *counted != prompt.size()) {  // another prompt than was thought
    trace_.refuse();
    return parts_.trace.recorder->note_unknown();
  }
  if (sent.is_ok() && *sent >= 400 && *sent != CompletionReply::kClientLeft) return trace_.refuse();
  trace_.set_output(answer_.output_tokens());
  trace_.end();
}

void CompletionRelay::count_reuse() {
  if (!reuse_ || is_counted_) return;
  is_counted_ = true;
  parts_.metrics.slot_tokens.increment(reuse_->device);
  parts_.metrics.host_tokens.increment(reuse_->host);
  parts_.metrics.storage_tokens.increment(reuse_->storage);
}

void CompletionRelay::remember(const Status& status) {
  if (prompt_tokens_ == 0 && passed_on_.empty()) return;  // no prompt
  RecentRequest request;
  request.id = request_.id;
  request.ended_unix_seconds = parts_.clock.wall_unix_seconds();
  if (reuse_) request.cached = *reuse_;
  request.cached.prompt = prompt_tokens_;
  request.passed_on = std::string(passed_on_);
  if (!status.is_ok()) {
    request.error = status.message();
  } else if (answer_.http_status() >= 400) {
    request.error = fmt::format("llama-server answered {}", answer_.http_status());
  } else if (answer_.count().has_error()) {
    request.error = "llama-server ended the stream with an error";
  } else if (answer_.http_status() == 0 && !reply_.is_gone()) {
    request.error = "no slot became free";
  }
  request.finish = !request.error.empty() ? "error" : reply_.is_gone() ? "left" : "ok";
  const std::optional<TimePoint>& first = answer_.first_output();
  if (first) request.ttft_seconds = std::chrono::duration<double>(*first - begun_).count();
  request.e2e_seconds = seconds_since(begun_, parts_.clock);
  parts_.recent.add(std::move(request));
}

Result<unsigned> CompletionRelay::forward(std::string body) {
  answer_.set_fields(reuse_fields(reuse_));
  const AnswerCount& count = answer_.count();
  CompletionReply::Watch watch;
  watch.on_piece = [&] {
    if (prompt_tokens_ == 0) return;
    hold_.note_size(prompt_tokens_ + count.outputs());
    if (count.has_output()) hold_.trust();
  };
  watch.before_end = [&] {
    if (count.has_error()) parts_.metrics.failed.increment();
    if (count.cached_tokens() && count.prompt_tokens() == prompt_tokens_) note_lost(*count.cached_tokens());
    count_reuse();
    before_end_(answer_.http_status());
  };
  Result<unsigned> sent = answer_.forward(std::move(body), watch);
  if (sent.is_ok()) return sent;
  parts_.metrics.failed.increment();
  if (answer_.is_untold()) answer_.fail(sent.status());
  return sent;
}

}  // namespace larder::llama
