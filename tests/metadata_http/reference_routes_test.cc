// SPDX-License-Identifier: Apache-2.0
// The reference system's calls as its client sends them: requests and exact answers, one table; then what the table
// cannot say: writers that meet, retries, time, restarts.
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "tests/metadata_http/http_harness.h"

namespace larder::conformance {
namespace {

struct Exchange {
  const char* what;
  const char* target;
  std::string body;
  unsigned status;
  std::string answer;
};

constexpr const char* kReserve = "/0/reserve_and_allocate_page_indices";
constexpr const char* kNotThere =
    R"({"detail":"Rank 5 namespace 'kv' not initialized. Please call /5/initialize first."})";
constexpr const char* kBadRank =
    R"({"detail":[{"type":"int_parsing","loc":["path","rank"],"msg":"Input should be a valid integer, unable to parse )"
    R"(string as an integer","input":"x"}]})";

// In order, on one fresh server. Pages of a fresh namespace are given out from 0 on.
std::vector<Exchange> exchanges() {
  const std::string long_key(3000, 'k');
  return {
      {"init", "/0/initialize", R"({"num_pages":8})", 204, ""},
      {"init again", "/0/initialize", R"({"num_pages":8,"namespace":"kv"})", 204, ""},
      {"init with another size", "/0/initialize", R"({"num_pages":9})", 204, ""},
      {"init of a pool", "/0/initialize", R"({"num_pages":4,"namespace":"mamba"})", 204, ""},
      {"nothing there", "/0/exists", R"({"keys":["a","b"]})", 200, R"({"exists":[false,false]})"},
      {"no keys", "/0/exists", R"({"keys":[]})", 200, R"({"exists":[]})"},
      {"get of nothing", "/0/get_page_indices", R"({"keys":["a"],"namespace":"kv"})", 200, R"({"indices":[null]})"},
      {"reserve", kReserve, R"({"keys":[["a",""],["b","a"]]})", 200, R"({"indices":[[false,0],[false,1]]})"},
      {"reserved is not there", "/0/exists", R"({"keys":["a","b"]})", 200, R"({"exists":[false,false]})"},
      {"confirm", "/0/confirm_write", R"({"written_keys_to_confirm":[["a",0]],"pages_to_release":[1]})", 204, ""},
      {"confirm again", "/0/confirm_write", R"({"written_keys_to_confirm":[["a",0]],"pages_to_release":[1]})", 204, ""},
      {"exists", "/0/exists", R"({"keys":["a","b"]})", 200, R"({"exists":[true,false]})"},
      {"get", "/0/get_page_indices", R"({"keys":["b","a"]})", 200, R"({"indices":[null,0]})"},
      {"the released page rests", kReserve, R"({"keys":[["c",""]]})", 200, R"({"indices":[[false,2]]})"},
      {"stored and new", kReserve, R"({"keys":[["a",""],["d",""]]})", 200, R"({"indices":[[true,0],[false,3]]})"},
      {"somebody else writes it", kReserve, R"({"keys":[["c",""]]})", 200, R"({"indices":[[true,-1]]})"},
      {"confirm of another's page changes nothing", "/0/confirm_write", R"({"written_keys_to_confirm":[["x",3]]})", 204,
       ""},
      {"so", "/0/exists", R"({"keys":["x","d"]})", 200, R"({"exists":[false,false]})"},
      {"release of stored and unknown pages changes nothing", "/0/confirm_write",
       R"({"pages_to_release":[0,7,-1,999999]})", 204, ""},
      {"so", "/0/exists", R"({"keys":["a"]})", 200, R"({"exists":[true]})"},
      {"confirm of nothing", "/0/confirm_write", "{}", 204, ""},
      {"delete", "/0/delete_keys", R"({"keys":["a","never"]})", 204, ""},
      {"deleted", "/0/exists", R"({"keys":["a"]})", 200, R"({"exists":[false]})"},
      {"another pool's", kReserve, R"({"keys":[["a",""]],"namespace":"mamba"})", 200, R"({"indices":[[false,0]]})"},
      {"clear", "/0/clear", "{}", 204, ""},
      {"keys of any text", kReserve, R"({"keys":[["",""],["\u0000",""],["\ud83d\ude00é",null]],"namespace":"mamba"})",
       200, R"({"indices":[[false,1],[false,2],[false,3]]})"},
      {"confirm them", "/0/confirm_write",
       R"({"namespace":"mamba","written_keys_to_confirm":[["",1],["\u0000",2],["😀\u00e9",3]]})", 204, ""},
      {"they are there", "/0/get_page_indices", R"({"keys":["","\u0000","😀é","\u0001"],"namespace":"mamba"})", 200,
       R"({"indices":[1,2,3,null]})"},
      {"a long key is a key", "/0/exists", R"({"keys":[")" + long_key + R"("]})", 200, R"({"exists":[false]})"},
      {"unknown fields", "/0/exists", R"( {"x":{"y":[1,2.5e3,null,true]}, "keys":["q"] ,"z":"\n"} )", 200,
       R"({"exists":[false]})"},
      {"the last of a field counts", "/0/exists", R"({"keys":["a","b","c"],"keys":["a"]})", 200,
       R"({"exists":[false]})"},
      {"negative ranks are ranks", "/-3/initialize", R"({"num_pages":1})", 204, ""},
  };
}

