// SPDX-License-Identifier: Apache-2.0
// Transfers of a connector that are under way or whose result nobody has taken yet: of one kind, loads or saves.
//
//   add() ──► under way ──► is_over ──► take_ended() names it, once ──► take_result() ──► gone
//
// Threads: the cache thread. Ranks: one that has lost the others applies nothing any more, but its own copies end: such
// a transfer is named, and its result says why there is none. Cost: O(log transfers) each; take_ended() looks at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "base/status.h"
#include "base/strong.h"
#include "controller/connector.h"
#include "controller/op_table.h"

namespace larder {

template <class TransferResult>
struct ConnectorTransfer {
  TransferResult result;
  bool is_over = false;
  bool is_told = false;   // take_ended() has named it
  bool is_noted = false;  // note_ended() has found it
  OpId op;                // its copy
};

// Transfer: a ConnectorTransfer, or made from one.
template <class Transfer>
class TransferTable {
 public:
  // kind: "load", for messages; it and ops outlive the table.
  TransferTable(const char* kind, OpTable& ops) : kind_(kind), ops_(ops) {}

  // Precondition: `id` names none yet.
  Transfer& add(TransferId id, Transfer transfer) { return all_.emplace(id.v, std::move(transfer)).first->second; }
  [[nodiscard]] Transfer* find(std::uint64_t id) {
    const auto it = all_.find(id);
    return it == all_.end() ? nullptr : &it->second;
  }
  [[nodiscard]] bool has(TransferId id) const { return all_.contains(id.v); }
  [[nodiscard]] std::size_t size() const { return all_.size(); }
  [[nodiscard]] const std::map<std::uint64_t, Transfer>& all() const { return all_; }

  // Why a copy that has ended counts as failed.
  [[nodiscard]] Status failure_of(const Op& op) const {
    const auto* const own = std::get_if<TransferDone>(&op.completion);
    const bool is_own = own != nullptr && !own->status.is_ok();
    return is_own ? own->status : unavailable(std::string(kind_) + ": it failed on another rank");
  }

  // Those whose result can be taken, each once; as many as there is room for.
  std::size_t take_ended(std::span<ConnectorEvent> out) {
    std::size_t count = 0;
    for (auto& [id, transfer] : all_) {
      if (count == out.size()) break;
      if (!is_news(transfer)) continue;
      transfer.is_told = true;
      out[count++] = {ConnectorEventKind::kTransfer, id};
    }
    return count;
  }

  // Is there one that take_ended() would name, and that this call has not found before?
  [[nodiscard]] bool note_ended() {
    bool is_new = false;
    for (auto& [id, transfer] : all_) {
      if (!transfer.is_noted && is_news(transfer)) transfer.is_noted = is_new = true;
    }
    return is_new;
  }

  // As Connector::load_result().
  [[nodiscard]] auto take_result(TransferId id) -> Result<decltype(Transfer::result)> {
    const auto it = all_.find(id.v);
    if (it == all_.end()) return not_found(std::string(kind_) + ": no such transfer");
    if (!it->second.is_over) {
      return has_parted(it->second) ? ops_.parted() : overloaded(std::string(kind_) + ": under way");
    }
    auto result = std::move(it->second.result);
    all_.erase(it);
    return result;
  }

 private:
  [[nodiscard]] bool is_news(const Transfer& transfer) const {
    return !transfer.is_told && (transfer.is_over || has_parted(transfer));
  }
  [[nodiscard]] bool has_parted(const Transfer& transfer) const {
    const Op* const op = ops_.find(transfer.op);
    return op != nullptr && std::holds_alternative<TransferDone>(op->completion) && !ops_.parted().is_ok();
  }

  const char* const kind_;
  OpTable& ops_;
  std::map<std::uint64_t, Transfer> all_;  // by TransferId
};

}  // namespace larder
