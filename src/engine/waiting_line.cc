// SPDX-License-Identifier: Apache-2.0
#include "engine/waiting_line.h"

#include <algorithm>
#include <utility>

namespace larder {

void WaitingLine::add(std::unique_ptr<Sequence> sequence) {
  const auto behind = std::find_if(line_.begin(), line_.end(), [&](const std::unique_ptr<Sequence>& other) {
    return other->request.priority < sequence->request.priority;
  });
  line_.insert(behind, std::move(sequence));
}

void WaitingLine::add_first(std::unique_ptr<Sequence> sequence) {
  const auto behind = std::find_if(line_.begin(), line_.end(), [&](const std::unique_ptr<Sequence>& other) {
    return other->request.priority <= sequence->request.priority;
  });
  line_.insert(behind, std::move(sequence));
}

std::unique_ptr<Sequence> WaitingLine::take(Scheduler::Ticket ticket) {
  const auto at =
      std::find_if(line_.begin(), line_.end(), [&](const std::unique_ptr<Sequence>& s) { return s->ticket == ticket; });
  if (at == line_.end()) return nullptr;
  std::unique_ptr<Sequence> sequence = std::move(*at);
  line_.erase(at);
  return sequence;
}

std::vector<std::unique_ptr<Sequence>> WaitingLine::take_all() {
  std::vector<std::unique_ptr<Sequence>> all(std::make_move_iterator(line_.begin()),
                                             std::make_move_iterator(line_.end()));
  line_.clear();
  return all;
}

WaitingLine::Outcome WaitingLine::admit(std::size_t places, const std::function<StartAnswer(Sequence&)>& try_start) {
  Outcome outcome;
  std::vector<Sequence*> refused;
  std::size_t at = 0, looked = 0;
  while (looked < kLookAhead && at < line_.size() && outcome.started.size() < places) {
    const auto take_here = [&] {
      std::unique_ptr<Sequence> sequence = std::move(line_[at]);
      line_.erase(line_.begin() + static_cast<std::ptrdiff_t>(at));
      return sequence;
    };
    Sequence& sequence = *line_[at];
    const StartAnswer answer = try_start(sequence);
    looked += answer == StartAnswer::kWaitsForStorage ? 0 : 1;
    switch (answer) {
      case StartAnswer::kStarted:
        outcome.started.push_back(take_here());
        for (Sequence* passed : refused) ++passed->overtaken;
        break;
      case StartAnswer::kFailed: outcome.failed.push_back(take_here()); break;
      case StartAnswer::kWaitsForStorage:
      case StartAnswer::kAsksStorage:
        outcome.any_waits_for_storage = true;
        ++at;
        break;
      case StartAnswer::kNoRoom:
        refused.push_back(&sequence);
        ++at;
        break;
    }
    if (refused.size() >= kMaxRefusals) break;
    if (!refused.empty() && refused.back() == &sequence && sequence.overtaken >= kMaxOvertakes) break;
  }
  if (!refused.empty()) outcome.refused = refused.front();
  return outcome;
}

}  // namespace larder