// On that server, afterwards.
std::vector<Exchange> refusals() {
  return {
      {"unknown rank", "/5/exists", R"({"keys":[]})", 404, kNotThere},
      {"unknown rank", "/5/get_page_indices", R"({"keys":["a"]})", 404, kNotThere},
      {"unknown rank", "/5/reserve_and_allocate_page_indices", R"({"keys":[["a",""]]})", 404, kNotThere},
      {"unknown rank", "/5/confirm_write", R"({"written_keys_to_confirm":[["a",0]]})", 404, kNotThere},
      {"unknown rank", "/5/delete_keys", R"({"keys":["a"]})", 404, kNotThere},
      {"unknown rank", "/5/delete_keys", R"({"keys":[]})", 404, kNotThere},
      {"unknown rank", "/5/clear", "{}", 404, kNotThere},
      {"unknown namespace", "/0/exists", R"({"keys":["a"],"namespace":"n\"x"})", 404,
       R"({"detail":"Rank 0 namespace 'n\"x' not initialized. Please call /0/initialize first."})"},
      {"no rank", "/x/exists", R"({"keys":[]})", 422, kBadRank},
      {"no such call", "/0/nothing", "{}", 404, R"({"detail":"Not Found"})"},
      {"no such path", "/exists", "{}", 404, R"({"detail":"Not Found"})"},
      {"no pages", "/0/initialize", "{}", 422, R"({"detail":"'num_pages' is missing"})"},
      {"pages as text", "/0/initialize", R"({"num_pages":"8"})", 422,
       R"({"detail":"'num_pages' must be an integer, got a string"})"},
      {"half a page", "/0/initialize", R"({"num_pages":8.5})", 422,
       R"({"detail":"'num_pages' must be an integer of 64 bits, got 8.5"})"},
      {"too many pages to count", "/0/initialize", R"({"num_pages":18446744073709551616})", 422,
       R"({"detail":"the body has a number that is too large for 64 bits"})"},
      {"no keys", "/0/exists", "{}", 422, R"({"detail":"'keys' is missing"})"},
      {"keys of numbers", "/0/exists", R"({"keys":[1]})", 422,
       R"({"detail":"'keys[]' must be a string, got a number"})"},
      {"keys as null", "/0/exists", R"({"keys":null})", 422, R"({"detail":"'keys' must be an array, got null"})"},
      {"reserve without prefix", kReserve, R"({"keys":[["a"]]})", 422,
       R"({"detail":"'keys[]' must be [key, prefix_key], got 1 values"})"},
      {"reserve with too much", kReserve, R"({"keys":[["a","b","c"]]})", 422,
       R"({"detail":"'keys[]' must be [key, prefix_key], got 3 values"})"},
      {"reserve of texts", kReserve, R"({"keys":["ab"]})", 422,
       R"({"detail":"'keys[]' must be an array, got a string"})"},
      {"a page as text", "/0/confirm_write", R"({"written_keys_to_confirm":[["a","1"]]})", 422,
       R"({"detail":"'written_keys_to_confirm[][1]' must be an integer, got a string"})"},
      {"an array", "/0/clear", "[]", 422, R"({"detail":"'body' must be an object, got an array"})"},
      {"nothing", "/0/clear", "", 400, R"({"detail":"the body is empty; a JSON object is expected"})"},
      {"half", "/0/clear", "{\"a\":", 400,
       R"({"detail":"malformed JSON at byte 5 (line 1, column 6): syntax error while parsing value - unexpected end )"
       R"(of input; expected '[', '{', or a literal"})"},
      {"two", "/0/clear", "{}{}", 400,
       R"({"detail":"malformed JSON at byte 2 (line 1, column 3): syntax error while parsing value - unexpected '{')"
       R"(; expected end of input"})"},
      {"no UTF-8", "/0/exists", "{\"keys\":[\"\xff\"]}", 400,
       R"({"detail":"malformed JSON at byte 10 (line 1, column 11): syntax error while parsing value - invalid string)"
       ": ill-formed UTF-8 byte; last read: '\\\"\xEF\xBF\xBD'\"}"},
      {"half a pair", "/0/exists", R"({"keys":["\ud800"]})", 400,
       R"({"detail":"malformed JSON at byte 16 (line 1, column 17): syntax error while parsing value - invalid string)"
       R"(: surrogate U+D800..U+DBFF must be followed by U+DC00..U+DFFF; last read: '\"\\ud800\"'"})"},
  };
}

