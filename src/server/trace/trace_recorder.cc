// SPDX-License-Identifier: Apache-2.0
#include "server/trace/trace_recorder.h"

#include <fmt/format.h>
#include <openssl/rand.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "server/key_file.h"
#include "server/trace/trace_writer.h"
#include "storage/option_text.h"

namespace larder {
namespace {

constexpr std::uint64_t kMostBlockTokens = 1 << 20;
constexpr std::size_t kLeastSecret = 16;  // bytes: a shorter one can be tried out
constexpr std::uint64_t kLeastFile = 4096;

Result<std::string> drawn_secret() {
  std::string secret(32, '\0');
  if (::RAND_bytes(reinterpret_cast<unsigned char*>(secret.data()), static_cast<int>(secret.size())) == 1)
    return secret;
  return unavailable("--record-trace: no random numbers from the system");
}

Result<std::string> secret_of(const TraceOptions& options) {
  if (options.key_file.empty()) return drawn_secret();
  Result<std::string> secret = read_key_file(options.key_file);
  if (!secret.is_ok()) return Status(secret.status().code(), "--record-trace-key: " + secret.status().message());
  if (secret->size() >= kLeastSecret) return secret;
  return invalid_argument(
      fmt::format("--record-trace-key: '{}' has {} bytes, which can be guessed; make one of at "
                  "least {}: openssl rand -hex 32 > FILE",
                  options.key_file, secret->size(), kLeastSecret));
}

}  // namespace

Status check_trace_options(const TraceOptions& options) {
  const bool has_key = !options.key_file.empty();
  if (options.path.empty() && has_key) return invalid_argument("--record-trace-key needs --record-trace: name a file");
  if (options.block_tokens < 1 || options.block_tokens > kMostBlockTokens) {
    return invalid_argument(fmt::format("--record-trace-block is {}: it must be at least 1 and at most {}",
                                        options.block_tokens, kMostBlockTokens));
  }
  const Result<std::uint64_t> size = parse_size_bytes(options.max_size);
  if (!size.is_ok()) return invalid_argument("--record-trace-max-size: " + size.status().message());
  if (*size >= kLeastFile) return Status::ok();
  return invalid_argument(
      fmt::format("--record-trace-max-size is {}: it must be at least {} bytes", options.max_size, kLeastFile));
}

// ---- what a recorder and its requests share

struct TraceEntry {
  enum class State : std::uint8_t { kOpen, kEnded, kRefused, kTaken };
  TraceEntry(TraceChain space, std::span<const TokenId> tokens, std::uint32_t answers_at_once)
      : chain(std::move(space)), prompt(tokens.size()), answers(std::max(answers_at_once, 1U)) {
    chain.append(tokens, ids);
    if (const auto rest = chain.rest()) ids.push_back(*rest);
  }
  // owned by the request
  TraceChain chain;
  // constant once it waits
  const std::uint64_t prompt;
  const std::uint32_t answers;
  TimePoint arrival;
  // guarded by the mutex of the core
  std::vector<std::uint64_t> ids, output_ids;
  std::uint64_t output = 0;
  State state = State::kOpen;
};

class TraceCore : public std::enable_shared_from_this<TraceCore> {
 public:
  TraceCore(TraceIds ids, std::unique_ptr<TraceFile> file, const Clock& clock, std::uint64_t max_bytes,
            const TraceLimits& limits, MetricsRegistry& registry)
      : ids_(std::move(ids)),
        limits_(limits),
        clock_(clock),
        metrics_(registry),
        writer_(std::move(file), clock, ids_.block_tokens(), max_bytes, metrics_) {}

  void set_executor(Executor& executor) { executor_ = &executor; }
  [[nodiscard]] std::shared_ptr<TraceEntry> begin(std::span<const TokenId> prompt, TraceSpace space,
                                                  std::uint32_t answers) LARDER_EXCLUDES(mutex_);
  void add_output(TraceEntry& entry, std::span<const TokenId> tokens) LARDER_EXCLUDES(mutex_);
  void set_output(TraceEntry& entry, std::uint64_t tokens) LARDER_EXCLUDES(mutex_);
  void settle(TraceEntry& entry, TraceEntry::State state) LARDER_EXCLUDES(mutex_);
  // What is open is taken as far as it has come, and no more requests are.
  void close() LARDER_EXCLUDES(mutex_);
  // After close(), when no task runs.
  void write_rest() LARDER_EXCLUDES(mutex_);
  void note_unknown() { metrics_.dropped_unknown.increment(); }

