// SPDX-License-Identifier: Apache-2.0
#include "storage/hf3fs/service_counts.h"

#include <utility>

namespace larder::hf3fs {

ServiceCounts::ServiceCounts(std::shared_ptr<MetadataService> service, Executor& executor)
    : service_(std::move(service)), executor_(executor) {}

ServiceCounts::Counts ServiceCounts::read() {
  if (!service_->is_remote()) {
    auto counted = service_->stats();
    return counted.is_ok() ? std::move(counted).value() : Counts{};
  }
  State& state = *state_;
  bool is_first = false;
  {
    LockGuard guard(state.mutex);
    is_first = !std::exchange(state.is_asked, true);
  }
  if (is_first && !ask().is_ok()) is_first = false;
  LockGuard guard(state.mutex);
  while (is_first && state.is_asked && state.answered.wait_for(state.mutex, kPatience)) {}
  return state.last;
}

Status ServiceCounts::ask() {
  // Ends the question also when the executor drops the task.
  struct Question {
    explicit Question(std::shared_ptr<State> s) : state(std::move(s)) {}
    Question(const Question&) = delete;
    Question& operator=(const Question&) = delete;
    ~Question() {
      LockGuard guard(state->mutex);
      state->is_asked = false;
      state->answered.notify_all();
    }
    const std::shared_ptr<State> state;
  };
  auto question = std::make_shared<Question>(state_);
  return executor_.post([service = service_, question = std::move(question)] {
    auto counted = service->stats();
    if (!counted.is_ok()) return;
    LockGuard guard(question->state->mutex);
    question->state->last = std::move(counted).value();
  });
}

}  // namespace larder::hf3fs