NamespaceStats figures(HttpServerUnderTest& server) {
  const auto all = server.service().stats();
  EXPECT_TRUE(all.is_ok());
  return all.is_ok() ? all->at({0, "kv"}) : NamespaceStats{};
}

TEST(ReferenceRoutesTest, RequestsGetExactlyTheseAnswers) {
  HttpServerUnderTest server;
  std::vector<Exchange> all = exchanges();
  for (const Exchange& exchange : refusals()) all.push_back(exchange);
  for (const Exchange& exchange : all) {
    const HttpReply reply = server.post(exchange.target, exchange.body);
    EXPECT_EQ(reply.status, exchange.status) << exchange.what << ": " << reply.body;
    EXPECT_EQ(reply.body, exchange.answer) << exchange.what;
    EXPECT_EQ(reply.content_type, exchange.status == 204 ? "" : "application/json") << exchange.what;
  }
  EXPECT_TRUE(server.service().check().is_ok());
}

TEST(ReferenceRoutesTest, TheHeadOfAnAnswerIsPlain) {
  HttpServerUnderTest server;
  HttpClient client(server.http_url(), std::chrono::seconds(20));
  const auto reply = client.raw(
      "POST /0/initialize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "User-Agent: python-requests/2.32\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\n"
      "Connection: keep-alive\r\nContent-Length: 15\r\n\r\n{\"num_pages\":8}");
  ASSERT_TRUE(reply.is_ok());
  EXPECT_EQ(reply->status, 204u);
  for (const char* method : {"GET", "PUT", "DELETE"}) EXPECT_EQ(server.call(method, "/0/exists").status, 405u);
  EXPECT_EQ(server.call("OPTIONS", "/0/exists").status, 204u);
}

TEST(ReferenceRoutesTest, TwoWritersNeverGetOnePageAndARetryLeaksNone) {
  HttpServerUnderTest server;
  (void)server.post("/0/initialize", R"({"num_pages":4})");
  const std::string body = R"({"keys":[["a",""],["b",""]]})";
  EXPECT_EQ(server.post(kReserve, body).body, R"({"indices":[[false,0],[false,1]]})");
  // The answer was lost, so the client asks again; or it is another client. Nobody may write these pages but the first.
  EXPECT_EQ(server.post(kReserve, body).body, R"({"indices":[[true,-1],[true,-1]]})");
  EXPECT_EQ(server.post(kReserve, body).body, R"({"indices":[[true,-1],[true,-1]]})");
  EXPECT_EQ(figures(server).reserved, 2u) << "asking again takes no further page";
  EXPECT_EQ(figures(server).free, 2u);
  server.clock().advance(kMaxTtl + kSecond);
  EXPECT_EQ(server.post(kReserve, body).body, R"({"indices":[[false,2],[false,3]]})") << "expired: others may try";
  EXPECT_EQ(figures(server).quarantined, 2u) << "the first writer may still be writing";
  server.clock().advance(kMaxTtl + kMaxIoLifetime + kMaxLease + kSecond);
  EXPECT_EQ(figures(server).free + figures(server).quarantined, 4u);
  server.clock().advance(kMaxIoLifetime + kSecond);
  EXPECT_EQ(figures(server).free, 4u) << "no page is lost";
}

