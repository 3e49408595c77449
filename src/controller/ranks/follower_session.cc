// SPDX-License-Identifier: Apache-2.0
#include "controller/ranks/follower_session.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace larder::ranks {
namespace {

constexpr std::size_t kReportsFrameBytes = std::size_t{256} << 10;  // a frame is full from here on
constexpr std::uint64_t kStepsPerProgress = 256;  // plans without events are acknowledged so seldom: of kMaxPlansAhead
constexpr std::string_view kFollowerComponent = "ranks";

}  // namespace

FollowerSession::FollowerSession(const RankSettings& settings)
    : RankSession(settings),
      address_(settings.address.empty() ? "an address that nobody has named yet" : settings.address) {}

Status FollowerSession::report(OpId op, const OutcomeBits& bits) {
  const std::string who = "rank group: rank " + std::to_string(settings_.rank);
  if (outstanding_.size() >= settings_.max_outstanding) {
    return overloaded(who + " has " + std::to_string(settings_.max_outstanding) +
                      " events outstanding; take() and apply some first");
  }
  LARDER_RETURN_IF_ERROR(check_outcome(op, bits));
  if (!outstanding_.insert(op).second) {
    return invalid_argument(who + " reported operation " + std::to_string(op.v) + " twice");
  }
  unsent_reports_.push_back({op, bits});
  return Status::ok();
}

Status FollowerSession::take(std::uint64_t step, std::vector<AgreedEvent>& out) {
  const auto plan = std::lower_bound(plans_.begin(), plans_.end(), step,
                                     [](const Plans::Plan& a, std::uint64_t b) { return a.step < b; });
  if (plan == plans_.end() || plan->step != step) {
    const bool is_passed = plan != plans_.end();
    return deadline_exceeded(
        "rank group: rank " + std::to_string(settings_.rank) + " has no plan for step " + std::to_string(step) +
        (is_passed
             ? " from the leader, which has gone on to step " + std::to_string(plan->step) +
                   ": the ranks do not count their steps alike"
             : " from the leader yet (last heard " + seconds_text(silent_) + " ago); call again with the same step"));
  }
  const std::uint64_t count = plan->events - applied_;
  for (std::uint64_t i = 0; i < count; ++i) {
    outstanding_.erase(events_.front().op);
    out.push_back(std::move(events_.front()));
    events_.pop_front();
  }
  applied_ += count;
  next_step_ = step + 1;
  plans_.erase(plans_.begin(), plan + 1);
  return Status::ok();
}

LinkId FollowerSession::open(std::string peer, const Digest256& nonce) {
  link_ = RankLink(RankLink::End::kFollower);
  state_ = over_.is_ok() ? State::kChallenged : State::kLeaving;
  has_last_ = false;
  nonce_ = nonce;
  address_ = std::move(peer);
  silent_ = unsent_ = Nanos(0);
  traffic_.links_open = 1;
  return ++link_id_;
}

void FollowerSession::receive(LinkId link, std::string_view bytes) {
  if (link != link_id_ || state_ == State::kAlone || state_ == State::kLeaving) return;
  link_.receive(bytes);
  while (state_ != State::kLeaving) {
    Result<std::optional<RankLink::Frame>> frame = link_.next();
    if (frame.is_ok() && !frame->has_value()) return;
    const Status status = frame.is_ok() ? on_frame(**frame) : frame.status();
    if (status.is_ok()) continue;
    if (state_ != State::kMember) return give_up_link("what answers there is no leader of ranks: " + status.message());
    const std::string why = leader_text() + " has said what makes no sense (" + status.message() + ")";
    return end_group(why, why);
  }
}

