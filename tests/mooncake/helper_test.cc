// SPDX-License-Identifier: Apache-2.0
// The helper process: setups that fail say so, and what happens to it costs misses and nothing else.

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <future>

#include "tests/mooncake/backend_rig.h"
#include "tests/mooncake/fake_store.h"
#include "tests/support/rest.h"

namespace larder::mooncake_test {
namespace {

constexpr Nanos kPatience = std::chrono::seconds(60);
constexpr const char* kBothHang = R"({"faults": [{"call": "batch_get_into_multi_buffers", "do": {"hang": true}},
    {"call": "batch_put_from_multi_buffer_ranges", "do": {"hang": true}}]})";

std::string failure_of(FakeStore& store, const BackendOptions& extra) {
  BackendRig rig(store.options());
  const TimePoint begin = real_clock().now();
  const Result<std::unique_ptr<StorageBackend>> made = rig.open(extra);
  EXPECT_LT(real_clock().now() - begin, std::chrono::seconds(20)) << "it must say so at once";
  EXPECT_FALSE(made.is_ok());
  return made.status().message();
}

TEST(MooncakeHelper, SaysInWordsWhyItsSetupFails) {
  FakeStore store;
  const auto expect = [&](const BackendOptions& extra, const std::string& words) {
    const std::string said = failure_of(store, extra);
    EXPECT_NE(said.find(words), std::string::npos) << said;
  };
  std::string closed_port;
  {
    const support::LoopbackListener listener(1);
    closed_port = "127.0.0.1:" + std::to_string(listener.port());
  }
  expect({{"master_server_address", closed_port}}, "no Mooncake master answers at " + closed_port);
  expect({{"master_server_address", "somewhere"}}, "'somewhere' is not HOST:PORT");
  expect({{"master_server_address", ""}}, "option 'master_server_address' is missing");
  expect({{"python", "/nowhere/python"}}, "the interpreter '/nowhere/python' does not start (option 'python')");
  expect({{"python", "/bin/false"}}, "it ended with exit code 1");
  expect({{"package_directory", "/nowhere"}}, "cannot load the package mooncake");
  expect({{"protocol", "carrier pigeon"}}, "refused its setup with code -600");
  expect({{"protocol", "x\"\\\n\x01\xff"}}, "refused its setup with code -600");
  expect({{"staging_size", "1"}}, "option 'staging_size'");
  expect({{"soft_pin", "perhaps"}}, "option 'soft_pin'");
  expect({{"standalone_storage", "true"}}, "option 'standalone_storage': only false");
  expect({{"client_server_address", "x:1"}}, "option 'client_server_address'");
  store.control(R"({"faults": [{"call": "register_buffer", "do": {"code": -600}}]})");
  expect({}, "refused to register");
  store.control(R"({"faults": [{"call": "setup", "do": {"hang": true}}]})");
  expect({{"setup_timeout", "1"}}, "setup takes longer than 1 s");
}

// A read of page 1 and a write of page 3, under way.
class LateCalls {
 public:
  explicit LateCalls(BackendRig& rig) {
    read_into_.fill(std::byte{0xA5});
    written_.fill(conformance::test_key(3), kKv);
    ReadRequest read{conformance::test_scope(1), {{kKv, conformance::test_key(1), {{read_into_.data(), 1000}}}}};
    EXPECT_TRUE(rig.backend()
                    .submit_read(std::move(read), [this](const ReadResult& r) { read_code_ = r.items[0].code(); })
                    .is_ok());
    WriteRequest write{conformance::test_scope(1),
                       {PageGroup{{{kKv, conformance::test_key(3), written_.segments(), PageKey{}}}}}};
    EXPECT_TRUE(rig.backend()
                    .submit_write(std::move(write), [this](const WriteResult& r) { write_code_ = r.groups[0].code(); })
                    .is_ok());
  }
  // kOk while they are under way.
  [[nodiscard]] StatusCode read_code() const { return read_code_; }
  [[nodiscard]] StatusCode write_code() const { return write_code_; }
  [[nodiscard]] bool are_told() const { return read_code_ != StatusCode::kOk && write_code_ != StatusCode::kOk; }

 private:
  Rng rng_{3};
  std::array<std::byte, 1000> read_into_{};
  conformance::PageBuffer written_{1000, 1, rng_};
  std::atomic<StatusCode> read_code_{StatusCode::kOk}, write_code_{StatusCode::kOk};
};

