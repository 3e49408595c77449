// SPDX-License-Identifier: Apache-2.0
#include "server/llama/libllama/llama_answer.h"

#include <llama.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace larder::llama {
namespace {

common_sampler_ptr make_sampler(const llama_model& model, common_params_sampling& params) {
  common_sampler_ptr sampler(common_sampler_init(&model, params));
  if (!sampler) throw std::invalid_argument("llama.cpp does not take these sampling parameters, or this grammar");
  return sampler;
}

}  // namespace

error_type error_type_of(StatusCode code) {
  if (code == StatusCode::kInvalidArgument) return ERROR_TYPE_INVALID_REQUEST;
  if (code == StatusCode::kOverloaded || code == StatusCode::kCancelled) return ERROR_TYPE_UNAVAILABLE;
  return ERROR_TYPE_SERVER;
}

void AnswerResults::push(server_task_result_ptr result) {
  LockGuard guard(mutex_);
  results_.push_back(std::move(result));
  changed_.notify_all();
}

server_task_result_ptr AnswerResults::pop(Nanos limit) {
  LockGuard guard(mutex_);
  if (results_.empty() && !is_abandoned()) changed_.wait_for(mutex_, limit);
  if (results_.empty() || is_abandoned()) return nullptr;
  server_task_result_ptr first = std::move(results_.front());
  results_.pop_front();
  return first;
}

void AnswerResults::abandon() {
  LockGuard guard(mutex_);
  is_abandoned_.store(true, std::memory_order_relaxed);
  changed_.notify_all();
}

void AnswerResults::note_use(const PromptUse& use) {
  LockGuard guard(mutex_);
  if (!use_) use_ = use;
}

PromptUse AnswerResults::use() const {
  LockGuard guard(mutex_);
  return use_.value_or(PromptUse{});
}

LlamaAnswer::LlamaAnswer(const llama_model& model, server_task task, std::uint32_t context_tokens,
                         std::shared_ptr<AnswerResults> results)
    : vocabulary_(llama_model_get_vocab(&model)),
      task_(std::move(task)),
      context_tokens_(context_tokens),
      results_(std::move(results)),
      sampler_(make_sampler(model, task_.params.sampling)),
      prompt_text_(tokens_to_str(vocabulary_, task_.tokens.get_tokens())) {
  for (const llama_token token : task_.tokens.get_tokens()) {
    if (token != LLAMA_TOKEN_NULL) common_sampler_accept(sampler_.get(), token, false);
  }
}

LlamaAnswer::~LlamaAnswer() {
  if (is_over_) return;
  try {
    end(internal_error("an exception inside the server ended the request"));
  } catch (...) {  // a destructor: the server's own code must not end the process
  }
}

void LlamaAnswer::begin(const PromptUse& use) {
  if (stats_.t_start != 0) return;  // it was set back: what it has reused is what it reused first
  stats_.update_prompt_start();
  stats_.n_prompt_cached = use.tokens;
  stats_.n_prompt_processed = task_.tokens.size() - use.tokens;
  results_->note_use(use);
}

std::optional<TokenId> LlamaAnswer::next(llama_context& context, std::int32_t row) {
  if (stats_.n_gen == 0) stats_.update_prompt_last();
  completion_token_output out = sample(context, row);
  const auto token = static_cast<TokenId>(out.tok);
  if (trace_) trace_->add_output({&token, 1});
  add_text(out);
  check_limits(out);
  return stop_ == STOP_TYPE_NONE ? std::optional<TokenId>(token) : std::nullopt;
}

completion_token_output LlamaAnswer::sample(llama_context& context, std::int32_t row) {
  completion_token_output out{};
  out.tok = common_sampler_sample(sampler_.get(), &context, row);
  common_sampler_accept(sampler_.get(), out.tok, true);
  stats_.n_gen += 1;
  stats_.update_gen_last();
  const bool special = task_.params.sampling.preserved_tokens.contains(out.tok);
  out.text_to_send = common_token_to_piece(&context, out.tok, special);
  out.prob = 1.0F;
  if (task_.params.sampling.n_probs > 0) add_probabilities(context, row, special, out);
  return out;
}

void LlamaAnswer::add_probabilities(llama_context& context, std::int32_t row, bool special,
                                    completion_token_output& out) {
  const auto most = static_cast<std::size_t>(task_.params.sampling.n_probs);
  const bool is_behind_samplers = task_.params.post_sampling_probs;
  std::vector<llama_token_data> all;
  if (is_behind_samplers) {
    const llama_token_data_array* candidates = common_sampler_get_candidates(sampler_.get(), true);
    all.assign(candidates->data, candidates->data + candidates->size);
  } else {
    all = get_token_probabilities(&context, row, most);
  }
  const auto mine = std::ranges::find(all, out.tok, &llama_token_data::id);
  if (mine != all.end()) out.prob = mine->p;
  for (std::size_t i = 0; i < std::min(most, all.size()); ++i) {
    if (is_behind_samplers && all[i].p == 0.0F) break;  // some samplers leave what they have ruled out
    out.probs.push_back({all[i].id, common_token_to_piece(&context, all[i].id, special), all[i].p});
  }
}

