// SPDX-License-Identifier: Apache-2.0
#include "sim/world/service_line.h"

#include <optional>

namespace larder::sim {
namespace {

constexpr Nanos kCallerWaits = std::chrono::seconds(5);  // as an hf3fs backend's client_timeout
constexpr std::uint64_t kMostLateSeconds = 60;

}  // namespace

// The old one stays if the new one does not come up: check() tells.
void SimService::begin() {
  std::unique_ptr<metadata::Journal> journal;
  if (has_journal_) journal = metadata::open_memory_journal(disk_);
  Result<std::unique_ptr<EmbeddedMetadata>> made = EmbeddedMetadata::create({}, clock_, std::move(journal));
  begun_ = made.status();
  if (made.is_ok()) now_ = std::move(made).value();
}

void SimService::forget() {
  disk_ = std::make_shared<metadata::MemoryDisk>();
  begin();
}

void SimService::lose_power(std::size_t kept) {
  disk_->cut_power(kept);
  restart();
}

void SimService::restart() {
  if (!has_journal_) return;
  disk_->set_mood(metadata::MemoryDisk::Mood::kWell);
  begin();
}

void SimService::set_mood(metadata::MemoryDisk::Mood mood) { disk_->set_mood(mood); }

Status SimService::check() const {
  if (!begun_.is_ok()) return internal_error("the metadata service does not come up: " + begun_.message());
  return now_->check();
}

std::string SimService::answer(const std::string& message, TimePoint now) {
  while (!late_.empty() && late_.begin()->first <= now) {
    const auto late = late_.extract(late_.begin());
    (void)metadata::answer_wire_request(*now_, late.mapped());
  }
  return metadata::answer_wire_request(*now_, message).bytes;
}

void ServiceLine::travel() {
  if (most_ <= Nanos{0} || !service_.begin_way()) return;
  clock_.advance(Nanos(static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(most_.count()) + 1))));
  service_.end_way();
}

Result<std::string> ServiceLine::exchange(const std::string& message) {
  ++calls_;
  // Threads may wait for each other's question what there is, which would be for ever where there is only one.
  const bool takes_time = metadata::glance_at(message).operation != metadata::WireOperation::kStats;
  std::optional<LineFault> fault;
  if (calls_ >= fail_from_ && calls_ < fail_until_) fault = fault_, ++fired_;
  if (takes_time) travel();
  if (fault == LineFault::kRequestLost) return unavailable("simulated: the request is lost");
  if (fault == LineFault::kLate) {
    const std::chrono::seconds later(rng_.below(kMostLateSeconds));
    service_.keep_late(clock_.now() + kCallerWaits + later, message);
    if (takes_time) clock_.advance(kCallerWaits);
    return deadline_exceeded("simulated: no answer in time");
  }
  if (fault == LineFault::kForgotten) service_.forget();
  std::string answer = service_.answer(message, clock_.now());
  if (fault == LineFault::kTwice) answer = service_.answer(message, clock_.now());
  if (takes_time) travel();
  if (fault == LineFault::kAnswerLost) return unavailable("simulated: the answer is lost");
  return answer;
}

}  // namespace larder::sim
