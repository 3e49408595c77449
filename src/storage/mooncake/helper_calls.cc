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

void HelperCalls::call(std::string body, std::size_t count, Where where, Done done) {
  const auto shared = std::make_shared<Done>(std::move(done));
  const Status sent = link_.call(std::move(body), [this, count, where, shared](Codes codes) {
    if (codes.is_ok() && codes->size() != count) {
      codes = unavailable("mooncake: the helper answers with " + std::to_string(codes->size()) + " codes for " +
                          std::to_string(count) + " objects");
    }
    if (where == Where::kHere) return (*shared)(codes);
    post([shared, codes = std::move(codes)] { (*shared)(codes); });
  });
  // By way of the executor: a line of calls that all fail at once would be as deep as it is long.
  if (!sent.is_ok()) post([shared, codes = Codes(sent)] { (*shared)(codes); });
}

void HelperCalls::get(std::vector<NamedObject> objects, Where where, Done done) {
  const std::uint64_t bytes = bytes_of(objects);
  add(Kind::kGet, {std::move(objects), {}, bytes, where, std::move(done)});
}

void HelperCalls::put(std::vector<NamedObject> objects, std::vector<ObjectGroup> groups, Where where, Done done) {
  const std::uint64_t bytes = bytes_of(objects);
  add(Kind::kPut, {std::move(objects), std::move(groups), bytes, where, std::move(done)});
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
    {
      LockGuard guard(mutex_);
      parts = take(kind);
    }
    if (parts.empty()) return;
    send(kind, std::move(parts));
  }
}

HelperCalls::Parts HelperCalls::take(Kind kind) {
  Line& line = lines_[static_cast<std::size_t>(kind)];
  const bool is_full = line.waiting_bytes >= limits_.bytes || line.waiting_objects >= limits_.objects;
  std::size_t most = kSmallAtOnce[static_cast<std::size_t>(kind)];
  if (is_full) most = std::max(most, limits_.large_at_once);
  const TimePoint now = clock_.now();
  if (now - line.last_begun > kPatience) most = std::max(most, limits_.most_at_once);
  Parts parts;
  if (line.waiting.empty() || line.running >= most) return parts;
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

void HelperCalls::send(Kind kind, Parts parts) {
  std::vector<NamedObject> objects;
  std::vector<ObjectGroup> groups;
  std::vector<std::size_t> counts;
  for (Part& part : parts) {
    counts.push_back(part.objects.size());
    move_to(objects, part.objects);
    move_to(groups, part.groups);
  }
  const std::size_t count = objects.size();
  std::string body = kind == Kind::kGet ? get_request(objects, counts) : put_request(objects, groups);
  const auto sent = std::make_shared<Parts>(std::move(parts));
  call(std::move(body), count, Where::kHere,
       [this, kind, sent, counts = std::move(counts)](const Codes& codes) { finish(kind, *sent, counts, codes); });
}

void HelperCalls::finish(Kind kind, Parts& parts, const std::vector<std::size_t>& counts, const Codes& codes) {
  {
    LockGuard guard(mutex_);
    --lines_[static_cast<std::size_t>(kind)].running;
  }
  begin(kind);  // before the answers are told: the store is idle until it has the next call
  std::size_t at = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Codes own = codes.is_ok() ? Codes(std::vector(codes->data() + at, codes->data() + at + counts[i])) : codes;
    at += counts[i];
    // What it holds is let go with its answer, not with the last one's.
    Done done = std::exchange(parts[i].done, nullptr);
    if (parts[i].where == Where::kHere) {
      done(own);
    } else {
      post([done = std::move(done), own = std::move(own)] { done(own); });
    }
  }
}

}  // namespace larder::mooncake
