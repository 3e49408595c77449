// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_multiturn.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/http_client.h"
#include "base/ranked_mutex.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "server/answer_hint.h"

namespace larder {
namespace {

using PlainJson = nlohmann::json;

Nanos timeout_of(const MultiturnOptions& options) {
  return std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(options.timeout_seconds));
}

// A bar that is redrawn in place; silent unless standard error is a terminal. Any thread, under the queue's lock.
class ProgressBar {
 public:
  ProgressBar(const MultiturnOptions& options, std::size_t total)
      : label_(options.label), total_(total), is_shown_(options.show_progress && ::isatty(STDERR_FILENO) == 1) {}
  ~ProgressBar() {
    if (is_shown_) std::fprintf(stderr, "\r\x1b[K");
  }
  void show(std::size_t done, std::uint64_t cached, std::uint64_t prompt) const {
    if (!is_shown_) return;
    constexpr std::size_t kWidth = 40;
    const std::size_t full = total_ > 0 ? done * kWidth / total_ : kWidth;
    const double rate = prompt > 0 ? static_cast<double>(cached) / static_cast<double>(prompt) : 0;
    std::fprintf(stderr, "\r%s[%s%s] %zu/%zu turns, hit rate %.3f", label_.empty() ? "" : (label_ + " ").c_str(),
                 std::string(full, '#').c_str(), std::string(kWidth - full, ' ').c_str(), done, total_, rate);
    std::fflush(stderr);
  }

 private:
  const std::string label_;
  const std::size_t total_;
  const bool is_shown_;
};

struct ServerFacts {
  std::uint32_t page_size = 0;
  std::uint32_t vocab_size = 256;
};

// What the options leave open. A server without /model_info gets bytes as tokens.
Result<ServerFacts> ask_server(const MultiturnOptions& options, const HttpUrl& url) {
  ServerFacts facts;
  HttpClient client(url, timeout_of(options), options.api_key);
  for (const char* target : {"/server_info", "/model_info"}) {
    const Result<HttpReply> reply = client.request("GET", target);
    if (!reply.is_ok()) return reply.status();
    const PlainJson info = PlainJson::parse(reply->body, nullptr, false);
    if (reply->status == 401) {
      return unavailable(fmt::format("GET {}: HTTP 401: {}{}", target, reply->body.substr(0, 300),
                                     answer_hint(401, "--api-key-file FILE", "")));
    }
    if (reply->status != 200 || !info.is_object()) continue;
    if (info.contains("page_size") && info["page_size"].is_number_unsigned()) facts.page_size = info["page_size"];
    if (info.contains("vocab_size") && info["vocab_size"].is_number_unsigned()) facts.vocab_size = info["vocab_size"];
  }
  if (options.page_size > 0) facts.page_size = options.page_size;
  if (options.vocab_size > 0) facts.vocab_size = options.vocab_size;
  if (facts.page_size == 0) return unavailable("the server does not tell its page size: give --page-size");
  return facts;
}

// The fresh tokens of one turn: a function of (seed, client, round).
std::vector<TokenId> fresh_tokens(const MultiturnOptions& options, std::uint32_t vocab_size, std::uint32_t client,
                                  std::uint32_t round) {
  Rng rng(options.seed * 0x9e3779b97f4a7c15ull + (static_cast<std::uint64_t>(client) << 32) + round);
  std::vector<TokenId> tokens(options.request_length);
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng.below(vocab_size));
  return tokens;
}

std::string request_body(const std::vector<TokenId>& prompt, std::uint32_t output_length) {
  std::string ids;
  for (const TokenId token : prompt) ids += (ids.empty() ? "" : ",") + std::to_string(token);
  return fmt::format(
      "{{\"input_ids\":[{}],\"sampling_params\":{{\"temperature\":0.0,\"max_new_tokens\":{},\"ignore_eos\":true}},"
      "\"stream\":true,\"stream_options\":{{\"include_usage\":true}},\"lora_path\":\"\",\"return_logprob\":false,"
      "\"logprob_start_len\":-1}}",
      ids, output_length);
}

// Reads one event into the record. False: not what we know. Throws json::exception on a wrong type.
bool read_event(const PlainJson& event, double elapsed, TurnRecord& record) {
  const PlainJson& ids = event.at("output_ids");
  const PlainJson& meta = event.at("meta_info");
  if (ids.empty()) return true;
  if (record.ttft == 0) record.ttft = elapsed;
  const std::size_t offset = event.value("output_ids_offset", std::size_t{0});
  if (offset > record.output.size()) return false;
  record.output.resize(offset);
  for (const PlainJson& id : ids) record.output.push_back(id.get<TokenId>());
  record.prompt_tokens = meta.value("prompt_tokens", std::uint64_t{0});
  record.completion_tokens = meta.value("completion_tokens", std::uint64_t{0});
  record.cached = meta.value("cached_tokens", std::uint64_t{0});
  if (meta.contains("cached_tokens_stop")) record.stop = meta["cached_tokens_stop"].dump();
  if (!meta.contains("cached_tokens_details") || meta["cached_tokens_details"].is_null()) return true;
  const PlainJson& details = meta["cached_tokens_details"];
  record.device = details.value("device", std::uint64_t{0});
  record.host = details.value("host", std::uint64_t{0});
  record.storage = details.value("storage", std::uint64_t{0});
  return true;
}

