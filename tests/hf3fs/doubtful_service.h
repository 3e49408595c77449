// SPDX-License-Identifier: Apache-2.0
// A service behind a line that fails where the test says so.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "storage/hf3fs/metadata_service.h"

namespace larder::hf3fs_test {

class DoubtfulService final : public MetadataService {
 public:
  explicit DoubtfulService(std::shared_ptr<MetadataService> inner) : inner_(std::move(inner)) {}

  std::atomic<bool> confirm_is_lost{false};  // before it arrives
  // What finds, reservations and confirmations are answered with, unless it is kOk: by something that is no service.
  std::atomic<StatusCode> foreign_answer{StatusCode::kOk};
  std::atomic<bool> stats_are_lost{false};
  std::shared_future<void> stats_wait_until;  // set before the backend is opened
  std::atomic<int> stats_asked{0};

  std::function<void()> before_reserve_answers;

  [[nodiscard]] bool is_remote() const override { return true; }
  [[nodiscard]] Result<std::uint64_t> initialize(const MetadataNamespace& name_space, std::uint64_t pages) override {
    return inner_->initialize(name_space, pages);
  }
  [[nodiscard]] Result<std::vector<std::vector<std::optional<PageRef>>>> find(std::span<const MetadataKeys> wanted,
                                                                              Nanos lease) override {
    LARDER_RETURN_IF_ERROR(foreign());
    return inner_->find(wanted, lease);
  }
  [[nodiscard]] Result<std::vector<std::vector<Reserved>>> reserve(const MetadataSession& session,
                                                                   std::span<const ReserveItems> wanted,
                                                                   Nanos ttl) override {
    LARDER_RETURN_IF_ERROR(foreign());
    auto answer = inner_->reserve(session, wanted, ttl);
    if (before_reserve_answers) before_reserve_answers();
    return answer;
  }
  [[nodiscard]] Result<std::vector<Status>> confirm(const ConfirmRequest& request) override {
    if (confirm_is_lost) return unavailable("the line is down");
    LARDER_RETURN_IF_ERROR(foreign());
    return inner_->confirm(request);
  }
  [[nodiscard]] Result<std::uint64_t> remove(std::span<const ConfirmItem> items) override {
    return inner_->remove(items);
  }
  [[nodiscard]] Result<std::uint64_t> clear(const MetadataNamespace& name_space, std::string_view prefix) override {
    return inner_->clear(name_space, prefix);
  }
  [[nodiscard]] Result<std::map<MetadataNamespace, NamespaceStats>> stats() override {
    ++stats_asked;
    if (stats_wait_until.valid()) stats_wait_until.wait();
    if (stats_are_lost) return unavailable("the line is down");
    return inner_->stats();
  }

 private:
  [[nodiscard]] Status foreign() const {
    const StatusCode code = foreign_answer;
    return code == StatusCode::kOk ? Status::ok() : Status{code, "an answer of something else"};
  }

  const std::shared_ptr<MetadataService> inner_;
};

}  // namespace larder::hf3fs_test
