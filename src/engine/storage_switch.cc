// SPDX-License-Identifier: Apache-2.0
#include "engine/storage_switch.h"

#include <string>
#include <utility>
#include <vector>

namespace larder {
namespace {

Status of_scheduler(std::size_t i, const Status& status) {
  return {status.code(), "scheduler " + std::to_string(i) + ": " + status.message()};
}

}  // namespace

Status attach_all(std::span<Scheduler* const> schedulers, std::span<const AttachRequest> requests, Nanos limit) {
  if (schedulers.size() != requests.size()) return invalid_argument("attach: one request per scheduler");
  std::vector<PreparedStorage> prepared;
  for (std::size_t i = 0; i < schedulers.size(); ++i) {
    Result<PreparedStorage> one = schedulers[i]->prepare_storage(requests[i], limit);
    if (!one.is_ok()) return of_scheduler(i, one.status());  // those before it are closed, unused
    prepared.push_back(std::move(one).value());
  }
  std::vector<PreparedStorage> previous;
  Status failed;
  for (std::size_t i = 0; i < schedulers.size() && failed.is_ok(); ++i) {
    Result<PreparedStorage> before = schedulers[i]->switch_storage(std::move(prepared[i]), limit);
    if (before.is_ok()) {
      previous.push_back(std::move(before).value());
    } else {
      failed = of_scheduler(i, before.status());
    }
  }
  for (std::size_t i = previous.size(); !failed.is_ok() && i > 0; --i) {
    Result<PreparedStorage> undone = schedulers[i - 1]->switch_storage(std::move(previous[i - 1]), limit);
    if (undone.is_ok()) {
      schedulers[i - 1]->retire_storage(std::move(undone).value());
    } else {
      failed = internal_error(failed.message() + "; and scheduler " + std::to_string(i - 1) +
                              " could not be switched back: " + undone.status().message());
    }
  }
  if (!failed.is_ok()) return failed;
  for (std::size_t i = 0; i < schedulers.size(); ++i) schedulers[i]->retire_storage(std::move(previous[i]));
  return Status::ok();
}

}  // namespace larder
