// SPDX-License-Identifier: Apache-2.0
// What a namespace should do, written as simply as possible: one map of pages, looked at from end to end each time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/metadata/metadata_harness.h"

namespace larder::conformance {

class MetadataModel {
 public:
  explicit MetadataModel(std::uint64_t pages) : capacity_(pages) {}

  void advance(Nanos by) {
    now_ += by;
    settle();
  }
  [[nodiscard]] std::vector<std::optional<PageRef>> find(const std::vector<std::string>& keys, Nanos lease);
  // Follows what the service answered; gives what is wrong with it, or "".
  [[nodiscard]] std::string reserve(const MetadataSession& session, const std::vector<ReserveItem>& items, Nanos ttl,
                                    const std::vector<Reserved>& answers);
  [[nodiscard]] bool confirm(const MetadataSession& session, const std::vector<ConfirmItem>& group);
  void release(const MetadataSession& session, const ConfirmItem& item, bool rests);
  [[nodiscard]] std::uint64_t remove(const ConfirmItem& item);
  [[nodiscard]] std::uint64_t clear(const std::string& prefix);
  void restart();
  [[nodiscard]] NamespaceStats stats() const;

 private:
  enum class State : std::uint8_t { kReserved, kStored, kQuarantined };
  struct Page {
    State state = State::kReserved;
    std::string key, parent;
    MetadataSession session;
    std::uint64_t generation = 0, tick = 0;
    Nanos until{0};  // the end of the reservation or of the quarantine
    Nanos lease_until{0};
    bool is_cleared = false;
  };
  using Pages = std::map<std::uint64_t, Page>;  // those not here are free

  void settle();
  [[nodiscard]] Pages::iterator stored(const std::string& key);
  [[nodiscard]] Pages::iterator owner(const std::string& key);
  [[nodiscard]] Pages::iterator reserved(const MetadataSession& session, const ConfirmItem& item);
  [[nodiscard]] bool has_stored_children(const std::string& key) const;
  [[nodiscard]] Pages::iterator victim(std::uint64_t protected_from);
  void drop(Pages::iterator page);
  std::string reserve_one(const MetadataSession& session, const ReserveItem& item, Nanos ttl, const Reserved& answer,
                          std::uint64_t protected_from);

  const std::uint64_t capacity_;
  Pages pages_;
  Nanos now_{0};
  std::uint64_t tick_ = 0, last_generation_ = 0, used_ = 0;
};

}  // namespace larder::conformance
