// SPDX-License-Identifier: Apache-2.0
// A client's side of the connection: operations in, messages out, answers back into operations.
//
//   submit() ─► line, by urgency ─► room in the arena ─► (write: copy in) ─► message ─► answer ─► (read: copy out)
//
// Parts: what is larger than a quarter of the arena, or has more than kMaxItems items, goes as several messages, one
// after the other; a group of a write is never cut. The first in the line waits for room and nobody of its urgency
// overtakes it, so large operations come to their turn. Writes have three quarters of the arena among them (one alone
// may have more), so that a store that takes none does not hold up reads: a write that waits for that is passed by what
// is no write. (A clear keeps its place among writes.)
// What waits in the line ends by expire() when its deadline is over, or it is cancelled.
// Copies of more than kInlineCopyBytes run on the executor (on this thread, if that refuses); they hold the arena and
// the operation, so neither goes away under them when the connection does.
// Rule 3: room is given back when the answer is there and copied, never before; after end() the whole arena is dropped.
//
// Threads: confined to the I/O thread; ClientPort::copied() comes from any.
// Lifetime: clock and executor outlive the session; the port is held by copies, too.
// Limits: operations are bounded by whoever submits; kMaxScopes scopes are known to the host at a time, the oldest is
// forgotten first.
// Errors: on_frame() is not ok (kCorrupt) if the host sent what no right host sends: the caller ends
// the connection.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "storage/operation.h"
#include "storage/shared/arena_room.h"
#include "storage/shared/share_memory.h"
#include "storage/shared/share_wire.h"

namespace larder::share {

inline constexpr std::size_t kInlineCopyBytes = std::size_t{256} << 10;

using ClientOperation = std::variant<std::shared_ptr<ExistsOperation>, std::shared_ptr<ReadOperation>,
                                     std::shared_ptr<WriteOperation>, std::shared_ptr<ClearOperation>>;
// Can a client with an arena of so many bytes move all of it? kInvalidArgument: a page of the read, or a group of the
// write, is larger, or a group has too many pages. `option`: what is to be raised then.
[[nodiscard]] Status check_fits(const ReadRequest& request, std::uint64_t arena_bytes, std::string_view option);
[[nodiscard]] Status check_fits(const WriteRequest& request, std::uint64_t arena_bytes, std::string_view option);

// Every answer that is missing becomes `why`. The operation ends when the last reference to it goes.
void fail_operation(const ClientOperation& operation, std::size_t from, const Status& why);

class ClientPort {
 public:
  virtual ~ClientPort() = default;
  virtual void send(std::string frame) = 0;              // I/O thread
  virtual void on_stats(const BackendStats& stats) = 0;  // I/O thread
  // Any thread: to be passed on to on_copied(). False: the copy did not run.
  virtual void copied(std::uint64_t number, bool is_done) = 0;
};

class ClientSession {
 public:
  ClientSession(std::shared_ptr<ShareMemory> arena, std::shared_ptr<ClientPort> port, Clock& clock, Executor& executor);
  ~ClientSession();
  ClientSession(const ClientSession&) = delete;
  ClientSession& operator=(const ClientSession&) = delete;

  // Precondition: check_fits() with this arena's bytes.
  void submit(ClientOperation operation);
  // Does anything wait for room? Then call expire() now and then.
  [[nodiscard]] bool is_waiting() const;
  // Ends what waits and is too late or cancelled, what has begun and waits with a later part, too. Cost: O(waiting).
  void expire();
  void ask_stats();  // at most one question is under way
  [[nodiscard]] Status on_frame(const Head& head, std::string_view body);
  void on_copied(std::uint64_t number, bool is_done);
  // Ends all clears with kCancelled. The host may still do those that it was asked for; its answers are dropped.
  void end_clears();
  // Ends all operations with `why` (those whose payloads are being copied: when that has ended). Nothing is sent after.
  void end(const Status& why);
  [[nodiscard]] const ArenaRoom& room() const { return room_; }