class MooncakeFailures : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(rig_.start({{"client_timeout", "2"}}));
    ASSERT_TRUE(rig_.put({{{kKv, 1}}})[0].is_ok());
  }
  // The helper is started again after a while.
  void expect_recovery() {
    const TimePoint end = real_clock().now() + kPatience;
    store_.control("{}");
    std::vector<Status> got;
    do {
      got = rig_.get({{kKv, 1}});
    } while (!got[0].is_ok() && real_clock().now() < end);
    EXPECT_TRUE(got[0].is_ok()) << got[0].to_string();
    EXPECT_TRUE(rig_.put({{{kKv, 2}}})[0].is_ok());
  }

  // Another call has its answer, again and again.
  void expect_answers_until(const std::function<bool()>& is_over) {
    const TimePoint end = real_clock().now() + kPatience;
    for (; !is_over() && real_clock().now() < end; rest()) EXPECT_EQ(rig_.there({{kKv, 1}}), "1");
    EXPECT_TRUE(is_over());
  }

  // Each takes the store so long.
  std::vector<StatusCode> ask_four_times(int seconds) {
    store_.control(R"({"faults": [{"call": "batch_is_exist", "times": 4, "do": {"seconds": )" +
                   std::to_string(seconds) + "}}]}");
    std::vector<std::promise<StatusCode>> promises(4);
    std::vector<StatusCode> codes;
    for (std::promise<StatusCode>& promise : promises) {
      ExistsRequest request{conformance::test_scope(1), {conformance::test_key(1)}, {kKv}};
      const Status taken = rig_.backend().submit_exists(
          std::move(request), [&promise](const ExistsResult& result) { promise.set_value(result.status.code()); });
      if (!taken.is_ok()) promise.set_value(taken.code());
    }
    for (std::promise<StatusCode>& promise : promises) codes.push_back(promise.get_future().get());
    return codes;
  }

  FakeStore store_;
  BackendRig rig_{store_.options()};
};

TEST_F(MooncakeFailures, AHelperThatCrashesCostsTheCallsThatRan) {
  for (const char* fault : {R"("crash": true)", R"("exit": 3)"}) {
    SCOPED_TRACE(fault);
    store_.control(R"({"faults": [{"call": "batch_get_into_multi_buffers", "do": {)" + std::string(fault) + "}}]}");
    const Status status = rig_.get({{kKv, 1}})[0];
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.to_string();
    EXPECT_NE(status.message().find("it "), std::string::npos) << "how it ended: " << status.message();
    expect_recovery();
  }
}

TEST_F(MooncakeFailures, ACallThatHangsEndsWithItsHelper) {
  store_.control(R"({"faults": [{"call": "batch_put_from_multi_buffer_ranges", "do": {"hang": true}}]})");
  const std::vector<Status> put = rig_.put({{{kKv, 3}}});
  EXPECT_EQ(put[0].code(), StatusCode::kDeadlineExceeded) << put[0].to_string();
  expect_recovery();
  // What it had begun is nobody's until the master gives it up.
  EXPECT_EQ(rig_.put({{{kKv, 3}}})[0].code(), StatusCode::kOverloaded);
  store_.control(R"({"discard_ms": 0})");
  EXPECT_TRUE(rig_.put({{{kKv, 3}}})[0].is_ok());
}

// The defect: what waited for a lane was counted as time without an answer, and a helper that was only busy was ended.
TEST_F(MooncakeFailures, TimeInLineIsNotTimeWithoutAnAnswer) {
  ASSERT_TRUE(rig_.start({{"client_threads", "2"}, {"client_timeout", "3"}}));
  const std::size_t setups = store_.calls("setup");
  for (const StatusCode code : ask_four_times(2)) EXPECT_EQ(code, StatusCode::kOk);
  EXPECT_EQ(store_.calls("setup"), setups) << "it is the same helper";
}

