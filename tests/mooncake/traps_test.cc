// SPDX-License-Identifier: Apache-2.0
// What Mooncake Store does that a backend must know: each has a guard, and here a test that fails without it.
#include <chrono>
#include <future>

#include "storage/mooncake/object_names.h"
#include "tests/mooncake/backend_rig.h"
#include "tests/mooncake/fake_store.h"
#include "tests/support/rest.h"

namespace larder::mooncake_test {
namespace {

class MooncakeTraps : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(rig_.start()); }
  static void expect_all_ok(const std::vector<Status>& statuses) {
    for (const Status& status : statuses) EXPECT_TRUE(status.is_ok()) << status.to_string();
  }

  FakeStore store_;
  BackendRig rig_{store_.options()};
  Rng rng_{11};
};

// The store takes no object of 0 bytes: a page of none has its envelope.
TEST_F(MooncakeTraps, APageOfNoBytesIsAnObjectOfSome) {
  expect_all_ok(rig_.put({{{kSwa, 1, 10}, {kKv, 1, 0}}}));
  expect_all_ok(rig_.get({{kSwa, 1, 10}, {kKv, 1, 0}}));
  ASSERT_EQ(store_.objects().size(), 2u);
  for (const std::string& path : store_.objects()) EXPECT_GE(std::filesystem::file_size(path), kEnvelopeBytes);
}

// A put of what is there ends with "exists", and changes nothing.
TEST_F(MooncakeTraps, AnObjectThatIsThereIsADuplicateAndKeepsItsBytes) {
  expect_all_ok(rig_.put({{{kKv, 1}}}));
  expect_all_ok(rig_.put({{{kKv, 1}}}, 5));  // other bytes under the same name
  EXPECT_EQ(rig_.backend().stats().duplicate_writes, 1u);
  expect_all_ok(rig_.get({{kKv, 1}}, 0));
}

// "Exists" is also said of what another client has begun and not ended: that is no page yet.
TEST_F(MooncakeTraps, WhatAnotherClientIsWritingIsNotTakenAsWritten) {
  expect_all_ok(rig_.put({{{kKv, 1}}}));
  const std::string path = store_.objects().at(0), name = std::filesystem::path(path).filename();
  std::filesystem::rename(path, path.substr(0, path.find("/objects/")) + "/begun/" + name);
  const std::vector<Status> groups = rig_.put({{{kSwa, 1}, {kKv, 1}}, {{kKv, 2}}});
  EXPECT_EQ(groups[0].code(), StatusCode::kOverloaded) << groups[0].to_string();
  EXPECT_TRUE(groups[1].is_ok());
  EXPECT_EQ(rig_.there({{kSwa, 1}, {kKv, 1}, {kKv, 2}}), "001") << "a group of which a part is another's";
  store_.control(R"({"discard_ms": 0})");  // its client has gone, and the master takes its object back
  expect_all_ok(rig_.put({{{kSwa, 1}, {kKv, 1}}}));
  expect_all_ok(rig_.get({{kSwa, 1}, {kKv, 1}}));
}

// Codes come per object: of a group, one that fails takes the others with it; other groups go on.
TEST_F(MooncakeTraps, OneObjectThatFailsTakesItsGroupAndNoOther) {
  const std::vector<std::vector<Page>> groups = {{{kSwa, 1}, {kKv, 1}}, {{kSwa, 2}, {kMamba, 2}, {kKv, 2}}, {{kKv, 3}}};
  for (const char* call : {"batch_put_session_start", "batch_put_from_multi_buffer_ranges", "batch_put_session_end"}) {
    for (const int index : {0, 1, 2, 3, 4, 5}) {
      SCOPED_TRACE(std::string(call) + " " + std::to_string(index));
      const std::string code = std::string(call).ends_with("start") ? "-200" : "-800";
      store_.control(R"({"faults": [{"call": ")" + std::string(call) + R"(", "do": {"code": )" + code +
                     R"(, "index": )" + std::to_string(index) + "}}]}");
      const std::vector<Status> seen = rig_.put(groups);
      const std::vector<Page> pages = {{kSwa, 1}, {kKv, 1}, {kSwa, 2}, {kMamba, 2}, {kKv, 2}, {kKv, 3}};
      const std::string there = rig_.there(pages);
      EXPECT_EQ(std::count_if(seen.begin(), seen.end(), [](const Status& s) { return s.is_ok(); }), 2);
      EXPECT_EQ(there, std::string(seen[0].is_ok() ? "11" : "00") + (seen[1].is_ok() ? "111" : "000") +
                           (seen[2].is_ok() ? "1" : "0"));
      EXPECT_TRUE(store_.files("begun").empty()) << "what was begun holds room in the store until its time is over";
      ASSERT_TRUE(conformance::clear(rig_, rig_.backend(), nullptr).is_ok());
    }
  }
}

