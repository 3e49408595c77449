// SPDX-License-Identifier: Apache-2.0
#include "controller/ranks/leader_session.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace larder::ranks {
namespace {

constexpr std::size_t kPlansFrameBytes = std::size_t{256} << 10;  // a frame is full from here on
constexpr std::string_view kLeaderComponent = "ranks";

}  // namespace

LeaderSession::LeaderSession(const RankSettings& settings)
    : RankSession(settings), agreement_(settings.ranks, settings.max_outstanding), links_(settings.ranks) {}

Status LeaderSession::report(OpId op, const OutcomeBits& bits) {
  LARDER_RETURN_IF_ERROR(check_outcome(op, bits));
  return agreement_.report(0, op, bits);
}

Status LeaderSession::take(std::uint64_t step, std::vector<AgreedEvent>& out) {
  const bool has_followers = settings_.ranks > 1;
  if (has_followers && plans_.size() >= kMaxPlansAhead) {
    std::uint32_t slowest = 1;
    std::uint64_t slowest_step = ~std::uint64_t{0};
    for (std::uint32_t rank = 1; rank < settings_.ranks; ++rank) {
      const std::uint64_t at = links_[rank] ? peers_.at(*links_[rank]).next_step : 0;
      if (at < slowest_step) slowest = rank, slowest_step = at;
    }
    return overloaded("rank group: rank " + std::to_string(slowest) + " is at step " + std::to_string(slowest_step) +
                      ", more than " + std::to_string(kMaxPlansAhead) + " plans behind");
  }
  const std::uint64_t count = agreement_.promote();
  if (has_followers) plans_.push_back({step, count});
  step_ = step;
  for (std::uint64_t number = agreement_.applied(0); number < count; ++number) out.push_back(agreement_.event(number));
  agreement_.applied(0, count);
  return Status::ok();
}

LinkId LeaderSession::open(std::string peer, const Digest256& nonce) {
  drop_oldest_stranger();
  const LinkId id = next_link_++;
  Peer& made = peers_[id];
  ++traffic_.links_open;
  made.address = std::move(peer);
  if (!over_.is_ok()) {
    dismiss(made);
    return id;
  }
  made.nonce = nonce;
  made.link.send(Kind::kChallenge, encode(Challenge{kVersion, made.nonce}));
  count_sent(Kind::kChallenge);
  return id;
}

// So that strangers cannot keep a rank out: the newest has a place in any case.
void LeaderSession::drop_oldest_stranger() {
  std::size_t strangers = 0;
  Peer* oldest = nullptr;
  for (auto& [id, peer] : peers_) {
    if (peer.rank || peer.is_leaving) continue;
    if (++strangers == 1) oldest = &peer;
  }
  if (strangers >= kMaxStrangers) dismiss(*oldest);
}

void LeaderSession::part_from(Peer& peer) {
  peer.is_leaving = true;
  peer.link.drop_input();
}

void LeaderSession::dismiss(Peer& peer) {
  part_from(peer);
  (void)peer.link.take_output();
  ++traffic_.strangers_refused;
}

void LeaderSession::receive(LinkId link, std::string_view bytes) {
  const auto at = peers_.find(link);
  if (at == peers_.end() || at->second.is_leaving) return;
  Peer& peer = at->second;
  peer.link.receive(bytes);
  while (!peer.is_leaving) {
    Result<std::optional<RankLink::Frame>> frame = peer.link.next();
    Status status = frame.status();
    if (frame.is_ok() && !frame->has_value()) return;
    if (frame.is_ok()) status = peer.rank ? on_frame(peer, **frame) : greet(peer, **frame, link);
    if (status.is_ok()) continue;
    if (peer.rank) return lose(peer, "has said what makes no sense (" + status.message() + ")");
    if (!peer.is_leaving) {  // not even a greeting: nothing is answered
      dismiss(peer);
      note_refusal(peer, status);
    }
  }
}

