// SPDX-License-Identifier: Apache-2.0
#include "tests/metadata/crash_client.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace larder::conformance {
namespace {

constexpr Nanos kLong = std::chrono::seconds(60), kShort = std::chrono::milliseconds(20);
constexpr std::array<char, 2> kLetters = {'b', 's'};

std::vector<ConfirmItem> items_of(const std::vector<CrashEvent>& events) {
  std::vector<ConfirmItem> items;
  for (const CrashEvent& event : events) items.push_back({&crash_space(event.space), event.key, event.ref});
  return items;
}

bool is_big(const CrashEvent& event) { return event.space == 'b'; }
bool is_all_big(const std::vector<CrashEvent>& events) { return std::all_of(events.begin(), events.end(), is_big); }
bool has_big(const std::vector<CrashEvent>& events) { return std::any_of(events.begin(), events.end(), is_big); }

}  // namespace

CrashLoad::CrashLoad(std::uint64_t number, std::uint64_t seed, Say say)
    : number_(number), rng_(seed * (kCrashClients + 1) + number), say_(std::move(say)) {}

void CrashLoad::begin() {
  now_ = {};
  now_.session = {{number_, rng_.next_u64()}, 1};
  const std::uint64_t first = rng_.below(kCrashKeys), count = 1 + rng_.below(kMostItems);
  for (std::uint64_t i = 0; i < count; ++i) now_.keys.push_back(crash_key(number_, (first + i) % kCrashKeys));
  const std::uint64_t choice = rng_.below(60);
  now_.call = choice < 1 ? Call::kClear : choice < 9 ? Call::kRemove : choice < 16 ? Call::kFind : Call::kReserve;
  now_.is_durable = rng_.chance(1, 8);
  now_.is_abandoned = rng_.chance(1, 20);
  now_.is_released = rng_.chance(1, 15);
  now_.is_cleared = rng_.chance(1, 60);
}

bool CrashLoad::step() {
  if (now_.call == Call::kDone) begin();
  while (now_.call != Call::kDone) {
    const Status status = call();
    if (status.is_ok()) continue;
    if (status.code() != StatusCode::kUnavailable) wrong(status.to_string());
    if (now_.call == Call::kReserve) unanswered_ += now_.keys.size();
    now_.is_repeated = true;
    return false;
  }
  return true;
}

Status CrashLoad::call() {
  switch (now_.call) {
    case Call::kReserve: {
      LARDER_RETURN_IF_ERROR(reserve());
      now_.is_repeated = false;
      const bool is_over = now_.is_abandoned || now_.reserved.empty();
      now_.call = is_over ? Call::kDone : now_.is_cleared ? Call::kClear : Call::kConfirm;
      return Status::ok();
    }
    case Call::kClear:  // by itself, or between a reservation and its confirmation, which is refused then
      LARDER_RETURN_IF_ERROR(clear());
      now_.call = now_.reserved.empty() ? Call::kDone : Call::kConfirm;
      return Status::ok();
    case Call::kConfirm: LARDER_RETURN_IF_ERROR(confirm()); break;
    case Call::kRemove: LARDER_RETURN_IF_ERROR(remove()); break;
    case Call::kFind: LARDER_RETURN_IF_ERROR(find()); break;
    case Call::kDone: break;
  }
  now_.call = Call::kDone;
  return Status::ok();
}

void CrashLoad::say_all(CrashWord word, const std::vector<CrashEvent>& events) {
  std::vector<CrashEvent> said = events;
  for (CrashEvent& event : said) event.word = word;
  say_(said);
}

std::vector<CrashEvent> CrashLoad::events_of(char space, const std::vector<std::string>& keys) const {
  std::vector<CrashEvent> events;
  for (const std::string& key : keys) events.push_back({CrashWord::kMissed, space, key, {}});
  return events;
}

std::vector<std::string> CrashLoad::all_keys() const {
  std::vector<std::string> keys;
  for (std::uint64_t i = 0; i < kCrashKeys; ++i) keys.push_back(crash_key(number_, i));
  return keys;
}

Status CrashClient::reserve() {
  std::vector<ReserveItem> chain;
  for (std::size_t i = 0; i < now_.keys.size(); ++i) {
    chain.push_back({now_.keys[i], i == 0 ? std::string_view{} : now_.keys[i - 1]});
  }
  const Wanted wanted{{&crash_space('b'), chain}, {&crash_space('s'), chain}};
  const auto answer = service_->reserve(now_.session, wanted, now_.is_abandoned ? kShort : kLong);
  if (!answer) return answer.status();
  std::vector<CrashEvent> found;
  for (std::size_t space = 0; space < wanted.size(); ++space) {
    for (std::size_t i = 0; i < chain.size(); ++i) {
      const Reserved& page = answer->at(space).at(i);
      const CrashEvent event{CrashWord::kReserved, kLetters[space], now_.keys[i], page.ref};
      if (page.outcome == ReserveOutcome::kReserved) now_.reserved.push_back(event);
      if (page.outcome == ReserveOutcome::kStored) found.push_back(event);
    }
  }
  say_all(CrashWord::kFound, found);
  say_(now_.reserved);
  if (!now_.is_abandoned && rng_.chance(1, 10)) reserve_again(wanted, *answer);
  return Status::ok();
}

