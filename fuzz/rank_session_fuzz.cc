// SPDX-License-Identifier: Apache-2.0
// The protocol between ranks (controller/ranks), both ends.
//
// Fed: any bytes as a head and as each kind of body; any bytes, whole frames among them, to a leader as a stranger and
// as a rank that has said hello, and to a follower as its leader's.
// Checked: a body is refused with kCorrupt and a reason, or what it says is said again in the same words. Whatever a
// stranger says, the group goes on. Whatever a rank says, the group goes on, or is over with a reason; nothing crashes,
// and no event is taken that was not reported.
#include "base/log.h"
#include "base/rng.h"
#include "controller/ranks/rank_link.h"
#include "controller/ranks/rank_session.h"
#include "fuzz/fuzz_input.h"

namespace larder::fuzz {
namespace {

using namespace larder::ranks;

void check_rank_refusal(const Status& status, std::string_view what) {
  fuzz_check(status.is_ok() || status.code() == StatusCode::kCorrupt, std::string(what) + " is refused strangely");
  check_explains(status, what);
}

// What was decoded, encoded, is decoded to the same.
template <class Decode>
void check_rank_body(std::string_view body, std::string_view what, Decode decode) {
  const auto value = decode(body);
  check_rank_refusal(value.status(), what);
  if (!value.is_ok()) return;
  const std::string once = encode(*value);
  const auto again = decode(once);
  fuzz_check(again.is_ok() && encode(*again) == once, std::string(what) + " does not come back");
}

void check_rank_bodies(FuzzInput& input) {
  const std::string_view body = input.rest_text();
  check_rank_refusal(decode_head(body).status(), "a head");
  check_rank_body(body, "challenge", decode_challenge);
  check_rank_body(body, "hello", decode_hello);
  check_rank_body(body, "words", decode_words);
  check_rank_body(body, "progress", decode_progress);
  check_rank_body(body, "reports", decode_reports);
  check_rank_body(body, "plans", decode_plans);
}

RankSettings settings_of(std::uint32_t rank) {
  RankSettings settings;
  settings.rank = rank;
  settings.ranks = 2;
  settings.max_outstanding = 8;
  settings.facts = {{"model", "small"}};
  return settings;
}

Digest256 nonce_of(std::uint8_t who) {
  Digest256 number;
  number.bytes.fill(who);
  return number;
}

// Two sessions, and what goes between them.
class Pair {
 public:
  void join() {
    at_leader_ = leader->open("a rank", nonce_of(1));
    at_follower_ = follower->open("its leader", nonce_of(2));
    for (int i = 0; i < 3; ++i) exchange();
    fuzz_check(leader->is_formed() && follower->is_formed(), "two ranks do not find each other");
  }
  void exchange() {
    follower->receive(at_follower_, leader->take_output(at_leader_).bytes);
    leader->receive(at_leader_, follower->take_output(at_follower_).bytes);
  }
  void say_to_leader(std::string_view bytes) { leader->receive(at_leader_, bytes); }
  void say_to_follower(std::string_view bytes) { follower->receive(at_follower_, bytes); }

  std::unique_ptr<RankSession> leader = RankSession::make(settings_of(0));
  std::unique_ptr<RankSession> follower = RankSession::make(settings_of(1));