// A short move is no success: SGLang takes any number above 0.
TEST_F(MooncakeTraps, AShortMoveIsNotAPage) {
  store_.control(R"({"faults": [{"call": "batch_put_from_multi_buffer_ranges", "do": {"code": 100, "index": 0}}]})");
  EXPECT_EQ(rig_.put({{{kKv, 1}}})[0].code(), StatusCode::kUnavailable);
  EXPECT_EQ(rig_.there({{kKv, 1}}), "0");
  store_.control("{}");
  expect_all_ok(rig_.put({{{kKv, 1}}}));
  store_.control(R"({"faults": [{"call": "batch_get_into_multi_buffers", "do": {"code": 100, "index": 0}}]})");
  EXPECT_EQ(rig_.get({{kKv, 1}})[0].code(), StatusCode::kUnavailable);
}

// An object of another length ends a get with codes that say something else.
TEST_F(MooncakeTraps, AnotherLengthIsAMissAndNotAFailure) {
  expect_all_ok(rig_.put({{{kKv, 1, 500}}}));
  for (const std::size_t bytes : {std::size_t{499}, std::size_t{501}, std::size_t{0}}) {
    EXPECT_EQ(rig_.get({{kKv, 1, bytes}})[0].code(), StatusCode::kNotFound) << bytes;
  }
  EXPECT_EQ(rig_.backend().stats().read_errors, 0u);
  store_.control(R"({"faults": [{"call": "batch_get_into_multi_buffers", "do": {"code": -800, "index": 0}}]})");
  EXPECT_EQ(rig_.get({{kKv, 1, 500}})[0].code(), StatusCode::kUnavailable) << "a move that failed is no miss";
}

// A lease (each lookup gives one) keeps an object from removal: what is wrong goes nevertheless.
TEST_F(MooncakeTraps, ALeaseKeepsNoWrongPageAndStopsNoClear) {
  store_.control(R"({"lease_ms": 60000})");
  expect_all_ok(rig_.put({{{kKv, 1}}, {{kKv, 2}}}));
  EXPECT_EQ(rig_.there({{kKv, 1}, {kKv, 2}}), "11");
  Rng rng(1);
  (void)store_.flip_bits(rng, 1);
  const std::vector<Status> read = rig_.get({{kKv, 1}, {kKv, 2}});
  EXPECT_EQ(std::count_if(read.begin(), read.end(), [](const Status& s) { return s.code() == StatusCode::kCorrupt; }),
            1);
  EXPECT_EQ(store_.objects().size(), 1u);
  EXPECT_TRUE(conformance::clear(rig_, rig_.backend(), conformance::test_scope(1)).is_ok());
  EXPECT_EQ(store_.objects().size(), 0u);
}

// The lease of an object may end while its bytes are on their way: gone, and no failure.
TEST_F(MooncakeTraps, ALeaseThatEndsDuringAReadIsAMiss) {
  expect_all_ok(rig_.put({{{kKv, 1}}}));
  store_.control(R"({"faults": [{"call": "batch_get_into_multi_buffers", "do": {"code": -707, "index": 0}}]})");
  EXPECT_EQ(rig_.get({{kKv, 1}})[0].code(), StatusCode::kNotFound);
}