Status LeaderSession::greet(Peer& peer, const RankLink::Frame& frame, LinkId link) {
  if (frame.head.kind != Kind::kHello) return corrupt("rank group: it did not say hello");
  LARDER_ASSIGN_OR_RETURN(const Hello hello, decode_hello(frame.body));
  count_received(Kind::kHello);
  peer.link.use_key(session_key(settings_.secret, peer.nonce, hello.nonce));
  const bool is_genuine = peer.link.is_genuine(frame);
  const Status status = is_genuine
                            ? check_hello(hello)
                            : invalid_argument("the secret is not the leader's: give all ranks the same one, or none");
  if (!status.is_ok()) {
    refuse(peer, status, is_genuine);
    return status;
  }
  peer.rank = hello.rank;
  peer.silent = Nanos(0);
  links_[hello.rank] = link;
  peer.link.send(Kind::kWelcome, encode(Words{Status::ok()}));
  count_sent(Kind::kWelcome);
  peer.next_plan = first_plan_;
  if (missing_ranks().empty()) form();
  return Status::ok();
}

void LeaderSession::form() {
  is_formed_ = true;
  last_refusal_.clear();
  for (const std::optional<LinkId>& link : links_) {
    if (!link) continue;  // the leader itself
    peers_.at(*link).link.send(Kind::kFormed, "");
    count_sent(Kind::kFormed);
  }
}

Status LeaderSession::check_hello(const Hello& hello) const {
  const std::string who = "rank " + std::to_string(hello.rank);
  if (hello.version != kVersion) {
    return unsupported(who + " speaks version " + std::to_string(hello.version) + " of the protocol, the leader " +
                       std::to_string(kVersion) + ": run the same release on all ranks");
  }
  if (hello.ranks != settings_.ranks) {
    return conflict(who + " belongs to a group of " + std::to_string(hello.ranks) + ", the leader to one of " +
                    std::to_string(settings_.ranks) + ": give all ranks the same number");
  }
  if (hello.rank == 0 || hello.rank >= settings_.ranks) {
    return conflict("there is no follower " + std::to_string(hello.rank) + " in a group of " +
                    std::to_string(settings_.ranks) + ": followers count from 1");
  }
  if (links_[hello.rank]) {
    return conflict(who + " is here already, from " + peers_.at(*links_[hello.rank]).address +
                    ": give each process a rank of its own");
  }
  return check_facts(hello);
}

Status LeaderSession::check_facts(const Hello& hello) const {
  const auto value_of = [](const std::vector<Fact>& facts, const std::string& name) {
    for (const Fact& fact : facts) {
      if (fact.name == name) return fact.value;
    }
    return std::string("unknown");
  };
  std::string differences;
  const auto compare = [&](const std::string& name) {
    const std::string theirs = value_of(hello.facts, name), own = value_of(settings_.facts, name);
    if (theirs != own) differences += (differences.empty() ? "" : "; ") + name + " is " + theirs + ", not " + own;
  };
  for (const Fact& fact : settings_.facts) compare(fact.name);
  for (const Fact& fact : hello.facts) {
    if (value_of(settings_.facts, fact.name) == "unknown") compare(fact.name);
  }
  if (differences.empty()) return Status::ok();
  return conflict("rank " + std::to_string(hello.rank) + " differs from the leader: " + differences +
                  ": start all ranks with the same model and options");
}

Status LeaderSession::on_frame(Peer& peer, const RankLink::Frame& frame) {
  if (!peer.link.is_genuine(frame)) return corrupt("a frame's code is wrong");
  peer.silent = Nanos(0);
  count_received(frame.head.kind);
  switch (frame.head.kind) {
    case Kind::kReports: {
      const Result<Reports> reports = decode_reports(frame.body);
      return reports.is_ok() ? on_reports(peer, *reports) : reports.status();
    }
    case Kind::kAlive: {
      const Result<Progress> progress = decode_progress(frame.body);
      return progress.is_ok() ? on_progress(peer, *progress) : progress.status();
    }
    case Kind::kFarewell: {
      LARDER_ASSIGN_OR_RETURN(const Words words, decode_words(frame.body));
      lose(peer, "has ended (" + words.status.message() + ")");
      return Status::ok();
    }
    default: return corrupt("a follower says '" + std::string(kind_name(frame.head.kind)) + "'");
  }
}

