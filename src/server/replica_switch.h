// SPDX-License-Identifier: Apache-2.0
// Attaches a storage to several servers, or detaches it from them: all of them or none.
//
//   ask each what it has ─► what stands against it is told, and nothing is changed
//                        ─► change one after the other ─► all have changed: done
//                                                      ─► one refuses: it and those before it are put back
//
// Why: replicas that share a store hit what each other wrote. While one has it and another does not, the same prompt
// hits or misses by who serves it. SGLang tells the data-parallel replicas of one server one by one, too, and leaves
// those attached that were so when one refuses; so the server that refuses is put back as well.
//
// What cannot be put back (a server that has gone) is told, with what it has. A server that gives no answer may do yet
// what it was asked for: it is put back once it has taken the way back, whatever it shows meanwhile. One on which
// somebody else's change is under way, or has ended since it was asked, is left to them; but where ours came first, we
// wait for the end of theirs, and put it back unless they have attached another storage.
// A server that is put back after an attach has its policies back, too. What a detach ends (requests that wait for
// storage, a store in memory) does not come back.
// Threads: confined. Cost: two requests for each server, and up to five for each that is put back.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/http_client.h"
#include "base/status.h"

namespace larder {

// What a server has. As GET /hicache/storage-backend tells it; empty texts: none, or, where it is wanted, as it is.
struct AttachedStorage {
  std::string backend, extra_config, prefetch_policy, write_policy;
  friend bool operator==(const AttachedStorage&, const AttachedStorage&) = default;
};
// Does a server that has `has` have what is wanted? False where nobody can tell: an @file may have changed since.
[[nodiscard]] bool is_as_wanted(const AttachedStorage& has, const AttachedStorage& wanted);

// The storage of one server.
class StorageDoor {
 public:
  virtual ~StorageDoor() = default;
  [[nodiscard]] virtual const std::string& name() const = 0;
  // kCorrupt: it answers, and not with that; any other error: it does not answer.
  [[nodiscard]] virtual Result<AttachedStorage> ask() = 0;
  // kOverloaded: it has requests under way and does that only without any (SGLang). kConflict: another change is under
  // way there, and this one was not begun. kDeadlineExceeded, kUnavailable: no answer; it may do it yet. Any other
  // error: it does not.
  [[nodiscard]] virtual Status attach_storage(const AttachedStorage& wanted) = 0;
  [[nodiscard]] virtual Status detach_storage() = 0;
};

// A server of SGLang's API: `larder serve`, or SGLang. `name` is shown.
[[nodiscard]] std::unique_ptr<StorageDoor> http_storage_door(std::string name, HttpUrl url, Nanos timeout,
                                                             std::string admin_key);

struct SwitchReport {
  enum class End : std::uint8_t { kUntouched, kWasSo, kChanged, kPutBack, kUnknown, kNotReached, kLeft };
  struct Server {
    std::string name;
    End end = End::kUntouched;
    Status status{};  // why it did not change; kUnknown: why it could not be put back
  };
  Status status{};  // ok: all servers have what is wanted. Names the first that stood against it
  std::vector<Server> servers;
  // Not ok: each server has what it had, or what others have given it since.
  [[nodiscard]] bool is_clean() const;
};

class ReplicaSwitch {
 public:
  // wait: called with 1, 2 ... while a server is busy with a change; false: no longer. The doors outlive this.
  ReplicaSwitch(std::span<const std::unique_ptr<StorageDoor>> doors, std::function<bool(std::size_t)> wait)
      : doors_(doors), wait_(std::move(wait)) {}
  // A server that has the same storage takes other policies. kConflict: a server has another storage attached, or one
  // whose options are in an @file. (Policies alone: extra_config is empty.)
  [[nodiscard]] SwitchReport attach_storage(const AttachedStorage& wanted);
  // Servers without a storage stay as they are.
  [[nodiscard]] SwitchReport detach_storage();

 private:
  [[nodiscard]] SwitchReport run(const AttachedStorage& wanted);
  [[nodiscard]] Status ask_all(const AttachedStorage& wanted, SwitchReport& report);
  // Makes it have `wanted`, with patience. Ok also where the answer was lost and it has it.
  [[nodiscard]] Status change(StorageDoor& door, const AttachedStorage& wanted);
  [[nodiscard]] static Status ask_for(StorageDoor& door, const AttachedStorage& wanted);
  [[nodiscard]] static Result<std::optional<AttachedStorage>> policies_back(StorageDoor& door,
                                                                            const AttachedStorage& before);
  [[nodiscard]] static AttachedStorage way_back(StorageDoor& door, AttachedStorage before);
  // ask(wanted): makes it have that.
  template <class Ask>
  [[nodiscard]] static Status put_back(StorageDoor& door, const AttachedStorage& before, const Ask& ask);
  [[nodiscard]] Result<SwitchReport::End> put_open_back(StorageDoor& door, const AttachedStorage& before);
  [[nodiscard]] static bool is_left_to_others(StorageDoor& door, const Status& refused, const AttachedStorage& before,
                                              const AttachedStorage& wanted);
  [[nodiscard]] Result<SwitchReport::End> put_changed_back(StorageDoor& door, const AttachedStorage& before,
                                                           const AttachedStorage& wanted);
  void put_all_back(std::size_t last, const AttachedStorage& wanted, SwitchReport& report);

  const std::span<const std::unique_ptr<StorageDoor>> doors_;
  const std::function<bool(std::size_t)> wait_;
  std::vector<AttachedStorage> before_;  // of each door
};

// A line for each server, and how it ended.
[[nodiscard]] std::string switch_text(const SwitchReport& report);

}  // namespace larder