 private:
  LinkId at_leader_ = 0, at_follower_ = 0;
};

// What a rank says of itself, with the facts that a session adds.
Hello hello_of_a_rank() {
  const std::unique_ptr<RankSession> follower = RankSession::make(settings_of(1));
  const LinkId id = follower->open("a leader", nonce_of(6));
  RankLink leader(RankLink::End::kLeader);
  leader.send(Kind::kChallenge, encode(Challenge{kVersion, nonce_of(7)}));
  follower->receive(id, leader.take_output());
  leader.receive(follower->take_output(id).bytes);
  const auto frame = leader.next();
  fuzz_check(frame.is_ok() && frame->has_value(), "no hello");
  const auto hello = decode_hello((*frame)->body);
  fuzz_check(hello.is_ok(), "a broken hello");
  return *hello;
}

// One that is genuine but for what it says: its code is right, its number the next one.
class Impostor {
 public:
  // Says hello to a leader as rank 1; or is the leader of a follower.
  Impostor(RankSession& session, bool is_leader) : session_(session) {
    link_ = std::make_unique<RankLink>(is_leader ? RankLink::End::kLeader : RankLink::End::kFollower);
    id_ = session_.open("an impostor", nonce_of(3));
    const Digest256 own = nonce_of(4);
    if (is_leader) say(Kind::kChallenge, encode(Challenge{kVersion, own}));
    link_->receive(session_.take_output(id_).bytes);
    const auto frame = link_->next();
    fuzz_check(frame.is_ok() && frame->has_value(), "no greeting");
    if (is_leader) {
      const auto hello = decode_hello((*frame)->body);
      fuzz_check(hello.is_ok(), "a broken hello");
      link_->use_key(session_key("", own, hello->nonce));
      say(Kind::kWelcome, encode(Words{}));
      say(Kind::kFormed, "");
    } else {
      const auto challenge = decode_challenge((*frame)->body);
      fuzz_check(challenge.is_ok(), "a broken challenge");
      link_->use_key(session_key("", challenge->nonce, own));
      say(Kind::kHello, encode(Hello{kVersion, own, 1, 2, hello_of_a_rank().facts}));
    }
    fuzz_check(session_.is_formed(), "a right greeting is refused");
  }
  void leave() { session_.closed(id_, "it has gone"); }
  void say(Kind kind, std::string_view body) {
    link_->send(kind, body);
    session_.receive(id_, link_->take_output());
  }
  // Hears all that the session has to say: what a rank may answer depends on what it was told.
  void listen() {
    for (int i = 0; i < 100 && session_.wants_output(); ++i) {
      const RankSession::Output said = session_.take_output(id_);
      link_->receive(said.bytes);
      if (said.is_last) break;
    }
    for (;;) {
      const auto frame = link_->next();
      fuzz_check(frame.is_ok(), "a session says no frame");
      if (!frame->has_value()) return;
      fuzz_check(link_->is_genuine(**frame), "a session's code is wrong");
    }
  }
  // A frame of this kind, with numbers that are near what is possible, or with any body.
  void say_something(FuzzInput& input) {
    const auto events = [&] {
      std::vector<AgreedEvent> out(input.below(4));
      for (AgreedEvent& event : out) event = {OpId(input.below(6)), OutcomeBits(input.below(3), input.below(256))};
      return out;
    };
    switch (input.below(8)) {
      case 0: return say(Kind::kAlive, encode(Progress{input.below(4), input.below(6)}));
      case 1:
      case 2: return say(Kind::kReports, encode(Reports{{input.below(3), input.below(4)}, events()}));
      case 3:
      case 4: {
        Plans plans{events(), {}};
        plans.plans.resize(input.below(4));
        for (Plans::Plan& plan : plans.plans) plan = {input.below(8), input.below(6)};
        return say(Kind::kPlans, encode(plans));
      }
      case 5: return say(Kind::kFarewell, encode(Words{cancelled("enough")}));
      default: {
        const auto kind = static_cast<Kind>(1 + input.below(kKindCount - 1));
        return say(kind, input.text(input.below(64)));
      }
    }
  }

 private:
  RankSession& session_;
  std::unique_ptr<RankLink> link_;
  LinkId id_ = 0;
};

// A stranger beside a group that works.
void check_stranger(FuzzInput& input) {
  Pair pair;
  pair.join();
  const LinkId stranger = pair.leader->open("a stranger", nonce_of(5));
  while (!input.empty()) pair.leader->receive(stranger, input.text(1 + input.below(200)));
  (void)pair.leader->take_output(stranger);
  fuzz_check(pair.leader->over().is_ok(), "a stranger ends the group");
  std::vector<AgreedEvent> events;
  fuzz_check(pair.leader->report(OpId(1), {1}).is_ok() && pair.follower->report(OpId(1), {1}).is_ok(), "no report");
  pair.exchange();
  fuzz_check(pair.leader->take(0, events).is_ok() && events.size() == 1, "ranks do not agree beside a stranger");
}

// A rank, or a leader, that says anything.
void check_impostor(FuzzInput& input, bool is_leader) {
  const std::unique_ptr<RankSession> session = RankSession::make(settings_of(is_leader ? 1 : 0));
  Impostor impostor(*session, is_leader);
  std::uint64_t op = 0, step = 0, taken = 0;
  while (!input.empty() && session->over().is_ok()) {
    if (input.below(3) == 0 && op < 6) (void)session->report(OpId(op++), {~std::uint64_t{0}});
    if (session->over().is_ok() && input.below(3) == 0) {
      std::vector<AgreedEvent> events;
      if (session->take(step, events).is_ok()) ++step;
      for (const AgreedEvent& event : events) fuzz_check(event.op.v < op, "an event that nobody has reported here");
      taken += events.size();
    }
    impostor.say_something(input);
    if (input.below(2) == 0) impostor.listen();
    if (input.below(16) == 0) session->tick(std::chrono::milliseconds(600));
  }
  const bool is_over = !session->over().is_ok();
  impostor.listen();
  fuzz_check(!session->wants_output(), "a session has always something to say");
  impostor.leave();
  fuzz_check(!session->over().is_ok(), "a rank has gone, and the group goes on");
  fuzz_check(is_over || session->over().message().find("has gone") != std::string::npos, "it does not say how");
  fuzz_check(!session->wants_output() && !session->wants_link(), "a group that is over goes on");
  fuzz_check(taken <= op, "an event is taken twice");
  check_explains(session->over(), "the end of a group");
  (void)session->health();
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace larder::fuzz;
  larder::set_log_level(larder::LogLevel::kOff);
  FuzzInput input(data, size);
  switch (input.below(4)) {
    case 0: check_rank_bodies(input); break;
    case 1: check_stranger(input); break;
    case 2: check_impostor(input, false); break;
    default: check_impostor(input, true); break;
  }
  return 0;
}
