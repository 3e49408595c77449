// SPDX-License-Identifier: Apache-2.0
// Rank 0's side of the protocol between ranks (rank_session.h).
//
//   a connection:  stranger ──hello, all is right──► rank r ──lost, or the group is over──► leaving ──► closed
//                     └──anything else, or silence──► leaving, with a refusal in words where it spoke the protocol
//
// A refusal is signed for who has shown that he knows the secret: he may believe it. One that is leaving is heard no
// more, and keeps no memory but the words that it is owed.
//
// Threads: confined. Cost: report() and take() as RankAgreement's; take_output() copies what it sends.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "controller/ranks/rank_link.h"
#include "controller/ranks/rank_session.h"

namespace larder::ranks {

class LeaderSession final : public RankSession {
 public:
  explicit LeaderSession(const RankSettings& settings);

  [[nodiscard]] Status report(OpId op, const OutcomeBits& bits) override;
  [[nodiscard]] Status take(std::uint64_t step, std::vector<AgreedEvent>& out) override;

  [[nodiscard]] LinkId open(std::string peer, const Digest256& nonce) override;
  void receive(LinkId link, std::string_view bytes) override;
  void closed(LinkId link, const std::string& why) override;
  void tick(Nanos elapsed) override;
  [[nodiscard]] Output take_output(LinkId link) override;
  [[nodiscard]] bool wants_output() const override;
  [[nodiscard]] bool wants_link() const override { return false; }
  void leave(const std::string& why) override;
  [[nodiscard]] std::vector<RankHealth> health() const override;
  [[nodiscard]] std::string missing_text() const override;

 private:
  struct Peer {
    RankLink link{RankLink::End::kLeader};
    std::string address;
    Digest256 nonce;                    // that this end drew
    std::optional<std::uint32_t> rank;  // none: a stranger
    bool is_leaving = false;
    bool has_last = false;          // with is_leaving: what it was owed was given to the network
    Nanos silent{}, unsent{};       // since something came, and since something went
    std::uint64_t next_plan = 0;    // of all plans, the first that it was not sent
    std::uint64_t sent_events = 0;  // of the agreed list
    std::uint64_t sent_step = 0;    // it was sent the plans for steps below this one
    std::uint64_t next_step = 0;    // it has said that it needs no plans for steps below this one
  };

  [[nodiscard]] Status greet(Peer& peer, const RankLink::Frame& frame, LinkId link);
  // Ok: `hello` is that of a rank that is missing.
  [[nodiscard]] Status check_hello(const Hello& hello) const;
  [[nodiscard]] Status check_facts(const Hello& hello) const;
  [[nodiscard]] Status on_frame(Peer& peer, const RankLink::Frame& frame);
  [[nodiscard]] Status on_progress(Peer& peer, const Progress& progress);
  [[nodiscard]] Status on_reports(Peer& peer, const Reports& reports);
  [[nodiscard]] bool has_news_for(const Peer& peer) const;
  void fill(Peer& peer);
  void drop_plans();
  void note_refusal(const Peer& peer, const Status& why);
  // is_genuine: he has shown that he knows the secret.
  void refuse(Peer& peer, const Status& why, bool is_genuine);
  // It is heard no more. What it is still to be told comes after this.
  static void part_from(Peer& peer);
  // A stranger goes, and is told nothing.
  void dismiss(Peer& peer);
  void drop_oldest_stranger();
  // All ranks are there, and are told.
  void form();
  // The end of the group because of this rank: `what` has happened to it.
  void lose(const Peer& peer, const std::string& what);
  void end_group(const std::string& why);
  [[nodiscard]] std::string missing_ranks() const;  // empty: none

  RankAgreement agreement_;
  std::deque<Plans::Plan> plans_;  // those that a follower may still need
  std::uint64_t first_plan_ = 0;   // how many are gone
  std::uint64_t step_ = 0;         // of the last plan
  std::map<LinkId, Peer> peers_;
  std::vector<std::optional<LinkId>> links_;  // by rank
  LinkId next_link_ = 1;
  std::string last_refusal_;  // in words, while the group is not formed
};

}  // namespace larder::ranks