// The reference's client releases whatever failed, also what may still land.
TEST(ReferenceRoutesTest, AReleasedPageIsNobodysUntilNoWriteCanLand) {
  HttpServerUnderTest server;
  (void)server.post("/0/initialize", R"({"num_pages":2})");
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["a",""]]})").body, R"({"indices":[[false,0]]})");
  EXPECT_EQ(server.post("/0/confirm_write", R"({"pages_to_release":[0]})").status, 204u);
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["a",""],["b",""]]})").body, R"({"indices":[[false,1],[false,-1]]})")
      << "the key is free at once, the page is not";
  EXPECT_EQ(figures(server).quarantined, 1u);
  server.clock().advance(kMaxIoLifetime);
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["b",""]]})").body, R"({"indices":[[false,0]]})");
}

TEST(ReferenceRoutesTest, AConfirmationThatCameTooLateIsHarmless) {
  HttpServerUnderTest server;
  (void)server.post("/0/initialize", R"({"num_pages":1})");
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["a",""]]})").body, R"({"indices":[[false,0]]})");
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["b",""]]})").body, R"({"indices":[[false,-1]]})") << "full, and no 500";
  server.clock().advance(kMaxTtl + kMaxIoLifetime + kSecond);
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["b",""]]})").body, R"({"indices":[[false,0]]})");
  EXPECT_EQ(server.post("/0/confirm_write", R"({"written_keys_to_confirm":[["a",0]]})").status, 204u);
  EXPECT_EQ(server.post("/0/exists", R"({"keys":["a","b"]})").body, R"({"exists":[false,false]})");
  EXPECT_EQ(server.post("/0/confirm_write", R"({"pages_to_release":[0],"written_keys_to_confirm":[["b",0]]})").status,
            204u);
  EXPECT_EQ(server.post("/0/exists", R"({"keys":["a","b"]})").body, R"({"exists":[false,true]})");
}

constexpr Nanos kUntilReused = kMaxTtl + kMaxIoLifetime + kSecond;  // of a page that its writer says nothing about

// One page, reserved for `first` by a writer that says nothing in time, and then for `second`.
void reserve_in_turn(HttpServerUnderTest& server, const std::string& first, const std::string& second) {
  (void)server.post("/0/initialize", R"({"num_pages":1})");
  EXPECT_EQ(server.post(kReserve, R"({"keys":[[")" + first + R"(",""]]})").body, R"({"indices":[[false,0]]})");
  server.clock().advance(kUntilReused);
  EXPECT_EQ(server.post(kReserve, R"({"keys":[[")" + second + R"(",""]]})").body, R"({"indices":[[false,0]]})");
}

TEST(ReferenceRoutesTest, AReleaseThatCameTooLateLeavesThePageToItsNextWriter) {
  HttpServerUnderTest server;
  reserve_in_turn(server, "a", "b");
  for (int i = 0; i < 2; ++i) {  // the late writer's answer was lost, and it asks again
    EXPECT_EQ(server.post("/0/confirm_write", R"({"pages_to_release":[0]})").status, 204u);
    EXPECT_EQ(server.post(kReserve, R"({"keys":[["c",""]]})").body, R"({"indices":[[false,-1]]})") << "b is written";
  }
  EXPECT_EQ(server.post("/0/confirm_write", R"({"written_keys_to_confirm":[["b",0]]})").status, 204u);
  EXPECT_EQ(server.post("/0/exists", R"({"keys":["b"]})").body, R"({"exists":[true]})");
}

