// SPDX-License-Identifier: Apache-2.0
#include "storage/mooncake/helper_calls.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

namespace larder::mooncake {
namespace {

// Calls that are not full, by kind. A put is three calls of the store: while one asks the master, another moves bytes.
constexpr std::array<std::size_t, 2> kSmallAtOnce = {1, 2};
constexpr Nanos kPatience = std::chrono::milliseconds(50);  // most calls take 0.4 to 10

std::uint64_t bytes_of(const std::vector<NamedObject>& objects) {
  std::uint64_t bytes = 0;
  for (const NamedObject& object : objects) {
    for (const Place& place : object.places) bytes += place.bytes;
  }
  return bytes;
}

template <class T>
void move_to(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

void HelperCalls::post(std::function<void()> task) {
  if (!executor_.post(task).is_ok()) task();
}

void HelperCalls::tell(Where where, Done done, Codes codes) {
  if (where == Where::kHere) return done(codes);
  post([done = std::move(done), codes = std::move(codes)] { done(codes); });
}

void HelperCalls::call(std::string body, std::size_t count, Where where, Done done, Late late) {
  struct Asked {
    Where where;
    Done done;  // null: has run
    Late late;
  };
  const auto asked = std::make_shared<Asked>(Asked{where, std::move(done), std::move(late)});
  const auto on_answer = [this, count, asked](Codes codes) {
    if (codes.is_ok() && codes->size() != count) {
      codes = unavailable("mooncake: the helper answers with " + std::to_string(codes->size()) + " codes for " +
                          std::to_string(count) + " objects");
    }
    asked->late = nullptr;
    if (asked->done) tell(asked->where, std::exchange(asked->done, nullptr), std::move(codes));
  };
  const auto on_late = [this, asked](const Status& why) {
    if (!asked->late) return tell(asked->where, std::exchange(asked->done, nullptr), why);
    asked->where = Where::kHere;
    std::exchange(asked->late, nullptr)(why);
  };
  const Status sent = link_.call(std::move(body), on_answer, on_late);
  // By way of the executor: a line of calls that all fail at once would be as deep as it is long.
  if (!sent.is_ok()) tell(Where::kElsewhere, std::exchange(asked->done, nullptr), sent);
}

void HelperCalls::get(std::vector<NamedObject> objects, Where where, Done done, Late late) {
  const std::uint64_t bytes = bytes_of(objects);
  add(Kind::kGet, {std::move(objects), {}, bytes, where, std::move(done), std::move(late)});
}

void HelperCalls::put(std::vector<NamedObject> objects, std::vector<ObjectGroup> groups, Where where, Done done,
                      Late late) {
  const std::uint64_t bytes = bytes_of(objects);
  add(Kind::kPut, {std::move(objects), std::move(groups), bytes, where, std::move(done), std::move(late)});
}

void HelperCalls::add(Kind kind, Part part) {
  {
    LockGuard guard(mutex_);
    Line& line = lines_[static_cast<std::size_t>(kind)];
    line.waiting_bytes += part.bytes;
    line.waiting_objects += part.objects.size();
    line.waiting.push_back(std::move(part));
  }
  begin(kind);
}

void HelperCalls::begin(Kind kind) {
  for (;;) {
    Parts parts;
    std::deque<Part> refused;
    {
      LockGuard guard(mutex_);
      refused = take_refused(kind);
      parts = take(kind);
    }
    const Status full = unavailable("mooncake: too many calls have no answer in time (option 'client_timeout')");
    for (Part& part : refused) tell(Where::kElsewhere, std::move(part.done), full);
    if (parts.empty()) return;
    send(kind, std::move(parts));
  }
}

HelperCalls::Parts HelperCalls::take(Kind kind) {
  Line& line = lines_[static_cast<std::size_t>(kind)];
  Parts parts;
  if (line.waiting.empty()) return parts;
  const bool is_full = line.waiting_bytes >= limits_.bytes || line.waiting_objects >= limits_.objects;
  std::size_t most = kSmallAtOnce[static_cast<std::size_t>(kind)];
  if (is_full) most = std::max(most, limits_.large_at_once);
  const TimePoint now = clock_.now();
  if (now - line.last_begun > kPatience) most = std::max(most, limits_.most_at_once);
  if (line.late > 0) most = std::min(most, limits_.most_at_once - line.late);  // above 0, or all were refused
  if (line.running >= most) return parts;
  std::uint64_t bytes = 0;
  std::size_t objects = 0;
  std::set<std::string_view> names;
  const auto is_new = [&](const NamedObject& object) { return !names.contains(object.name); };
  while (!line.waiting.empty()) {
    Part& next = line.waiting.front();
    const bool has_room = bytes + next.bytes <= limits_.bytes && objects + next.objects.size() <= limits_.objects;
    if (!parts.empty() && !(has_room && std::all_of(next.objects.begin(), next.objects.end(), is_new))) break;
    if (line.waiting.size() > 1) {  // names stay where they are: what is moved is the vector of them
      for (const NamedObject& object : next.objects) names.insert(object.name);
    }
    bytes += next.bytes;
    objects += next.objects.size();
    parts.push_back(std::move(next));
    line.waiting.pop_front();
  }
  line.waiting_bytes -= bytes;
  line.waiting_objects -= objects;
  ++line.running;
  line.last_begun = now;
  return parts;
}

std::deque<HelperCalls::Part> HelperCalls::take_refused(Kind kind) {
  Line& line = lines_[static_cast<std::size_t>(kind)];
  if (line.late < limits_.most_at_once) return {};
  line.waiting_bytes = line.waiting_objects = 0;
  return std::exchange(line.waiting, {});
}

void HelperCalls::send(Kind kind, Parts parts) {
  const auto sent = std::make_shared<Sent>(Sent{kind, std::move(parts), {}, false});
  std::vector<NamedObject> objects;
  std::vector<ObjectGroup> groups;
  for (Part& part : sent->parts) {
    sent->counts.push_back(part.objects.size());
    move_to(objects, part.objects);
    move_to(groups, part.groups);
  }
  const std::size_t count = objects.size();
  std::string body = kind == Kind::kGet ? get_request(objects, sent->counts) : put_request(objects, groups);
  call(
      std::move(body), count, Where::kHere, [this, sent](const Codes& codes) { finish(*sent, codes); },
      [this, sent](const Status& why) { set_late(*sent, why); });
}

void HelperCalls::set_late(Sent& sent, const Status& why) {
  {
    LockGuard guard(mutex_);
    Line& line = lines_[static_cast<std::size_t>(sent.kind)];
    --line.running;
    ++line.late;
  }
  sent.is_late = true;
  begin(sent.kind);
  for (Part& part : sent.parts) {
    part.where = Where::kHere;
    std::exchange(part.late, nullptr)(why);
  }
}

void HelperCalls::finish(Sent& sent, const Codes& codes) {
  {
    LockGuard guard(mutex_);
    Line& line = lines_[static_cast<std::size_t>(sent.kind)];
    --(sent.is_late ? line.late : line.running);
  }
  begin(sent.kind);  // before the answers are told: the store is idle until it has the next call
  std::size_t at = 0;
  for (std::size_t i = 0; i < sent.parts.size(); ++i) {
    Part& part = sent.parts[i];
    Codes own = codes.is_ok() ? Codes(std::vector(codes->data() + at, codes->data() + at + sent.counts[i])) : codes;
    at += sent.counts[i];
    part.late = nullptr;
    // What it holds is let go with its answer, not with the last one's.
    tell(part.where, std::exchange(part.done, nullptr), std::move(own));
  }
}

}  // namespace larder::mooncake
