// SPDX-License-Identifier: Apache-2.0
#include "fakes/hf3fs/fake_config.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace larder::hf3fs {
namespace {

using Json = nlohmann::json;

template <class Enum>
Enum one_of(const Json& value, const std::map<std::string, Enum>& names) {
  const auto found = names.find(value.get<std::string>());
  if (found == names.end()) throw std::invalid_argument("unknown value " + value.dump());
  return found->second;
}

void set_defects(const Json& value, FakeConfig& config) {
  const auto names = value.get<std::vector<std::string>>();
  const auto has = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  config.d1_partial_batch_stays = has("D1");
  config.d2_ring_link_stays = has("D2");
  config.d4_semaphore_unchecked = has("D4");
  config.d8_bounds_of_first_only = has("D8");
}

// One handler per key; a key is added in one place.
using Setter = void (*)(const Json& value, FakeConfig& config);
const std::map<std::string, Setter>& setters() {
#define LARDER_FAKE_FIELD(field)                                                                              \
  {                                                                                                           \
#field, [](const Json& value, FakeConfig& config) { config.field = value.get<decltype(config.field)>(); } \
  }
  static const std::map<std::string, Setter> table = {
      LARDER_FAKE_FIELD(seed),
      LARDER_FAKE_FIELD(start_at_prep_permille),
      LARDER_FAKE_FIELD(shuffle),
      LARDER_FAKE_FIELD(check_ownership),
      LARDER_FAKE_FIELD(check_overlap),
      LARDER_FAKE_FIELD(stall_permille),
      LARDER_FAKE_FIELD(stall_ms),
      LARDER_FAKE_FIELD(stall_error),
      LARDER_FAKE_FIELD(error_permille),
      LARDER_FAKE_FIELD(error),
      LARDER_FAKE_FIELD(short_permille),
      LARDER_FAKE_FIELD(lazy_length_ms),
      LARDER_FAKE_FIELD(capacity_bytes),
      LARDER_FAKE_FIELD(read_only),
      LARDER_FAKE_FIELD(max_fds),
      LARDER_FAKE_FIELD(fail_registration),
      LARDER_FAKE_FIELD(die_after_events),
      LARDER_FAKE_FIELD(probe_blocks),
      LARDER_FAKE_FIELD(fail_call),
      LARDER_FAKE_FIELD(call_error),
      LARDER_FAKE_FIELD(semaphores_fail),
      LARDER_FAKE_FIELD(entry_bytes),
      LARDER_FAKE_FIELD(report_leaks),
      {"defects", set_defects},
      {"mode",
       [](const Json& value, FakeConfig& config) {
         config.mode = one_of<FakeMode>(
             value, {{"threads", FakeMode::kThreads}, {"sync", FakeMode::kSync}, {"sim", FakeMode::kSim}});
       }},
      {"poison",
       [](const Json& value, FakeConfig& config) {
         config.poison = one_of<PoisonMode>(
             value, {{"off", PoisonMode::kOff}, {"tail", PoisonMode::kTail}, {"prep", PoisonMode::kPrep}});
       }},
      {"roles",
       [](const Json& value, FakeConfig& config) {
         config.roles = one_of<RoleCheck>(
             value, {{"off", RoleCheck::kOff}, {"count", RoleCheck::kCount}, {"abort", RoleCheck::kAbort}});
       }},
      {"workers",
       [](const Json& value, FakeConfig& config) {
         config.workers = std::clamp(value.get<std::uint32_t>(), std::uint32_t{1}, std::uint32_t{64});
       }},
      {"chunk_bytes",
       [](const Json& value, FakeConfig& config) {
         config.chunk_bytes = value.get<std::uint64_t>();
         if (config.chunk_bytes < 512 || config.chunk_bytes > (std::uint64_t{1} << 30)) {
           throw std::invalid_argument("chunk_bytes must be 512..2^30");
         }
       }},
      {"latency_us",
       [](const Json& value, FakeConfig& config) {
         config.latency_us_least = value.at(0).get<std::uint64_t>();
         config.latency_us_most = std::max(config.latency_us_least, value.at(1).get<std::uint64_t>());
       }},
  };
#undef LARDER_FAKE_FIELD
  return table;
}

void read_chunks(const Json& value, FaultEffect& effect) {
  effect.has_chunks = true;
  effect.random_chunks = value.is_string();
  if (!effect.random_chunks) effect.chunks = value.get<std::vector<std::uint64_t>>();
  if (effect.error == 0) effect.error = EIO;
}

void read_fault(const Json& json, FaultRule& rule) {
  FaultEffect& effect = rule.effect;
  for (const auto& [key, value] : json.items()) {
    if (key == "op") {
      const auto op = value.get<std::string>();
      if (op != "read" && op != "write" && op != "any") throw std::invalid_argument("unknown op " + op);
      rule.reads = op != "write";
      rule.writes = op != "read";
    } else if (key == "skip") {
      rule.skip = value.get<std::uint64_t>();
    } else if (key == "count") {
      rule.count = value.get<std::uint64_t>();
    } else if (key == "error") {
      effect.error = value.get<int>();
    } else if (key == "chunks") {
      read_chunks(value, effect);
    } else if (key == "short_bytes") {
      effect.short_bytes = value.get<std::uint64_t>();
    } else if (key == "delay_ms") {
      effect.delay_ms = value.get<std::uint64_t>();
    } else if (key == "hold") {
      effect.hold = one_of<HoldPoint>(value, {{"before", HoldPoint::kBefore}, {"after", HoldPoint::kAfter}});
    } else if (key == "drop") {
      effect.drop = value.get<bool>();
    } else if (key == "lands_late") {
      effect.lands_late = value.get<bool>();
      if (effect.error == 0) effect.error = EIO;
    } else {
      throw std::invalid_argument("unknown key " + key);
    }
  }
}

}  // namespace

std::string parse_config(const char* json, FakeConfig& config) {
  try {
    const Json parsed = Json::parse(json);
    if (!parsed.is_object()) return "not a JSON object";
    for (const auto& [key, value] : parsed.items()) {
      const auto setter = setters().find(key);
      if (setter == setters().end()) return "unknown key " + key;
      setter->second(value, config);
    }
    return {};
  } catch (const std::exception& problem) {
    return problem.what();
  }
}

std::string parse_fault(const char* json, FaultRule& rule) {
  try {
    const Json parsed = Json::parse(json);
    if (!parsed.is_object()) return "not a JSON object";
    read_fault(parsed, rule);
    return {};
  } catch (const std::exception& problem) {
    return problem.what();
  }
}

}  // namespace larder::hf3fs
