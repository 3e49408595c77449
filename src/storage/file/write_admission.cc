// SPDX-License-Identifier: Apache-2.0
#include "storage/file/write_admission.h"

#include <algorithm>
#include <utility>

namespace larder::file_store {
namespace {
constexpr unsigned kProbes = 7;  // for 10 bits per element
constexpr double kSecondsPerDay = 86400, kSecondsPerHour = 3600;
}  // namespace

WriteAdmission::WriteAdmission(const AdmissionOptions& options, TimePoint now) : options_(options), filled_at_(now) {
  if (options_.second_offer) {
    const std::size_t words = std::max<std::size_t>(options_.window, 64) * 10 / 64 + 1;
    for (auto& filter : filters_) filter.assign(words, 0);
  }
  most_ = static_cast<double>(options_.bytes_per_day) * kSecondsPerHour / kSecondsPerDay;
  tokens_ = most_;
}

Status WriteAdmission::admit(std::span<const std::uint64_t> names, std::uint64_t bytes, TimePoint now) {
  if (options_.second_offer) {
    bool is_seen = false;
    for (const std::uint64_t name : names) is_seen = seen_before(name) || is_seen;
    if (!is_seen) return unsupported("file store: declined: offered for the first time (admission = second_offer)");
  }
  if (options_.bytes_per_day == 0) return Status::ok();
  refill(now);
  // A group larger than the bucket is let through when that is full; the debt is paid off before the next.
  if (tokens_ < std::min(static_cast<double>(bytes), most_)) {
    return unsupported("file store: declined: the wear budget (max_writes_per_day) is used up for now");
  }
  tokens_ -= static_cast<double>(bytes);
  return Status::ok();
}

void WriteAdmission::spend(std::uint64_t bytes, TimePoint now) {
  if (options_.bytes_per_day == 0) return;
  refill(now);
  tokens_ -= static_cast<double>(bytes);
}

void WriteAdmission::refill(TimePoint now) {
  const double seconds = std::chrono::duration<double>(std::max(now - filled_at_, Nanos(0))).count();
  filled_at_ = std::max(filled_at_, now);
  tokens_ = std::min(most_, tokens_ + seconds * static_cast<double>(options_.bytes_per_day) / kSecondsPerDay);
}

// Was it offered in this window or the one before? Remembers that it was offered now.
bool WriteAdmission::seen_before(std::uint64_t name) {
  const std::uint64_t bits = filters_[0].size() * 64;
  std::uint64_t hash = name;
  const std::uint64_t step = (hash >> 17) | 1;
  bool in_new = true, in_old = true;
  for (unsigned i = 0; i < kProbes; ++i, hash += step) {
    const std::uint64_t bit = (hash ^ (hash >> 32)) % bits;
    const std::uint64_t mask = std::uint64_t{1} << (bit % 64);
    in_new = in_new && (filters_[0][bit / 64] & mask) != 0;
    in_old = in_old && (filters_[1][bit / 64] & mask) != 0;
    filters_[0][bit / 64] |= mask;
  }
  if (!in_new && ++offered_ >= options_.window) {
    std::swap(filters_[0], filters_[1]);
    std::fill(filters_[0].begin(), filters_[0].end(), 0);
    offered_ = 0;
  }
  return in_new || in_old;
}

}  // namespace larder::file_store
