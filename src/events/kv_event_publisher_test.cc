// SPDX-License-Identifier: Apache-2.0
// The publisher before real sockets: what subscribers and readers of a replay get, late ones and rude ones too.
#include "events/kv_event_publisher.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <zmq.hpp>
#include <zmq_addon.hpp>

namespace larder {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::milliseconds kPatience{20'000};

std::uint64_t number_in(const zmq::message_t& frame) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < frame.size(); ++i)
    number = number << 8 | static_cast<const std::uint8_t*>(frame.data())[i];
  return number;
}

struct Received {
  std::string topic;
  std::uint64_t number = 0;
  Json batch;
};

// Says what it likes to a publisher.
class Stranger {
 public:
  Stranger(zmq::context_t& context, const std::string& endpoint) : socket_(context, zmq::socket_type::xsub) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::reconnect_ivl, -1);
    monitor_.init(socket_, "inproc://stranger", ZMQ_EVENT_DISCONNECTED);
    socket_.connect(endpoint);
  }
  void say(const std::string& word) { (void)socket_.send(zmq::buffer(word), zmq::send_flags::none); }
  // Says what nobody takes. What was said before has arrived when the publisher has hung up.
  [[nodiscard]] bool is_cut_off_for_too_much() {
    say(std::string(2000, 'x'));
    return monitor_.check_event(static_cast<int>(kPatience.count()));
  }

 private:
  zmq::socket_t socket_;
  zmq::monitor_t monitor_;  // goes first
};

class KvEventPublisherTest : public testing::Test {
 protected:
  void open(std::uint64_t buffer_steps = 100, KvEventForm form = KvEventForm::kMaps) {
    form_ = form;
    KvEventConfig config;
    config.endpoint = config.replay_endpoint = "tcp://127.0.0.1:*";
    config.buffer_steps = buffer_steps;
    config.topic = "kv";
    open_with(config);
    subscriber_ = subscribe("kv");
    reader_ = zmq::socket_t(context_, zmq::socket_type::dealer);
    reader_.set(zmq::sockopt::linger, 0);
    reader_.connect(publisher_->replay_endpoint());
  }
  void open_with(const KvEventConfig& config) {
    auto opened = open_kv_event_publisher(config, {.form = form_, .page_size = 1}, &metrics_);
    ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
    publisher_ = std::move(opened).value();
  }
  zmq::socket_t subscribe(std::string_view topic) {
    zmq::socket_t subscriber(context_, zmq::socket_type::sub);
    subscriber.set(zmq::sockopt::subscribe, topic);
    subscriber.set(zmq::sockopt::linger, 0);
    subscriber.connect(publisher_->endpoint());
    return subscriber;
  }
  void TearDown() override {
    subscriber_.close();
    reader_.close();
  }
  void publish(std::int64_t block) {
    publisher_->take({{KvEventKind::kStored, ComponentKind::kFull, Tier::kDevice, {block}, {}, {1}, {}}});
  }
  // Until a batch arrives: a subscription takes its time, and batches before it are not for this subscriber.
  Received first_batch() {
    for (std::int64_t block = 1; block < 2000; ++block) {
      publish(block);
      if (auto received = receive(std::chrono::milliseconds(10))) return *received;
    }
    return {};
  }
  std::optional<Received> receive(std::chrono::milliseconds limit) {
    subscriber_.set(zmq::sockopt::rcvtimeo, static_cast<int>(limit.count()));
    std::vector<zmq::message_t> frames;
    if (!zmq::recv_multipart(subscriber_, std::back_inserter(frames))) return std::nullopt;
    EXPECT_EQ(frames.size(), 3u);
    return Received{frames[0].to_string(), number_in(frames[1]), Json::from_msgpack(frames[2].to_string())};
  }
  void ask(std::string bytes) {
    std::vector<zmq::message_t> frames(2);
    frames[1].rebuild(bytes.data(), bytes.size());
    (void)zmq::send_multipart(reader_, frames);
  }
  void ask_from(std::uint64_t number) {
    std::string bytes(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (8 * (7 - i)));
    ask(bytes);
  }
  // Numbers of the batches of one answer.
  std::vector<std::uint64_t> replayed() {
    reader_.set(zmq::sockopt::rcvtimeo, static_cast<int>(kPatience.count()));
    std::vector<std::uint64_t> numbers;
    for (;;) {
      std::vector<zmq::message_t> frames;
      if (!zmq::recv_multipart(reader_, std::back_inserter(frames))) return {};
      const std::size_t number_at = form_ == KvEventForm::kMaps ? 2 : 1;  // after an empty frame and the topic
      if (frames.size() != number_at + 2) return {};
      const std::uint64_t number = number_in(frames[number_at]);
      if (number == ~std::uint64_t{0}) {
        EXPECT_TRUE(frames.back().empty());
        return numbers;
      }
      if (form_ == KvEventForm::kMaps) {
        EXPECT_EQ(frames[1].to_string(), "kv");
      }
      EXPECT_FALSE(Json::from_msgpack(frames.back().to_string()).empty());
      numbers.push_back(number);
    }
  }

