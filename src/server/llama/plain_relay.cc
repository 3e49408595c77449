// SPDX-License-Identifier: Apache-2.0
// Requests whose prompt is not looked at: in a slot of ours where they can name one; else llama-server chooses.
#include <algorithm>
#include <utility>

#include "server/llama/completion_relay.h"

namespace larder::llama {
namespace {

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

// Of a body that is not parsed the name is enough.
bool brings_salt(const std::optional<PlainRequest>& plain, std::string_view body) {
  return plain ? plain->salt != "" : body.find("cache_salt") != std::string_view::npos;
}

// In some slot is what a request must not use that names none, or will be before llama-server has chosen one for it.
// Whether its body was parsed or not: llama-server reads more than is parsed here.
bool needs_all_slots(const RelayParts& parts, bool has_prompt) {
  return parts.goes_back_anywhere() || (has_prompt && parts.slots.has_salts());
}

// Before a request that goes into any slot: of a slot that was composed llama-server may use what is not whole.
void empty_composed(const RelayParts& parts, LlamaUpstream& upstream) {
  if (!parts.format.geometry.window) return;
  for (SlotTable::Hold& other : parts.slots.take_free(true)) {
    if (!erase_held(upstream, other).is_ok()) return;
  }
}

// An answer that was given, to a prompt that is not known.
void note_unrecorded(const RelayParts& parts, const Result<unsigned>& sent) {
  if (parts.trace.recorder != nullptr && sent.is_ok() && *sent == 200) parts.trace.recorder->note_unknown();
}

}  // namespace

Status CompletionRelay::run_as_it_is(const Status& why, bool is_let_in) {
  if (route_use(request_.method, request_.path) == RouteUse::kNone) return forward(request_.body).status();
  parts_.metrics.plain(PlainReason::kUnknownServer).increment();
  passed_on_ = plain_reason_name(PlainReason::kUnknownServer);
  is_anothers_ = why.code() == StatusCode::kConflict;
  const std::optional<PlainRequest> plain = parse_plain_request(request_.body);
  const bool has_salt = brings_salt(plain, request_.body);
  if (has_salt && is_let_in) parts_.slots.note_salt();
  // What is not parsed cannot be told to reuse nothing.
  const bool is_alone = is_let_in && !plain && parts_.slots.has_salts();
  Status status = is_alone ? run_alone(plain) : go_on_plainly(plain, true);
  if (has_salt && answer_.http_status() == 200) parts_.slots.note_salt();  // it was let in by then
  remember(status);
  return status;
}

// A slot that is ours to give is taken all the same, or llama-server would choose one that another request was given.
Status CompletionRelay::run_plainly(PlainReason reason) {
  parts_.metrics.plain(reason).increment();
  const bool has_prompt = reason != PlainReason::kOtherRoute;
  std::optional<PlainRequest> plain;
  if (has_prompt) {
    passed_on_ = plain_reason_name(reason);
    plain = parse_plain_request(request_.body);
    if (brings_salt(plain, request_.body)) parts_.slots.note_salt();
  }
  if (reason == PlainReason::kTooManyAnswers) return go_on_plainly(plain, true);  // it is refused
  const bool can_be_pinned =
      plain && route_takes_slot(request_.method, request_.path) && reason != PlainReason::kSeveralPrompts;
  if (!can_be_pinned) return needs_all_slots(parts_, has_prompt) ? run_alone(plain) : go_on_plainly(plain, has_prompt);
  Result<SlotTable::Hold> hold = take_slot(wish_of(*plain, parts_.slots.size()));
  if (!hold.is_ok()) {
    answer_.fail(hold.status());
    return Status::ok();
  }
  hold_ = std::move(*hold);
  return go_on_plainly(plain, true);
}

Status CompletionRelay::run_alone(const std::optional<PlainRequest>& plain) {
  SlotTable::Wish wish;
  wish.owner = plain ? plain->salt : std::nullopt;
  wish.is_gone = [this] { return reply_.is_gone(); };
  Result<std::vector<SlotTable::Hold>> all = parts_.slots.acquire_all(wish);
  if (!all.is_ok()) {
    answer_.fail(all.status());
    return Status::ok();
  }
  for (SlotTable::Hold& one : *all) {
    if (may_use(one)) continue;
    const Status emptied = erase_held(upstream_, one);
    if (emptied.is_ok()) continue;
    one.contents().disown();
    return give_up(emptied);
  }
  if (reply_.is_gone()) return Status::ok();
  const Result<unsigned> sent = forward(plain ? plain->text(std::nullopt, true) : request_.body);
  const std::uint64_t left = tokens_left(sent);
  const bool is_owners = plain && plain->salt && sent.is_ok() && *sent == 200 && !answer_.count().has_error();
  for (SlotTable::Hold& one : *all) {
    one.note_possible_size(left);
    is_owners ? one.contents().filled() : one.contents().disown();
  }
  if (!passed_on_.empty()) note_unrecorded(parts_, sent);
  return sent.status();
}

Status CompletionRelay::go_on_plainly(const std::optional<PlainRequest>& plain, bool has_prompt) {
  const auto slot = hold_.is_held() ? std::optional(hold_.slot()) : std::nullopt;
  if (!slot) empty_composed(parts_, upstream_);
  if (reply_.is_gone()) return Status::ok();
  // One that is free now may be composed, or another tenant's, before llama-server chooses it.
  const bool is_any_good = !parts_.slots.has_salts() && (is_anothers_ || !parts_.format.geometry.window);
  const bool uses_slot = slot ? may_use(hold_) : is_any_good;
  const Result<unsigned> sent = forward(plain ? plain->text(slot, uses_slot) : request_.body);
  const bool is_let_in = !sent.is_ok() || *sent != 401;  // who is not uses no slot
  const std::uint64_t left = tokens_left(sent);
  if (slot && left > 0) hold_.note_size(left);
  if (slot && plain) note_plain(*plain, sent.is_ok() && *sent == 200 && !answer_.count().has_error());
  if (is_let_in && !slot) parts_.slots.forget_all(left);
  if (plain && plain->answers > 1) parts_.slots.forget_free();
  if (has_prompt) note_unrecorded(parts_, sent);
  return sent.status();
}

std::uint64_t CompletionRelay::tokens_left(const Result<unsigned>& sent) const {
  const bool is_refused = sent.is_ok() && *sent >= 400 && *sent != CompletionReply::kClientLeft;
  if (is_refused) return 0;
  const bool is_one = passed_on_ != plain_reason_name(PlainReason::kSeveralPrompts);
  const bool is_told = sent.is_ok() && *sent == 200 && answer_.count().prompt_tokens() && is_one;
  return is_told ? *answer_.count().prompt_tokens() + answer_.tokens(true, most_answer_) : SlotTable::kAnySize;
}

// Of a slot that was composed llama-server may go back to where the window is not whole (--swa-full), and how far this
// prompt is the same nobody has looked.
bool CompletionRelay::may_use(SlotTable::Hold& hold) {
  const SlotContents& contents = hold.contents();
  const bool is_whole = contents.composed() == 0 || !parts_.format.geometry.window;
  const bool is_changed = !is_proven_ || !is_current();  // its adapters, perhaps, while this request waited
  return contents.is_owners() && is_whole && !is_changed;
}

// llama-server lets a request without adapters go on from what one with them has computed.
void CompletionRelay::note_plain(const PlainRequest& plain, bool is_answered) {
  if (plain.has_adapters) {
    (void)empty_slot();
  } else if (is_answered && answer_.count().prompt_tokens().value_or(0) > 0) {
    hold_.contents().filled();  // by an empty prompt it is not
  } else {
    hold_.contents().disown();
  }
}

}  // namespace larder::llama