 private:
  // Items, groups or keys [begin, end) of an operation, and the room for them.
  struct Part {
    std::size_t begin = 0, end = 0;
    std::uint64_t offset = 0, bytes = 0;
    std::vector<Place> places;  // in the arena, one per page
  };
  enum class Stage : std::uint8_t { kAsked, kCopyingIn, kCopyingOut };
  struct Flight {
    ClientOperation operation;  // an empty pointer: a clear that end_clears() has ended
    std::uint64_t order = 0;
    Part part;
    Stage stage = Stage::kAsked;
    std::vector<Status> statuses;  // kCopyingOut: what is told then
  };
  struct Waiting {
    ClientOperation operation;
    std::uint64_t order = 0;  // of the submit
    std::size_t begin = 0;
  };
  // Of one urgency, each in order.
  struct Line {
    std::deque<Waiting> writes;  // and clears
    std::deque<Waiting> others;
    [[nodiscard]] std::deque<Waiting>& of(const ClientOperation& operation);
    // Whose turn it is; null: nobody's.
    [[nodiscard]] std::deque<Waiting>* next(bool with_writes);
  };
  struct CopyJob;
  // kKeptBack: writes have their share of the arena.
  enum class Turn : std::uint8_t { kBegun, kEnded, kNoRoom, kKeptBack };

  void pump();
  [[nodiscard]] Turn begin(const Waiting& waiting);
  [[nodiscard]] Turn begin_exists(const std::shared_ptr<ExistsOperation>& op, std::size_t begin);
  [[nodiscard]] Turn begin_read(const std::shared_ptr<ReadOperation>& op, const Waiting& waiting);
  [[nodiscard]] Turn begin_write(const std::shared_ptr<WriteOperation>& op, const Waiting& waiting);
  [[nodiscard]] Turn begin_clear(const std::shared_ptr<ClearOperation>& op);
  void send_write(std::uint64_t number, const Flight& flight);
  // Takes the part's room and moves its places there.
  [[nodiscard]] Turn take_room(Part& part, std::uint64_t from = 0);
  [[nodiscard]] Part plan_read(const ReadRequest& request, std::size_t begin) const;
  [[nodiscard]] Part plan_write(const WriteRequest& request, std::size_t begin) const;
  [[nodiscard]] Status check_terms(const OperationTerms& terms) const;
  [[nodiscard]] Terms terms_for(const OperationTerms& terms, const std::shared_ptr<const StoreScope>& scope);
  // The host's slot of the scope, which it is told of first.
  [[nodiscard]] std::uint16_t slot_of(const std::shared_ptr<const StoreScope>& scope);

  [[nodiscard]] Status on_presence(std::uint64_t number, std::string_view body);
  [[nodiscard]] Status on_statuses(std::uint64_t number, std::string_view body);
  // True: the copy has been made. Else on_copied() comes.
  [[nodiscard]] bool copy(std::uint64_t number, const Flight& flight, bool is_into_arena);
  // The part's answers are known: tells them, and goes on with the next part.
  void end_part(std::uint64_t number, std::vector<Status> statuses);

  const std::shared_ptr<ShareMemory> arena_;
  const std::shared_ptr<ClientPort> port_;
  Clock& clock_;
  Executor& executor_;
  ArenaRoom room_;
  std::uint64_t writing_bytes_ = 0;  // of the arena, taken for writes
  std::array<Line, kUrgencyCount> line_;
  std::unordered_map<std::uint64_t, Flight> flights_;
  std::uint64_t next_number_ = 1, next_order_ = 1;
  bool is_asking_stats_ = false;

  struct Slot {
    std::shared_ptr<const StoreScope> scope;  // held: its address names it
    std::string bytes;                        // what the host was told, slot number apart
  };
  std::vector<Slot> slots_;
  std::unordered_map<const StoreScope*, std::uint16_t> slot_by_scope_;
  std::unordered_map<std::string, std::uint16_t> slot_by_bytes_;
  std::size_t next_slot_ = 0;
};

}  // namespace larder::share
