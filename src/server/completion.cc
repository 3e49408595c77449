// SPDX-License-Identifier: Apache-2.0
#include "server/completion.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "server/api_error.h"
#include "server/json_text.h"
#include "server/reply_format.h"

namespace larder {
namespace {

double seconds_between(TimePoint from, TimePoint to) { return std::chrono::duration<double>(to - from).count(); }

// Where the earliest of the stop strings begins; npos: nowhere.
std::size_t find_stop(const std::string& text, const std::vector<std::string>& stops, std::string& matched) {
  std::size_t best = std::string::npos;
  for (const std::string& stop : stops) {
    const std::size_t at = text.find(stop);
    if (at < best) {
      best = at;
      matched = stop;
    }
  }
  return best;
}

// Bytes at the end of `text` that may be the beginning of a stop string: they wait for what follows.
std::size_t held_back(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t longest = 0;
  for (const std::string& stop : stops) {
    for (std::size_t n = std::min(stop.size() - 1, text.size()); n > longest; --n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) {
        longest = n;
        break;
      }
    }
  }
  return longest;
}

}  // namespace

void OpenCompletions::add(const std::shared_ptr<Completion>& completion) {
  LockGuard guard(mutex_);
  if (open_.size() >= next_sweep_) {
    std::erase_if(open_, [](const std::weak_ptr<Completion>& one) { return one.expired(); });
    next_sweep_ = std::max(next_sweep_, 2 * open_.size());
  }
  open_.push_back(completion);
}

void OpenCompletions::cut_off(const Status& why) {
  std::vector<std::shared_ptr<Completion>> all;  // dies behind the lock
  {
    LockGuard guard(mutex_);
    for (const std::weak_ptr<Completion>& one : open_) {
      if (auto completion = one.lock()) all.push_back(std::move(completion));
    }
  }
  for (const auto& completion : all) completion->cut_off(why);
}

Completion::Completion(CompletionContext context, std::shared_ptr<HttpExchange> exchange,
                       std::unique_ptr<ReplyFormat> format, bool is_stream)
    : context_(std::move(context)),
      is_stream_(is_stream),
      begun_(context_.clock->now()),
      exchange_(std::move(exchange)),
      format_(std::move(format)) {}

void Completion::start(std::vector<PromptRequest> prompts) {
  states_.resize(prompts.size());
  prompts_.resize(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::uint64_t number = context_.next_id->fetch_add(1, std::memory_order_relaxed);
    states_[i].index = i;
    states_[i].id = !prompts[i].id.empty()
                        ? prompts[i].id
                        : fmt::format("{:016x}{:08x}", static_cast<std::uint64_t>(begun_.time_since_epoch().count()),
                                      number & 0xffffffffu);
    states_[i].prompt_tokens = prompts[i].generate.tokens.size();
    prompts_[i].stop_strings = std::move(prompts[i].stop_strings);
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (context_.trace != nullptr) {
      const GenerateRequest& asked = prompts[i].generate;
      prompts_[i].trace =
          context_.trace->begin(asked.tokens, {context_.scheduler->model().id, asked.adapter, asked.salt});
    }
    auto ticket = context_.scheduler->submit(
        std::move(prompts[i].generate),
        [self = shared_from_this(), i](const GenerateUpdate& update) { self->receive(i, update); });
    if (!ticket.is_ok()) {
      prompts_[i].trace.refuse();
      const std::string where = prompts.size() > 1 ? fmt::format("prompt {}: ", i) : std::string{};
      states_[i].status = Status(ticket.status().code(), where + ticket.status().message());
      return answer_failure();
    }
    prompts_[i].ticket = *ticket;
  }
  exchange_->on_gone([self = shared_from_this()] {
    self->is_over_ = true;
    self->cancel_all();
  });
}

void Completion::receive(std::size_t index, const GenerateUpdate& update) {
  {
    LockGuard guard(mutex_);
    inbox_.push_back({index, update});
    if (is_posted_) return;
    is_posted_ = true;
  }
  exchange_->post([self = shared_from_this()] { self->advance(); });
}

void Completion::advance() {
  std::vector<Item> items;
  {
    LockGuard guard(mutex_);
    items.swap(inbox_);
    is_posted_ = false;
  }
  for (const Item& item : items) absorb(item);
  if (is_over_) return;
  if (is_stream_) return pump();
  const bool has_failed = std::any_of(states_.begin(), states_.end(), [](const auto& s) { return !s.status.is_ok(); });
  if (has_failed) return answer_failure();
  if (!all_ended()) return;
  is_over_ = true;
  HttpResponse response;
  response.body = format_->body(states_);
  exchange_->respond(std::move(response));
}

void Completion::absorb(const Item& item) {
  CompletionState& state = states_[item.index];
  if (state.is_ended()) return;  // e.g. tokens behind a stop string
  const GenerateUpdate& update = item.update;
  state.cached = update.cached;
  state.cached.prompt = state.prompt_tokens;
  state.ttft_seconds = update.ttft_seconds;
  state.queue_seconds = update.queue_seconds;
  absorb_tokens(item.index, update.new_tokens);
  if (state.is_ended()) return;  // a stop string
  state.status = update.status;
  state.finish = update.finish;
  if (state.is_ended()) {
    pass_text(item.index, true);
    end_prompt(item.index);
  }
}