// A clear takes no heed of leases: a page that is on its way may come with what is written next. That is no page gone
// wrong: it is a miss, and what was written meanwhile stays.
TEST_F(MooncakeTraps, APageThatIsClearedWhileItIsReadIsAMiss) {
  expect_all_ok(rig_.put({{{kKv, 1}}}));
  store_.control(R"({"faults": [{"call": "batch_get_into_multi_buffers", "do": {"until_removed": true}}]})");
  conformance::PageBuffer into(1000, 1, rng_);
  std::promise<Status> answer;
  ReadRequest request{conformance::test_scope(1), {{kKv, conformance::test_key(1), into.segments()}}};
  ASSERT_TRUE(rig_.backend()
                  .submit_read(std::move(request), [&](const ReadResult& result) { answer.set_value(result.items[0]); })
                  .is_ok());
  const TimePoint end = real_clock().now() + std::chrono::seconds(20);
  while (store_.calls("waits_until_removed") == 0 && real_clock().now() < end) rest();
  EXPECT_TRUE(conformance::clear(rig_, rig_.backend(), conformance::test_scope(1)).is_ok());
  expect_all_ok(rig_.put({{{kKv, 1}}}));
  const Status read = answer.get_future().get();
  EXPECT_EQ(read.code(), StatusCode::kNotFound) << read.to_string();
  EXPECT_EQ(rig_.backend().stats().corrupt, 0u);
  expect_all_ok(rig_.get({{kKv, 1}}));
}

