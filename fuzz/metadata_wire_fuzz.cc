// SPDX-License-Identifier: Apache-2.0
// The binary protocol of the page-index service (metadata/metadata_wire.h), both ends.
//
// Fed: a row of calls with time passing between them, or one message of any bytes, as it is or with a right head; and
// any bytes as an answer.
// Checked: calls through the wire answer exactly what a second service answers when it is called directly, statistics
// included; both keep their invariants. A message of any bytes gets an answer that opens, with kInvalidArgument,
// kUnsupported or what the service says, and a reason; the service keeps its invariants. An answer of any bytes is
// decoded or refused with kCorrupt or an error that it carries.
#include "fuzz/fuzz_input.h"
#include "metadata/embedded_metadata.h"
#include "metadata/message_bytes.h"
#include "metadata/metadata_wire.h"

namespace larder::fuzz {
namespace {

using namespace larder::metadata;

constexpr std::size_t kPayloadBytesAt = 8;

EmbeddedMetadataOptions small_options() {
  EmbeddedMetadataOptions options;
  options.max_namespaces = 3;
  options.max_pages = 32;  // whoever asks for more gets these
  return options;
}

// A service behind its wire, and one that is called directly.
class Pair {
 public:
  Pair() : remote_(make()), direct_(make()) {}

  void step(FuzzInput& input) {
    switch (input.below(9)) {
      case 0: return initialize(input);
      case 1: return find(input);
      case 2:
      case 3: return reserve(input);
      case 4:
      case 5: return confirm(input);
      case 6: return remove(input);
      case 7: return clear(input);
      default: return clock_.advance(std::chrono::seconds(input.below(200)));
    }
  }
  void check() {
    fuzz_check(remote_->check().is_ok() && direct_->check().is_ok(), "a service's invariants are broken");
    const auto asked = ask(WireOperation::kStats, encode_stats(), decode_stats);
    const auto given = direct_->stats();
    fuzz_check(asked.is_ok() && given.is_ok() && asked->size() == given->size(), "statistics of other namespaces");
    for (const auto& [name, stats] : *given) {
      fuzz_check(asked->contains(name), "a namespace is missing");
      const NamespaceStats& other = asked->at(name);
      fuzz_check(other.free == stats.free && other.reserved == stats.reserved && other.stored == stats.stored &&
                     other.quarantined == stats.quarantined && other.leased == stats.leased &&
                     other.evicted == stats.evicted && other.expired == stats.expired &&
                     other.refused == stats.refused && other.pages == stats.pages,
                 "statistics differ");
    }
  }

 private:
  std::unique_ptr<EmbeddedMetadata> make() {
    auto service = EmbeddedMetadata::create(small_options(), clock_);
    fuzz_check(service.is_ok(), "no service");
    return std::move(*service);
  }

  template <class Decode>
  auto ask(WireOperation operation, const Result<std::string>& message, Decode decode)
      -> decltype(decode(std::string_view())) {
    if (!message.is_ok()) return message.status();
    const WireGlance glance = glance_at(*message);
    fuzz_check(glance.operation == operation, "a message glances as another");
    answer_ = answer_wire_request(*remote_, *message).bytes;
    fuzz_check(is_wire_answer(answer_), "an answer is none");
    const Result<std::string_view> payload = open_answer(operation, answer_);
    if (!payload.is_ok()) return payload.status();
    return decode(*payload);
  }
  // Same value, or the same kind of error.
  template <class T, class Equal>
  static void compare(const Result<T>& asked, const Result<T>& given, Equal equal) {
    check_explains(asked.status(), "an answer");
    fuzz_check(asked.is_ok() == given.is_ok() && asked.status().code() == given.status().code(),
               "through the wire: " + asked.status().to_string() + "; directly: " + given.status().to_string());
    if (asked.is_ok()) fuzz_check(equal(*asked, *given), "an answer differs through the wire");
  }
  template <class T>
  static void compare(const Result<T>& asked, const Result<T>& given) {
    compare(asked, given, [](const T& a, const T& b) { return a == b; });
  }