Status LeaderSession::on_progress(Peer& peer, const Progress& progress) {
  const bool is_possible = progress.applied >= agreement_.applied(*peer.rank) && progress.applied <= peer.sent_events &&
                           progress.next_step >= peer.next_step && progress.next_step <= peer.sent_step;
  if (!is_possible) return corrupt("it has applied what it was not told, or goes back");
  agreement_.applied(*peer.rank, progress.applied);
  peer.next_step = progress.next_step;
  drop_plans();
  return Status::ok();
}

Status LeaderSession::on_reports(Peer& peer, const Reports& reports) {
  LARDER_RETURN_IF_ERROR(on_progress(peer, reports.progress));
  for (const AgreedEvent& outcome : reports.outcomes) {
    LARDER_RETURN_IF_ERROR(agreement_.report(*peer.rank, outcome.op, outcome.bits));
  }
  return Status::ok();
}

void LeaderSession::drop_plans() {
  if (!is_formed_) return;  // who is missing needs all of them
  std::uint64_t sent = ~std::uint64_t{0}, step = ~std::uint64_t{0};
  for (std::uint32_t rank = 1; rank < settings_.ranks; ++rank) {
    const Peer& peer = peers_.at(*links_[rank]);
    sent = std::min(sent, peer.next_plan);
    step = std::min(step, peer.next_step);
  }
  for (; !plans_.empty() && first_plan_ < sent && plans_.front().step < step; ++first_plan_) plans_.pop_front();
}

void LeaderSession::fill(Peer& peer) {
  Plans plans;
  std::size_t bytes = 0;
  const std::uint64_t count = plans_.empty() ? peer.sent_events : std::max(peer.sent_events, plans_.back().events);
  for (; peer.sent_events < count && bytes < kPlansFrameBytes; ++peer.sent_events) {
    plans.events.push_back(agreement_.event(peer.sent_events));
    bytes += encoded_bytes(plans.events.back());
  }
  for (; peer.next_plan < first_plan_ + plans_.size(); ++peer.next_plan) {
    const Plans::Plan& plan = plans_[static_cast<std::size_t>(peer.next_plan - first_plan_)];
    if (plan.events > peer.sent_events) break;
    plans.plans.push_back(plan);
    peer.sent_step = plan.step + 1;
  }
  if (!plans.events.empty() || !plans.plans.empty()) {
    peer.link.send(Kind::kPlans, encode(plans));
    count_sent(Kind::kPlans);
  } else {
    peer.link.send(Kind::kAlive, encode(Progress{}));
    count_sent(Kind::kAlive);
  }
}

bool LeaderSession::has_news_for(const Peer& peer) const {
  return peer.next_plan < first_plan_ + plans_.size() || peer.unsent >= settings_.alive_interval;
}

bool LeaderSession::wants_output() const {
  return std::any_of(peers_.begin(), peers_.end(), [this](const auto& entry) {
    const Peer& peer = entry.second;
    if (peer.is_leaving) return !peer.has_last;
    return peer.link.has_output() || (peer.rank && has_news_for(peer));
  });
}

RankSession::Output LeaderSession::take_output(LinkId link) {
  const auto at = peers_.find(link);
  if (at == peers_.end()) return {"", true};
  Peer& peer = at->second;
  if (!peer.is_leaving && peer.rank && !peer.link.has_output() && has_news_for(peer)) fill(peer);
  Output output{peer.link.take_output(), peer.is_leaving};
  peer.has_last = peer.is_leaving;
  if (!output.bytes.empty()) peer.unsent = Nanos(0);
  traffic_.bytes_sent += output.bytes.size();
  return output;
}

void LeaderSession::closed(LinkId link, const std::string& why) {
  const auto at = peers_.find(link);
  if (at == peers_.end()) return;
  const Peer& peer = at->second;
  if (peer.rank && !peer.is_leaving) lose(peer, "has gone: " + why);
  if (!peer.rank && !peer.is_leaving) ++traffic_.strangers_refused;
  if (peer.rank) links_[*peer.rank].reset();
  peers_.erase(at);
  --traffic_.links_open;
}