  static std::uint64_t front_of(const std::vector<std::uint64_t>& numbers) {
    return numbers.empty() ? ~std::uint64_t{0} : numbers.front();
  }
  // Within a few seconds: an answer is sent before the wish is noted.
  bool comes_to_want_all() {
    for (int i = 0; i < 1000; ++i) {
      if (publisher_->wish() == KvEventSink::Wish::kAll) return true;
      (void)receive(std::chrono::milliseconds(10));
    }
    return false;
  }

  KvEventForm form_{};
  MetricsRegistry metrics_;
  zmq::context_t context_;
  std::unique_ptr<KvEventPublisher> publisher_;
  zmq::socket_t subscriber_, reader_;
};

TEST_F(KvEventPublisherTest, BatchesArriveInOrderWithTopicAndNumber) {
  open();
  const Received first = first_batch();
  EXPECT_EQ(first.topic, "kv");
  for (std::int64_t i = 1; i <= 50; ++i) publish(1'000'000 + i);
  std::uint64_t next = first.number + 1;
  for (std::int64_t told = 0; told < 50; ++next) {
    const std::optional<Received> received = receive(kPatience);
    ASSERT_TRUE(received);
    EXPECT_EQ(received->number, next);
    const auto block = received->batch[1][0].at("block_hashes")[0].get<std::int64_t>();
    if (block < 1'000'000) continue;  // one more of first_batch()
    EXPECT_EQ(block, 1'000'000 + ++told);
  }
}

TEST_F(KvEventPublisherTest, WhoComesLateAsksFromTheBeginning) {
  open();
  for (std::int64_t i = 0; i < 10; ++i) publish(i);
  const Received last = first_batch();
  ask_from(0);
  std::vector<std::uint64_t> numbers = replayed();
  ASSERT_GT(numbers.size(), 10u);
  for (std::uint64_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], numbers[0] + i);
  EXPECT_GE(numbers.back(), last.number);
  EXPECT_EQ(publisher_->wish(), KvEventSink::Wish::kChanges) << "all that was asked for is kept";
  ask_from(last.number);
  EXPECT_EQ(front_of(replayed()), last.number);
}

TEST_F(KvEventPublisherTest, ReplaysOfTheOldFormHaveNoTopic) {
  open(100, KvEventForm::kArrays);
  const Received last = first_batch();
  ask_from(last.number);
  EXPECT_EQ(front_of(replayed()), last.number);
}

TEST_F(KvEventPublisherTest, WhoAsksForWhatIsNotKeptHasAllToldAnew) {
  open(4);
  const Received last = first_batch();
  for (std::int64_t i = 0; i < 10; ++i) publish(i);
  for (std::optional<Received> next = receive(kPatience); next && next->number < last.number + 10;) {
    next = receive(kPatience);
  }
  ask_from(0);
  EXPECT_EQ(replayed().size(), 4u);
  EXPECT_TRUE(comes_to_want_all());
  EXPECT_EQ(publisher_->wish(), KvEventSink::Wish::kChanges) << "said once";
}

TEST_F(KvEventPublisherTest, WhoCannotAskHasAllToldAnewWhenItSubscribes) {
  KvEventConfig config;
  config.endpoint = "tcp://127.0.0.1:*";
  config.topic = "kv";
  open_with(config);
  publish(1);
  // The second subscribes to what the first has subscribed to.
  for (int i = 0; i < 2; ++i) {
    zmq::socket_t other = std::exchange(subscriber_, subscribe("kv"));
    EXPECT_TRUE(comes_to_want_all());
    publisher_->take({{KvEventKind::kCleared, {}, {}, {}, {}, {}, {}},
                      {KvEventKind::kStored, ComponentKind::kFull, Tier::kDevice, {7}, {}, {1}, {}}});
    const std::optional<Received> beginning = receive(kPatience);
    ASSERT_TRUE(beginning);
    EXPECT_EQ(beginning->batch[1][0].at("type"), "AllBlocksCleared");
    EXPECT_EQ(beginning->batch[1][1].at("block_hashes")[0], 7);
    EXPECT_EQ(publisher_->wish(), KvEventSink::Wish::kChanges) << "said once a subscription to this topic";
  }
}

TEST_F(KvEventPublisherTest, WhoSubscribesToNothingHereChangesNothing) {
  KvEventConfig config;
  config.endpoint = "tcp://127.0.0.1:*";
  config.topic = "kv";
  open_with(config);
  subscriber_ = subscribe("kv");
  EXPECT_TRUE(comes_to_want_all());
  Stranger stranger(context_, publisher_->endpoint());
  stranger.say("\1other");
  stranger.say("xkv");  // no subscription
  ASSERT_TRUE(stranger.is_cut_off_for_too_much()) << "so that all it said before is there";
  // Each batch is a turn of the publisher's thread, in which it looks at what is there.
  for (std::int64_t turn = 0; turn < 50; ++turn) {
    publish(turn);
    ASSERT_TRUE(receive(kPatience));
    ASSERT_EQ(publisher_->wish(), KvEventSink::Wish::kChanges) << turn;
  }
}