bool absorb_event(std::string_view text, double elapsed, TurnRecord& record) {
  try {
    return read_event(PlainJson::parse(text), elapsed, record);
  } catch (const PlainJson::exception&) {  // an error event, or another API
    return false;
  }
}

Status send_turn(HttpClient& client, const std::vector<TokenId>& prompt, std::uint32_t output_length,
                 TurnRecord& record) {
  const TimePoint begin = real_clock().now();
  const auto elapsed = [&] { return std::chrono::duration<double>(real_clock().now() - begin).count(); };
  std::string problem;
  bool is_done = false;
  const auto reply =
      client.stream("POST", "/generate", request_body(prompt, output_length), [&](std::string_view line) {
        if (!line.starts_with("data: ")) return true;
        if (line == "data: [DONE]") {
          is_done = true;
          return true;
        }
        if (absorb_event(line.substr(6), elapsed(), record)) return true;
        problem = "the server sent: " + std::string(line.substr(0, 300));
        return false;
      });
  record.latency = elapsed();
  if (!problem.empty()) return internal_error(problem);
  if (!reply.is_ok()) return reply.status();
  if (reply->status != 200) return unavailable(fmt::format("HTTP {}: {}", reply->status, reply->body.substr(0, 500)));
  if (!is_done) return corrupt("the stream ended without [DONE]");
  if (record.output.size() != output_length) {
    return corrupt(fmt::format("{} output tokens came, {} were asked for", record.output.size(), output_length));
  }
  return Status::ok();
}

// The turns that may be sent now, and what is left of each client's conversation.
class TurnQueue {
 public:
  struct Turn {
    std::uint32_t client = 0, round = 0;
    std::vector<TokenId> prompt;
    std::uint32_t sent = 0;
  };
  // Given the turn just answered and its output: the client's next prompt, or nothing when it is done.
  using Next = std::function<std::optional<std::vector<TokenId>>(const Turn&, const std::vector<TokenId>&)>;

  TurnQueue(const MultiturnOptions& options, std::size_t total_turns, Next next)
      : next_(std::move(next)),
        order_(options.order),
        rng_(options.seed),
        left_(total_turns),
        total_(total_turns),
        bar_(options, total_turns) {}

  void add(Turn turn) {
    LockGuard guard(mutex_);
    ready_.push_back(std::move(turn));
  }

  // Waits for a turn; nullopt when all are done or one has failed.
  std::optional<Turn> take() {
    LockGuard guard(mutex_);
    while (ready_.empty() && left_ > 0 && failure_.is_ok()) changed_.wait(mutex_);
    if (left_ == 0 || !failure_.is_ok()) return std::nullopt;
    if (order_ == TurnOrder::kRandom) std::swap(ready_.front(), ready_[rng_.below(ready_.size())]);
    Turn turn = std::move(ready_.front());
    ready_.pop_front();
    turn.sent = next_sent_++;
    return turn;
  }

  void done(Turn turn, TurnRecord record) {
    std::optional<std::vector<TokenId>> prompt = next_(turn, record.output);
    LockGuard guard(mutex_);
    cached_ += record.cached;
    prompt_ += record.prompt_tokens;
    result_.turns.push_back(std::move(record));
    if (prompt) {
      ready_.push_back({turn.client, turn.round + 1, std::move(*prompt), 0});
    } else {
      if (result_.last_prompts.size() <= turn.client) result_.last_prompts.resize(turn.client + 1);
      result_.last_prompts[turn.client] = std::move(turn.prompt);
    }
    --left_;
    bar_.show(total_ - left_, cached_, prompt_);
    changed_.notify_all();
  }

  void fail(const Turn& turn, const Status& status) {
    LockGuard guard(mutex_);
    if (!failure_.is_ok()) return;
    failure_ = Status(status.code(), fmt::format("client {}, round {}: {}", turn.client, turn.round, status.message()));
    changed_.notify_all();
  }

  Result<MultiturnResult> take_result() {
    LockGuard guard(mutex_);
    if (!failure_.is_ok()) return failure_;
    std::sort(result_.turns.begin(), result_.turns.end(), [](const TurnRecord& a, const TurnRecord& b) {
      return std::pair(a.round, a.client) < std::pair(b.round, b.client);
    });
    return std::move(result_);
  }

 private:
  const Next next_;
  const TurnOrder order_;
  RankedMutex mutex_{LockRank::kServer};
  RankedCondition changed_;
  Rng rng_ LARDER_GUARDED_BY(mutex_);
  std::deque<Turn> ready_ LARDER_GUARDED_BY(mutex_);
  std::uint32_t next_sent_ LARDER_GUARDED_BY(mutex_) = 0;
  std::size_t left_ LARDER_GUARDED_BY(mutex_);
  const std::size_t total_;
  const ProgressBar bar_;
  std::uint64_t cached_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint64_t prompt_ LARDER_GUARDED_BY(mutex_) = 0;
  Status failure_ LARDER_GUARDED_BY(mutex_);
  MultiturnResult result_ LARDER_GUARDED_BY(mutex_);
};

