// SPDX-License-Identifier: Apache-2.0
#include "tests/metadata_http/reference_crash_client.h"

namespace larder::conformance {

using nlohmann::json;

Result<json> ReferenceCrashClient::post(const std::string& call, const json& body) {
  const Result<HttpReply> reply = client_->request("POST", "/0/" + call, body.dump());
  if (!reply) return reply.status();
  if (reply->status == 204) return json();
  json answer = json::parse(reply->body, nullptr, false);
  if (reply->status != 200 || answer.is_discarded()) {
    return internal_error(call + ": " + std::to_string(reply->status) + ' ' + reply->body);
  }
  return answer;
}

// [already written, page]: [true, -1] is being written, [false, -1] has found no page.
Status ReferenceCrashClient::reserve() {
  now_.is_abandoned = false;  // it would keep its page as long as the server lives
  json wanted = json::array();
  for (std::size_t i = 0; i < now_.keys.size(); ++i) wanted.push_back({now_.keys[i], i == 0 ? "" : now_.keys[i - 1]});
  const Result<json> answer = post("reserve_and_allocate_page_indices", {{"keys", wanted}});
  if (!answer) return answer.status();
  for (std::size_t i = 0; i < now_.keys.size(); ++i) {
    const json& pair = answer->at("indices").at(i);
    const auto page = pair.at(1).get<std::int64_t>();
    if (page < 0) continue;
    const CrashEvent event{CrashWord::kReserved, 'r', now_.keys[i], {static_cast<std::uint64_t>(page), 0}};
    if (pair.at(0).get<bool>()) {
      say_all(CrashWord::kFound, {event});
    } else {
      now_.reserved.push_back(event);
    }
  }
  say_(now_.reserved);
  return Status::ok();
}

// Its answer is always the same; what was not reserved by this server, or was cleared, is not stored by it.
Status ReferenceCrashClient::confirm() {
  const bool is_stored = !now_.is_released && !now_.is_repeated && !now_.is_cleared;
  if (is_stored) say_all(CrashWord::kConfirming, now_.reserved);
  json pairs = json::array(), pages = json::array();
  for (const CrashEvent& event : now_.reserved) {
    pairs.push_back({event.key, event.ref.page});
    pages.push_back(event.ref.page);
  }
  const json body = now_.is_released ? json{{"pages_to_release", pages}} : json{{"written_keys_to_confirm", pairs}};
  const Result<json> answer = post("confirm_write", body);
  if (!answer) return answer.status();
  if (is_stored) say_all(CrashWord::kConfirmed, now_.reserved);
  if (now_.is_released) say_all(CrashWord::kReleased, now_.reserved);
  return Status::ok();
}

Status ReferenceCrashClient::forget(const std::string& call, const json& body, const std::vector<std::string>& keys) {
  const std::vector<CrashEvent> gone = events_of('r', keys);
  say_all(CrashWord::kForgetting, gone);
  const Result<json> answer = post(call, body);
  if (answer.is_ok()) say_all(CrashWord::kForgotten, gone);
  return answer.status();
}

Status ReferenceCrashClient::remove() { return forget("delete_keys", {{"keys", now_.keys}}, now_.keys); }

Status ReferenceCrashClient::clear() { return forget("clear", json::object(), all_keys()); }

Status ReferenceCrashClient::find() {
  const Result<json> answer = post("get_page_indices", {{"keys", now_.keys}});
  if (!answer) return answer.status();
  std::vector<CrashEvent> said = events_of('r', now_.keys);
  for (std::size_t i = 0; i < said.size(); ++i) {
    const json& page = answer->at("indices").at(i);
    if (page.is_null()) continue;
    said[i].word = CrashWord::kFound;
    said[i].ref.page = page.get<std::uint64_t>();
  }
  say_(said);
  return Status::ok();
}

}  // namespace larder::conformance