 private:
  void take_first() LARDER_REQUIRES(mutex_);
  void take_ended() LARDER_REQUIRES(mutex_);
  // A task is to be posted.
  [[nodiscard]] bool wants_task() LARDER_REQUIRES(mutex_);
  void post() LARDER_EXCLUDES(mutex_);
  void write_ready() LARDER_EXCLUDES(mutex_);

  const TraceIds ids_;
  const TraceLimits limits_;
  const Clock& clock_;
  TraceMetrics metrics_;
  TraceWriter writer_;  // owned by the task, then by write_rest()
  Executor* executor_ = nullptr;

  RankedMutex mutex_{LockRank::kInbox};
  std::deque<std::shared_ptr<TraceEntry>> waiting_ LARDER_GUARDED_BY(mutex_);  // by arrival
  std::uint64_t waiting_ids_ LARDER_GUARDED_BY(mutex_) = 0;
  std::vector<TraceLine> ready_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t ready_ids_ LARDER_GUARDED_BY(mutex_) = 0;
  TimePoint last_arrival_ LARDER_GUARDED_BY(mutex_);
  bool has_task_ LARDER_GUARDED_BY(mutex_) = false;
  bool is_closed_ LARDER_GUARDED_BY(mutex_) = false;
};

std::shared_ptr<TraceEntry> TraceCore::begin(std::span<const TokenId> prompt, TraceSpace space, std::uint32_t answers) {
  if (prompt.empty()) return nullptr;
  if (writer_.is_over()) {
    metrics_.dropped_size.increment();
    return nullptr;
  }
  std::string own;
  if (space.is_private) {
    Result<std::string> drawn = drawn_secret();
    if (!drawn.is_ok()) {
      note_unknown();
      return nullptr;
    }
    own = std::move(*drawn);
    space.salt = own;
  }
  const TimePoint arrival = clock_.now();
  auto entry = std::make_shared<TraceEntry>(ids_.chain(space), prompt, answers);
  bool is_wanted = false;
  {
    LockGuard guard(mutex_);
    if (is_closed_) return nullptr;
    // Threads that were given a time may come here in another order.
    entry->arrival = last_arrival_ = std::max(last_arrival_, arrival);
    waiting_ids_ += entry->ids.size();
    waiting_.push_back(entry);
    while (waiting_.size() > limits_.waiting || (waiting_ids_ > limits_.ids && waiting_.size() > 1)) {
      take_first();
      take_ended();
    }
    is_wanted = wants_task();
  }
  if (is_wanted) post();
  return entry;
}

void TraceCore::add_output(TraceEntry& entry, std::span<const TokenId> tokens) {
  std::vector<std::uint64_t> filled;
  if (entry.answers == 1) entry.chain.append(tokens, filled);
  LockGuard guard(mutex_);
  if (entry.state != TraceEntry::State::kOpen) return;
  entry.output += tokens.size();
  entry.output_ids.insert(entry.output_ids.end(), filled.begin(), filled.end());
  waiting_ids_ += filled.size();
}

void TraceCore::set_output(TraceEntry& entry, std::uint64_t tokens) {
  LockGuard guard(mutex_);
  if (entry.state == TraceEntry::State::kOpen) entry.output = tokens;
}

void TraceCore::settle(TraceEntry& entry, TraceEntry::State state) {
  bool is_wanted = false;
  {
    LockGuard guard(mutex_);
    if (is_closed_ || entry.state != TraceEntry::State::kOpen) return;
    entry.state = state;
    take_ended();
    is_wanted = wants_task();
  }
  if (is_wanted) post();
}

void TraceCore::take_first() {
  TraceEntry& entry = *waiting_.front();
  const std::uint64_t count = entry.ids.size() + entry.output_ids.size();
  const bool is_refused = entry.state == TraceEntry::State::kRefused;
  if (entry.state == TraceEntry::State::kOpen) metrics_.early.increment();
  entry.state = TraceEntry::State::kTaken;
  waiting_ids_ -= count;
  const bool has_room = ready_.size() < limits_.ready && ready_ids_ + count <= limits_.ids;
  if (!is_refused && (has_room || ready_.empty())) {
    ready_ids_ += count;
    ready_.push_back({entry.arrival, entry.prompt, (entry.output + entry.answers - 1) / entry.answers,
                      std::move(entry.ids), std::move(entry.output_ids)});
  } else if (!is_refused) {
    metrics_.dropped_queue.increment();
  }
  waiting_.pop_front();
}

void TraceCore::take_ended() {
  while (!waiting_.empty() && waiting_.front()->state != TraceEntry::State::kOpen) take_first();
}

bool TraceCore::wants_task() {
  if (ready_.empty() || has_task_) return false;
  has_task_ = true;
  return true;
}

void TraceCore::post() {
  const Status posted = executor_->post([core = shared_from_this()] { core->write_ready(); });
  if (posted.is_ok()) return;
  LockGuard guard(mutex_);
  has_task_ = false;  // the next request tries again
}

void TraceCore::write_ready() {
  for (;;) {
    std::vector<TraceLine> lines;
    {
      LockGuard guard(mutex_);
      lines.swap(ready_);
      ready_ids_ = 0;
      if (lines.empty()) {
        has_task_ = false;
        return;
      }
    }
    writer_.write(lines);
  }
}

void TraceCore::close() {
  LockGuard guard(mutex_);
  is_closed_ = true;
  while (!waiting_.empty()) take_first();
}

void TraceCore::write_rest() {
  write_ready();
  writer_.close();
}

// ---- a request

TraceRequest& TraceRequest::operator=(TraceRequest&& other) noexcept {
  if (this == &other) return *this;
  end();
  core_ = std::move(other.core_);
  entry_ = std::move(other.entry_);
  return *this;
}

void TraceRequest::set_output(std::uint64_t tokens) {
  if (entry_) core_->set_output(*entry_, tokens);
}

void TraceRequest::add_output(std::span<const TokenId> tokens) {
  if (entry_) core_->add_output(*entry_, tokens);
}

void TraceRequest::refuse() {
  if (entry_) core_->settle(*entry_, TraceEntry::State::kRefused);
}

void TraceRequest::end() {
  if (entry_) core_->settle(*entry_, TraceEntry::State::kEnded);
}

// ---- the recorder

Result<std::unique_ptr<TraceRecorder>> TraceRecorder::open(const TraceOptions& options, FileSystem& files, Clock& clock,
                                                           MetricsRegistry& metrics, Executor* executor,
                                                           const TraceLimits& limits) {
  LARDER_RETURN_IF_ERROR(check_trace_options(options));
  if (options.path.empty()) return std::unique_ptr<TraceRecorder>();
  LARDER_ASSIGN_OR_RETURN(const std::string secret, secret_of(options));
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t max_bytes, parse_size_bytes(options.max_size));
  LARDER_ASSIGN_OR_RETURN(auto file, TraceFile::open(files, options.path, options.block_tokens, max_bytes));
  if (!file->is_empty() && options.key_file.empty()) {
    log_warning("trace", fmt::format("'{}' is continued with a new key, so that what these requests share with its "
                                     "earlier ones cannot be seen: --record-trace-key",
                                     options.path));
  }
  log_info("trace", fmt::format("requests are recorded to '{}'", options.path));
  auto core = std::make_shared<TraceCore>(TraceIds(secret, options.block_tokens), std::move(file), clock, max_bytes,
                                          limits, metrics);
  std::unique_ptr<Executor> own;
  if (executor == nullptr) own = std::make_unique<ThreadPoolExecutor>("trace", 1, 2);
  core->set_executor(executor == nullptr ? *own : *executor);
  return std::unique_ptr<TraceRecorder>(new TraceRecorder(std::move(core), std::move(own)));
}

TraceRecorder::TraceRecorder(std::shared_ptr<TraceCore> core, std::unique_ptr<Executor> own)
    : core_(std::move(core)), own_(std::move(own)) {}

TraceRecorder::~TraceRecorder() {
  core_->close();
  own_.reset();
  core_->write_rest();
}

TraceRequest TraceRecorder::begin(std::span<const TokenId> prompt, const TraceSpace& space, std::uint32_t answers) {
  TraceRequest request;
  request.entry_ = core_->begin(prompt, space, answers);
  if (request.entry_) request.core_ = core_;
  return request;
}

void TraceRecorder::note_unknown() { core_->note_unknown(); }

}  // namespace larder