Status FollowerSession::on_frame(const RankLink::Frame& frame) {
  if (state_ == State::kChallenged) return on_challenge(frame);
  if (state_ == State::kGreeting) return on_welcome(frame);
  if (!link_.is_genuine(frame)) return corrupt("a frame's code is wrong");
  silent_ = Nanos(0);
  count_received(frame.head.kind);
  switch (frame.head.kind) {
    case Kind::kPlans: return on_plans(frame);
    case Kind::kAlive: return decode_progress(frame.body).status();
    case Kind::kFormed:
      is_formed_ = true;
      return frame.body.empty() ? Status::ok() : corrupt("a message 'formed' has a body");
    case Kind::kFarewell: {
      LARDER_ASSIGN_OR_RETURN(const Words words, decode_words(frame.body));
      over_ = cancelled(words.status.message());
      part();
      return Status::ok();
    }
    default: return corrupt("a leader says '" + std::string(kind_name(frame.head.kind)) + "'");
  }
}

Status FollowerSession::on_challenge(const RankLink::Frame& frame) {
  if (frame.head.kind != Kind::kChallenge || !link_.is_genuine(frame)) return corrupt("it begins otherwise");
  LARDER_ASSIGN_OR_RETURN(const Challenge challenge, decode_challenge(frame.body));
  count_received(Kind::kChallenge);
  if (challenge.version != kVersion) {
    give_up_link(leader_text() + " speaks version " + std::to_string(challenge.version) +
                 " of the protocol, this rank " + std::to_string(kVersion) + ": run the same release on all ranks");
    return Status::ok();
  }
  Hello hello{kVersion, nonce_, settings_.rank, settings_.ranks, settings_.facts};
  link_.use_key(session_key(settings_.secret, challenge.nonce, hello.nonce));
  link_.send(Kind::kHello, encode(hello));
  count_sent(Kind::kHello);
  state_ = State::kGreeting;
  return Status::ok();
}

Status FollowerSession::on_welcome(const RankLink::Frame& frame) {
  const bool is_genuine = link_.is_genuine(frame);
  if (frame.head.kind != Kind::kWelcome || (!is_genuine && !link_.is_plain(frame)))
    return corrupt("it does not welcome");
  LARDER_ASSIGN_OR_RETURN(const Words words, decode_words(frame.body));
  count_received(Kind::kWelcome);
  const std::string refusal =
      leader_text() + " refuses rank " + std::to_string(settings_.rank) + ": " + words.status.message();
  if (words.status.is_ok()) {
    if (!is_genuine) return corrupt("it does not know the group's secret");
    state_ = State::kMember;
    silent_ = Nanos(0);
  } else if (is_genuine) {
    end_group(refusal);
  } else {  // anybody could have said that, and another leader may come
    give_up_link(refusal);
  }
  return Status::ok();
}

Status FollowerSession::on_plans(const RankLink::Frame& frame) {
  LARDER_ASSIGN_OR_RETURN(Plans plans, decode_plans(frame.body));
  for (AgreedEvent& event : plans.events) {
    if (!outstanding_.contains(event.op))
      return corrupt("operation " + std::to_string(event.op.v) + " is agreed alone");
    events_.push_back(std::move(event));
  }
  if (events_.size() > outstanding_.size()) return corrupt("an operation is agreed on twice");
  for (const Plans::Plan& plan : plans.plans) {
    const std::uint64_t events = plans_.empty() ? applied_ : plans_.back().events;
    const std::uint64_t step = plans_.empty() ? 0 : plans_.back().step + 1;
    if (plan.step < step || plan.events < events || plan.events > applied_ + events_.size()) {
      return corrupt("the plan of step " + std::to_string(plan.step) + " does not follow the one before");
    }
    if (plans_.size() > kMaxPlansAhead) return corrupt("it has sent more plans than it may");
    plans_.push_back(plan);
  }
  return Status::ok();
}

Progress FollowerSession::progress() {
  told_step_ = next_step_;
  told_applied_ = applied_;
  return {applied_, next_step_};
}

bool FollowerSession::has_news() const {
  return !unsent_reports_.empty() || applied_ != told_applied_ || next_step_ - told_step_ >= kStepsPerProgress ||
         unsent_ >= settings_.alive_interval;
}

bool FollowerSession::wants_output() const {
  if (state_ == State::kLeaving) return !has_last_;
  return state_ != State::kAlone && (link_.has_output() || (state_ == State::kMember && has_news()));
}