void LeaderSession::tick(Nanos elapsed) {
  if (!is_formed_ && over_.is_ok() && (forming_ += elapsed) >= settings_.forming_limit) {
    end_group("after " + seconds_text(forming_) + " " + missing_text());
  }
  for (auto& [id, peer] : peers_) {
    peer.silent += silence_of(elapsed);
    peer.unsent += elapsed;
    if (peer.is_leaving) continue;
    if (peer.rank && peer.silent >= settings_.silence_limit) {
      return lose(peer, "has not been heard for " + seconds_text(peer.silent) +
                            ": its process stands or hangs, or its machine or the network has gone");
    }
    if (!peer.rank && peer.silent >= settings_.greeting_limit) dismiss(peer);
  }
}

void LeaderSession::note_refusal(const Peer& peer, const Status& why) {
  const std::uint64_t count = traffic_.strangers_refused;
  if (!is_formed_) last_refusal_ = peer.address + ": " + why.message();
  if (!is_logged(count)) return;
  log_warning(kLeaderComponent, "refused " + peer.address + ": " + why.message() + " (refusal " +
                                    std::to_string(count) + " of this group)");
}

void LeaderSession::refuse(Peer& peer, const Status& why, bool is_genuine) {
  part_from(peer);
  ++traffic_.strangers_refused;
  note_refusal(peer, why);
  const std::string words = encode(Words{why});
  is_genuine ? peer.link.send(Kind::kWelcome, words) : peer.link.send_plain(Kind::kWelcome, words);
  count_sent(Kind::kWelcome);
}

void LeaderSession::lose(const Peer& peer, const std::string& what) {
  if (!over_.is_ok()) return;
  const RankAgreement::Owed owed = agreement_.owed(*peer.rank);
  std::string words = "rank " + std::to_string(*peer.rank) + " (" + peer.address + ") " + what;
  words += "; last heard " + seconds_text(peer.silent) + " ago, at step " + std::to_string(peer.next_step) + " of " +
           std::to_string(step_);
  if (owed.outcomes > 0) {
    words += "; it owed the outcome of operation " + std::to_string(owed.oldest.v);
    if (owed.outcomes > 1) words += " and of " + std::to_string(owed.outcomes - 1) + " more";
  }
  end_group(words);
}

void LeaderSession::end_group(const std::string& why) {
  if (!over_.is_ok()) return;
  over_ = cancelled("rank group: " + why);
  for (auto& [id, peer] : peers_) {
    if (peer.is_leaving) continue;
    if (!peer.rank) {
      dismiss(peer);
      continue;
    }
    part_from(peer);
    peer.link.send(Kind::kFarewell, encode(Words{over_}));
    count_sent(Kind::kFarewell);
  }
}

void LeaderSession::leave(const std::string& why) { end_group("the leader (rank 0) has ended (" + why + ")"); }

std::string LeaderSession::missing_text() const {
  std::string text = missing_ranks() + " of " + std::to_string(settings_.ranks) + " had not come";
  if (!settings_.address.empty()) text += " to " + settings_.address + ", where the leader listens";
  if (!last_refusal_.empty()) text += "; refused was last " + last_refusal_;
  return text;
}

std::string LeaderSession::missing_ranks() const {
  std::string text;
  for (std::uint32_t rank = 1; rank < settings_.ranks; ++rank) {
    if (!links_[rank]) text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  return text;
}

std::vector<RankHealth> LeaderSession::health() const {
  std::vector<RankHealth> out;
  for (std::uint32_t rank = 1; rank < settings_.ranks; ++rank) {
    RankHealth health;
    health.rank = rank;
    health.owed = agreement_.owed(rank);
    if (links_[rank]) {
      const Peer& peer = peers_.at(*links_[rank]);
      health.is_here = !peer.is_leaving;
      health.address = peer.address;
      health.silent = peer.silent;
      health.next_step = peer.next_step;
    }
    out.push_back(std::move(health));
  }
  return out;
}

}  // namespace larder::ranks
