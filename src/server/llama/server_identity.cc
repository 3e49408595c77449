// SPDX-License-Identifier: Apache-2.0
#include "server/llama/server_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/log.h"

namespace larder::llama {
namespace {

constexpr Nanos kLongestPause = std::chrono::minutes(10);
constexpr Nanos kLook = std::chrono::milliseconds(100);

bool is_same_start(const UpstreamFacts& now, const UpstreamFacts& known) {
  return now.instance == known.instance && now.model_path == known.model_path && now.build == known.build &&
         now.slots == known.slots && now.slot_context == known.slot_context;
}

bool has_two_sets(const GgufModel& model) {
  return std::ranges::any_of(
      model.tensor_names, [](const std::string& name) { return name.find("rope_factors_long") != std::string::npos; });
}

void tell_late(const std::string& why) {
  log_info("proxy",
           "llama-server is not proven again yet, and requests go on without prefixes, until all of its slots "
           "are free for a moment: " +
               why);
}

}  // namespace

std::string context_identity(const GgufModel& model, std::uint32_t context_tokens) {
  return has_two_sets(model) ? fmt::format("; context {}", context_tokens) : std::string();
}

std::string environment_identity() {
  const char* const variable = std::getenv("LLAMA_ATTN_ROT_DISABLE");
  return variable != nullptr && std::atoi(variable) != 0 ? "; rows as they are" : std::string();
}

bool hides_context(const GgufModel& model, std::uint32_t slot_tokens, bool is_capped) {
  if (!has_two_sets(model)) return false;
  const GgufFile& file = model.first;
  const std::string name = file.text("general.architecture").value_or("");
  const auto trained = file.number(name + ".context_length");
  const auto original = file.number(name + ".rope.scaling.original_context_length");
  const bool is_long = slot_tokens > original.value_or(trained.value_or(slot_tokens));  // whatever is behind it
  return !is_long && (is_capped || slot_tokens >= trained.value_or(std::uint64_t{slot_tokens} + 1));
}

class ServerIdentity::Turn {
 public:
  explicit Turn(ServerIdentity& identity) : identity_(identity) { ++identity_.turns_; }
  ~Turn() { ++identity_.turns_; }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  [[nodiscard]] static bool is_running(std::uint64_t turns) { return turns % 2 == 1; }