  const MetadataNamespace& name(FuzzInput& input) {
    static const std::array<MetadataNamespace, 5> kNames = {
        MetadataNamespace{0, "kv"}, {1, "kv"}, {-3, "swa"}, {0, "a:b"}, {7, std::string(128, 'n')}};
    const std::uint64_t pick = input.below(8);
    return kNames[pick < 5 ? pick : 0];
  }
  std::string_view key(FuzzInput& input) {
    static const std::array<std::string, 10> kKeys = {
        "a", "b", "c", "d", "e", "f", "ab", std::string(512, 'k'), std::string(3, '\0'), ""};
    return kKeys[input.below(kKeys.size())];
  }
  PageRef ref(FuzzInput& input) {
    if (input.flag() && !given_.empty()) return given_[input.below(given_.size())].ref;
    return {input.below(40), input.below(20)};
  }
  MetadataSession session(FuzzInput& input) { return {{1, 2}, input.below(3)}; }

  void initialize(FuzzInput& input) {
    const MetadataNamespace& space = name(input);
    const std::uint64_t pages = input.below(8) == 0 ? input.number<std::uint64_t>() : 1 + input.below(12);
    compare(ask(WireOperation::kInitialize, encode_initialize(space, pages), decode_count),
            direct_->initialize(space, pages));
  }
  void find(FuzzInput& input) {
    std::vector<MetadataKeys> wanted(input.below(3));
    for (MetadataKeys& group : wanted) {
      group.name_space = &name(input);
      for (std::uint64_t left = input.below(4); left > 0; --left) group.keys.push_back(key(input));
    }
    const Nanos lease = std::chrono::seconds(static_cast<std::int64_t>(input.below(200)) - 2);
    const auto decode = [&](std::string_view payload) { return decode_find(payload, wanted); };
    compare(ask(WireOperation::kFind, encode_find(wanted, lease), decode), direct_->find(wanted, lease));
  }
  void reserve(FuzzInput& input) {
    std::vector<ReserveItems> wanted(input.below(3));
    for (ReserveItems& group : wanted) {
      group.name_space = &name(input);
      for (std::uint64_t left = input.below(6); left > 0; --left) {
        const std::string_view parent = input.flag() && !group.items.empty() ? group.items.back().key
                                        : input.flag()                       ? key(input)
                                                                             : std::string_view();
        group.items.push_back({key(input), parent});
      }
    }
    const MetadataSession who = session(input);
    const Nanos ttl = std::chrono::seconds(static_cast<std::int64_t>(input.below(200)) - 1);
    const auto decode = [&](std::string_view payload) { return decode_reserve(payload, wanted); };
    const auto given = direct_->reserve(who, wanted, ttl);
    const auto is_same = [](const auto& a, const auto& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
        return std::equal(one.begin(), one.end(), other.begin(), other.end(), [](const Reserved& x, const Reserved& y) {
          return x.outcome == y.outcome && x.ref == y.ref;
        });
      });
    };
    compare(ask(WireOperation::kReserve, encode_reserve(who, wanted, ttl), decode), given, is_same);
    if (!given.is_ok()) return;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      for (std::size_t k = 0; k < wanted[i].items.size(); ++k) {
        if ((*given)[i][k].outcome != ReserveOutcome::kReserved || given_.size() > 64) continue;
        given_.push_back({wanted[i].name_space, wanted[i].items[k].key, (*given)[i][k].ref});
      }
    }
  }
  ConfirmItem item(FuzzInput& input) {
    if (input.below(4) != 0 && !given_.empty()) return given_[input.below(given_.size())];
    return {&name(input), key(input), ref(input)};
  }
  void confirm(FuzzInput& input) {
    ConfirmRequest request;
    request.session = session(input);
    const std::uint64_t flags = input.below(4);
    request.durable = (flags & 1) != 0;
    request.released_rest = (flags & 2) != 0;
    request.groups.resize(input.below(3));
    for (auto& group : request.groups) {
      for (std::uint64_t left = input.below(4); left > 0; --left) group.push_back(item(input));
    }
    for (std::uint64_t left = input.below(3); left > 0; --left) request.release.push_back(item(input));
    const auto decode = [&](std::string_view payload) { return decode_confirm(payload, request.groups.size()); };
    const auto is_same = [](const std::vector<Status>& a, const std::vector<Status>& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                        [](const Status& x, const Status& y) { return x.code() == y.code(); });
    };
    compare(ask(WireOperation::kConfirm, encode_confirm(request), decode), direct_->confirm(request), is_same);
  }
  void remove(FuzzInput& input) {
    std::vector<ConfirmItem> items;
    for (std::uint64_t left = input.below(4); left > 0; --left) items.push_back(item(input));
    if (!items.empty() && input.flag()) items.back().ref = {};
    compare(ask(WireOperation::kRemove, encode_remove(items), decode_count), direct_->remove(items));
  }
  void clear(FuzzInput& input) {
    const MetadataNamespace& space = name(input);
    const std::string_view prefix = input.flag() ? std::string_view() : key(input);
    compare(ask(WireOperation::kClear, encode_clear(space, prefix), decode_count), direct_->clear(space, prefix));
  }

  ManualClock clock_;
  const std::unique_ptr<EmbeddedMetadata> remote_, direct_;
  std::vector<ConfirmItem> given_;  // what was reserved, for calls that fit
  std::string answer_;
};