TEST_F(MooncakeFailures, WhoWaitsTooLongInLineIsRefused) {
  ASSERT_TRUE(rig_.start({{"client_threads", "1"}, {"client_timeout", "6"}}));
  const std::size_t setups = store_.calls("setup");
  std::vector<StatusCode> codes = ask_four_times(4);  // the third would begin after 8 s
  std::sort(codes.begin(), codes.end());
  EXPECT_EQ(codes, (std::vector{StatusCode::kOk, StatusCode::kOk, StatusCode::kOverloaded, StatusCode::kOverloaded}));
  EXPECT_EQ(store_.calls("setup"), setups);
}

// The defect: a transfer to another machine that hangs takes the library longer than that, and the helper went, with
// all that it had lent.
TEST_F(MooncakeFailures, ACallThatIsLateEndsNoHelperThatAnswersOthers) {
  ASSERT_TRUE(rig_.start({{"client_timeout", "4"}}));
  EXPECT_TRUE(rig_.put({{{kKv, 1}}})[0].is_ok());
  const std::size_t setups = store_.calls("setup"), ends = store_.calls("batch_put_session_end");
  store_.control(
      R"({"faults": [{"call": "batch_get_into_multi_buffers", "do": {"seconds": 10}},
                     {"call": "batch_put_from_multi_buffer_ranges", "do": {"seconds": 10}}]})");
  const LateCalls late(rig_);
  expect_answers_until([&] { return late.are_told(); });
  EXPECT_EQ(late.read_code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.write_code(), StatusCode::kDeadlineExceeded);
  // Its page is its own: nobody else writes it, and no clear passes it by.
  EXPECT_EQ(rig_.put({{{kKv, 3}}}, 9)[0].code(), StatusCode::kUnavailable);
  EXPECT_EQ(conformance::clear(rig_, rig_.backend(), nullptr).code(), StatusCode::kUnavailable);
  std::vector<Page> others;
  for (std::uint64_t key = 100; key < 120; ++key) {  // 2 MB in all: its staging memory is given to none of them
    others.push_back({kKv, key, 100'000});
    EXPECT_TRUE(rig_.put({{others.back()}})[0].is_ok());
    EXPECT_TRUE(rig_.get({others.back()})[0].is_ok());
  }
  expect_answers_until([&] { return store_.calls("batch_put_session_end") == ends + 21; });  // of 20, and the late one
  // It has come after all, with the bytes that it was given: soon after the call has begun, which is what is counted.
  expect_answers_until([&] { return rig_.get({{kKv, 3}})[0].is_ok(); });
  EXPECT_TRUE(rig_.get({{kKv, 1}})[0].is_ok());
  EXPECT_EQ(store_.calls("setup"), setups) << "it is the same helper";
}

TEST_F(MooncakeFailures, WhatIsStillLateIsNotWaitedForByAClose) {
  store_.control(kBothHang);
  const LateCalls late(rig_);
  expect_answers_until([&] { return late.are_told(); });
  const TimePoint begin = real_clock().now();
  EXPECT_TRUE(rig_.backend().close(std::chrono::seconds(1)).is_ok());
  EXPECT_LT(real_clock().now() - begin, std::chrono::seconds(20));
}

// One that never ends keeps its lane, its memory and its page, but not for ever.
TEST_F(MooncakeFailures, ACallThatNeverEndsEndsItsHelperInTheEnd) {
  ASSERT_TRUE(rig_.start({{"client_timeout", "3"}, {"client_threads", "4"}}));
  const std::size_t setups = store_.calls("setup");
  store_.control(kBothHang);
  const LateCalls late(rig_);
  expect_answers_until([&] { return late.are_told(); });
  const TimePoint end = real_clock().now() + kPatience;
  while (!rig_.there({{kKv, 1}}).starts_with("error") && real_clock().now() < end) rest();
  EXPECT_LT(real_clock().now(), end);
  expect_recovery();
  EXPECT_EQ(store_.calls("setup"), setups + 1);
}

TEST_F(MooncakeFailures, WhatTheLibraryRaisesIsToldAndEndsNothing) {
  store_.control(R"({"faults": [{"call": "*", "do": {"raise": "out of cheese"}}]})");
  const Status status = rig_.get({{kKv, 1}})[0];
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("RuntimeError: out of cheese"), std::string::npos) << status.message();
  EXPECT_TRUE(rig_.get({{kKv, 1}})[0].is_ok()) << "the next call, of the same helper";
  EXPECT_EQ(store_.calls("setup"), 1u);
}