// As if the first answer had been lost.
void CrashClient::reserve_again(const Wanted& wanted, const Answer& first) {
  const auto second = service_->reserve(now_.session, wanted, kLong);
  if (!second) {
    const auto has_page = [](const CrashEvent& event) { return !is_big(event); };
    unanswered_ += now_.keys.size() -
                   static_cast<std::size_t>(std::count_if(now_.reserved.begin(), now_.reserved.end(), has_page));
    return;
  }
  std::vector<CrashEvent> more;  // there was no page the first time, or what was there has been evicted
  for (std::size_t space = 0; space < wanted.size(); ++space) {
    for (std::size_t i = 0; i < now_.keys.size(); ++i) {
      const Reserved &was = first.at(space).at(i), &is = second->at(space).at(i);
      const bool is_reserved = is.outcome == ReserveOutcome::kReserved;
      if (was.outcome != ReserveOutcome::kReserved) {
        if (is_reserved) more.push_back({CrashWord::kReserved, kLetters[space], now_.keys[i], is.ref});
      } else if (!is_reserved || !(is.ref == was.ref)) {
        wrong("a reservation repeated is another one: " + now_.keys[i]);
      }
    }
  }
  say_(more);
  now_.reserved.insert(now_.reserved.end(), more.begin(), more.end());
}

Status CrashClient::confirm() {
  ConfirmRequest request{now_.session, {}, {}, now_.is_durable};
  (now_.is_released ? request.release : request.groups.emplace_back()) = items_of(now_.reserved);
  if (now_.is_repeated) {
    LARDER_RETURN_IF_ERROR(look_for_halves());
  } else if (!now_.is_released) {
    say_all(CrashWord::kConfirming, now_.reserved);
  }
  const auto answer = service_->confirm(request);
  if (!answer) return answer.status();
  if (now_.is_released) {
    say_all(CrashWord::kReleased, now_.reserved);
    return Status::ok();
  }
  confirmed(answer->at(0));
  if (!is_all_big(now_.reserved) || !rng_.chance(1, 4)) return Status::ok();
  const auto again = service_->confirm(request);
  if (again && again->at(0).code() != answer->at(0).code()) wrong("a confirmation repeated has another answer");
  return Status::ok();
}

// A group that nobody answered for is there or not; what is not evicted is there if anything of it is.
Status CrashClient::look_for_halves() {
  std::vector<MetadataKeys> wanted;
  for (const CrashEvent& event : now_.reserved) wanted.push_back({&crash_space(event.space), {event.key}});
  const auto answer = service_->find(wanted, Nanos{0});
  if (!answer) return answer.status();
  bool is_any_there = false, is_big_missing = false;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const bool is_there = answer->at(i).at(0) == now_.reserved[i].ref;
    is_any_there |= is_there;
    is_big_missing |= !is_there && is_big(now_.reserved[i]);
  }
  if (is_any_there && is_big_missing) wrong("half a group is confirmed");
  return Status::ok();
}

void CrashClient::confirmed(const Status& answer) {
  if (answer.is_ok()) {
    if (now_.is_cleared && has_big(now_.reserved)) wrong("what was cleared is confirmed");
    say_all(CrashWord::kConfirmed, now_.reserved);
    return;
  }
  // A reservation does not outlive the service; nothing else makes it end before its time.
  if (answer.code() != StatusCode::kNotFound) wrong(answer.to_string());
  if (!now_.is_repeated && !now_.is_cleared) wrong("a confirmation in time is refused: " + answer.to_string());
  say_all(is_all_big(now_.reserved) ? CrashWord::kRefused : CrashWord::kWithheld, now_.reserved);
}

Status CrashClient::remove() {
  const std::vector<CrashEvent> gone = events_of('b', now_.keys);
  say_all(CrashWord::kForgetting, gone);
  const auto answer = service_->remove(items_of(gone));
  if (answer.is_ok()) say_all(CrashWord::kForgotten, gone);
  return answer.status();
}

Status CrashClient::clear() {
  const std::vector<CrashEvent> gone = events_of('b', all_keys());
  say_all(CrashWord::kForgetting, gone);
  const auto answer = service_->clear(crash_space('b'), crash_prefix(number_));
  if (answer.is_ok()) say_all(CrashWord::kForgotten, gone);
  return answer.status();
}

Status CrashClient::find() {
  const std::vector<std::string_view> keys(now_.keys.begin(), now_.keys.end());
  const std::vector<MetadataKeys> wanted{{&crash_space('b'), keys}, {&crash_space('s'), keys}};
  const auto answer = service_->find(wanted, kShort);
  if (!answer) return answer.status();
  std::vector<CrashEvent> said;
  for (std::size_t space = 0; space < wanted.size(); ++space) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::optional<PageRef>& page = answer->at(space).at(i);
      const CrashWord word = page ? CrashWord::kFound : CrashWord::kMissed;
      said.push_back({word, kLetters[space], now_.keys[i], page.value_or(PageRef{})});
    }
  }
  say_(said);
  return Status::ok();
}

}  // namespace larder::conformance