void FollowerSession::fill() {
  if (!unsent_reports_.empty()) {
    Reports reports;
    reports.progress = progress();
    for (std::size_t bytes = 0; !unsent_reports_.empty() && bytes < kReportsFrameBytes; unsent_reports_.pop_front()) {
      bytes += encoded_bytes(unsent_reports_.front());
      reports.outcomes.push_back(std::move(unsent_reports_.front()));
    }
    link_.send(Kind::kReports, encode(reports));
    count_sent(Kind::kReports);
    return;
  }
  link_.send(Kind::kAlive, encode(progress()));
  count_sent(Kind::kAlive);
}

RankSession::Output FollowerSession::take_output(LinkId link) {
  if (link != link_id_ || state_ == State::kAlone) return {"", true};
  if (state_ == State::kMember && !link_.has_output() && has_news()) fill();
  Output output{link_.take_output(), state_ == State::kLeaving};
  has_last_ = output.is_last;
  if (!output.bytes.empty()) unsent_ = Nanos(0);
  traffic_.bytes_sent += output.bytes.size();
  return output;
}

void FollowerSession::closed(LinkId link, const std::string& why) {
  if (link == 0 && state_ == State::kAlone) note_problem(why);
  if (link != link_id_ || link == 0 || state_ == State::kAlone) return;
  if (state_ == State::kChallenged || state_ == State::kGreeting) note_problem(leader_text() + ": " + why);
  if (state_ == State::kMember) end_group(leader_text() + " has gone: " + why);
  state_ = State::kAlone;
  traffic_.links_open = 0;
  link_ = RankLink(RankLink::End::kFollower);
}

void FollowerSession::part() {
  state_ = State::kLeaving;
  link_.drop_input();
}

void FollowerSession::give_up_link(const std::string& why) {
  note_problem(why);
  part();
  (void)link_.take_output();
}

// The same again, each time that the leader is tried, is no news.
void FollowerSession::note_problem(const std::string& why) {
  if (why == last_problem_) return;
  last_problem_ = why;
  if (!is_logged(++problems_)) return;
  log_warning(kFollowerComponent, "rank " + std::to_string(settings_.rank) + " still looks for its leader: " + why);
}

void FollowerSession::tick(Nanos elapsed) {
  if (!over_.is_ok()) return;
  silent_ += silence_of(elapsed);
  unsent_ += elapsed;
  if (state_ == State::kMember) {
    if (silent_ < settings_.silence_limit) return;
    const std::string why = leader_text() + " has not been heard for " + seconds_text(silent_) +
                            ": its process stands or hangs, or its machine or the network has gone";
    return end_group(why, why);
  }
  if ((state_ == State::kChallenged || state_ == State::kGreeting) && silent_ >= settings_.greeting_limit) {
    give_up_link(leader_text() + ": no greeting came within " + seconds_text(silent_));
  }
  if ((forming_ += elapsed) >= settings_.forming_limit) end_group(missing_text());
}

std::string FollowerSession::missing_text() const {
  if (state_ == State::kMember) return "not all ranks have come to " + leader_text() + "; it can say which";
  return "rank " + std::to_string(settings_.rank) + " has found no leader at " + address_ + " for " +
         seconds_text(forming_) + (last_problem_.empty() ? "" : " (" + last_problem_ + ")") +
         ": does rank 0 run, and where?";
}

void FollowerSession::end_group(const std::string& why, const std::string& farewell) {
  if (!over_.is_ok()) return;
  over_ = cancelled("rank group: " + why);
  if (state_ == State::kMember && !farewell.empty()) {
    link_.send(Kind::kFarewell, encode(Words{cancelled(farewell)}));
    count_sent(Kind::kFarewell);
  }
  if (state_ != State::kAlone) part();
}

void FollowerSession::leave(const std::string& why) {
  end_group("rank " + std::to_string(settings_.rank) + " has ended (" + why + ")", why);
}

std::vector<RankHealth> FollowerSession::health() const {
  RankHealth leader;
  leader.is_here = state_ == State::kMember;
  leader.address = address_;
  leader.silent = silent_;
  return {leader};
}

}  // namespace larder::ranks