 private:
  ServerIdentity& identity_;
};

ServerIdentity::Stay::~Stay() {
  if (identity_ != nullptr) identity_->leave(*this);
}

ServerIdentity::ServerIdentity(UpstreamFacts facts, Parts parts)
    : parts_(std::move(parts)), facts_(std::move(facts)), met_(facts_) {}

Result<UpstreamFacts> ServerIdentity::ask(LlamaUpstream& upstream, const Starts& starts) {
  Result<UpstreamFacts> facts = upstream.facts();
  // Counted after the answer: whoever gave it was started by then.
  if (facts.is_ok() && starts) facts->instance += fmt::format("; start {}", starts());
  return facts;
}

Result<UpstreamFacts> ServerIdentity::ask_now(LlamaUpstream& upstream) {
  Result<UpstreamFacts> now = ask(upstream, parts_.starts);
  if (!now.is_ok() || !now->is_sleeping) return now;
  LockGuard guard(mutex_);
  is_proven_ = false;
  end_refusal();
  return now;
}

void ServerIdentity::enter(Stay& stay) {
  if (stay.identity_ != nullptr) --count_of(stay);
  stay.identity_ = this;
  stay.changes_ = changes_;
  ++current_;
}

void ServerIdentity::leave(const Stay& stay) {
  LockGuard guard(mutex_);
  --count_of(stay);
  left_.notify_all();
}

std::size_t& ServerIdentity::count_of(const Stay& stay) { return stay.changes_ == changes_ ? current_ : older_; }

bool ServerIdentity::wait_for_older(Stay& stay, TimePoint end, const std::function<bool()>& is_gone) {
  while (!is_gone()) {  // which may take a lock of its own
    LockGuard guard(mutex_);
    enter(stay);
    if (older_ == 0) return true;
    if (parts_.clock.now() >= end) break;
    left_.wait_for(mutex_, kLook);
  }
  return false;
}

std::optional<Result<ServerIdentity::Checked>> ServerIdentity::verdict(const UpstreamFacts& now) const {
  if (!refused_.is_ok() && (is_for_good_ || is_same_start(now, met_))) return Result<Checked>(refused_);
  const bool is_too_soon = is_same_start(now, met_) && parts_.clock.now() < next_proof_;
  if (changing_ == 0 && is_known(now)) return Result<Checked>(version_);
  if (changing_ > 0 || is_too_soon) return Result<Checked>(std::nullopt);
  return std::nullopt;
}

Result<ServerIdentity::Checked> ServerIdentity::check(LlamaUpstream& client, LlamaUpstream& own,
                                                      const std::function<bool()>& is_gone, Stay& stay) {
  for (;;) {
    const std::uint64_t turns = turns_;
    {
      LockGuard guard(mutex_);
      enter(stay);
    }
    LARDER_ASSIGN_OR_RETURN(const UpstreamFacts now, ask_now(client));
    {
      LockGuard guard(mutex_);
      enter(stay);
      if (auto answer = verdict(now)) return std::move(*answer);
    }
    const TimePoint end = parts_.clock.now() + parts_.slots_limit;
    if (!wait_for_older(stay, end, is_gone)) {
      if (!is_gone()) tell_late("requests of before its adapters were changed still run");
      return Checked();
    }
    const auto is_over = [&] { return is_gone() || turns_ != turns; };
    const Nanos limit = end - parts_.clock.now();
    const Result<SlotTable::Hold> all =
        parts_.slots.acquire({.count = parts_.slots.size(), .limit = limit, .is_gone = is_over});
    if (all.is_ok()) return prove_again(client, own);
    const bool is_late = all.status().code() == StatusCode::kDeadlineExceeded;
    if (is_late && !Turn::is_running(turns)) tell_late(all.status().message());
    const bool waits_on = is_late ? Turn::is_running(turns) : all.status().code() == StatusCode::kCancelled;
    if (!waits_on || is_gone()) return Checked();
  }
}

void ServerIdentity::look(LlamaUpstream& client) { (void)ask_now(client); }

bool ServerIdentity::is_known(const UpstreamFacts& now) const {
  return is_proven_ && !now.is_sleeping && is_same_start(now, facts_);
}

bool ServerIdentity::is_current(std::uint64_t checked) const {
  LockGuard guard(mutex_);
  return changing_ == 0 && version_ == checked;
}

bool ServerIdentity::is_still(std::uint64_t checked, LlamaUpstream& client) {
  const Result<UpstreamFacts> now = ask_now(client);
  LockGuard guard(mutex_);
  return now.is_ok() && changing_ == 0 && version_ == checked && is_known(*now);
}

void ServerIdentity::begin_change() {
  LockGuard guard(mutex_);
  ++changing_;
}

void ServerIdentity::end_change(bool is_changed) {
  LockGuard guard(mutex_);
  --changing_;
  if (!is_changed) return;
  ++version_;
  ++changes_;
  older_ += std::exchange(current_, 0);
  is_proven_ = false;
  end_refusal();
}

void ServerIdentity::end_refusal() {
  if (!is_for_good_) refused_ = Status::ok();
}

bool ServerIdentity::meet(const UpstreamFacts& now) {
  is_proven_ = false;
  end_refusal();
  const bool is_same = is_same_start(now, facts_);
  if (is_same_start(now, met_)) return is_same;
  met_ = now;
  pause_ = Nanos{0};
  next_proof_ = {};
  if (!is_same) parts_.metrics.restarts.increment();
  return is_same;
}

Result<ServerIdentity::Checked> ServerIdentity::prove_again(LlamaUpstream& client, LlamaUpstream& own) {
  const Turn turn(*this);
  LARDER_ASSIGN_OR_RETURN(const UpstreamFacts now, ask_now(own));
  std::uint64_t version = 0;
  bool is_same = false;
  {
    LockGuard guard(mutex_);  // somebody else was first, perhaps
    if (auto answer = verdict(now)) return std::move(*answer);
    if (older_ > 0) return Checked();  // its adapters were changed since
    version = version_;
    is_same = meet(now);
  }
  parts_.slots.forget_all();
  log_info("proxy", fmt::format("llama-server {}: it is proven again",
                                is_same ? "has slept, or its adapters were changed" : "was started anew"));
  const std::uint32_t slots = parts_.slots.size();
  Proof proven;
  if (now.slots == slots) {
    proven = parts_.prove(client, own, now);
  } else {
    proven.status = conflict(fmt::format("it has {} slots, and had {}", now.slots, slots));
  }
  LockGuard guard(mutex_);
  if (changing_ > 0 || version != version_) return Checked();  // its adapters were changed while it was proven
  if (!proven.status.is_ok()) return note_failure(proven);
  facts_ = now;
  is_proven_ = true;
  pause_ = Nanos{0};
  return Checked(version_);
}

Result<ServerIdentity::Checked> ServerIdentity::refuse(const Proof& why) {
  is_for_good_ = why.is_other_model;
  const std::string_view means =
      is_for_good_
          ? "is another one than before, so it is given no prefixes; start the proxy anew: "
          : "is not as it was, so it is given no prefixes until a restart or POST /lora-adapters makes it so: ";
  refused_ = conflict(fmt::format("llama-server {}{}", means, why.status.message()));
  log_error("proxy", refused_.message());
  return refused_;
}

Result<ServerIdentity::Checked> ServerIdentity::note_failure(const Proof& why) {
  ++version_;  // whoever waits for a slot asked who is there before
  if (why.status.code() == StatusCode::kConflict) return refuse(why);
  if (why.status.code() == StatusCode::kCancelled) return Checked();  // the proxy ends
  pause_ = std::min(std::max(2 * pause_, parts_.first_pause), kLongestPause);
  next_proof_ = parts_.clock.now() + pause_;
  log_warning("proxy",
              fmt::format("llama-server could not be proven again: {}; requests go on without prefixes, and "
                          "the next try is in {} s",
                          why.status.message(), std::chrono::duration_cast<std::chrono::seconds>(pause_).count()));
  return Checked();
}

}  // namespace larder::llama