void Completion::absorb_tokens(std::size_t index, std::span<const TokenId> tokens) {
  CompletionState& state = states_[index];
  Prompt& prompt = prompts_[index];
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    state.tokens.push_back(tokens[i]);
    if (!state.ids_json.empty()) state.ids_json += ',';
    state.ids_json += std::to_string(tokens[i]);
    prompt.held += prompt.decoder.push(tokens.subspan(i, 1));
    state.completion_tokens = state.tokens.size();
    prompt.trace.add_output(tokens.subspan(i, 1));
    if (!prompt.stop_strings.empty() && pass_text(index, false)) {
      state.finish = FinishReason::kStop;
      if (prompt.ticket) context_.scheduler->finish(*prompt.ticket);
      return end_prompt(index);
    }
  }
  if (prompt.stop_strings.empty()) pass_text(index, false);
}

bool Completion::pass_text(std::size_t index, bool is_end) {
  CompletionState& state = states_[index];
  Prompt& prompt = prompts_[index];
  if (is_end) prompt.held += prompt.decoder.finish();
  const std::size_t stop = find_stop(prompt.held, prompt.stop_strings, state.matched_stop);
  const bool is_stopped = stop != std::string::npos;
  std::size_t ready = is_stopped ? stop : prompt.held.size();
  if (!is_stopped && !is_end) ready -= held_back(prompt.held, prompt.stop_strings);
  append_json_escaped(std::string_view(prompt.held).substr(0, ready), state.text_json);
  state.text.append(prompt.held, 0, ready);
  prompt.held.erase(0, ready);
  return is_stopped;
}

void Completion::end_prompt(std::size_t index) {
  CompletionState& state = states_[index];
  prompts_[index].ticket.reset();
  prompts_[index].trace.end();
  state.e2e_seconds = seconds_between(begun_, context_.clock->now());
  if (context_.recent) remember(state);
}

namespace {
// What new tokens alone explain is no news.
void tell_miss(const RecentRequest& request) {
  const Miss& miss = request.cached.miss;
  const bool is_news = miss.reason != MissReason::kNone && miss.reason != MissReason::kNeverSeen;
  const LogLevel level = is_news ? LogLevel::kInfo : LogLevel::kDebug;
  if (miss.reason == MissReason::kNone || !log_enabled(level)) return;
  log_line(
      level, "cache",
      fmt::format("request {} ({}) reused {} of {} prompt tokens: {}: {}", request.cached.request.v, request.id,
                  request.cached.cached(), request.cached.prompt, miss_reason_name(miss.reason), miss_sentence(miss)));
}
}  // namespace

void Completion::remember(const CompletionState& state) {
  RecentRequest request;
  request.id = state.id;
  request.ended_unix_seconds = context_.clock->wall_unix_seconds();
  request.completion_tokens = state.completion_tokens;
  request.cached = state.cached;
  request.cached.prompt = state.prompt_tokens;
  request.finish = state.status.is_ok() ? std::string(finish_name(state.finish)) : "error";
  if (!state.status.is_ok()) request.error = state.status.message();
  request.ttft_seconds = state.ttft_seconds;
  request.e2e_seconds = state.e2e_seconds;
  tell_miss(request);
  context_.recent->add(std::move(request));
}

void Completion::pump() {
  if (is_writing_ || is_over_) return;
  std::string out;
  for (CompletionState& state : states_) {
    if (!state.status.is_ok() && !is_begun_) return answer_failure();  // a proper status is still possible
    if (!state.has_news()) continue;
    if (state.status.is_ok()) {
      state.e2e_seconds = state.is_ended() ? state.e2e_seconds : seconds_between(begun_, context_.clock->now());
      format_->append_event(state, out);
    } else {
      out += "data: " + error_body(http_status_of(state.status.code()), state.status.message()) + "\n\n";
      state.is_end_sent = true;
    }
  }
  const bool is_last =
      std::all_of(states_.begin(), states_.end(), [](const CompletionState& s) { return s.is_end_sent; });
  if (is_last) {
    format_->append_end(states_, out);
    out += "data: [DONE]\n\n";
  }
  if (out.empty()) return;
  if (!is_begun_) {
    HttpResponse head;
    head.content_type = "text/event-stream";
    head.headers.emplace_back("Cache-Control", "no-cache");
    exchange_->begin_stream(std::move(head));
  }
  is_begun_ = true;
  is_writing_ = true;
  is_over_ = is_last;
  exchange_->write(std::move(out), is_last, [self = shared_from_this()] {
    self->is_writing_ = false;
    self->pump();
  });
}

void Completion::cut_off(const Status& why) {
  exchange_->post([self = shared_from_this(), why] { self->fail(why); });
}

void Completion::fail(const Status& why) {
  if (is_over_) return;
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    if (states_[i].is_ended()) continue;
    if (prompts_[i].ticket) context_.scheduler->cancel(*prompts_[i].ticket);
    states_[i].status = why;
    end_prompt(i);
  }
  if (is_stream_) return pump();
  answer_failure();
}

void Completion::answer_failure() {
  is_over_ = true;
  cancel_all();
  for (const CompletionState& state : states_) {
    if (!state.status.is_ok()) return exchange_->respond(error_response(state.status));
  }
}

void Completion::cancel_all() {
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    const auto& ticket = prompts_[i].ticket;
    if (!ticket) continue;
    context_.scheduler->cancel(*ticket);
    if (states_[i].is_ended()) continue;
    states_[i].finish = FinishReason::kAbort;
    end_prompt(i);
  }
}

bool Completion::all_ended() const {
  return std::all_of(states_.begin(), states_.end(), [](const CompletionState& s) { return s.is_ended(); });
}

}  // namespace larder
