// SPDX-License-Identifier: Apache-2.0
// A backend that does nothing until told, and requests for it. For the tests of this folder.
//
// Threads: confined to the test's thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "storage/backend.h"
#include "storage/pipeline/lane.h"

namespace larder::pipeline_test {

// Keeps each operation until answer(), or answers inside submit when `inline_status` is set.
class HoldingBackend final : public StorageBackend {
 public:
  struct Held {
    Lane lane;
    std::uint8_t tag;                    // first byte of the first key
    std::function<void(Status)> answer;  // gives every item this status
  };
  HoldingBackend() { info_.name = "holding"; }
  ~HoldingBackend() override {
    while (!held.empty()) answer_next(cancelled("the holding backend ends"));
  }

  std::deque<Held> held;            // in order of arrival
  std::vector<std::uint8_t> begun;  // tags, all lanes, in order of arrival
  std::array<std::size_t, kLaneCount> most_held{};
  std::unique_ptr<Status> inline_status;
  Status refusal;                       // not ok: what submit answers
  std::function<void()> before_submit;  // may throw

  void answer_next(const Status& status = {}) {
    const Held next = std::move(held.front());
    held.pop_front();
    next.answer(status);
  }
  // The first held one with this tag.
  void answer_tag(std::uint8_t tag, const Status& status = {}) {
    const auto at = std::find_if(held.begin(), held.end(), [tag](const Held& h) { return h.tag == tag; });
    if (at == held.end()) return;
    const Held found = std::move(*at);
    held.erase(at);
    found.answer(status);
  }
  [[nodiscard]] std::size_t held_in(Lane lane) const {
    return static_cast<std::size_t>(
        std::count_if(held.begin(), held.end(), [lane](const Held& h) { return h.lane == lane; }));
  }

  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] BackendStats stats() const override { return {.queued = held.size()}; }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    const std::uint8_t tag = request.keys.empty() ? std::uint8_t{0} : request.keys.front().bytes[0];
    return take({Lane::kExists, tag, [request, done](const Status& status) {
                   ExistsResult result{status, {}};
                   for (const PoolName pool : request.pools) {
                     if (status.is_ok()) result.presence.push_back({pool, Presence(request.keys.size(), true)});
                   }
                   done(std::move(result));
                 }});
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    return take(
        {Lane::kRead, request.items.front().key.bytes[0],
         [count = request.items.size(), done](const Status& status) { done({std::vector<Status>(count, status)}); }});
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    return take(
        {Lane::kWrite, request.groups.front().items.front().key.bytes[0],
         [count = request.groups.size(), done](const Status& status) { done({std::vector<Status>(count, status)}); }});
  }
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope>, ClearDone done) override {
    return take({Lane::kClear, 0, done});
  }
  [[nodiscard]] Status close(std::chrono::nanoseconds) override {
    is_closed_ = true;
    return held.empty() ? Status::ok() : deadline_exceeded("the holding backend holds operations");
  }

 private:
  Status take(Held operation) {
    if (is_closed_) return unavailable("the holding backend is closed");
    if (before_submit) before_submit();
    if (!refusal.is_ok()) return refusal;
    begun.push_back(operation.tag);
    if (inline_status) {
      operation.answer(*inline_status);
      return Status::ok();
    }
    const Lane lane = operation.lane;
    held.push_back(std::move(operation));
    most_held[index_of(lane)] = std::max(most_held[index_of(lane)], held_in(lane));
    return Status::ok();
  }
  BackendInfo info_;
  bool is_closed_ = false;
};

inline std::shared_ptr<const StoreScope> make_scope(std::uint8_t number = 1) {
  auto scope = std::make_shared<StoreScope>();
  scope->namespace_digest.bytes[0] = number;
  for (std::size_t pool = 0; pool < kPoolNameCount; ++pool) {
    scope->set_pool(static_cast<PoolName>(pool), Digest256{{static_cast<std::uint8_t>(number + 100)}});
  }
  return scope;
}
inline PageKey make_key(std::uint8_t tag) {
  PageKey key;
  key.bytes[0] = tag;
  key.bytes[31] = 1;
  return key;
}
// Of one kv page without an end to its life.
inline ReadRequest read_of(std::uint8_t tag, const OperationTerms& terms = {}, std::vector<Segment> payload = {}) {
  return {make_scope(), {{PoolName::kKv, make_key(tag), std::move(payload)}}, terms};
}
inline WriteRequest write_of(std::uint8_t tag, Urgency urgency = Urgency::kBackground,
                             std::vector<Segment> payload = {}) {
  WriteRequest request{make_scope(), {}, false, {urgency, TimePoint::max(), nullptr}};
  request.groups.push_back({{{PoolName::kKv, make_key(tag), std::move(payload), {}}}});
  return request;
}
inline ExistsRequest exists_of(std::uint8_t tag) { return {make_scope(), {make_key(tag)}, {PoolName::kKv}, {}}; }
inline OperationTerms terms_of(Urgency urgency, TimePoint deadline = TimePoint::max()) {
  return {urgency, deadline, nullptr};
}

}  // namespace larder::pipeline_test
