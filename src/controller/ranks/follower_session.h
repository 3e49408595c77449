// SPDX-License-Identifier: Apache-2.0
// The side of the protocol between ranks that every rank but 0 has (rank_session.h).
//
//   no connection ──► challenged? ──hello──► welcome? ──► a rank of the group ──► over
//        ▲                 │                   │ └─ refused, by one who knows the secret ──►┘
//        └── closed ◄── leaving ◄── no Larder there, or a refusal that anybody could have made, or by a leader
//                                   whose group is over: another may come
//
// Threads: confined. Cost: report(): one hash look-up; take(): O(events that it gives).
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "controller/ranks/rank_link.h"
#include "controller/ranks/rank_session.h"

namespace larder::ranks {

class FollowerSession final : public RankSession {
 public:
  explicit FollowerSession(const RankSettings& settings);

  [[nodiscard]] Status report(OpId op, const OutcomeBits& bits) override;
  [[nodiscard]] Status take(std::uint64_t step, std::vector<AgreedEvent>& out) override;

  [[nodiscard]] LinkId open(std::string peer, const Digest256& nonce) override;
  void receive(LinkId link, std::string_view bytes) override;
  void closed(LinkId link, const std::string& why) override;
  void tick(Nanos elapsed) override;
  [[nodiscard]] Output take_output(LinkId link) override;
  [[nodiscard]] bool wants_output() const override;
  [[nodiscard]] bool wants_link() const override { return over_.is_ok() && state_ == State::kAlone; }
  void leave(const std::string& why) override;
  [[nodiscard]] std::vector<RankHealth> health() const override;
  [[nodiscard]] std::string missing_text() const override;

 private:
  // kLeaving: the connection is there, and of no use any more.
  enum class State : std::uint8_t { kAlone, kChallenged, kGreeting, kMember, kLeaving };

  [[nodiscard]] Status on_frame(const RankLink::Frame& frame);
  [[nodiscard]] Status on_challenge(const RankLink::Frame& frame);
  [[nodiscard]] Status on_welcome(const RankLink::Frame& frame);
  [[nodiscard]] Status on_plans(const RankLink::Frame& frame);
  [[nodiscard]] bool has_news() const;
  void fill();
  [[nodiscard]] Progress progress();
  // What is there is no leader that could be talked to; another may come.
  void give_up_link(const std::string& why);
  void note_problem(const std::string& why);
  // Nothing that still comes on the connection counts.
  void part();
  // farewell: what the leader is told; empty: nothing.
  void end_group(const std::string& why, const std::string& farewell = {});
  [[nodiscard]] std::string leader_text() const { return "the leader (rank 0 at " + address_ + ")"; }

  State state_ = State::kAlone;
  bool has_last_ = false;  // leaving, and what the leader is owed was given to the network
  Digest256 nonce_;        // of this connection
  RankLink link_{RankLink::End::kFollower};
  LinkId link_id_ = 0;  // of the connection that there is, or was last
  std::string address_, last_problem_;
  std::uint64_t problems_ = 0;  // how often last_problem_ became another one
  Nanos silent_{}, unsent_{};   // since something genuine came, or it was opened; and since something went

  std::deque<AgreedEvent> unsent_reports_;
  std::unordered_set<OpId> outstanding_;  // reported, and not taken
  std::deque<Plans::Plan> plans_;         // that came, and were not taken
  std::deque<AgreedEvent> events_;        // events applied_, applied_ + 1, ...
  std::uint64_t applied_ = 0;             // of all agreed events
  std::uint64_t next_step_ = 0;
  std::uint64_t told_step_ = 0;  // the step that the leader heard of last
  std::uint64_t told_applied_ = 0;
};

}  // namespace larder::ranks
