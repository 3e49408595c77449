// SPDX-License-Identifier: Apache-2.0
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "base/log.h"
#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "events/kv_event_publisher.h"

namespace larder {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;  // of what waits, and of what is kept
constexpr std::int64_t kMostRequestBytes = 1024;                // of a frame that a reader sends
constexpr int kLingerMilliseconds = 1000;
constexpr int kHeartbeatMilliseconds = 10'000, kHeartbeatPatience = 30'000;  // peers that are gone hold no memory
constexpr std::uint64_t kEndOfReplay = ~std::uint64_t{0};                    // -1
constexpr int kSubscriptionsPerTurn = 100;

bool names_loopback(std::string_view endpoint) {
  return endpoint.find("//127.") != std::string_view::npos || endpoint.find("//localhost:") != std::string_view::npos;
}

double unix_seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

zmq::message_t number_frame(std::uint64_t number) {
  std::array<std::uint8_t, 8> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(number >> (8 * (7 - i)));
  return {bytes.data(), bytes.size()};
}

std::uint64_t number_of(const zmq::message_t& frame) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < frame.size(); ++i)
    number = (number << 8) | static_cast<const std::uint8_t*>(frame.data())[i];
  return number;
}

struct TakenBatch {
  std::vector<KvEvent> events;
  double unix_seconds = 0;
  std::uint64_t bytes = 0;
};

std::uint64_t bytes_of(const std::vector<KvEvent>& events) {
  std::uint64_t bytes = 0;
  for (const KvEvent& event : events) {
    bytes += sizeof(event) + event.blocks.size() * sizeof(std::int64_t) + event.tokens.size() * sizeof(TokenId);
    if (event.names) bytes += event.names->adapter.size() + event.names->salt.size();
  }
  return bytes;
}

// Counts, or does not.
class EventMetrics {
 public:
  explicit EventMetrics(MetricsRegistry* registry) {
    if (registry == nullptr) return;
    batches_ = &registry->counter("larder_kv_events_batches_total", "Batches of KV events that were published.");
    held_back_ = &registry->counter("larder_kv_events_held_back_total",
                                    "Times that the queue of KV events was full, so that changes were not told.");
    beginnings_ = &registry->counter("larder_kv_events_beginnings_total",
                                     "Batches of KV events that begin anew, with AllBlocksCleared.");
    replays_ =
        &registry->counter("larder_kv_events_replays_total", "Requests for KV events that were published before.");
  }
  void published() const { add(batches_); }
  void held_back() const { add(held_back_); }
  void began() const { add(beginnings_); }
  void replayed() const { add(replays_); }

 private:
  static void add(Counter* counter) {
    if (counter != nullptr) counter->increment();
  }
  Counter *batches_ = nullptr, *held_back_ = nullptr, *beginnings_ = nullptr, *replays_ = nullptr;
};

class ZmqPublisher final : public KvEventPublisher {
 public:
  ZmqPublisher(const KvEventConfig& config, const KvEventShape& shape, MetricsRegistry* metrics)
      : config_(config), shape_(shape), metrics_(metrics), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~ZmqPublisher() override {
    {
      LockGuard guard(mutex_);
      is_stopping_ = true;
    }
    wake();
    thread_.reset();
    if (wake_ >= 0) ::close(wake_);
  }

  [[nodiscard]] Status open();
  const std::string& endpoint() const override { return endpoint_; }
  const std::string& replay_endpoint() const override { return replay_endpoint_; }
  const std::string& topic() const override { return config_.topic; }

  Wish wish() override;
  void take(std::vector<KvEvent> events) override;
  void dropped() override { metrics_.held_back(); }
  bool wants_all_components() const override { return config_.all_components; }

 private:
  struct Kept {
    std::uint64_t number = 0;
    zmq::message_t batch;
  };

  [[nodiscard]] Status open_socket(zmq::socket_t& socket, std::string_view key, const std::string& address, bool binds,
                                   std::string& real_address) const;
  void wake() const { (void)!::write(wake_, &kOne, sizeof(kOne)); }
  // The thread.
  void run();
  void wait();
  void turn();
  [[nodiscard]] bool is_stopping() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::optional<TakenBatch> next_taken() LARDER_EXCLUDES(mutex_);
  void publish(const TakenBatch& batch);
  void look_at_subscriptions();
  void answer_one();
  void replay_from(const zmq::message_t& reader, std::uint64_t first);

  static constexpr std::uint64_t kOne = 1;

  const KvEventConfig config_;
  const KvEventShape shape_;
  const EventMetrics metrics_;
  const int wake_;  // readable: there is something in the queue, or the end has come
  std::string endpoint_, replay_endpoint_;

  RankedMutex mutex_{LockRank::kInbox};
  std::deque<TakenBatch> queue_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t queued_bytes_ LARDER_GUARDED_BY(mutex_) = 0;
  bool is_stopping_ LARDER_GUARDED_BY(mutex_) = false;
  std::atomic<bool> wants_all_{false};