TEST(ReferenceRoutesTest, AReleaseInDoubtIsMadeGoodByTheEndOfTheReservation) {
  HttpServerUnderTest server;
  reserve_in_turn(server, "a", "b");
  (void)server.post("/0/confirm_write", R"({"pages_to_release":[0]})");  // of b's writer, which nobody can know
  server.clock().advance(kUntilReused);
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["c",""]]})").body, R"({"indices":[[false,0]]})");
  (void)server.post("/0/confirm_write", R"({"written_keys_to_confirm":[["c",0]]})");
  server.clock().advance(kOverdueLifetime + kSecond);
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["d",""]]})").body, R"({"indices":[[false,0]]})");
  (void)server.post("/0/confirm_write", R"({"pages_to_release":[0]})");
  EXPECT_EQ(figures(server).quarantined, 1u) << "both are forgotten, and there is no doubt any more";
}

TEST(ReferenceRoutesTest, ALateConfirmationOfTheSameKeyDoesNotPublishWhatIsBeingWritten) {
  HttpServerUnderTest server;
  reserve_in_turn(server, "a", "a");
  const std::string body = R"({"written_keys_to_confirm":[["a",0]]})";
  EXPECT_EQ(server.post("/0/confirm_write", body).status, 204u);
  EXPECT_EQ(server.post("/0/exists", R"({"keys":["a"]})").body, R"({"exists":[false]})");
  EXPECT_EQ(server.post("/0/confirm_write", body).status, 204u);
  EXPECT_EQ(server.post("/0/exists", R"({"keys":["a"]})").body, R"({"exists":[true]})");
}

TEST(ReferenceRoutesTest, AWriterThatDiedKeepsItsKeyOutOnce) {
  HttpServerUnderTest server;
  reserve_in_turn(server, "a", "a");
  const std::string body = R"({"written_keys_to_confirm":[["a",0]]})";
  EXPECT_EQ(server.post("/0/confirm_write", body).status, 204u);
  server.clock().advance(kUntilReused);
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["a",""]]})").body, R"({"indices":[[false,0]]})");
  EXPECT_EQ(server.post("/0/confirm_write", body).status, 204u);
  EXPECT_EQ(server.post("/0/exists", R"({"keys":["a"]})").body, R"({"exists":[true]})");
}

TEST(ReferenceRoutesTest, AConfirmationThatFoundNoWriterIsNoLongerExpected) {
  HttpServerUnderTest server;
  (void)server.post("/0/initialize", R"({"num_pages":2})");
  (void)server.post(kReserve, R"({"keys":[["a",""]]})");
  server.clock().advance(kMaxTtl + kSecond);
  (void)server.post(kReserve, R"({"keys":[["b",""]]})");  // a's writer is overdue from now on
  const std::string body = R"({"written_keys_to_confirm":[["a",0],["b",1]]})";
  EXPECT_EQ(server.post("/0/confirm_write", body).status, 204u);
  server.clock().advance(kMaxIoLifetime + kSecond);
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["a",""]]})").body, R"({"indices":[[false,0]]})");
  EXPECT_EQ(server.post("/0/confirm_write", body).status, 204u);
  EXPECT_EQ(server.post("/0/exists", R"({"keys":["a","b"]})").body, R"({"exists":[true,true]})");
}

TEST(ReferenceRoutesTest, AKeyThatIsThereTwiceHasOneWriter) {
  HttpServerUnderTest server;
  (void)server.post("/0/initialize", R"({"num_pages":1})");
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["a",""],["a",""]]})").body, R"({"indices":[[false,0],[false,0]]})");
  EXPECT_EQ(server.post("/0/confirm_write", R"({"pages_to_release":[0]})").status, 204u);
  EXPECT_EQ(figures(server).reserved, 0u);
}

// Answers a confirmation when another client's call has been answered, which came between the two.
class CrossedService final : public ServiceInFront {
 public:
  using ServiceInFront::ServiceInFront;
  Result<std::vector<Status>> confirm(const ConfirmRequest& request) override {
    auto done = ServiceInFront::confirm(request);
    if (const std::function<void()> call = std::exchange(crossing, nullptr)) call();
    return done;
  }
  std::function<void()> crossing;
};

