// SPDX-License-Identifier: Apache-2.0
#include "controller/ranks/rank_link.h"

#include <utility>

namespace larder::ranks {
namespace {

std::string_view bytes_of(const Digest256& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

}  // namespace

std::string session_key(std::string_view secret, const Digest256& leader, const Digest256& follower) {
  return std::string(bytes_of(HmacSha256(secret).of({"larder.ranks.v1", bytes_of(leader), bytes_of(follower)})));
}

void RankLink::use_key(std::string_view key) {
  code_ = HmacSha256(key);
  has_key_ = true;
}

void RankLink::drop_input() {
  std::string().swap(input_);
  read_ = 0;
}

std::string RankLink::code_of(const HmacSha256& code, End sender, std::string_view head, std::string_view body) const {
  const Digest256 whole = code.of({sender == End::kLeader ? "L" : "F", head, body});
  return std::string(bytes_of(whole).substr(0, kCodeBytes));
}

bool RankLink::is_made_with(const HmacSha256& code, const Frame& frame) const {
  const End sender = end_ == End::kLeader ? End::kFollower : End::kLeader;
  return are_equal_macs(code_of(code, sender, encode_head(frame.head), frame.body), frame.code);
}

Result<std::optional<RankLink::Frame>> RankLink::next() {
  const std::string_view left = std::string_view(input_).substr(read_);
  if (left.size() < kHeadBytes) return std::optional<Frame>();
  LARDER_ASSIGN_OR_RETURN(const Head head, decode_head(left));
  if (!has_key_ && head.body_bytes > kMaxGreetingBytes) return corrupt("rank group: a greeting is too long");
  if (head.number != next_in_) {
    return corrupt("rank group: frame " + std::to_string(head.number) + " came instead of frame " +
                   std::to_string(next_in_));
  }
  const std::size_t bytes = kHeadBytes + head.body_bytes + kCodeBytes;
  if (left.size() < bytes) return std::optional<Frame>();
  ++next_in_;
  Frame frame{head, std::string(left.substr(kHeadBytes, head.body_bytes)),
              std::string(left.substr(bytes - kCodeBytes, kCodeBytes))};
  read_ += bytes;
  if (read_ == input_.size() || read_ >= kMaxBodyBytes) {
    input_.erase(0, read_);
    read_ = 0;
  }
  return std::optional<Frame>(std::move(frame));
}

void RankLink::append_frame(const HmacSha256& code, Kind kind, std::string_view body) {
  const std::string head = encode_head({static_cast<std::uint32_t>(body.size()), kind, next_out_++});
  output_.append(head).append(body).append(code_of(code, end_, head, body));
}

void RankLink::send(Kind kind, std::string_view body) { append_frame(code_, kind, body); }

void RankLink::send_plain(Kind kind, std::string_view body) { append_frame(plain_, kind, body); }

}  // namespace larder::ranks