  // owned by the thread once it runs
  zmq::context_t context_{1};
  zmq::socket_t out_, readers_;
  // Those of a process that starts anew are larger than any before, unless the clock was set back.
  const std::uint64_t first_number_ = static_cast<std::uint64_t>(unix_seconds_now() * 1e6);
  std::uint64_t next_number_ = first_number_;
  std::deque<Kept> kept_;
  std::uint64_t kept_bytes_ = 0;

  std::unique_ptr<ThreadPoolExecutor> thread_;  // last: it ends before what it uses
};

Status ZmqPublisher::open_socket(zmq::socket_t& socket, std::string_view key, const std::string& address, bool binds,
                                 std::string& real_address) const {
  socket.set(zmq::sockopt::maxmsgsize, kMostRequestBytes);
  socket.set(zmq::sockopt::heartbeat_ivl, kHeartbeatMilliseconds);
  socket.set(zmq::sockopt::heartbeat_timeout, kHeartbeatPatience);
  if (address.find('[') != std::string::npos) socket.set(zmq::sockopt::ipv6, true);
  try {
    binds ? socket.bind(address) : socket.connect(address);
    real_address = binds ? socket.get(zmq::sockopt::last_endpoint) : address;
    return Status::ok();
  } catch (const zmq::error_t& error) {
    return invalid_argument("--kv-events-config: " + std::string(key) + ": cannot " +
                            (binds ? "listen on '" : "connect to '") + address + "': " + error.what());
  }
}

Status ZmqPublisher::open() {
  if (wake_ < 0) return internal_error(std::string("KV events: eventfd: ") + std::strerror(errno));
  out_ = zmq::socket_t(context_, zmq::socket_type::xpub);
  out_.set(zmq::sockopt::xpub_verbose, true);  // also of a second subscriber to the same topic
  out_.set(zmq::sockopt::sndhwm, static_cast<int>(config_.hwm));
  out_.set(zmq::sockopt::linger, kLingerMilliseconds);
  LARDER_RETURN_IF_ERROR(open_socket(out_, "endpoint", config_.endpoint, config_.binds, endpoint_));
  if (!config_.replay_endpoint.empty()) {
    readers_ = zmq::socket_t(context_, zmq::socket_type::router);
    // Two whole answers: ZeroMQ notes in halves what a reader has taken, and drops what is beyond.
    readers_.set(zmq::sockopt::sndhwm, static_cast<int>(2 * (config_.buffer_steps + 1)));
    readers_.set(zmq::sockopt::linger, 0);
    LARDER_RETURN_IF_ERROR(open_socket(readers_, "replay_endpoint", config_.replay_endpoint, true, replay_endpoint_));
  }
  thread_ = std::make_unique<ThreadPoolExecutor>("kv-events", 1, 1);
  return thread_->post([this] { run(); });
}

KvEventSink::Wish ZmqPublisher::wish() {
  {
    LockGuard guard(mutex_);
    if (queue_.size() >= config_.max_queue_size || queued_bytes_ >= kMostBytes) return Wish::kNothing;
  }
  return wants_all_.exchange(false, std::memory_order_acq_rel) ? Wish::kAll : Wish::kChanges;
}

void ZmqPublisher::take(std::vector<KvEvent> events) {
  TakenBatch batch{std::move(events), unix_seconds_now(), 0};
  batch.bytes = bytes_of(batch.events);
  {
    LockGuard guard(mutex_);
    const std::uint64_t bytes = batch.bytes;
    queue_.push_back(std::move(batch));
    queued_bytes_ += bytes;
  }
  wake();
}

bool ZmqPublisher::is_stopping() {
  LockGuard guard(mutex_);
  return is_stopping_;
}

std::optional<TakenBatch> ZmqPublisher::next_taken() {
  LockGuard guard(mutex_);
  if (queue_.empty()) return std::nullopt;
  TakenBatch batch = std::move(queue_.front());
  queue_.pop_front();
  queued_bytes_ -= batch.bytes;
  return batch;
}

void ZmqPublisher::run() {
  while (!is_stopping()) {
    wait();
    turn();
  }
  turn();  // what was taken before the end
}

// Until there is something to do. A signal ends it, too.
void ZmqPublisher::wait() {
  std::array<zmq::pollitem_t, 3> items = {
      {{nullptr, wake_, ZMQ_POLLIN, 0}, {out_.handle(), 0, ZMQ_POLLIN, 0}, {readers_.handle(), 0, ZMQ_POLLIN, 0}}};
  try {
    (void)zmq::poll(items.data(), readers_ ? 3 : 2, std::chrono::milliseconds(-1));
  } catch (const zmq::error_t& error) {
    if (error.num() != EINTR) log_warning("events", error.what());
  }
  std::uint64_t count = 0;
  (void)!::read(wake_, &count, sizeof(count));
}