TEST_F(KvEventPublisherTest, NumbersOfAProcessThatStartsAnewAreLarger) {
  open();
  const Received before = first_batch();
  publisher_.reset();
  open();
  EXPECT_GT(first_batch().number, before.number + 1) << "a reader sees a gap";
  ask_from(before.number + 1);
  EXPECT_GT(front_of(replayed()), before.number + 1);
  EXPECT_EQ(publisher_->wish(), KvEventSink::Wish::kChanges) << "its own story is whole";
}

TEST_F(KvEventPublisherTest, WhoKnowsMoreThanThereWasHasAllToldAnew) {
  open();
  const Received last = first_batch();
  ask_from(last.number + 1000);
  EXPECT_TRUE(replayed().empty());
  EXPECT_TRUE(comes_to_want_all());
}

// One that takes whole answers again and again, however small the buffer.
TEST_F(KvEventPublisherTest, AReaderMayAskAgain) {
  open(4);
  (void)first_batch();
  for (std::int64_t i = 0; i < 10; ++i) publish(i);
  for (int i = 0; i < 20; ++i) {
    ask_from(0);
    ASSERT_EQ(replayed().size(), 4u) << i;
  }
}

// One that asks and never reads holds up neither the events nor the end.
TEST_F(KvEventPublisherTest, AReaderThatDoesNotReadIsNoBurden) {
  open();
  const Received first = first_batch();
  for (int i = 0; i < 2000; ++i) ask_from(0);
  publish(1'000'000);
  for (std::optional<Received> next = receive(kPatience);; next = receive(kPatience)) {
    ASSERT_TRUE(next);
    if (next->batch[1][0].at("block_hashes")[0].get<std::int64_t>() == 1'000'000) break;
  }
  publisher_.reset();
}

TEST_F(KvEventPublisherTest, ListensOnAddressesOfIpv6) {
  KvEventConfig config;
  config.endpoint = config.replay_endpoint = "tcp://[::1]:*";
  const auto opened = open_kv_event_publisher(config, {.page_size = 1}, nullptr);
  ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
  EXPECT_TRUE((*opened)->endpoint().starts_with("tcp://[::1]:")) << (*opened)->endpoint();
}

TEST_F(KvEventPublisherTest, AFullQueueWantsNothing) {
  KvEventConfig config;
  config.endpoint = "tcp://127.0.0.1:*";
  config.max_queue_size = 1;
  auto opened = open_kv_event_publisher(config, {.page_size = 1}, &metrics_);
  ASSERT_TRUE(opened.is_ok());
  publisher_ = std::move(*opened);
  bool was_full = false;
  for (int i = 0; i < 100'000 && !was_full; ++i) {
    publish(i);
    was_full = publisher_->wish() == KvEventSink::Wish::kNothing;
  }
  EXPECT_TRUE(was_full);
}

TEST_F(KvEventPublisherTest, WhatIsNoRequestIsDropped) {
  open();
  (void)first_batch();
  for (const std::string& rude : {std::string(), std::string("seven b"), std::string(9, 'x'), std::string(900, 'y')})
    ask(rude);
  (void)reader_.send(zmq::str_buffer("one frame alone"), zmq::send_flags::none);
  zmq::socket_t large(context_, zmq::socket_type::dealer);  // is disconnected
  large.set(zmq::sockopt::linger, 0);
  large.connect(publisher_->replay_endpoint());
  (void)large.send(zmq::message_t(std::string(100'000, 'z')), zmq::send_flags::none);
  ask_from(0);
  EXPECT_FALSE(replayed().empty());
}

TEST_F(KvEventPublisherTest, AnAddressThatIsTakenIsAnErrorThatNamesItsKey) {
  open();
  KvEventConfig second;
  second.endpoint = publisher_->endpoint();
  const auto opened = open_kv_event_publisher(second, {.page_size = 1}, nullptr);
  ASSERT_FALSE(opened.is_ok());
  EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(opened.status().message().find("--kv-events-config: endpoint: cannot listen on '" + second.endpoint +
                                           "': Address already in use"),
            std::string::npos)
      << opened.status().message();
}

TEST_F(KvEventPublisherTest, WhatWasTakenIsPublishedBeforeTheEnd) {
  open();
  const Received first = first_batch();
  for (std::int64_t i = 0; i < 20; ++i) publish(1'000'000 + i);
  publisher_.reset();
  std::int64_t told = 0;
  while (const auto received = receive(std::chrono::milliseconds(500))) {
    told += received->batch[1][0].at("block_hashes")[0].get<std::int64_t>() >= 1'000'000;
  }
  EXPECT_EQ(told, 20);
}

}  // namespace
}  // namespace larder
