// SPDX-License-Identifier: Apache-2.0
// One end of a connection between two ranks: bytes to frames and back.
//
//   receive(bytes) ──► next() ──► a frame, whole, numbered, with the code that belongs to it
//   send(kind, body) ──► take_output() ──► bytes
//
// The code of a frame is the beginning of an HMAC-SHA-256 over direction, head and body. Its key follows from the
// group's secret and from a number that each end has drawn for this connection (session_key()); before both ends know
// these, and in a group without a secret, anybody can make it, and it is no more than a checksum.
//
// Threads: confined. Limits: kMaxGreetingBytes of input until use_key(), then one frame and a piece.
// Errors: kCorrupt: what came is no frame, or not the next one; the connection is of no use any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"
#include "controller/ranks/rank_wire.h"
#include "key/hmac.h"

namespace larder::ranks {

// Of a connection, for which the leader drew the first number and the follower the second.
[[nodiscard]] std::string session_key(std::string_view secret, const Digest256& leader, const Digest256& follower);

class RankLink {
 public:
  enum class End : std::uint8_t { kLeader, kFollower };
  explicit RankLink(End end) : end_(end) {}

  // From now on, in both directions.
  void use_key(std::string_view key);
  [[nodiscard]] bool has_key() const { return has_key_; }

  void receive(std::string_view bytes) { input_.append(bytes); }
  // What came and was not given is dropped, with its memory.
  void drop_input();
  struct Frame {
    Head head;
    std::string body;
    std::string code;
  };
  // nullopt: the rest has not come yet. What it gives is not believed yet: is_genuine().
  [[nodiscard]] Result<std::optional<Frame>> next();
  // Its code was made with this connection's key.
  [[nodiscard]] bool is_genuine(const Frame& frame) const { return is_made_with(code_, frame); }
  // Its code is what anybody can make: words of one who does not know the secret.
  [[nodiscard]] bool is_plain(const Frame& frame) const { return is_made_with(plain_, frame); }

  void send(Kind kind, std::string_view body);
  // Signed as one who knows no secret: a refusal.
  void send_plain(Kind kind, std::string_view body);
  [[nodiscard]] bool has_output() const { return !output_.empty(); }
  [[nodiscard]] std::string take_output() { return std::exchange(output_, {}); }

 private:
  [[nodiscard]] std::string code_of(const HmacSha256& code, End sender, std::string_view head,
                                    std::string_view body) const;
  [[nodiscard]] bool is_made_with(const HmacSha256& code, const Frame& frame) const;
  void append_frame(const HmacSha256& code, Kind kind, std::string_view body);

  End end_;
  HmacSha256 plain_{""};
  HmacSha256 code_ = plain_;
  bool has_key_ = false;
  std::string input_, output_;
  std::size_t read_ = 0;  // bytes of input_ that next() has given
  std::uint64_t next_in_ = 0, next_out_ = 0;
};

}  // namespace larder::ranks