// A full store evicts what is oldest, groups as a whole; what has a lease stays, and then there is no room.
TEST_F(MooncakeTraps, AFullStoreIsOverloadedOrForgetsWholeGroups) {
  store_.control(R"({"capacity": 20000})");
  for (std::uint64_t key = 0; key < 40; ++key) expect_all_ok(rig_.put({{{kSwa, key, 500}, {kKv, key, 1500}}}));
  EXPECT_EQ(rig_.there({{kKv, 0}, {kKv, 39}}), "01");
  for (std::uint64_t key = 0; key < 40; ++key) {
    const std::string both = rig_.there({{kSwa, key}, {kKv, key}});
    EXPECT_TRUE(both == "00" || both == "11") << key << ": " << both;
  }
  EXPECT_EQ(rig_.put({{{kKv, 50, 100'000}}})[0].code(), StatusCode::kOverloaded);
  store_.control(R"({"capacity": 20000, "lease_ms": 60000})");
  for (std::uint64_t key = 0; key < 40; ++key) (void)rig_.there({{kSwa, key}, {kKv, key}});
  const std::vector<Status> full = rig_.put({{{kSwa, 60, 9000}, {kKv, 60, 9000}}});
  EXPECT_EQ(full[0].code(), StatusCode::kOverloaded) << full[0].to_string();
  EXPECT_NE(full[0].message().find("no room"), std::string::npos);
  EXPECT_TRUE(store_.files("begun").empty());
}

TEST_F(MooncakeTraps, SoftPinnedPagesGoAfterAllOthers) {
  store_.control(R"({"capacity": 20000})");
  ASSERT_TRUE(rig_.start({{"soft_pin", "true"}}));
  expect_all_ok(rig_.put({{{kSwa, 1}, {kKv, 1}}}));
  ASSERT_TRUE(rig_.start());
  for (std::uint64_t key = 100; key < 140; ++key) expect_all_ok(rig_.put({{{kKv, key, 1500}}}));
  EXPECT_EQ(rig_.there({{kKv, 100}, {kKv, 139}}), "01");
  EXPECT_EQ(rig_.there({{kSwa, 1}, {kKv, 1}}), "11") << "the oldest, and pinned";
  ASSERT_TRUE(rig_.start({{"soft_pin", "true"}}));
  for (std::uint64_t key = 200; key < 240; ++key) expect_all_ok(rig_.put({{{kKv, key, 1500}}}));
  EXPECT_EQ(rig_.there({{kSwa, 1}, {kKv, 1}}), "00") << "a soft pin is no promise";
}

// All clients of a master share one space of names, and SGLang's clear removes everything; ours only its own.
TEST_F(MooncakeTraps, AClearLeavesWhatIsNotLarders) {
  expect_all_ok(rig_.put({{{kKv, 1}}}));
  const std::string theirs = "objects/" + conformance::test_key(1).hex() + "_0_k";
  store_.write(theirs, "a page of SGLang's");
  EXPECT_TRUE(conformance::clear(rig_, rig_.backend(), nullptr).is_ok());
  ASSERT_EQ(store_.objects().size(), 1u);
  EXPECT_TRUE(store_.objects()[0].ends_with("_0_k"));
  EXPECT_EQ(rig_.there({{kKv, 1}}), "0");
}

// A group becomes visible object by object, in microseconds, or longer where processors are busy: who reads just then
// sees a part, and the rest as begun. It looks again.
TEST_F(MooncakeTraps, AReaderThatSeesAPartOfAGroupLooksAgain) {
  const std::string begun = R"({"faults": [{"call": "batch_get_into_multi_buffers", "times": 3, "do": {"code": -703, )";
  expect_all_ok(rig_.put({{{kSwa, 1}, {kKv, 1}}}));
  store_.control(R"({"faults": [{"call": "batch_get_into_multi_buffers", "do": {"code": -703, "index": 1}}]})");
  expect_all_ok(rig_.get({{kKv, 1}, {kSwa, 1}}));
  EXPECT_EQ(store_.calls("batch_get_into_multi_buffers"), 2u);
  // Alone it is a miss, as is what another client never ends; and what is not there is asked for once more, no longer.
  store_.control(begun + R"("index": 0}}]})");
  EXPECT_EQ(rig_.get({{kKv, 1}})[0].code(), StatusCode::kNotFound);
  EXPECT_EQ(store_.calls("batch_get_into_multi_buffers"), 3u);
  store_.control("{}");
  EXPECT_EQ(rig_.get({{kKv, 1}, {kKv, 9}})[1].code(), StatusCode::kNotFound);
  EXPECT_EQ(store_.calls("batch_get_into_multi_buffers"), 5u);
}

// The client fills one place for each name, and says that it has filled both.
TEST_F(MooncakeTraps, APageThatIsAskedForTwiceComesTwice) {
  expect_all_ok(rig_.put({{{kKv, 1}}, {{kKv, 2}}}));
  expect_all_ok(rig_.get({{kKv, 1}, {kKv, 2}, {kKv, 1}, {kKv, 1}}));
  EXPECT_EQ(store_.objects().size(), 2u);
  EXPECT_EQ(rig_.backend().stats().corrupt, 0u);
}

TEST_F(MooncakeTraps, WhatAnotherClientNeverEndsIsAMissInTheEnd) {
  expect_all_ok(rig_.put({{{kSwa, 1}}, {{kKv, 1}}}));
  const std::string path = store_.objects().at(0), name = std::filesystem::path(path).filename();
  std::filesystem::rename(path, path.substr(0, path.find("/objects/")) + "/begun/" + name);
  const std::vector<Status> got = rig_.get({{kSwa, 1}, {kKv, 1}});
  EXPECT_NE(got[0].is_ok(), got[1].is_ok());
  EXPECT_TRUE(got[0].code() == StatusCode::kNotFound || got[1].code() == StatusCode::kNotFound);
}

// The bytes of another page under this page's name.
TEST_F(MooncakeTraps, AnObjectOfAnotherPageIsCorruptAndRemoved) {
  expect_all_ok(rig_.put({{{kKv, 1}}, {{kKv, 2}}}));
  const std::vector<std::string> paths = store_.objects();
  std::filesystem::copy_file(paths[0], paths[1], std::filesystem::copy_options::overwrite_existing);
  const std::vector<Status> read = rig_.get({{kKv, 1}, {kKv, 2}});
  EXPECT_EQ(std::count_if(read.begin(), read.end(), [](const Status& s) { return s.code() == StatusCode::kCorrupt; }),
            1);
  EXPECT_EQ(store_.objects().size(), 1u);
  EXPECT_EQ(rig_.backend().stats().corrupt, 1u);
}

// What does not fit the staging memory is refused in words, and the rest goes through it bit by bit.
TEST_F(MooncakeTraps, StagingMemoryBoundsAGroupAndNothingElse) {
  const std::vector<Status> large = rig_.put({{{kKv, 1, 3'000'000}}, {{kKv, 2, 100}}});
  EXPECT_EQ(large[0].code(), StatusCode::kInvalidArgument);
  EXPECT_NE(large[0].message().find("staging_size"), std::string::npos);
  EXPECT_TRUE(large[1].is_ok());
  EXPECT_EQ(rig_.get({{kKv, 1, 3'000'000}})[0].code(), StatusCode::kInvalidArgument);
  std::vector<std::vector<Page>> groups;
  std::vector<Page> all;
  for (std::uint64_t key = 10; key < 40; ++key) {
    groups.push_back({{kSwa, key, 100'000}, {kKv, key, 300'000}});  // 12 MB through 2 MiB
    all.insert(all.end(), groups.back().begin(), groups.back().end());
  }
  expect_all_ok(rig_.put(groups));
  expect_all_ok(rig_.get(all));
}

}  // namespace
}  // namespace larder::mooncake_test
