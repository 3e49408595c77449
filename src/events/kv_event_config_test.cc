// SPDX-License-Identifier: Apache-2.0
#include "events/kv_event_config.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace larder {
namespace {

TEST(KvEventConfig, NobodyIsToldUnlessAPublisherIsNamed) {
  EXPECT_FALSE(parse_kv_event_config("")->is_on);
  EXPECT_FALSE(parse_kv_event_config("{}")->is_on);
  EXPECT_FALSE(parse_kv_event_config(R"({"publisher":"null","endpoint":"tcp://*:1"})")->is_on);
  const Result<KvEventConfig> usual = parse_kv_event_config(R"({"publisher":"zmq"})");
  ASSERT_TRUE(usual.is_ok());
  EXPECT_TRUE(usual->is_on);
  EXPECT_TRUE(usual->binds);
  EXPECT_EQ(usual->endpoint, "tcp://127.0.0.1:5557") << "this machine only: it carries prompts";
  EXPECT_EQ(usual->hwm, 10'000u) << "as docs/kv_events.md has it";
}

TEST(KvEventConfig, AConfigurationOfSglangMeansTheSame) {
  const Result<KvEventConfig> config = parse_kv_event_config(
      R"({"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558","buffer_steps":7,"hwm":8,)"
      R"("max_queue_size":9,"topic":"kv"})");
  ASSERT_TRUE(config.is_ok()) << config.status().to_string();
  EXPECT_EQ(config->replay_endpoint, "tcp://*:5558");
  EXPECT_EQ(config->buffer_steps, 7u);
  EXPECT_EQ(config->hwm, 8u);
  EXPECT_EQ(config->max_queue_size, 9u);
  EXPECT_EQ(config->topic, "kv");
  EXPECT_EQ(config->form, KvEventForm::kMaps);
  EXPECT_FALSE(config->all_components);
  for (const char* endpoint : {"tcp://*:*", "tcp://h:0", "tcp://[::]:65535", "tcp://eth0;10.0.0.1:5557", "ipc://a:b"}) {
    const std::string text = R"({"endpoint":")" + std::string(endpoint) + R"("})";
    EXPECT_TRUE(parse_kv_event_config(text).is_ok()) << endpoint;
  }
  EXPECT_TRUE(parse_kv_event_config(R"({"replay_endpoint":null,"bind":null,"format":"dynamo"})").is_ok());
}

// SGLang's rule, and how to say otherwise.
TEST(KvEventConfig, WhoBinds) {
  const auto binds = [](const std::string& more) {
    return parse_kv_event_config(R"({"publisher":"zmq")" + more + "}")->binds;
  };
  EXPECT_TRUE(binds(R"(,"endpoint":"tcp://*:5557")"));
  EXPECT_TRUE(binds(R"(,"endpoint":"tcp://[::]:5557")"));
  EXPECT_TRUE(binds(R"(,"endpoint":"tcp://0.0.0.0:5557")"));
  EXPECT_TRUE(binds(R"(,"endpoint":"ipc:///run/kv")"));
  EXPECT_FALSE(binds(R"(,"endpoint":"tcp://router:5557")"));
  EXPECT_TRUE(binds(R"(,"bind":true,"endpoint":"tcp://10.0.0.1:5557")"));
  EXPECT_FALSE(binds(R"(,"endpoint":"ipc:///run/kv","bind":false)"));
}

TEST(KvEventConfig, WhatIsWrongIsNamed) {
  for (const auto& [text, complaint] : {
           std::pair{"[]", "expected a JSON object"},
           std::pair{"{", "--kv-events-config:1:2"},
           std::pair{R"({"publisher":"kafka"})", R"(publisher: expected one of "null", "zmq")"},
           std::pair{R"({"publisher":true})", R"(publisher: expected one of "null", "zmq")"},
           std::pair{R"({"endpoints":"x"})", "endpoints: no such key; there are publisher"},
           std::pair{R"({"endpoint":"localhost:5557"})", "endpoint: 'localhost:5557' is no endpoint; expected tcp://"},
           std::pair{R"({"endpoint":"tcp://"})", "endpoint: 'tcp://' is no endpoint"},
           std::pair{R"({"endpoint":"tcp://host"})", "endpoint: 'tcp://host' is no endpoint"},
           std::pair{R"({"endpoint":"tcp://:5557"})", "endpoint: 'tcp://:5557' is no endpoint"},
           std::pair{R"({"endpoint":"tcp://*:"})", "endpoint: 'tcp://*:' needs a port from 0 to 65535"},
           std::pair{R"({"endpoint":"tcp://*:70000"})", "endpoint: 'tcp://*:70000' needs a port from 0 to 65535"},
           std::pair{R"({"replay_endpoint":"tcp://[::1]"})", "replay_endpoint: 'tcp://[::1]' needs a port"},
           std::pair{R"({"endpoint":"tcp://*:-1"})", "endpoint: 'tcp://*:-1' needs a port"},
           std::pair{R"({"replay_endpoint":"udp://x"})", "replay_endpoint: 'udp://x' is no endpoint"},
           std::pair{R"({"hwm":0})", "hwm: expected a whole number from 1"},
           std::pair{R"({"buffer_steps":2147483647})", "buffer_steps: expected a whole number from 1"},
           std::pair{R"({"max_queue_size":1e12})", "max_queue_size: expected a whole number from 1"},
           std::pair{R"({"topic":7})", "topic: expected a text"},
           std::pair{R"({"bind":"yes"})", "bind: expected true or false"},
           std::pair{R"({"groups":"some"})", R"(groups: expected one of "full", "all")"},
           std::pair{R"({"encoding":"xml"})", R"(encoding: expected one of "map", "array")"},
       }) {
    const Result<KvEventConfig> config = parse_kv_event_config(text);
    ASSERT_FALSE(config.is_ok()) << text;
    EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(config.status().message().find(complaint), std::string::npos) << config.status().message();
    EXPECT_NE(config.status().message().find("--kv-events-config"), std::string::npos);
  }
}

}  // namespace
}  // namespace larder