// What waits is published first, then one reader is answered: readers cannot hold up the events.
void ZmqPublisher::turn() {
  try {
    while (const std::optional<TakenBatch> batch = next_taken()) publish(*batch);
    look_at_subscriptions();
    if (readers_) answer_one();
  } catch (const std::exception& error) {  // its number is used up: who sees the gap asks, and all is told anew
    log_warning("events", error.what());
    wants_all_.store(true, std::memory_order_release);
    wake();  // what has come since
  }
}

void ZmqPublisher::publish(const TakenBatch& batch) {
  const std::uint64_t number = next_number_++;
  const std::vector<std::uint8_t> bytes = encode_kv_events(shape_, batch.events, batch.unix_seconds);
  Kept kept{number, zmq::message_t(bytes.data(), bytes.size())};
  zmq::message_t shared;
  shared.copy(kept.batch);
  std::array<zmq::message_t, 3> frames = {zmq::message_t(config_.topic), number_frame(kept.number), std::move(shared)};
  kept_bytes_ += kept.batch.size();
  kept_.push_back(std::move(kept));
  while (kept_.size() > config_.buffer_steps || (kept_bytes_ > kMostBytes && kept_.size() > 1)) {
    kept_bytes_ -= kept_.front().batch.size();
    kept_.pop_front();
  }
  (void)zmq::send_multipart(out_, frames);
  metrics_.published();
  if (!batch.events.empty() && batch.events.front().kind == KvEventKind::kCleared) metrics_.began();
}

// Who cannot ask for what was published before is told all anew: it has missed the beginning of this process, as has a
// subscriber of the one before that connects again.
void ZmqPublisher::look_at_subscriptions() {
  zmq::message_t message;
  for (int left = kSubscriptionsPerTurn; left > 0 && out_.recv(message, zmq::recv_flags::dontwait); --left) {
    const std::string_view bytes = message.to_string_view();
    const bool is_of_topic = bytes.starts_with('\1') && config_.topic.starts_with(bytes.substr(1));
    if (is_of_topic && !readers_) wants_all_.store(true, std::memory_order_release);
  }
}

// What a reader asks for: its name, an empty frame, a number.
void ZmqPublisher::answer_one() {
  std::vector<zmq::message_t> frames;
  if (!zmq::recv_multipart(readers_, std::back_inserter(frames), zmq::recv_flags::dontwait)) return;
  if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != sizeof(std::uint64_t)) return;
  replay_from(frames[0], number_of(frames[2]));
}

void ZmqPublisher::replay_from(const zmq::message_t& reader, std::uint64_t first) {
  metrics_.replayed();
  const auto send = [&](std::string_view topic, std::uint64_t number, zmq::message_t batch) {
    std::vector<zmq::message_t> frames(2);
    frames[0].rebuild(reader.data(), reader.size());
    if (shape_.form == KvEventForm::kMaps) frames.emplace_back(topic);
    frames.push_back(number_frame(number));
    frames.push_back(std::move(batch));
    (void)zmq::send_multipart(readers_, frames);
  };
  for (Kept& kept : kept_) {
    if (kept.number < first) continue;
    zmq::message_t shared;
    shared.copy(kept.batch);
    send(config_.topic, kept.number, std::move(shared));
  }
  send("", kEndOfReplay, zmq::message_t());
  // It lacks what is gone; or it knows more than there was.
  const std::uint64_t oldest = kept_.empty() ? first_number_ : kept_.front().number;
  const bool lacks_some = first < oldest && oldest > first_number_;
  if (lacks_some || first > next_number_) wants_all_.store(true, std::memory_order_release);
}

}  // namespace

Result<std::unique_ptr<KvEventPublisher>> open_kv_event_publisher(const KvEventConfig& config,
                                                                  const KvEventShape& shape, MetricsRegistry* metrics) {
  try {
    auto publisher = std::make_unique<ZmqPublisher>(config, shape, metrics);
    LARDER_RETURN_IF_ERROR(publisher->open());
    if (!config.binds && names_loopback(config.endpoint)) {
      log_warning("events", "KV events go to " + config.endpoint +
                                ", where a subscriber has to listen; \"bind\":true listens there");
    }
    log_info("events", "KV events, with the token ids of prompts, " +
                           std::string(config.binds ? "are told to whoever connects to " : "go to ") +
                           publisher->endpoint() +
                           (config.replay_endpoint.empty() ? "" : "; replays on " + publisher->replay_endpoint()));
    return std::unique_ptr<KvEventPublisher>(std::move(publisher));
  } catch (const zmq::error_t& error) {
    return internal_error(std::string("KV events: ZeroMQ: ") + error.what());
  }
}

}  // namespace larder
