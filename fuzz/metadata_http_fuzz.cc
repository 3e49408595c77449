// SPDX-License-Identifier: Apache-2.0
// The reference system's metadata protocol (server/reference_routes.h): POST /{rank}/{call} with JSON bodies.
//
// Fed: a row of requests (which call, which rank, a body of any bytes or one made of choices), time between them.
// Checked: every answer is one that the table in docs/metadata_server.md knows, never a failure of ours; its body is
// JSON with one entry per key that was asked for; malformed JSON is 400 and nothing else is; the service keeps its
// invariants.
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "fuzz/fuzz_input.h"
#include "metadata/embedded_metadata.h"
#include "server/json_reader.h"
#include "server/reference_routes.h"

namespace larder::fuzz {
namespace {

using nlohmann::json;
using Call = ReferenceRoutes::Call;

constexpr std::array<Call, 7> kCalls = {Call::kInitialize, Call::kExists, Call::kReserve, Call::kConfirm,
                                        Call::kDelete,     Call::kClear,  Call::kGet};

class Routes {
 public:
  Routes() : service_(make()), routes_(*service_, clock_, {}) {}

  void step(FuzzInput& input) {
    if (input.below(8) == 0) clock_.advance(std::chrono::seconds(input.below(100)));
    const Call call = kCalls[input.below(kCalls.size())];
    const std::string rank = input.below(16) == 0 ? std::string(input.text(8)) : std::to_string(input.below(2));
    const std::string path = "/" + rank + "/" + std::string(ReferenceRoutes::name_of(call));
    const std::optional<ReferenceRoutes::Route> route = ReferenceRoutes::route_of(path);
    fuzz_check((route && route->call == call) || rank.find('/') != std::string::npos, "a route is another");
    if (!route) return;
    const bool is_made = input.below(4) != 0;
    const std::string body =
        is_made ? make_body(call, input) : std::string(input.text(static_cast<std::size_t>(input.below(300))));
    std::uint64_t keys = 0;
    const HttpResponse response = routes_.answer(*route, body, keys);
    check_answer(call, body, keys, response);
    if (is_made && response.status == 200) remember(call, response);
    fuzz_check(service_->check().is_ok(), "a request breaks the service's invariants");
  }

 private:
  std::unique_ptr<EmbeddedMetadata> make() {
    EmbeddedMetadataOptions options;
    options.max_namespaces = 4;
    options.max_pages = 24;
    auto service = EmbeddedMetadata::create(options, clock_);
    fuzz_check(service.is_ok(), "no service");
    return std::move(*service);
  }

  static std::string key(FuzzInput& input) {
    static const std::array<std::string, 8> kKeys = {"a", "b", "c", "d", "\xc3\xa9", std::string(600, 'x'), "", "e"};
    return kKeys[input.below(kKeys.size())];
  }
  // A page that was given out for a key, or any.
  std::pair<std::string, std::int64_t> written(FuzzInput& input) {
    if (!given_.empty() && input.below(4) != 0) return given_[input.below(given_.size())];
    return {key(input), static_cast<std::int64_t>(input.below(26)) - 1};
  }
  std::string make_body(Call call, FuzzInput& input) {
    json body = json::object();
    if (input.below(4) == 0) body["namespace"] = input.flag() ? "swa" : "kv";
    asked_.clear();
    const std::uint64_t count = input.below(5);
    switch (call) {
      case Call::kInitialize: body["num_pages"] = static_cast<std::int64_t>(input.below(20)) - 1; break;
      case Call::kClear: break;
      case Call::kConfirm:
        for (std::uint64_t i = 0; i < count; ++i) {
          const auto [name, page] = written(input);
          body["written_keys_to_confirm"].push_back({name, page});
        }
        if (input.flag()) body["pages_to_release"].push_back(written(input).second);
        break;
      default:
        body["keys"] = json::array();
        for (std::uint64_t i = 0; i < count; ++i) {
          asked_.push_back(key(input));
          if (call == Call::kReserve) {
            body["keys"].push_back({asked_.back(), input.flag() ? json(key(input)) : json()});
          } else {
            body["keys"].push_back(asked_.back());
          }
        }
    }
    return body.dump();
  }

  static void check_answer(Call call, const std::string& body, std::uint64_t keys, const HttpResponse& response) {
    const bool is_known = response.status == 200 || response.status == 204 || response.status == 400 ||
                          response.status == 404 || response.status == 422 || response.status == 503;
    fuzz_check(is_known, "status " + std::to_string(response.status) + ": " + response.body);
    if (response.status == 400) {
      const bool is_deep = std::count(body.begin(), body.end(), '[') + std::count(body.begin(), body.end(), '{') > 64;
      const bool has_nul = body.find('\0') != std::string::npos;  // never JSON; to the parser it is the end
      fuzz_check(is_deep || has_nul || !json::accept(body), "JSON is called malformed: " + response.body);
    }
    if (response.status == 204) return fuzz_check(response.body.empty(), "204 with a body");
    const json answer = json::parse(response.body, nullptr, false);
    fuzz_check(answer.is_object() && answer.size() == 1, "the answer is no JSON object: " + response.body);
    if (response.status != 200) {
      const bool has_text = answer.contains("detail") && !answer["detail"].empty();
      return fuzz_check(has_text, "an error without a text");
    }
    const char* const field = call == Call::kExists ? "exists" : "indices";
    fuzz_check(answer.contains(field) && answer[field].size() == keys, "another number of entries");
  }

  void remember(Call call, const HttpResponse& response) {
    if (call != Call::kReserve) return;
    const json answer = json::parse(response.body);
    for (std::size_t i = 0; i < asked_.size(); ++i) {
      const json& one = answer["indices"][i];
      fuzz_check(one.size() == 2 && one[0].is_boolean() && one[1].is_number_integer(), "no [written, page]");
      const bool is_mine = !one[0].get<bool>() && one[1].get<std::int64_t>() >= 0;
      if (is_mine && given_.size() < 64) given_.emplace_back(asked_[i], one[1].get<std::int64_t>());
    }
  }

  ManualClock clock_;
  const std::unique_ptr<EmbeddedMetadata> service_;
  ReferenceRoutes routes_;
  std::vector<std::string> asked_;                           // keys of the last body that was made
  std::vector<std::pair<std::string, std::int64_t>> given_;  // key, page
};

void run(FuzzInput input) {
  set_log_level(LogLevel::kOff);
  Routes routes;
  for (int i = 0; i < 40 && !input.empty(); ++i) routes.step(input);
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
