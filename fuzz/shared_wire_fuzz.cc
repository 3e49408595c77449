// SPDX-License-Identifier: Apache-2.0
// The protocol between processes that share a store (storage/shared), both ends.
//
// Fed: any bytes as a head and as each kind of body; rows of messages, of which some are right, to a host with a memory
// backend behind it and an order of clears between them; any bytes as a file of clears; rows of answers to a client
// with operations in flight. Checked: a body is refused with kCorrupt and a reason, or what it says is said again in
// the same words. A host answers each operation that it takes exactly once, in words that decode, and touches no byte
// outside the arena. A client ends each operation exactly once, whatever it is told.
#include <sys/mman.h>

#include "base/clock.h"
#include "fuzz/fuzz_input.h"
#include "storage/clear_order.h"
#include "storage/memory/memory_backend.h"
#include "storage/shared/clears_file.h"
#include "storage/shared/client_session.h"
#include "storage/shared/host_session.h"

namespace larder::fuzz {
namespace {

using namespace larder::share;

constexpr std::size_t kArenaBytes = 16 << 10, kGuardBytes = 64 << 10;
constexpr std::uint64_t kClears = 5;  // ClearMark::store

void check_refusal(const Status& status, std::string_view what) {
  fuzz_check(status.is_ok() || status.code() == StatusCode::kCorrupt, std::string(what) + " is refused strangely");
  check_explains(status, what);
}

// What was decoded, encoded, is decoded to the same.
template <class Decode, class Encode>
void check_body(std::string_view body, std::string_view what, Decode decode, Encode encode) {
  const auto value = decode(body);
  check_refusal(value.status(), what);
  if (!value.is_ok()) return;
  const std::string once = encode(*value);
  fuzz_check(decode_head(once).is_ok(), "a head that was just written is broken");
  const auto again = decode(std::string_view(once).substr(kHeadBytes));
  fuzz_check(again.is_ok() && encode(*again) == once, std::string(what) + " does not come back");
}

void check_bodies(FuzzInput& input) {
  const std::string_view body = input.rest_text();
  check_refusal(decode_head(body).status(), "a head");
  check_body(body, "hello", decode_hello, [](const Hello& hello) { return encode_hello(hello); });
  check_body(body, "welcome", decode_welcome, [](const Welcome& welcome) { return encode_welcome(welcome); });
  check_body(body, "scope", decode_scope, [](const ScopeEntry& entry) { return encode_scope(entry); });
  check_body(body, "exists", decode_exists, [](const ExistsAsk& ask) { return encode_exists(1, ask); });
  check_body(body, "read", decode_read, [](const ReadAsk& ask) { return encode_read(1, ask); });
  check_body(body, "write", decode_write, [](const WriteAsk& ask) { return encode_write(1, ask); });
  check_body(body, "clear", decode_clear, [](std::uint16_t scope) { return encode_clear(1, scope); });
  check_body(body, "presence", decode_presence, [](const ExistsResult& found) { return encode_presence(1, found); });
  check_body(body, "statuses", decode_statuses, [](const auto& statuses) { return encode_statuses(1, statuses); });
  check_body(body, "stats", decode_stats, [](const BackendStats& stats) { return encode_stats(stats); });
  const Result<ClearHistory> clears = decode_clears({}, body);
  fuzz_check(clears.is_ok() || clears.status().code() == StatusCode::kCorrupt ||
                 clears.status().code() == StatusCode::kConflict,
             "a file of clears is refused strangely");
  fuzz_check(!clears.is_ok() || decode_clears({}, encode_clears({}, *clears)).is_ok(),
             "a file of clears does not come back");
}

// An arena between pages that nobody may touch: the process ends there.
class GuardedMemory final : public ShareMemory {
 public:
  GuardedMemory() {
    void* const at = ::mmap(nullptr, kAllBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fuzz_check(at != MAP_FAILED, "no memory");
    begin_ = static_cast<std::byte*>(at);
    fuzz_check(::mprotect(bytes().data(), kArenaBytes, PROT_READ | PROT_WRITE) == 0, "no memory");
  }
  ~GuardedMemory() override { ::munmap(begin_, kAllBytes); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() override { return {begin_ + kGuardBytes, kArenaBytes}; }

 private:
  static constexpr std::size_t kAllBytes = kArenaBytes + 2 * kGuardBytes;
  std::byte* begin_ = nullptr;
};

class CountingSink final : public AnswerSink {
 public:
  void answer(std::string frame) override {
    const Result<Head> head = decode_head(frame);
    fuzz_check(head.is_ok() && head->body_bytes == frame.size() - kHeadBytes, "an answer has a broken head");
    const std::string_view body = std::string_view(frame).substr(kHeadBytes);
    if (head->kind == Kind::kStats) return fuzz_check(decode_stats(body).is_ok(), "broken statistics");
    const bool is_presence = head->kind == Kind::kPresence;
    fuzz_check(is_presence ? decode_presence(body).is_ok() : decode_statuses(body).is_ok(), "a broken answer");
    ++answers;
  }
  std::size_t answers = 0;
};

Digest256 digest_of(FuzzInput& input) {
  Digest256 digest;
  digest.bytes[0] = static_cast<std::uint8_t>(input.below(4));
  digest.bytes[1] = 1;
  return digest;
}
Place place_of(FuzzInput& input) {
  if (input.below(8) == 0) return {input.number<std::uint64_t>(), input.number<std::uint64_t>()};
  const std::uint64_t offset = input.below(kArenaBytes + 1);
  const std::uint64_t left = kArenaBytes - offset;
  return {offset, input.below(8) == 0 ? left + input.below(4) : input.below(left + 1)};
}

// A message as a client might send it; now and then with a wrong number in it, or of any bytes.
std::string message_of(FuzzInput& input) {
  const Terms terms{static_cast<std::uint16_t>(input.below(8) == 0 ? input.below(3) : 0),
                    static_cast<Urgency>(input.below(3)), kNoDeadline};
  const auto pool = [&] { return static_cast<PoolName>(input.below(4) == 0 ? input.below(kMaxPools) : 0); };
  switch (input.below(12)) {
    case 0:
    case 1: {
      ScopeEntry entry{terms.scope, {}};
      entry.scope.namespace_digest = digest_of(input);
      entry.scope.set_pool(pool(), digest_of(input), input.flag());
      return encode_scope(entry);
    }
    case 2: return encode_exists(1, {terms, {pool(), pool()}, {digest_of(input), digest_of(input)}});
    case 3:
    case 4: return encode_read(1, {terms, {{pool(), digest_of(input), place_of(input)}}});
    case 5:
    case 6:
    case 7:
    case 8: {
      WriteAsk ask{terms, input.flag(), std::vector<std::vector<WriteAsk::Item>>(input.below(3)), {}};
      if (input.flag()) ask.as_of = {kClears + input.below(2), input.below(4)};
      for (auto& group : ask.groups) {
        group.resize(input.below(3));
        for (WriteAsk::Item& item : group) item = {pool(), digest_of(input), {}, place_of(input)};
      }
      return encode_write(1, ask);
    }
    case 9: return encode_clear(1, input.flag() ? kNoScope : terms.scope);
    case 10: return encode_ask_stats();
    default: return std::string(input.text(input.below(64)));
  }
}

void check_host(FuzzInput& input) {
  InlineExecutor executor;
  ManualClock clock;
  BackendFactory factory;
  fuzz_check(register_memory_backend(factory).is_ok(), "no memory backend");
  auto inner = factory.create("memory", {{"max_size", "100Ki"}}, {nullptr, &clock, &executor});
  fuzz_check(inner.is_ok(), "no memory backend");
  const auto arena = std::make_shared<GuardedMemory>();
  const auto sink = std::make_shared<CountingSink>();
  ClearHistory history;
  history.store = kClears;
  ClearOrder order(std::move(*inner), history);
  HostSession host(order, clock, arena, sink, 4);
  std::size_t operations = 0;
  ScopeEntry entry;
  entry.scope.set_pool(PoolName::kKv, Digest256{{1}});
  for (std::string frame = encode_scope(entry); !input.empty(); frame = message_of(input)) {
    const Result<Head> head = decode_head(frame);
    check_refusal(head.status(), "a head");
    if (!head.is_ok()) break;  // the connection ends
    const Status status = host.on_frame(*head, std::string_view(frame).substr(kHeadBytes));
    check_refusal(status, "a message");
    if (!status.is_ok()) break;
    if (head->kind != Kind::kScope && head->kind != Kind::kAskStats) ++operations;
    fuzz_check(sink->answers == operations && host.in_flight() == 0, "not one answer for each operation");
  }
}

class SilentPort final : public ClientPort {
 public:
  void send(std::string frame) override { last = std::move(frame); }
  void on_stats(const BackendStats&) override {}
  void copied(std::uint64_t, bool) override {}  // of this size, copies are made at once
  std::string last;
};

void check_client(FuzzInput& input) {
  InlineExecutor executor;
  ManualClock clock;
  OperationGate gate("fuzz", 1000);
  const auto arena = std::make_shared<GuardedMemory>();
  const auto port = std::make_shared<SilentPort>();
  const auto scope = std::make_shared<const StoreScope>();
  std::vector<std::byte> page(5000);
  std::size_t submitted = 0, ended = 0;
  const auto count = [&ended](const auto&) { ++ended; };
  ClientSession client(arena, port, clock, executor);
  const auto submit = [&](auto op) {
    preset_cancelled(*op);
    ++submitted;
    client.submit(std::move(op));
  };
  Status status;
  while (!input.empty() && status.is_ok()) {
    const std::vector<Segment> payload = {{page.data(), input.below(page.size() + 1)}};
    const std::vector<WriteItem> group(1 + input.below(2), WriteItem{PoolName::kKv, {}, payload});
    std::string frame;
    switch (input.below(7)) {
      case 0:
        submit(std::make_shared<ReadOperation>(
            ReadRequest{scope, std::vector<ReadItem>(input.below(5), ReadItem{PoolName::kKv, {}, payload})}, count,
            gate.hold()));
        break;
      case 1:
        submit(std::make_shared<WriteOperation>(
            WriteRequest{scope, std::vector<PageGroup>(input.below(5), PageGroup{group})}, count, gate.hold()));
        break;
      case 2:
        submit(std::make_shared<ExistsOperation>(
            ExistsRequest{scope, std::vector<PageKey>(input.below(20)), {PoolName::kKv}}, count, gate.hold()));
        break;
      case 3: submit(std::make_shared<ClearOperation>(scope, count, gate.hold())); break;
      case 4: frame = encode_statuses(1 + input.below(submitted + 4), std::vector<Status>(input.below(5))); break;
      case 5:
        frame = encode_presence(1 + input.below(submitted + 4),
                                {{}, {{PoolName::kKv, std::vector<bool>(input.below(20))}}});
        break;
      default: frame = input.text(input.below(64)); break;
    }
    if (frame.empty()) continue;
    const Result<Head> head = decode_head(frame);
    status = head.is_ok() ? client.on_frame(*head, std::string_view(frame).substr(kHeadBytes)) : head.status();
    check_refusal(status, "an answer");
  }
  client.end(unavailable("the end"));
  fuzz_check(ended == submitted, "not one end for each operation");
}

void run(FuzzInput input) {
  switch (input.below(3)) {
    case 0: return check_bodies(input);
    case 1: return check_host(input);
    default: return check_client(input);
  }
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
