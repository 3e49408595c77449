// SPDX-License-Identifier: Apache-2.0
#include "server/llama/completion_relay.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "server/api_error.h"
#include "server/json_reader.h"

namespace larder::llama {
namespace {

constexpr unsigned kClientLeft = 499;
// With it llama-server goes on for a client that has left, in a slot that is another request's by then.
constexpr std::string_view kGoesOnField = "X-Conversation-Id";

double seconds_since(TimePoint begun, const Clock& clock) {
  return std::chrono::duration<double>(clock.now() - begun).count();
}

// Further answers are made in whichever slots llama-server finds idle, also in one that another request has and that
// computes nothing just now. Older versions leave the rows there: those of an adapter would be saved as that request's.
SlotTable::Wish wish_of(const PlainRequest& plain, std::uint32_t slots) {
  SlotTable::Wish wish;
  if (plain.has_adapters) {
    wish.owner = std::nullopt;
    wish.count = plain.answers > 1 ? slots : 1;
  } else {
    wish.owner = plain.salt;
    wish.count = std::min(plain.answers, slots);
  }
  return wish;
}

std::string_view source_of(const CachedTokens& reuse) {
  return reuse.storage > 0 ? "storage" : reuse.host > 0 ? "host" : "slot";
}

}  // namespace

Status CompletionRelay::run(std::optional<std::uint64_t> checked) {
  is_proven_ = checked.has_value();
  checked_ = checked.value_or(0);
  Status status = answer();
  remember(status);
  return status;
}

Status CompletionRelay::answer() {
  const auto parsed = parse_llama_request(request_.method, request_.path, request_.body);
  if (const auto* reason = std::get_if<PlainReason>(&parsed)) return run_plainly(*reason);
  const auto& asked = std::get<LlamaRequest>(parsed);
  if (asked.answers > parts_.slots.size()) return run_plainly(PlainReason::kTooManyAnswers);
  if (!is_proven_) return run_plainly(PlainReason::kUnknownServer);
  if (!asked.takes_slot && !parts_.slots.chooses_by_likeness()) return run_plainly(PlainReason::kOtherSlot);
  const Status status = run_cached(asked);
  if (asked.answers > 1) parts_.slots.forget_free();
  return status;
}

Status CompletionRelay::run_as_it_is() {
  if (route_use(request_.method, request_.path) == RouteUse::kNone) return forward(request_.body).status();
  parts_.metrics.plain(PlainReason::kUnknownServer).increment();
  passed_on_ = plain_reason_name(PlainReason::kUnknownServer);
  is_anothers_ = true;
  Status status = go_on_plainly(parse_plain_request(request_.body), true);
  remember(status);
  return status;
}

// A slot that is ours to give is taken all the same, or llama-server would choose one that another request was given.
Status CompletionRelay::run_plainly(PlainReason reason) {
  parts_.metrics.plain(reason).increment();
  if (reason == PlainReason::kOtherRoute) return go_on_plainly(std::nullopt, false);
  passed_on_ = plain_reason_name(reason);
  const std::optional<PlainRequest> plain = parse_plain_request(request_.body);
  const bool can_be_pinned = plain && route_takes_slot(request_.method, request_.path) &&
                             reason != PlainReason::kTooManyAnswers && reason != PlainReason::kSeveralPrompts;
  if (can_be_pinned) {
    Result<SlotTable::Hold> hold = take_slot(wish_of(*plain, parts_.slots.size()));
    if (!hold.is_ok()) {
      fail(hold.status());
      return Status::ok();
    }
    hold_ = std::move(*hold);
  }
  return go_on_plainly(plain, true);
}

Status CompletionRelay::go_on_plainly(const std::optional<PlainRequest>& plain, bool has_prompt) {
  const auto slot = hold_.is_held() ? std::optional(hold_.slot()) : std::nullopt;
  if (!slot) empty_composed();
  if (reply_.is_gone()) return Status::ok();
  // One that is free now may be composed before llama-server chooses it.
  const bool may_use = slot ? may_use_slot() : !parts_.format.geometry.window || is_anothers_;
  const Result<unsigned> sent = forward(plain ? plain->text(slot, may_use) : request_.body);
  if (slot && plain) note_plain(*plain, sent.is_ok() && *sent == 200);
  const bool is_let_in = !sent.is_ok() || *sent != 401;  // who is not uses no slot
  if (is_let_in && !slot) parts_.slots.forget_all();
  if (plain && plain->answers > 1) parts_.slots.forget_free();
  if (has_prompt) note_unrecorded(sent);
  return sent.status();
}

// Of a slot that was composed llama-server may go back to where the window is not whole (--swa-full), and how far this
// prompt is the same nobody has looked.
bool CompletionRelay::may_use_slot() {
  const SlotContents& contents = hold_.contents();
  const bool is_whole = contents.composed() == 0 || !parts_.format.geometry.window;
  const bool is_changed = !is_proven_ || !is_current();  // its adapters, perhaps, while this request waited
  return contents.is_owners() && is_whole && !is_changed;
}

// llama-server lets a request without adapters go on from what one with them has computed.
void CompletionRelay::note_plain(const PlainRequest& plain, bool is_answered) {
  if (plain.has_adapters) {
    (void)empty_slot();
  } else if (is_answered && count_.prompt_tokens().value_or(0) > 0) {  // an empty prompt leaves a slot as it is
    hold_.contents().filled();
  } else {
    hold_.contents().disown();
  }
}

void CompletionRelay::empty_composed() {
  if (!parts_.format.geometry.window) return;
  for (SlotTable::Hold& other : parts_.slots.take_free(true)) {
    if (!upstream_.erase_slot(other.slot()).is_ok()) return;
    other.contents().restored({});
  }
}

Status CompletionRelay::run_cached(const LlamaRequest& asked) {
  const std::optional<std::vector<TokenId>> prompt = tokens_of(asked);
  if (!prompt || prompt->empty() || prompt->size() >= parts_.slot_context) {
    return run_plainly(PlainReason::kNotUnderstood);
  }
  if (parts_.trace.recorder != nullptr) {
    trace_ = parts_.trace.recorder->begin(*prompt, {parts_.trace.model, "", asked.salt}, asked.answers);
  }
  SlotTable::Wish wish;
  wish.prompt = *prompt;
  wish.owner = asked.salt;
  wish.count = asked.answers;
  wish.by_likeness = !asked.takes_slot;
  Result<SlotTable::Hold> hold = take_slot(wish);
  if (!hold.is_ok()) {
    trace_.refuse();
    fail(hold.status());
    return Status::ok();
  }
  hold_ = std::move(*hold);
  if (!is_current()) {  // its adapters were changed while the request waited
    trace_.refuse();
    parts_.metrics.plain(PlainReason::kAdapters).increment();
    passed_on_ = plain_reason_name(PlainReason::kAdapters);
    if (!asked.takes_slot) hold_ = {};
    return go_on_plainly(parse_plain_request(request_.body), true);
  }
  parts_.metrics.cached.increment();
  parts_.metrics.prompt_tokens.increment(prompt->size());
  prompt_tokens_ = prompt->size();
  const EngineHabits habits = parts_.slots.habits();
  const std::uint64_t known = prepare_slot(asked, *prompt);
  const bool saves_after = habits.rolls_back && !parts_.shifts_context;
  if (!saves_after) save_before(asked, *prompt, known);
  if (!asked.takes_slot) lead_here(*prompt);
  if (reply_.is_gone()) return Status::ok();
  const bool is_known = !hold_.contents().is_unknown();  // of a slot that could not be emptied nothing is kept
  const Result<unsigned> sent = forward(asked.takes_slot ? asked.text_for_slot(hold_.slot(), is_known) : request_.body);
  record(*prompt, sent);
  const bool is_answered = sent.is_ok() && *sent == 200;
  if (!asked.takes_slot) check_slot(*prompt, is_answered);
  const bool may_have_shifted =
      parts_.shifts_context && (!asked.most_tokens || prompt->size() + *asked.most_tokens >= parts_.slot_context);
  const bool has_left = sent.is_ok() && *sent == kClientLeft;
  const bool is_whole = asked.streams ? count_.has_output() : is_answered;  // the prompt
  if (may_have_shifted || !is_known || !(is_answered || has_left) || !is_answer_to(asked, *prompt) || !is_current()) {
    hold_.contents().forget();
    return sent.status();
  }
  hold_.contents().computed(std::span(*prompt).first(is_whole ? prompt->size() : resume_), resume_, true, habits);
  if (has_left || !is_whole) return Status::ok();
  const std::size_t certain = asked.takes_slot ? prompt->size() : prompt->size() - 1;
  if (saves_after) save_answer(*prompt, std::span(*prompt).first(certain), known, asked.salt);
  return Status::ok();
}

// An answer that was given, to a prompt that is not known.
void CompletionRelay::note_unrecorded(const Result<unsigned>& sent) {
  if (parts_.trace.recorder != nullptr && sent.is_ok() && *sent == 200) parts_.trace.recorder->note_unknown();
}

// A client that has left, and a llama-server that was lost, have used the cache; what llama-server refuses has not.
void CompletionRelay::record(std::span<const TokenId> prompt, const Result<unsigned>& sent) {
  if (!trace_) return;
  const std::optional<std::uint64_t> counted = count_.prompt_tokens();
  if (counted && *counted != prompt.size()) {  // another prompt than was thought
    trace_.refuse();
    return parts_.trace.recorder->note_unknown();
  }
  if (sent.is_ok() && *sent >= 400 && *sent != kClientLeft) return trace_.refuse();
  trace_.set_output(output_.tokens());
  trace_.end();
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
  std::uint64_t known = in_slot;
  if (last_restore_point(prompt.size(), parts_.saves.page_size) > in_slot) {
    const bool asks_storage = prompt.size() - in_slot >= parts_.ask_storage_tokens;
    const Result<PrefixStore::Found> found = parts_.store.find(prompt, asked.salt, asks_storage);
    if (!found.is_ok()) metrics.lookups_failed.increment();
    if (found.is_ok()) {
      known = found->known();
      reuse.miss = found->miss();
      if (found->tokens() > in_slot) resume_ = restore(prompt, *found, in_slot, reuse);
    }
  }
  // Nor may what is saved on the way begin within it.
  const bool begins_within = parts_.format.geometry.window && resume_ < hold_.contents().composed();
  if (begins_within && !hold_.contents().is_unknown()) {
    (void)empty_slot();
    resume_ = 0;
  }
  if (reuse.cached() == 0) {
    reuse.device = resume_;
    metrics.slot_tokens.increment(resume_);
  }
  reuse.miss = miss_beyond(reuse.miss, resume_);
  metrics.misses.count("proxy", reuse.miss, resume_, prompt.size());
  reuse_ = reuse;
  return known;
}

bool CompletionRelay::empty_slot() {
  const Status emptied = upstream_.erase_slot(hold_.slot());
  if (emptied.is_ok()) {
    hold_.contents().restored({});
    return true;
  }
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
  metrics.storage_tokens.increment(reuse.storage);
  metrics.host_tokens.increment(reuse.host);
  hold_.contents().restored(prompt.first(static_cast<std::size_t>(found.tokens())));
  return found.tokens();
}

bool CompletionRelay::empty_free_slots() {
  bool are_there = false;
  for (SlotTable::Hold& other : parts_.slots.take_free()) {
    if (!upstream_.erase_slot(other.slot()).is_ok()) continue;
    other.contents().restored({});
    are_there = true;
  }
  return are_there;
}

// A slot has a file of its own, which is written over: memory that a file system touches for the first time costs more
// than the copy.
Result<std::string> CompletionRelay::write_file(const PrefixStore::Found& found, std::span<const TokenId> prompt) {
  const auto bytes = parts_.store.load(found, prompt);
  if (!bytes.is_ok()) return bytes.status();
  std::string name = fmt::format("larder-restore-{}.slot", hold_.slot());
  auto file =
      parts_.files.open(join_path(parts_.slot_directory, name), {.write = true, .create = true, .for_others = true});
  if (!file.is_ok()) return file.status();
  LARDER_RETURN_IF_ERROR(write_fully(**file, std::as_const(**bytes).bytes(), 0));
  LARDER_RETURN_IF_ERROR((*file)->truncate((*bytes)->bytes().size()));
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
  if (cached + parts_.saves.page_size <= resume_) parts_.metrics.restores_ignored.increment();
  if (cached <= resume_) return;
  parts_.metrics.slot_tokens.increment(cached - resume_);  // llama-server kept more of the slot than was guessed
  if (!reuse_) return;
  reuse_->device = cached;
  reuse_->host = reuse_->storage = 0;
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
  const TimePoint begun = parts_.clock.now();
  std::string name = parts_.saver.name();
  const Status saved = upstream_.save_slot(hold_.slot(), name);
  parts_.metrics.save_seconds.observe(seconds_since(begun, parts_.clock));
  if (saved.is_ok() && is_still()) {
    parts_.saver.save(std::move(name), prompt, salt, has_answer);
    return true;
  }
  parts_.saver.discard(name);
  if (saved.is_ok()) return false;  // it may be of another llama-server
  parts_.metrics.saves(SaveOutcome::kRefused).increment();
  if (reply_.is_gone()) return false;
  const auto space = parts_.files.space(parts_.slot_directory);  // llama-server does not say that it is full
  log_warning("proxy", fmt::format("llama-server did not save a slot: {} ({} has {} bytes free)", saved.to_string(),
                                   parts_.slot_directory, space.is_ok() ? space->free_bytes : 0));
  return false;
}

// A client that has left is no reason to empty a slot: llama-server compares the tokens of the next prompt itself. One
// that was lost may have anything in it.
void CompletionRelay::note_broken_off(std::span<const TokenId> prompt) {
  if (!reply_.is_gone()) return hold_.contents().forget();
  hold_.contents().computed(prompt.first(resume_), resume_, true, parts_.slots.habits());
}

void CompletionRelay::lead_here(std::span<const TokenId> prompt) {
  const std::span<const TokenId> part = prompt.first(prompt.size() - 1);
  if (reply_.is_gone() || hold_.contents().is_unknown() || part.size() <= resume_) return;
  const Result<std::uint64_t> cached = upstream_.prefill(hold_.slot(), part);
  if (!cached.is_ok()) return note_broken_off(prompt);
  note_cached(*cached);
  hold_.contents().computed(part, resume_, false, parts_.slots.habits());
  resume_ = part.size();
}

void CompletionRelay::check_slot(std::span<const TokenId> prompt, bool answered) {
  const std::optional<std::uint64_t> cached = count_.cached_tokens();
  const bool is_telling = answered && cached && count_.prompt_tokens() == prompt.size();
  const bool is_here = is_telling && *cached + 1 >= prompt.size();
  if (is_telling) parts_.slots.note_choice(is_here);
  if (is_here) return;
  if (is_telling) parts_.metrics.other_slots.increment();
  parts_.slots.forget_all();
}

bool CompletionRelay::is_answer_to(const LlamaRequest& asked, std::span<const TokenId> prompt) {
  const std::optional<std::uint64_t> counted = count_.prompt_tokens();
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
  } else if (http_status_ >= 400) {
    request.error = fmt::format("llama-server answered {}", http_status_);
  } else if (http_status_ == 0 && !reply_.is_gone()) {
    request.error = "no slot became free";
  }
  request.finish = !request.error.empty() ? "error" : reply_.is_gone() ? "left" : "ok";
  if (first_output_) request.ttft_seconds = std::chrono::duration<double>(*first_output_ - begun_).count();
  request.e2e_seconds = seconds_since(begun_, parts_.clock);
  parts_.recent.add(std::move(request));
}

