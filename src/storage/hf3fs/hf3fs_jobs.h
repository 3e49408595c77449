// SPDX-License-Identifier: Apache-2.0
// State of the backend's operations while their pages move. Internal to hf3fs_*.cc.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "storage/hf3fs/hf3fs_backend.h"

namespace larder::hf3fs {

// The service's key of a page: namespace digest, then page key.
inline std::array<char, 64> metadata_key(const Digest256& namespace_digest, const PageKey& key) {
  std::array<char, 64> out;
  std::memcpy(out.data(), namespace_digest.bytes.data(), 32);
  std::memcpy(out.data() + 32, key.bytes.data(), 32);
  return out;
}
inline std::string_view view_of(const std::array<char, 64>& key) { return {key.data(), key.size()}; }
inline std::string_view view_of(const Digest256& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

// A caller that waits for its job's transfers, to finish the job on its own thread. Transfers end by their deadlines; a
// caller whose page store breaks that promise leaves, and the job is finished without it.
class WaitingCaller {
 public:
  // True: the transfers have ended, and the caller finishes the job. False: `limit` is over, and it must not.
  [[nodiscard]] bool wait(Nanos limit) LARDER_EXCLUDES(mutex_) {
    const TimePoint until = real_clock().now() + limit;
    LockGuard guard(mutex_);
    while (!has_ended_ && real_clock().now() < until) (void)ended_.wait_for(mutex_, until - real_clock().now());
    has_left_ = !has_ended_;
    return has_ended_;
  }
  // The transfers have ended. False: the caller has left.
  [[nodiscard]] bool wake() LARDER_EXCLUDES(mutex_) {
    {
      LockGuard guard(mutex_);
      if (has_left_) return false;
      has_ended_ = true;
    }
    ended_.notify_one();
    return true;
  }

 private:
  RankedMutex mutex_{LockRank::kStorage};
  RankedCondition ended_;
  bool has_ended_ LARDER_GUARDED_BY(mutex_) = false, has_left_ LARDER_GUARDED_BY(mutex_) = false;
};

struct Hf3fsBackend::ReadJob {
  struct Item {
    SpacePtr space;  // null: it has failed already
    std::array<char, 64> key{};
    PageRef ref;
    bool is_wrong = false;  // what lies there is not what the service says
  };
  std::shared_ptr<ReadOperation> op;
  std::vector<Item> items;           // as in the request
  std::atomic<std::size_t> left{1};  // transfers, and whoever starts them
  std::optional<WaitingCaller> caller;
};

struct Hf3fsBackend::WriteJob {
  struct Item {
    std::size_t group = 0;
    const WriteItem* page = nullptr;
    SpacePtr space;
    std::array<char, 64> key{}, parent{};
    Reserved reserved;
    std::size_t twin = kNone;  // an item of this job that writes the same page
    TransferEnd end;           // of its transfer, if it has one
    bool is_moved = false;     // it has one
  };
  static constexpr std::size_t kNone = ~std::size_t{0};
  std::shared_ptr<WriteOperation> op;
  MetadataSession session;
  TimePoint asked{};                    // when the service was asked for pages
  std::vector<Item> items;              // of all groups, in order
  std::vector<Status> groups;           // so far; the operation's result says "cancelled" until all is confirmed
  std::vector<std::size_t> group_ends;  // index behind the group's last item
  std::atomic<std::size_t> left{1};
  std::optional<WaitingCaller> caller;

  [[nodiscard]] std::size_t group_begin(std::size_t group) const { return group == 0 ? 0 : group_ends[group - 1]; }
};

// Batches of one call of the service: one part per namespace, and where each item's answer will be.
template <class Part>
class Parts {
 public:
  struct Place {
    std::size_t part = 0, index = 0;
  };
  // The part of `name_space`; a new one if there is none.
  Part& part_of(const MetadataNamespace& name_space, std::size_t& number) {
    for (number = 0; number < parts_.size(); ++number) {
      if (parts_[number].name_space == &name_space) return parts_[number];
    }
    parts_.emplace_back();
    parts_.back().name_space = &name_space;
    return parts_.back();
  }
  [[nodiscard]] const std::vector<Part>& all() const { return parts_; }

 private:
  std::vector<Part> parts_;  // few: one per pool
};

// An answer of the service that has not one entry per item is no answer.
template <class Answers, class Wanted, class SizeOf>
[[nodiscard]] Status check_shape(const Answers& answers, const Wanted& wanted, const SizeOf& size_of) {
  bool fits = answers.size() == wanted.size();
  for (std::size_t i = 0; fits && i < wanted.size(); ++i) fits = answers[i].size() == size_of(wanted[i]);
  return fits ? Status::ok() : unavailable("hf3fs: the metadata service's answer does not fit the question");
}

}  // namespace larder::hf3fs