// Text goes out up to where a character is whole and no stop word may have begun.
void LlamaAnswer::add_text(completion_token_output& out) {
  const std::size_t piece = out.text_to_send.size();
  text_ += out.text_to_send;
  if (task_.params.return_tokens) tokens_.push_back(out.tok);
  if (validate_utf8(text_) < text_.size()) return;
  std::size_t from = std::min(sent_, text_.size());
  const std::string fresh = text_.substr(from);
  bool may_go = true;
  if (const std::size_t at = find_stop(fresh, piece, true); at != std::string::npos) {
    text_.resize(from + at);
    from = std::min(sent_, text_.size());
  } else if (!llama_vocab_is_eog(vocabulary_, out.tok)) {
    may_go = find_stop(fresh, piece, false) == std::string::npos;
  }
  out.text_to_send = may_go ? text_.substr(from) : std::string();
  sent_ += out.text_to_send.size();
  if (task_.params.sampling.n_probs > 0) probabilities_.push_back(out);
  if (task_.params.stream) send_piece(out);
}

std::size_t LlamaAnswer::find_stop(const std::string& text, std::size_t last_piece, bool is_whole) {
  std::size_t first = std::string::npos;
  for (const std::string& word : task_.params.antiprompt) {
    const std::size_t seen = word.size() + last_piece;
    const std::size_t at =
        is_whole ? text.find(word, text.size() > seen ? text.size() - seen : 0) : string_find_partial_stop(text, word);
    if (at == std::string::npos || (first != std::string::npos && at >= first)) continue;
    first = at;
    if (!is_whole) continue;
    stop_ = STOP_TYPE_WORD;
    stop_word_ = word;
  }
  return first;
}

void LlamaAnswer::check_limits(const completion_token_output& out) {
  const bool has_line = out.text_to_send.find('\n') != std::string::npos;
  has_new_line_ = has_new_line_ || has_line;
  const std::int32_t most = task_.params.n_predict;
  const bool is_at_limit = most >= 0 && stats_.n_gen >= static_cast<std::uint64_t>(most);
  const std::int64_t time = task_.params.t_max_predict_ms;
  const bool is_late =
      has_line && time > 0 && static_cast<double>(stats_.t_gen_us()) > 1000.0 * static_cast<double>(time);
  // The last token that was sampled is not in the context.
  is_truncated_ = task_.tokens.size() + stats_.n_gen + 1 > context_tokens_;
  if (stop_ == STOP_TYPE_NONE && (is_at_limit || is_late || is_truncated_)) stop_ = STOP_TYPE_LIMIT;
  if (llama_vocab_is_eog(vocabulary_, out.tok)) stop_ = STOP_TYPE_EOS;
}

void LlamaAnswer::send_piece(const completion_token_output& out) {
  auto piece = std::make_unique<server_task_result_cmpl_partial>();
  const task_params& params = task_.params;
  piece->id = task_.id;
  piece->index = task_.index;
  piece->content = out.text_to_send;
  piece->tokens.assign(1, out.tok);
  piece->n_decoded = static_cast<std::int32_t>(stats_.n_gen);
  piece->n_prompt_tokens = task_.n_tokens();
  piece->n_prompt_tokens_cache = static_cast<std::int32_t>(stats_.n_prompt_cached);
  piece->post_sampling_probs = params.post_sampling_probs;
  piece->verbose = params.verbose;
  piece->res_type = params.res_type;
  piece->oaicompat_model = params.oaicompat_model;
  piece->oaicompat_cmpl_id = params.oaicompat_cmpl_id;
  if (params.sampling.n_probs > 0) piece->prob_output = out;
  if (params.timings_per_token) piece->stats = stats_;
  results_->push(std::move(piece));
}

void LlamaAnswer::end(const Status& status) {
  is_over_ = true;
  if (status.is_ok()) return results_->push(whole());
  auto error = std::make_unique<server_task_result_error>();
  error->id = task_.id;
  error->index = task_.index;
  error->err_type = error_type_of(status.code());
  error->err_msg = status.message();
  results_->push(std::move(error));
}

server_task_result_ptr LlamaAnswer::whole() {
  auto all = std::make_unique<server_task_result_cmpl_final>();
  task_params& params = task_.params;
  all->id = task_.id;
  all->index = task_.index;
  if (!params.stream) {  // else the pieces have had it
    all->content = std::move(text_);
    all->tokens = std::move(tokens_);
  }
  all->stats = stats_;
  all->prompt = prompt_text_;
  all->response_fields = params.response_fields;
  all->truncated = is_truncated_;
  all->n_decoded = static_cast<std::int32_t>(stats_.n_gen);
  all->n_prompt_tokens = task_.n_tokens();
  all->n_prompt_tokens_cache = static_cast<std::int32_t>(stats_.n_prompt_cached);
  all->n_tokens_cached = task_.n_tokens() + static_cast<std::int32_t>(stats_.n_gen) - 1;
  all->has_new_line = has_new_line_;
  all->stopping_word = stop_word_;
  all->stop = stop_;
  all->post_sampling_probs = params.post_sampling_probs;
  all->verbose = params.verbose;
  all->stream = params.stream;
  all->include_usage = params.include_usage;
  all->res_type = params.res_type;
  all->oaicompat_model = params.oaicompat_model;
  all->oaicompat_cmpl_id = params.oaicompat_cmpl_id;
  if (params.sampling.n_probs > 0) {
    std::size_t cut = 0;  // the tokens of a stop word are not part of the answer
    if (!params.stream && stop_ == STOP_TYPE_WORD) {
      cut = common_tokenize(vocabulary_, stop_word_, false).size();
    }
    const auto end = probabilities_.end() - static_cast<std::ptrdiff_t>(std::min(cut, probabilities_.size()));
    all->probs_output.assign(probabilities_.begin(), end);
  }
  all->generation_params = params;
  return all;
}

}  // namespace larder::llama
