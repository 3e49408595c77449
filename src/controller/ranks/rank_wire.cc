// SPDX-License-Identifier: Apache-2.0
#include "controller/ranks/rank_wire.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/wire_bytes.h"

namespace larder::ranks {
namespace {

constexpr std::array<std::string_view, kKindCount> kKindNames = {"",      "challenge", "hello",    "welcome", "reports",
                                                                 "plans", "alive",     "farewell", "formed"};

Status broken_message(std::string_view what) {
  return corrupt("rank group: a message '" + std::string(what) + "' is broken");
}

template <class T>
Result<T> finish_reading(const WireReader& in, T value, std::string_view what) {
  if (!in.is_done()) return broken_message(what);
  return value;
}

// For messages and logs: what a stranger says begins no line of its own.
std::string read_text(WireReader& in, std::uint16_t most) {
  std::string text = in.text(most);
  std::replace_if(text.begin(), text.end(), is_control, '?');
  return text;
}

void write_magic(WireWriter& out, std::uint16_t version) {
  out.number(kMagic);
  out.number(version);
}

std::uint16_t read_magic(WireReader& in) {
  if (in.number<std::uint64_t>() != kMagic) in.fail();
  return in.number<std::uint16_t>();
}

void write_progress(WireWriter& out, const Progress& progress) {
  out.number(progress.applied);
  out.number(progress.next_step);
}

Progress read_progress(WireReader& in) {
  Progress progress;
  progress.applied = in.number<std::uint64_t>();
  progress.next_step = in.number<std::uint64_t>();
  return progress;
}

void write_events(WireWriter& out, const std::vector<AgreedEvent>& events) {
  out.number(static_cast<std::uint32_t>(events.size()));
  for (const AgreedEvent& event : events) {
    out.number(event.op.v);
    out.number(static_cast<std::uint32_t>(event.bits.size()));
    for (const std::uint64_t word : event.bits) out.number(word);
  }
}

std::vector<AgreedEvent> read_events(WireReader& in) {
  std::vector<AgreedEvent> events(in.count<std::uint32_t>(12, kMaxBodyBytes));
  for (AgreedEvent& event : events) {
    event.op = OpId(in.number<std::uint64_t>());
    event.bits.resize(in.count<std::uint32_t>(8, kMaxWords));
    for (std::uint64_t& word : event.bits) word = in.number<std::uint64_t>();
    if (!in.ok()) return {};
  }
  return events;
}

}  // namespace

std::string_view kind_name(Kind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

std::string encode_head(const Head& head) {
  WireWriter out(kHeadBytes);
  out.number(head.body_bytes);
  out.number(static_cast<std::uint8_t>(head.kind));
  out.number<std::uint8_t>(0);
  out.number<std::uint16_t>(0);
  out.number(head.number);
  return out.take();
}

Result<Head> decode_head(std::string_view bytes) {
  WireReader in(bytes.substr(0, kHeadBytes));
  Head head;
  head.body_bytes = in.number_up_to<std::uint32_t>(kMaxBodyBytes);
  const auto kind = in.number_up_to<std::uint8_t>(kKindCount - 1);
  head.kind = static_cast<Kind>(kind);
  if (kind == 0 || in.number<std::uint8_t>() != 0 || in.number<std::uint16_t>() != 0) in.fail();
  head.number = in.number<std::uint64_t>();
  return finish_reading(in, head, "head");
}

std::string encode(const Challenge& challenge) {
  WireWriter out(42);  // all of its bytes
  write_magic(out, challenge.version);
  out.digest(challenge.nonce);
  return out.take();
}

std::string encode(const Hello& hello) {
  WireWriter out;
  write_magic(out, hello.version);
  out.digest(hello.nonce);
  out.number(hello.rank);
  out.number(hello.ranks);
  out.number(static_cast<std::uint16_t>(hello.facts.size()));
  for (const Fact& fact : hello.facts) {
    out.text(fact.name, kMaxFactNameBytes);
    out.text(fact.value, kMaxFactValueBytes);
  }
  return out.take();
}

std::string encode(const Words& words) {
  WireWriter out;
  out.number(static_cast<std::uint8_t>(words.status.code()));
  out.text(words.status.message(), kMaxTextBytes);
  return out.take();
}

std::string encode(const Progress& progress) {
  WireWriter out;
  write_progress(out, progress);
  return out.take();
}

std::string encode(const Reports& reports) {
  WireWriter out;
  write_progress(out, reports.progress);
  write_events(out, reports.outcomes);
  return out.take();
}

std::string encode(const Plans& plans) {
  WireWriter out;
  write_events(out, plans.events);
  out.number(static_cast<std::uint32_t>(plans.plans.size()));
  for (const Plans::Plan& plan : plans.plans) {
    out.number(plan.step);
    out.number(plan.events);
  }
  return out.take();
}

Result<Challenge> decode_challenge(std::string_view body) {
  WireReader in(body);
  Challenge challenge;
  challenge.version = read_magic(in);
  challenge.nonce = in.digest();
  return finish_reading(in, challenge, "challenge");
}

Result<Hello> decode_hello(std::string_view body) {
  WireReader in(body);
  Hello hello;
  hello.version = read_magic(in);
  hello.nonce = in.digest();
  hello.rank = in.number<std::uint32_t>();
  hello.ranks = in.number<std::uint32_t>();
  hello.facts.resize(in.count<std::uint16_t>(4, kMaxFacts));
  for (Fact& fact : hello.facts) {
    fact.name = read_text(in, kMaxFactNameBytes);
    fact.value = read_text(in, kMaxFactValueBytes);
  }
  return finish_reading(in, std::move(hello), "hello");
}

Result<Words> decode_words(std::string_view body) {
  WireReader in(body);
  const auto code = in.number_up_to(static_cast<std::uint8_t>(StatusCode::kInternal));
  std::string text = read_text(in, kMaxTextBytes);
  return finish_reading(in, Words{{static_cast<StatusCode>(code), std::move(text)}}, "words");
}

Result<Progress> decode_progress(std::string_view body) {
  WireReader in(body);
  const Progress progress = read_progress(in);
  return finish_reading(in, progress, "alive");
}

Result<Reports> decode_reports(std::string_view body) {
  WireReader in(body);
  Reports reports;
  reports.progress = read_progress(in);
  reports.outcomes = read_events(in);
  return finish_reading(in, std::move(reports), "reports");
}

Result<Plans> decode_plans(std::string_view body) {
  WireReader in(body);
  Plans plans;
  plans.events = read_events(in);
  plans.plans.resize(in.count<std::uint32_t>(16, kMaxBodyBytes));
  for (Plans::Plan& plan : plans.plans) {
    plan.step = in.number<std::uint64_t>();
    plan.events = in.number<std::uint64_t>();
  }
  return finish_reading(in, std::move(plans), "plans");
}

}  // namespace larder::ranks
