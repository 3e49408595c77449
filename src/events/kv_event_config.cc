// SPDX-License-Identifier: Apache-2.0
#include "events/kv_event_config.h"

#include <charconv>
#include <optional>

#include "config/parse_tree.h"

namespace larder {
namespace {

constexpr std::string_view kOption = "--kv-events-config";

Status wrong(std::string_view key, std::string_view what) {
  return invalid_argument(std::string(kOption) + ": " + std::string(key) + ": " + std::string(what));
}

Status read_text(const TreeEntry& entry, std::string& out) {
  const auto* const text = entry.second.as<std::string>();
  if (text == nullptr) return wrong(entry.first, "expected a text");
  out = *text;
  return Status::ok();
}

// One of two words.
Status read_choice(const TreeEntry& entry, std::string_view usual, std::string_view other, bool& is_other) {
  const auto* const text = entry.second.as<std::string>();
  if (text == nullptr || (*text != usual && *text != other)) {
    return wrong(entry.first, "expected one of \"" + std::string(usual) + "\", \"" + std::string(other) + "\"");
  }
  is_other = *text == other;
  return Status::ok();
}

// ZeroMQ counts in int, and twice as far.
Status read_count(const TreeEntry& entry, std::uint64_t& out) {
  constexpr std::uint64_t kMost = 1'000'000'000;
  const auto* const number = entry.second.as<std::uint64_t>();
  if (number == nullptr || *number == 0 || *number > kMost) {
    return wrong(entry.first, "expected a whole number from 1 to " + std::to_string(kMost));
  }
  out = *number;
  return Status::ok();
}

// ZeroMQ takes the lower 16 bits of what is too large.
bool is_port(std::string_view text) {
  if (text == "*") return true;
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc{} && end == text.data() + text.size();
}

Status check_endpoint(std::string_view key, std::string_view endpoint) {
  constexpr std::string_view kTcp = "tcp://", kIpc = "ipc://";
  if (endpoint.starts_with(kIpc) && endpoint.size() > kIpc.size()) return Status::ok();
  const std::size_t colon = endpoint.rfind(':');
  if (endpoint.starts_with(kTcp) && colon > kTcp.size()) {
    if (is_port(endpoint.substr(colon + 1))) return Status::ok();
    return wrong(key, "'" + std::string(endpoint) + "' needs a port from 0 to 65535, or *, at its end");
  }
  return wrong(key,
               "'" + std::string(endpoint) + "' is no endpoint; expected tcp://HOST:PORT, tcp://*:PORT or ipc://PATH");
}

bool binds_by_rule(std::string_view endpoint) {
  return endpoint.find('*') != std::string_view::npos || endpoint.find("::") != std::string_view::npos ||
         endpoint.find("0.0.0.0") != std::string_view::npos || endpoint.starts_with("ipc://");
}

struct Reading {
  KvEventConfig config;
  std::optional<bool> binds;
  bool names_endpoint = false;

  Status read(const TreeEntry& entry) {
    const std::string& key = entry.first;
    if (key == "publisher") return read_choice(entry, "null", "zmq", config.is_on);
    if (key == "groups") return read_choice(entry, "full", "all", config.all_components);
    // SGLang's word for hashes that tell adapters and tenants apart, which Larder's always do.
    bool is_other = false;
    if (key == "format") return read_choice(entry, "default", "dynamo", is_other);
    if (key == "encoding") {
      const Status read = read_choice(entry, "map", "array", is_other);
      config.form = is_other ? KvEventForm::kArrays : KvEventForm::kMaps;
      return read;
    }
    if (key == "endpoint") return names_endpoint = true, read_text(entry, config.endpoint);
    // SGLang writes null for none.
    const bool is_null = entry.second.as<std::monostate>() != nullptr;
    if (is_null && (key == "replay_endpoint" || key == "bind")) return Status::ok();
    if (key == "replay_endpoint") return read_text(entry, config.replay_endpoint);
    if (key == "buffer_steps") return read_count(entry, config.buffer_steps);
    if (key == "hwm") return read_count(entry, config.hwm);
    if (key == "max_queue_size") return read_count(entry, config.max_queue_size);
    if (key == "topic") return read_text(entry, config.topic);
    if (key == "bind") {
      const auto* const truth = entry.second.as<bool>();
      if (truth == nullptr) return wrong(key, "expected true or false");
      binds = *truth;
      return Status::ok();
    }
    return wrong(key,
                 "no such key; there are publisher, endpoint, replay_endpoint, buffer_steps, hwm, max_queue_size, "
                 "topic, bind, format, groups, encoding");
  }
};

}  // namespace

Result<KvEventConfig> parse_kv_event_config(std::string_view text) {
  Reading reading;
  if (text.empty()) return reading.config;
  LARDER_ASSIGN_OR_RETURN(const Tree tree, parse_json_tree(text, kOption));
  const auto* const table = tree.as<Tree::Table>();
  if (table == nullptr) {
    return invalid_argument(std::string(kOption) + ": expected a JSON object, such as {\"publisher\":\"zmq\"}");
  }
  for (const TreeEntry& entry : *table) LARDER_RETURN_IF_ERROR(reading.read(entry));
  KvEventConfig& config = reading.config;
  LARDER_RETURN_IF_ERROR(check_endpoint("endpoint", config.endpoint));
  if (!config.replay_endpoint.empty())
    LARDER_RETURN_IF_ERROR(check_endpoint("replay_endpoint", config.replay_endpoint));
  if (reading.names_endpoint) config.binds = binds_by_rule(config.endpoint);
  if (reading.binds) config.binds = *reading.binds;
  return config;
}

}  // namespace larder