Result<MultiturnResult> run_queue(const MultiturnOptions& options, const HttpUrl& url, TurnQueue& queue) {
  const TimePoint begin = real_clock().now();
  {
    ThreadPoolExecutor pool("client", options.max_parallel, options.max_parallel);
    for (std::uint32_t i = 0; i < options.max_parallel; ++i) {
      LARDER_RETURN_IF_ERROR(pool.post([&] {
        HttpClient client(url, timeout_of(options), options.api_key);
        while (std::optional<TurnQueue::Turn> turn = queue.take()) {
          TurnRecord record;
          record.client = turn->client;
          record.round = turn->round;
          record.sent = turn->sent;
          const Status status = send_turn(client, turn->prompt, options.output_length, record);
          if (!status.is_ok()) {
            queue.fail(*turn, status);
          } else {
            queue.done(std::move(*turn), std::move(record));
          }
        }
      }));
    }
  }
  Result<MultiturnResult> result = queue.take_result();
  if (result.is_ok()) {
    result->wall_seconds = std::chrono::duration<double>(real_clock().now() - begin).count();
  }
  return result;
}

Status check_options(const MultiturnOptions& o) {
  const auto in = [](std::uint64_t value, std::uint64_t low, std::uint64_t high) {
    return value >= low && value <= high;
  };
  if (!in(o.num_clients, 1, kMostConversations)) return invalid_argument("--num-clients must be in [1, 10000]");
  if (!in(o.num_rounds, 1, kMostConversations)) return invalid_argument("--num-rounds must be in [1, 10000]");
  if (!in(o.request_length, 1, kMostTurnTokens)) return invalid_argument("--request-length must be in [1, 1000000]");
  if (!in(o.output_length, 1, kMostTurnTokens)) return invalid_argument("--output-length must be in [1, 1000000]");
  if (!in(o.max_parallel, 1, 1024)) return invalid_argument("--max-parallel must be in [1, 1024]");
  if (!(o.timeout_seconds > 0 && o.timeout_seconds <= 86'400)) {
    return invalid_argument("--timeout must be in (0, 86400] seconds");
  }
  return Status::ok();
}

}  // namespace

std::uint64_t prompt_tokens_of(const MultiturnOptions& options, std::uint32_t round) {
  const std::uint64_t turn = std::uint64_t{options.request_length} + options.output_length;
  return turn * round + options.request_length;
}

std::uint64_t ideal_cached_tokens(const MultiturnOptions& options, std::uint32_t page_size, std::uint32_t round) {
  if (round == 0 || page_size == 0) return 0;
  const std::uint64_t computed = prompt_tokens_of(options, round - 1) + options.output_length - 1;
  return computed / page_size * page_size;
}

Result<MultiturnResult> run_multiturn(const MultiturnOptions& options) {
  LARDER_RETURN_IF_ERROR(check_options(options));
  const Result<HttpUrl> url = parse_http_url(options.url, options.ca_file);
  if (!url.is_ok()) return url.status();
  const Result<ServerFacts> facts = ask_server(options, *url);
  if (!facts.is_ok()) return facts.status();
  const auto next = [&](const TurnQueue::Turn& turn,
                        const std::vector<TokenId>& output) -> std::optional<std::vector<TokenId>> {
    if (turn.round + 1 >= options.num_rounds) return std::nullopt;
    std::vector<TokenId> prompt = turn.prompt;
    prompt.insert(prompt.end(), output.begin(), output.end());
    const std::vector<TokenId> fresh = fresh_tokens(options, facts->vocab_size, turn.client, turn.round + 1);
    prompt.insert(prompt.end(), fresh.begin(), fresh.end());
    return prompt;
  };
  TurnQueue queue(options, std::size_t{options.num_clients} * options.num_rounds, next);
  for (std::uint32_t c = 0; c < options.num_clients; ++c) {
    queue.add({c, 0, fresh_tokens(options, facts->vocab_size, c, 0), 0});
  }
  Result<MultiturnResult> result = run_queue(options, *url, queue);
  if (!result.is_ok()) return result;
  result->page_size = facts->page_size;
  for (TurnRecord& turn : result->turns) {
    turn.ideal_cached = ideal_cached_tokens(options, facts->page_size, turn.round);
  }
  return result;
}

Result<MultiturnResult> run_prompts(const MultiturnOptions& options, const std::vector<std::vector<TokenId>>& prompts,
                                    std::uint32_t round) {
  LARDER_RETURN_IF_ERROR(check_options(options));
  const Result<HttpUrl> url = parse_http_url(options.url, options.ca_file);
  if (!url.is_ok()) return url.status();
  TurnQueue queue(options, prompts.size(), [](const TurnQueue::Turn&, const std::vector<TokenId>&) {
    return std::optional<std::vector<TokenId>>{};
  });
  for (std::size_t c = 0; c < prompts.size(); ++c) queue.add({static_cast<std::uint32_t>(c), round, prompts[c], 0});
  return run_queue(options, *url, queue);
}

}  // namespace larder