Result<unsigned> CompletionRelay::forward(std::string body) {
  HttpRelayRequest call;
  call.method = request_.is_head ? "HEAD" : std::string_view(request_.method);
  call.target = request_.target;
  std::vector<HttpField> fields = request_.fields;
  if (route_use(request_.method, request_.path) == RouteUse::kSlot) remove_field(fields, kGoesOnField);
  call.fields = fields;
  call.body = body;
  const auto on_head = [&](const HttpReplyHead& head) {
    http_status_ = head.status;
    HttpResponse passed = passed_head(head.status, head.fields);
    if (reuse_ && head.status == 200) {
      add_reuse(passed, reuse_->cached(), source_of(*reuse_), miss_beyond(reuse_->miss, reuse_->cached()));
    }
    is_streamed_ = passed.content_type.starts_with("text/event-stream");
    reply_.begin(std::move(passed));
    return !reply_.is_gone();
  };
  const auto on_bytes = [&](std::string_view piece) {
    count_.feed(piece);
    if (is_streamed_ && !first_output_ && count_.has_output()) first_output_ = parts_.clock.now();
    if (trace_) output_.feed(piece);
    return reply_.write(std::string(piece));
  };
  const Status sent = client_.relay(call, on_head, on_bytes);
  count_.end();
  if (trace_) output_.end();
  if (sent.is_ok()) {
    (void)reply_.end();
    return http_status_;
  }
  if (sent.code() == StatusCode::kCancelled || reply_.is_gone()) return kClientLeft;
  parts_.metrics.failed.increment();
  if (http_status_ == 0) fail(sent);
  return sent;
}

void CompletionRelay::fail(const Status& status) {
  HttpResponse response =
      error_response(status.code() == StatusCode::kOverloaded ? 503 : 502, "larder proxy: " + status.message());
  response.headers.emplace_back("Retry-After", "1");
  reply_.respond(std::move(response));
}

}  // namespace larder::llama
