// SPDX-License-Identifier: Apache-2.0
#include "storage/mooncake/store_codes.h"

namespace larder::mooncake {
namespace {

struct Meaning {
  std::int64_t code;
  StatusCode status;
  const char* words;
};

constexpr Meaning kMeanings[] = {
    {kBusyCode, StatusCode::kOverloaded, "another client is writing it now"},
    {kShortCode, StatusCode::kUnavailable, "only a part of it was moved"},
    {-101, StatusCode::kUnavailable, "no client has lent a segment to the store"},
    {kNoRoomCode, StatusCode::kOverloaded,
     "the store has no room: more clients must lend memory (global_segment_size), or the master must evict sooner"},
    {kRefusedCode, StatusCode::kUnavailable, "the client library refuses the call's arguments"},
    {-703, StatusCode::kNotFound, "it is not written to its end yet"},
    {kNotFoundCode, StatusCode::kNotFound, "it is not there"},
    {-706, StatusCode::kOverloaded, "it has a lease"},
    {kRemovedCode, StatusCode::kNotFound, "its lease ended before its bytes had come"},
    {-800, StatusCode::kUnavailable, "its bytes could not be moved: does the client that holds them still run?"},
    {-801, StatusCode::kUnavailable, "its bytes came with a wrong checksum"},
    {-900, StatusCode::kUnavailable, "the master does not answer"},
    {-901, StatusCode::kUnavailable, "the master did not answer in time"},
    {-1010, StatusCode::kUnavailable, "the client is in a state that does not allow this"},
    {-1011, StatusCode::kUnavailable, "the client is in a state that does not allow this"},
    {-1700, StatusCode::kOverloaded, "the quota is used up"},
};

}  // namespace

Status status_of(std::int64_t code, const std::string& what) {
  const std::string number = " (code " + std::to_string(code) + ")";
  for (const Meaning& meaning : kMeanings) {
    if (meaning.code == code) return Status(meaning.status, "mooncake: " + what + ": " + meaning.words + number);
  }
  return unavailable("mooncake: " + what + " failed" + number);
}

}  // namespace larder::mooncake