TEST(ReferenceRoutesTest, AReleaseThatAReserveCrossesMakesNoOverdueWriter) {
  for (const char* ending : {R"({"pages_to_release":[0]})", R"({"written_keys_to_confirm":[["a",0]]})"}) {
    ManualClock clock;
    EmbeddedMetadataOptions at_once = embedded_test_options();
    at_once.max_io_lifetime = Nanos{0};  // what is released is given out again at once
    const auto embedded = EmbeddedMetadata::create(at_once, clock);
    ASSERT_TRUE(embedded.is_ok());
    CrossedService service(**embedded);
    ReferenceOptions options;
    options.ttl = kMaxTtl;
    ReferenceRoutes routes(service, clock, options);
    using Call = ReferenceRoutes::Call;
    const auto post = [&](Call call, const char* body) {
      std::uint64_t keys = 0;
      return routes.answer({call, "0"}, body, keys).body;
    };
    (void)post(Call::kInitialize, R"({"num_pages":1})");
    EXPECT_EQ(post(Call::kReserve, R"({"keys":[["a",""]]})"), R"({"indices":[[false,0]]})");
    service.crossing = [&] {
      (void)post(Call::kDelete, R"({"keys":["a"]})");
      EXPECT_EQ(post(Call::kReserve, R"({"keys":[["a",""]]})"), R"({"indices":[[false,0]]})");
    };
    (void)post(Call::kConfirm, ending);
    (void)post(Call::kConfirm, R"({"written_keys_to_confirm":[["a",0]]})");
    EXPECT_EQ(post(Call::kExists, R"({"keys":["a"]})"), R"({"exists":[true]})") << ending;
  }
}

// What is kept follows what is open, and not how much was written within a reservation's time.
TEST(ReferenceRoutesTest, ACallIsKeptOnlyWhileAPageOfItIsOpen) {
  ManualClock clock;
  const auto service = EmbeddedMetadata::create(embedded_test_options(), clock);
  ASSERT_TRUE(service.is_ok());
  ReferenceOptions options;
  options.ttl = kMaxTtl;
  ReferenceRoutes routes(**service, clock, options);
  using Call = ReferenceRoutes::Call;
  const auto post = [&](Call call, const char* body) {
    std::uint64_t keys = 0;
    EXPECT_LT(routes.answer({call, "0"}, body, keys).status, 300u);
    return routes.open_calls();
  };
  EXPECT_EQ(post(Call::kInitialize, R"({"num_pages":2})"), 0u);
  EXPECT_EQ(post(Call::kReserve, R"({"keys":[["a",""],["b",""],["a",""]]})"), 1u);
  EXPECT_EQ(post(Call::kConfirm, R"({"written_keys_to_confirm":[["a",0]]})"), 1u);
  EXPECT_EQ(post(Call::kReserve, R"({"keys":[["a",""],["b",""]]})"), 1u) << "it has got no page";
  EXPECT_EQ(post(Call::kConfirm, R"({"pages_to_release":[1]})"), 0u);
  EXPECT_EQ(post(Call::kReserve, R"({"keys":[["c",""]]})"), 1u);
  clock.advance(kUntilReused);
  EXPECT_EQ(post(Call::kReserve, R"({"keys":[["c",""]]})"), 1u) << "the one before is overdue";
}

TEST(ReferenceRoutesTest, OfTooManyOverdueWritersTheOldestIsForgotten) {
  ManualClock clock;
  const auto service = EmbeddedMetadata::create(embedded_test_options(), clock);
  ASSERT_TRUE(service.is_ok());
  ReferenceOptions options;
  options.ttl = kMaxTtl;
  options.max_overdue = 1;
  ReferenceRoutes routes(**service, clock, options);
  using Call = ReferenceRoutes::Call;
  const auto post = [&](Call call, const char* body) {
    std::uint64_t keys = 0;
    return routes.answer({call, "0"}, body, keys).status;
  };
  EXPECT_EQ(post(Call::kInitialize, R"({"num_pages":2})"), 204u);
  EXPECT_EQ(post(Call::kReserve, R"({"keys":[["a",""],["b",""]]})"), 200u);
  clock.advance(kUntilReused);
  EXPECT_EQ(post(Call::kReserve, R"({"keys":[["c",""],["d",""]]})"), 200u);
  EXPECT_EQ(post(Call::kConfirm, R"({"pages_to_release":[0,1]})"), 204u);
  const NamespaceStats stats = Talker(**service, {0, "kv"}).stats();
  EXPECT_EQ(stats.quarantined, 1u) << "of the one that is forgotten";
  EXPECT_EQ(stats.reserved, 1u);
}