void check_calls(FuzzInput& input) {
  Pair pair;
  for (int i = 0; i < 60 && !input.empty(); ++i) {
    pair.step(input);
    pair.check();
  }
}

// Magic, version, operation and length as they should be.
std::string with_head(std::uint8_t operation, std::string_view payload) {
  MessageWriter writer(kAskMagic, operation, 0);
  writer.bytes(payload);
  return writer.finish();
}

void check_message(FuzzInput& input) {
  ManualClock clock;
  auto service = EmbeddedMetadata::create(small_options(), clock);
  fuzz_check(service.is_ok() && (*service)->initialize({0, "kv"}, 8).is_ok(), "no service");
  const bool sealed = input.flag();
  const auto operation = static_cast<std::uint8_t>(1 + input.below(8));
  const std::string_view rest = input.rest_text();
  const std::string message = sealed ? with_head(operation, rest) : std::string(rest);
  const WireGlance glance = glance_at(message);
  const WireAnswer answer = answer_wire_request(**service, message);
  fuzz_check(is_wire_answer(answer.bytes), "an answer is none");
  if (!glance.operation) fuzz_check(answer.code != StatusCode::kOk, "a broken head is taken");
  if (glance.operation) {
    const Result<std::string_view> payload = open_answer(*glance.operation, answer.bytes);
    fuzz_check(payload.status().code() == answer.code, "the answer's status is another than its bytes say");
    check_explains(payload.status(), "an answer");
  }
  fuzz_check((*service)->check().is_ok(), "a message breaks the service's invariants");
}

void check_answer(FuzzInput& input) {
  const auto operation = static_cast<WireOperation>(1 + input.below(7));
  static const MetadataNamespace kName;
  const std::vector<MetadataKeys> found = {{&kName, {"a", "b"}}};
  const std::vector<ReserveItems> reserved = {{&kName, {{"a"}, {"b", "a"}}}};
  const auto check = [](const Status& status) {
    fuzz_check(status.is_ok() || status.code() == StatusCode::kCorrupt, "an answer is refused strangely");
    check_explains(status, "decoding an answer");
  };
  std::string_view payload = input.rest_text();
  const Result<std::string_view> opened = open_answer(operation, payload);
  check_explains(opened.status(), "open_answer");
  if (opened.is_ok()) payload = *opened;
  check(decode_count(payload).status());
  check(decode_find(payload, found).status());
  check(decode_reserve(payload, reserved).status());
  check(decode_confirm(payload, 2).status());
  check(decode_stats(payload).status());
}

void run(FuzzInput input) {
  switch (input.below(4)) {
    case 0: return check_message(input);
    case 1: return check_answer(input);
    default: return check_calls(input);
  }
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