TEST_F(MooncakeFailures, AnswersOfTheWrongShapeAreRefused) {
  for (const char* answer : {"[]", "[1, 1, 1]", "[\"a\"]", "7", "[1e300]"}) {
    SCOPED_TRACE(answer);
    store_.control(R"({"faults": [{"call": "batch_is_exist", "do": {"answer": )" + std::string(answer) + "}}]}");
    const std::string there = rig_.there({{kKv, 1}});
    EXPECT_TRUE(there.starts_with("error: unavailable")) << there;
    store_.control(R"({"faults": [{"call": "batch_get_into_multi_buffers", "do": {"answer": )" + std::string(answer) +
                   "}}]}");
    const Status got = rig_.get({{kKv, 1}})[0];
    EXPECT_FALSE(got.is_ok());
    store_.control(R"({"faults": [{"call": "batch_put_session_start", "do": {"answer": )" + std::string(answer) +
                   "}}]}");
    EXPECT_FALSE(rig_.put({{{kKv, 7}}})[0].is_ok());
  }
  store_.control("{}");
  EXPECT_TRUE(rig_.put({{{kKv, 7}}})[0].is_ok());
}

TEST_F(MooncakeFailures, AMasterThatIsDownIsAnErrorAndItsReturnNeedsNothing) {
  store_.control(R"({"is_down": true})");
  EXPECT_EQ(rig_.get({{kKv, 1}})[0].code(), StatusCode::kUnavailable);
  EXPECT_EQ(rig_.put({{{kKv, 4}}})[0].code(), StatusCode::kUnavailable);
  EXPECT_TRUE(rig_.there({{kKv, 1}}).starts_with("error: unavailable"));
  EXPECT_EQ(conformance::clear(rig_, rig_.backend(), nullptr).code(), StatusCode::kUnavailable);
  store_.control("{}");
  EXPECT_TRUE(rig_.get({{kKv, 1}})[0].is_ok());
}

// The defect: after a read that failed, the master was asked for the size of each page, for as long as it takes to
// fail.
TEST_F(MooncakeFailures, AMasterThatIsAwayIsAskedOnce) {
  const std::vector<Page> pages = {{kKv, 1}, {kKv, 2}, {kKv, 3}};
  for (const char* code : {"-900", "-901"}) {
    store_.control(R"({"faults": [{"call": "batch_get_into_multi_buffers", "do": {"code": )" + std::string(code) +
                   "}}]}");
    for (const Status& status : rig_.get(pages)) EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_EQ(store_.calls("get_size"), 0u) << "no page of another length ends with " << code;
  }
  // It goes while sizes are asked for.
  store_.control(R"({"is_down": true, "faults": [{"call": "batch_get_into_multi_buffers", "do": {"code": -800}}]})");
  for (const Status& status : rig_.get(pages)) EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(store_.calls("get_size"), 1u);
}

// The n-th call of the library fails, for each n, in each way: no answer is missing, no page is half there.
TEST_F(MooncakeFailures, WhicheverCallFailsGroupsStayWhole) {
  const std::vector<Page> pages = {{PoolName::kSwa, 20}, {kKv, 20}, {PoolName::kSwa, 21}, {kKv, 21}};
  for (const char* what : {R"("code": -900)", R"("code": -800)", R"("raise": "no")"}) {
    for (int skip = 0; skip < 8; ++skip) {
      SCOPED_TRACE(std::string(what) + " after " + std::to_string(skip));
      store_.control(R"({"discard_ms": 0, "faults": [{"call": "*", "skip": )" + std::to_string(skip) + R"(, "do": {)" +
                     what + "}}]}");
      const std::vector<Status> put = rig_.put({{pages[0], pages[1]}, {pages[2], pages[3]}});
      const std::vector<Status> got = rig_.get(pages);
      EXPECT_EQ(got.size(), 4u);
      store_.control(R"({"discard_ms": 0})");
      const std::string there = rig_.there(pages);
      for (const std::size_t group : {0u, 1u}) {
        const std::string both = there.substr(2 * group, 2);
        EXPECT_TRUE(both == "11" || both == "00") << there;
        EXPECT_TRUE(!put[group].is_ok() || both == "11") << there;
      }
      ASSERT_TRUE(conformance::clear(rig_, rig_.backend(), nullptr).is_ok());
    }
  }
}

}  // namespace
}  // namespace larder::mooncake_test