TEST(ReferenceRoutesTest, AReadPageIsNotRewrittenUnderItsReader) {
  HttpServerUnderTest server;
  (void)server.post("/0/initialize", R"({"num_pages":1})");
  (void)server.post(kReserve, R"({"keys":[["a",""]]})");
  (void)server.post("/0/confirm_write", R"({"written_keys_to_confirm":[["a",0]]})");
  EXPECT_EQ(server.post("/0/get_page_indices", R"({"keys":["a"]})").body, R"({"indices":[0]})");
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["b",""]]})").body, R"({"indices":[[false,-1]]})");
  server.clock().advance(kMaxLease + kSecond);
  EXPECT_EQ(server.post("/0/exists", R"({"keys":["a"]})").body, R"({"exists":[true]})") << "exists leases nothing";
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["b",""]]})").body, R"({"indices":[[false,0]]})");
}

TEST(ReferenceRoutesTest, PrefixKeysKeepHeadsLongerThanTails) {
  HttpServerUnderTest server;
  (void)server.post("/0/initialize", R"({"num_pages":3})");
  (void)server.post(kReserve, R"({"keys":[["p0",""],["p1","p0"],["p2","p1"]]})");
  (void)server.post("/0/confirm_write", R"({"written_keys_to_confirm":[["p0",0],["p1",1],["p2",2]]})");
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["new",""]]})").body, R"({"indices":[[false,2]]})");
  EXPECT_EQ(server.post("/0/exists", R"({"keys":["p0","p1","p2"]})").body, R"({"exists":[true,true,false]})");
}

TEST(ReferenceRoutesTest, ClearRefusesWhatIsBeingWritten) {
  HttpServerUnderTest server;
  (void)server.post("/0/initialize", R"({"num_pages":2})");
  (void)server.post(kReserve, R"({"keys":[["a",""]]})");
  EXPECT_EQ(server.post("/0/clear", R"({"namespace":"kv"})").status, 204u);
  EXPECT_EQ(server.post("/0/confirm_write", R"({"written_keys_to_confirm":[["a",0]]})").status, 204u);
  EXPECT_EQ(server.post("/0/exists", R"({"keys":["a"]})").body, R"({"exists":[false]})");
}

TEST(ReferenceRoutesTest, WhatWasConfirmedOutlivesTheServer) {
  HttpServerUnderTest server;
  (void)server.post("/0/initialize", R"({"num_pages":4})");
  (void)server.post(kReserve, R"({"keys":[["a",""],["b",""]]})");
  (void)server.post("/0/confirm_write", R"({"written_keys_to_confirm":[["a",0]]})");
  server.reopen();
  EXPECT_EQ(server.post("/0/confirm_write", R"({"written_keys_to_confirm":[["b",1]]})").status, 204u);
  EXPECT_EQ(server.post("/0/get_page_indices", R"({"keys":["a","b"]})").body, R"({"indices":[0,null]})");
}

TEST(ReferenceRoutesTest, AFullDiskIsSaidSoThatTheClientAsksAgain) {
  HttpServerUnderTest server;
  (void)server.post("/0/initialize", R"({"num_pages":4})");
  server.disk().set_mood(metadata::MemoryDisk::Mood::kRefusing);
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["a",""]]})").status, 503u);
  EXPECT_EQ(server.post("/0/exists", R"({"keys":["a"]})").status, 200u) << "reading goes on";
  server.disk().set_mood(metadata::MemoryDisk::Mood::kWell);
  EXPECT_EQ(server.post(kReserve, R"({"keys":[["z",""]]})").status, 200u);
}

}  // namespace
}  // namespace larder::conformance
