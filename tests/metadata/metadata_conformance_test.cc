// SPDX-License-Identifier: Apache-2.0
// The sentences of storage/hf3fs/metadata_service.h, one test each.
#include "tests/metadata/metadata_conformance.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "base/thread_pool.h"

namespace larder::conformance {
namespace {

using Keys = std::vector<std::string>;

Keys numbered(const std::string& name, std::size_t count) {
  Keys keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back(name + std::to_string(i));
  return keys;
}

}  // namespace

TEST_P(MetadataConformance, StoredKeysAreFoundWithPageAndGeneration) {
  Talker kv = open(8);
  const Keys keys{"a", "b", "c"};
  const auto pages = kv.reserve(session_of(1), keys);
  EXPECT_EQ(outcomes(pages), "RRR");
  EXPECT_EQ(kv.presence(keys), "000") << "reserved is not stored";
  ASSERT_TRUE(kv.confirm(session_of(1), keys, pages).is_ok());
  const auto found = kv.find({"a", "x", "c", "b"});
  EXPECT_EQ(found[0], pages[0].ref);
  EXPECT_EQ(found[1], std::nullopt);
  EXPECT_EQ(found[2], pages[2].ref);
  EXPECT_EQ(found[3], pages[1].ref);
  EXPECT_LT(found[0]->page, 8u);
  EXPECT_EQ(kv.stats().stored, 3u);
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), keys)), "SSS");
  EXPECT_EQ(kv.reserve(session_of(2), keys)[1].ref, pages[1].ref);
}

TEST_P(MetadataConformance, InitializeGivesThePagesOfTheFirst) {
  EXPECT_EQ(service().initialize({3, "swa"}, 10).value_or(0), 10u);
  EXPECT_EQ(service().initialize({3, "swa"}, 10).value_or(0), 10u);
  EXPECT_EQ(service().initialize({3, "swa"}, 99).value_or(0), 10u) << "a later number changes nothing";
  EXPECT_EQ(service().initialize({4, "swa"}, kMaxNamespacePages).value_or(0), kMaxNamespacePages);
  EXPECT_EQ(service().initialize({-1, "swa"}, 2).value_or(0), 2u);
  const auto stats = service().stats();
  ASSERT_TRUE(stats.is_ok());
  EXPECT_EQ(stats->at({3, "swa"}).pages, 10u);
  EXPECT_EQ(stats->at({4, "swa"}).free, kMaxNamespacePages);
}

TEST_P(MetadataConformance, BadInputIsInvalidArgument) {
  Talker kv = open(8);
  const auto code = [](const auto& result) { return result.status().code(); };
  for (const std::string& name : {std::string("a:b"), std::string("a\nb"), std::string(), std::string(200, 'x')}) {
    EXPECT_EQ(code(service().initialize({0, name}, 8)), StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(code(service().initialize({0, "kv"}, 0)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(service().initialize({0, "kv"}, kMaxNamespacePages + 1)), StatusCode::kInvalidArgument);
  for (const std::string& key : {std::string(), std::string(kMaxKeyBytes + 1, 'k')}) {
    const std::vector<MetadataKeys> keys{{&kv.space(), {key}}};
    const std::vector<ReserveItems> items{{&kv.space(), {{key}}}};
    const std::vector<ConfirmItem> removed{{&kv.space(), key, {}}};
    EXPECT_EQ(code(service().find(keys, Nanos{0})), StatusCode::kInvalidArgument);
    EXPECT_EQ(code(service().reserve(session_of(1), items, kMaxTtl)), StatusCode::kInvalidArgument);
    EXPECT_EQ(code(service().remove(removed)), StatusCode::kInvalidArgument);
    EXPECT_EQ(code(service().confirm({session_of(1), {{{&kv.space(), key, {}}}}, {}, false})),
              StatusCode::kInvalidArgument);
  }
  const std::string long_key(kMaxKeyBytes, '\0');
  kv.store(session_of(1), {long_key, long_key.substr(1)});
  EXPECT_EQ(kv.presence({long_key, long_key.substr(1), long_key.substr(2)}), "110") << "keys are any bytes";
}

TEST_P(MetadataConformance, UnknownNamespaceIsNotFound) {
  Talker kv = open(8);
  const MetadataNamespace other{1, "kv"};
  const auto code = [](const auto& result) { return result.status().code(); };
  const std::vector<MetadataKeys> keys{{&kv.space(), {"a"}}, {&other, {"a"}}};
  const std::vector<ReserveItems> items{{&kv.space(), {{"a"}}}, {&other, {{"a"}}}};
  const std::vector<ConfirmItem> removed{{&kv.space(), "a", {}}, {&other, "a", {}}};
  EXPECT_EQ(code(service().find(keys, Nanos{0})), StatusCode::kNotFound);
  EXPECT_EQ(code(service().reserve(session_of(1), items, kMaxTtl)), StatusCode::kNotFound);
  EXPECT_EQ(code(service().remove(removed)), StatusCode::kNotFound);
  EXPECT_EQ(code(service().confirm({session_of(1), {{{&other, "a", {}}}}, {}, false})), StatusCode::kNotFound);
  EXPECT_EQ(code(service().clear(other, "")), StatusCode::kNotFound);
  EXPECT_EQ(kv.stats().reserved, 0u) << "a refused request does nothing";
}

TEST_P(MetadataConformance, NamespacesShareNothing) {
  Talker kv = open(4), mamba = open(4, {0, "mamba"}), other_rank = open(4, {1, "kv"});
  kv.store(session_of(1), {"a"});
  EXPECT_EQ(mamba.presence({"a"}), "0");
  EXPECT_EQ(other_rank.presence({"a"}), "0");
  mamba.store(session_of(1), {"a"});
  EXPECT_EQ(mamba.clear(), 1u);
  EXPECT_EQ(kv.presence({"a"}), "1");
  EXPECT_EQ(other_rank.stats().free, 4u);
}

TEST_P(MetadataConformance, OnlyOneSessionWritesAKey) {
  Talker kv = open(8);
  const auto first = kv.reserve(session_of(1), {"a", "b"});
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"a", "b", "c"})), "BBR");
  EXPECT_EQ(outcomes(kv.reserve(session_of(1, 2), {"a"})), "B") << "another operation is another session";
  EXPECT_EQ(kv.confirm(session_of(2), {"a"}, first).code(), StatusCode::kNotFound) << "it is not theirs";
  ASSERT_TRUE(kv.confirm(session_of(1), {"a", "b"}, first).is_ok());
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"a", "b"})), "SS");
  EXPECT_EQ(kv.stats().stored, 2u) << "one page a key";
}

TEST_P(MetadataConformance, ANamespaceThatIsNamedTwiceIsOne) {
  Talker kv = open(4);
  const std::vector<ReserveItems> wanted{{&kv.space(), {{"a"}, {"b"}}}, {&kv.space(), {{"c"}, {"a"}}}};
  const auto given = service().reserve(session_of(1), wanted, kMaxTtl);
  ASSERT_TRUE(given.is_ok()) << given.status().to_string();
  EXPECT_EQ(outcomes(given->at(0)) + outcomes(given->at(1)), "RRRR");
  const PageRef a = given->at(0)[0].ref, b = given->at(0)[1].ref, c = given->at(1)[0].ref;
  EXPECT_EQ(std::set<std::uint64_t>({a.page, b.page, c.page}).size(), 3u) << "one page a key";
  EXPECT_EQ(std::set<std::uint64_t>({a.generation, b.generation, c.generation}).size(), 3u);
  EXPECT_EQ(given->at(1)[1].ref, a);
  EXPECT_EQ(kv.stats().reserved, 3u);
  const auto next = kv.reserve(session_of(1), {"d"});
  ASSERT_EQ(outcomes(next), "R");
  EXPECT_EQ(std::set<std::uint64_t>({a.page, b.page, c.page, next[0].ref.page}).size(), 4u);
  EXPECT_GT(next[0].ref.generation, c.generation);
  EXPECT_TRUE(kv.confirm(session_of(1), {"a", "b"}, given->at(0)).is_ok());
  const std::vector<MetadataKeys> keys{{&kv.space(), {"a"}}, {&kv.space(), {"b", "c"}}};
  const auto found = service().find(keys, kSecond);
  ASSERT_TRUE(found.is_ok());
  EXPECT_EQ(found->at(0)[0], a);
  EXPECT_EQ(found->at(1)[0], b);
  EXPECT_EQ(found->at(1)[1], std::nullopt);
}

TEST_P(MetadataConformance, RepeatedRequestsGetTheSameAnswers) {
  Talker kv = open(8);
  const Keys keys{"a", "b"};
  const auto pages = kv.reserve(session_of(1), keys);
  for (int i = 0; i < 3; ++i) {
    const auto again = kv.reserve(session_of(1), keys);
    EXPECT_EQ(outcomes(again), "RR");
    EXPECT_EQ(again[0].ref, pages[0].ref);
    EXPECT_EQ(again[1].ref, pages[1].ref);
  }
  EXPECT_EQ(kv.stats().reserved, 2u) << "a repeated reservation leaks nothing";
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(kv.confirm(session_of(1), keys, pages).is_ok());
  EXPECT_EQ(kv.stats().stored, 2u);
  const auto more = kv.reserve(session_of(1), {"c", "c"});
  EXPECT_EQ(outcomes(more), "RR");
  EXPECT_EQ(more[0].ref, more[1].ref) << "one key twice in a request is one page";
  for (int i = 0; i < 3; ++i) kv.release(session_of(1), {"c"}, more);
  EXPECT_EQ(kv.stats().free, 6u);
  kv.release(session_of(1), keys, pages);
  EXPECT_EQ(kv.presence(keys), "11") << "a late release does not touch what is stored";
}

TEST_P(MetadataConformance, AReleasedPageIsFreeAtOnce) {
  Talker kv = open(1);
  const auto first = kv.reserve(session_of(1), {"a"});
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"b"})), "F");
  kv.release(session_of(2), {"a"}, first);
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"b"})), "F") << "only its session releases it";
  kv.release(session_of(1), {"a"}, first);
  const auto second = kv.reserve(session_of(2), {"b"});
  EXPECT_EQ(outcomes(second), "R");
  EXPECT_GT(second[0].ref.generation, first[0].ref.generation);
  EXPECT_EQ(kv.confirm(session_of(1), {"a"}, first).code(), StatusCode::kNotFound);
}

TEST_P(MetadataConformance, AReleasedPageRestsIfItsWriterMayStillWrite) {
  Talker kv = open(1);
  const auto first = kv.reserve(session_of(1), {"a"});
  kv.release(session_of(2), {"a"}, first, true);
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"a"})), "B") << "only its session releases it";
  for (int i = 0; i < 2; ++i) {  // sent again, it does nothing
    kv.release(session_of(1), {"a"}, first, true);
    EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"a"})), "F") << "its key is free, its page is not";
    EXPECT_EQ(kv.stats().quarantined, 1u);
  }
  EXPECT_EQ(kv.confirm(session_of(1), {"a"}, first).code(), StatusCode::kNotFound);
  harness_->advance(kMaxIoLifetime - kSecond);
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"b"})), "F");
  harness_->advance(kSecond);
  const auto next = kv.reserve(session_of(2), {"b"});
  ASSERT_EQ(outcomes(next), "R");
  EXPECT_EQ(next[0].ref.page, first[0].ref.page);
  EXPECT_GT(next[0].ref.generation, first[0].ref.generation);
  EXPECT_EQ(kv.stats().expired, 0u);
}

TEST_P(MetadataConformance, AReleasedPageRestsFromItsReleaseOn) {
  Talker kv = open(1);
  const auto first = kv.reserve(session_of(1), {"a"}, 10 * kMaxIoLifetime);
  harness_->advance(kMaxIoLifetime + kSecond);
  kv.release(session_of(1), {"a"}, first, true);  // no other call since
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"b"})), "F");
}

TEST_P(MetadataConformance, AnExpiredReservationRestsBeforeItsPageIsReused) {
  Talker kv = open(1);
  const auto dead = kv.reserve(session_of(1), {"a"}, 10 * kSecond);  // and its writer dies
  harness_->advance(9 * kSecond);
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"a"})), "B");
  harness_->advance(kSecond);
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"a"})), "F") << "its key is free, its page is not";
  EXPECT_EQ(kv.stats().quarantined, 1u);
  EXPECT_EQ(kv.stats().expired, 1u);
  EXPECT_EQ(kv.confirm(session_of(1), {"a"}, dead).code(), StatusCode::kNotFound);
  harness_->advance(kMaxIoLifetime - kSecond);
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"a"})), "F");
  harness_->advance(kSecond);
  const auto next = kv.reserve(session_of(2), {"a"});
  ASSERT_EQ(outcomes(next), "R");
  EXPECT_EQ(next[0].ref.page, dead[0].ref.page);
  EXPECT_GT(next[0].ref.generation, dead[0].ref.generation);
  EXPECT_EQ(kv.confirm(session_of(1), {"a"}, dead).code(), StatusCode::kNotFound);
  EXPECT_TRUE(kv.confirm(session_of(2), {"a"}, next).is_ok());
}

TEST_P(MetadataConformance, TheTimeOfAReservationIsCut) {
  Talker kv = open(2);
  (void)kv.reserve(session_of(1), {"a"}, std::chrono::hours(100));
  harness_->advance(kMaxTtl);
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"a"})), "R");
}

TEST_P(MetadataConformance, AllPagesInFlightIsFullPerItemAndNoError) {
  Talker kv = open(3);
  EXPECT_EQ(outcomes(kv.reserve(session_of(1), numbered("a", 5))), "RRRFF");
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"x", "a0"})), "FB");
  EXPECT_EQ(kv.stats().refused, 3u);
  EXPECT_EQ(kv.stats().reserved, 3u);
}

TEST_P(MetadataConformance, TailsAreEvictedBeforeHeads) {
  Talker kv = open(4);
  const Keys chain = numbered("p", 4);
  kv.store(session_of(1), chain);
  for (const std::string& key : chain) (void)kv.find({key}, Nanos{1});  // in order: the head is the least recent
  harness_->advance(kSecond);
  for (std::size_t i = 0; i < 3; ++i) {
    kv.store(session_of(2, i), {"x" + std::to_string(i)});
    EXPECT_EQ(kv.presence(chain), std::string(3 - i, '1') + std::string(i + 1, '0'));
    kv.remove("x" + std::to_string(i));
    const auto filler = kv.reserve(session_of(3, i), {"y" + std::to_string(i)});
    EXPECT_EQ(outcomes(filler), "R");
  }
  EXPECT_EQ(kv.stats().evicted, 3u);
}

TEST_P(MetadataConformance, TheLeastRecentlyUsedTailGoesFirst) {
  Talker kv = open(6);
  kv.store(session_of(1), {"root"});
  kv.store(session_of(2), {"a"}, "root");
  kv.store(session_of(3), {"b"}, "root");
  kv.store(session_of(4), {"c"}, "root");
  kv.store(session_of(5), {"d", "e"});
  (void)kv.find({"a"}, Nanos{1});  // refreshes its recency
  (void)kv.find({"b"});            // without a lease it does not
  harness_->advance(kSecond);
  kv.store(session_of(6), {"x"});
  EXPECT_EQ(kv.presence({"root", "a", "b", "c", "d", "e"}), "110111");
  kv.store(session_of(7), {"y"});
  EXPECT_EQ(kv.presence({"root", "a", "c", "d", "e"}), "11011");
  kv.store(session_of(8), {"z"});
  EXPECT_EQ(kv.presence({"root", "a", "d", "e"}), "1110");
}

TEST_P(MetadataConformance, AHeadUsedLatelyOutlivesOlderTails) {
  Talker kv = open(4);
  kv.store(session_of(1), {"head", "tail"});
  kv.store(session_of(2), {"other"});
  kv.store(session_of(3), {"more"});
  (void)kv.find({"head"}, Nanos{1});
  harness_->advance(kSecond);
  kv.store(session_of(4), {"x"});  // takes "tail"; "head" is a leaf now, but younger than "other"
  EXPECT_EQ(kv.presence({"head", "tail", "other", "more"}), "1011");
  kv.store(session_of(5), {"y"});
  EXPECT_EQ(kv.presence({"head", "other", "more"}), "101");
}

TEST_P(MetadataConformance, AParentMayComeLaterOrNever) {
  Talker kv = open(3);
  kv.store(session_of(1), {"child"}, "parent");
  kv.store(session_of(2), {"stray"}, "nobody");
  kv.store(session_of(3), {"parent"});
  (void)kv.find({"child", "stray"}, Nanos{1});  // "parent" is the least recent, but has a child
  harness_->advance(kSecond);
  kv.store(session_of(4), {"x"});
  EXPECT_EQ(kv.presence({"parent", "child", "stray"}), "101");
  kv.store(session_of(5), {"y"});
  EXPECT_EQ(kv.presence({"parent", "stray"}), "01");
}

TEST_P(MetadataConformance, KeysThatNameEachOtherAsParentsDoNotFillItForEver) {
  Talker kv = open(2);
  kv.store(session_of(1), {"a"}, "b");
  kv.store(session_of(2), {"b"}, "a");
  EXPECT_EQ(outcomes(kv.reserve(session_of(3), {"c", "d"})), "RR");
  EXPECT_EQ(kv.presence({"a", "b"}), "00");
  Talker one = open(1, {0, "one"});
  one.store(session_of(1), {"a"}, "a");
  EXPECT_EQ(outcomes(one.reserve(session_of(3), {"c"})), "R");
}

TEST_P(MetadataConformance, MakingRoomDoesNotTakeTheBeginningOfTheSameChain) {
  Talker kv = open(3);
  const Keys chain = numbered("p", 6);
  EXPECT_EQ(outcomes(kv.reserve(session_of(1), chain)), "RRRFFF");
  const auto pages = kv.reserve(session_of(1), {chain[0], chain[1], chain[2]});
  ASSERT_TRUE(kv.confirm(session_of(1), {chain[0], chain[1], chain[2]}, pages).is_ok());
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), chain)), "SSSFFF");
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {chain[3]}, kMaxTtl, chain[2])), "F") << "nor its parent";
  EXPECT_EQ(kv.presence(chain), "111000");
}

// Longer than what a service does at once.
TEST_P(MetadataConformance, ALongRequestIsServedAsAShortOneIs) {
  Talker kv = open(3000);
  const Keys others = numbered("other", 500);
  Keys chain = numbered("k", 2000);
  kv.store(session_of(1), others);
  kv.store(session_of(1), chain);
  const Keys more = numbered("m", 1500);
  chain.insert(chain.end(), more.begin(), more.end());
  const auto pages = kv.reserve(session_of(2), chain);
  EXPECT_EQ(outcomes(pages), std::string(2000, 'S') + std::string(1000, 'R') + std::string(500, 'F'));
  EXPECT_EQ(kv.presence(others), std::string(500, '0')) << "they were older, and nothing of the chain went";
  std::set<std::uint64_t> given;
  for (std::size_t i = 0; i < 3000; ++i) given.insert(pages[i].ref.page);
  EXPECT_EQ(given.size(), 3000u) << "one page a key";
  const Keys news(chain.begin() + 2000, chain.begin() + 3000);
  EXPECT_TRUE(kv.confirm(session_of(2), news, {pages.begin() + 2000, pages.begin() + 3000}).is_ok());
  EXPECT_EQ(kv.presence(chain), std::string(3000, '1') + std::string(500, '0'));
}

TEST_P(MetadataConformance, ALeaseBlocksEviction) {
  Talker kv = open(2);
  const auto pages = kv.store(session_of(1), {"a"});
  kv.store(session_of(2), {"b"});
  (void)kv.find({"a"}, 10 * kSecond);
  (void)kv.find({"b"}, 20 * kSecond);
  EXPECT_EQ(kv.stats().leased, 2u);
  EXPECT_EQ(outcomes(kv.reserve(session_of(3), {"c"})), "F");
  harness_->advance(10 * kSecond);
  const auto taken = kv.reserve(session_of(3), {"c", "d"});
  EXPECT_EQ(outcomes(taken), "RF") << "the lease of b goes on";
  EXPECT_EQ(taken[0].ref.page, pages[0].ref.page);
  EXPECT_EQ(kv.presence({"a", "b"}), "01");
  (void)kv.find({"b"}, 5 * kSecond);
  harness_->advance(9 * kSecond);
  EXPECT_EQ(outcomes(kv.reserve(session_of(3), {"d"})), "F") << "a shorter lease does not end a longer one";
  harness_->advance(kSecond);
  EXPECT_EQ(outcomes(kv.reserve(session_of(3), {"d"})), "R");
  EXPECT_EQ(kv.stats().leased, 0u);
}

TEST_P(MetadataConformance, ALeaseIsCutToTheLongest) {
  Talker kv = open(1);
  kv.store(session_of(1), {"a"});
  (void)kv.find({"a"}, std::chrono::hours(1000));
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"b"})), "F");
  harness_->advance(kMaxLease);
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"b"})), "R");
}

TEST_P(MetadataConformance, RemoveDropsTheKeyAndKeepsThePageUntilItsLeaseEnds) {
  Talker kv = open(1);
  const auto pages = kv.store(session_of(1), {"a"});
  (void)kv.find({"a"}, 10 * kSecond);
  EXPECT_EQ(kv.remove("a", {pages[0].ref.page, pages[0].ref.generation + 1}), 0u) << "another generation";
  EXPECT_EQ(kv.remove("b"), 0u);
  EXPECT_EQ(kv.remove("a", pages[0].ref), 1u);
  EXPECT_EQ(kv.remove("a", pages[0].ref), 0u);
  EXPECT_EQ(kv.presence({"a"}), "0");
  EXPECT_EQ(kv.stats().quarantined, 1u);
  EXPECT_EQ(kv.stats().leased, 1u);
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"a"})), "F") << "somebody reads the page";
  harness_->advance(10 * kSecond);
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"a"})), "R");
  Talker other = open(1, {0, "other"});
  other.store(session_of(1), {"a"});
  EXPECT_EQ(other.remove("a"), 1u) << "generation 0: wherever it is";
  EXPECT_EQ(other.stats().free, 1u) << "without a lease the page is free at once";
}

TEST_P(MetadataConformance, RemoveOfReservedKeysDoesNothing) {
  Talker kv = open(1);
  const auto pages = kv.reserve(session_of(1), {"a"});
  EXPECT_EQ(kv.remove("a"), 0u);
  EXPECT_TRUE(kv.confirm(session_of(1), {"a"}, pages).is_ok());
}

TEST_P(MetadataConformance, ClearDropsWhatBeginsWithThePrefix) {
  Talker kv = open(8);
  kv.store(session_of(1), {"aa1", "aa2", "ab1", "b"});
  (void)kv.find({"aa2"}, 10 * kSecond);
  EXPECT_EQ(kv.clear("aa"), 2u);
  EXPECT_EQ(kv.presence({"aa1", "aa2", "ab1", "b"}), "0011");
  EXPECT_EQ(kv.stats().quarantined, 1u) << "the leased one";
  EXPECT_EQ(kv.clear("zz"), 0u);
  EXPECT_EQ(kv.clear(""), 2u);
  EXPECT_EQ(kv.stats().stored, 0u);
  harness_->advance(10 * kSecond);
  EXPECT_EQ(kv.stats().free, 8u);
}

TEST_P(MetadataConformance, ClearRefusesTheConfirmationOfWhatIsReserved) {
  Talker kv = open(2);
  const auto old = kv.reserve(session_of(1), {"a"});
  EXPECT_EQ(kv.clear(""), 0u);
  EXPECT_EQ(kv.stats().reserved, 1u) << "somebody writes to it: it is not handed out";
  const auto fresh = kv.reserve(session_of(2), {"a", "b"});
  EXPECT_EQ(outcomes(fresh), "RF");
  EXPECT_NE(fresh[0].ref.page, old[0].ref.page);
  EXPECT_EQ(kv.confirm(session_of(1), {"a"}, old).code(), StatusCode::kNotFound);
  EXPECT_EQ(kv.stats().free, 1u) << "its writer is done with it";
  EXPECT_TRUE(kv.confirm(session_of(2), {"a"}, fresh).is_ok());
  EXPECT_EQ(kv.find({"a"})[0], fresh[0].ref);
}

TEST_P(MetadataConformance, AClearedReservationExpiresLikeAnyOther) {
  Talker kv = open(1);
  (void)kv.reserve(session_of(1), {"a"}, 10 * kSecond);
  kv.clear("");
  harness_->advance(10 * kSecond);
  EXPECT_EQ(kv.stats().quarantined, 1u);
  harness_->advance(kMaxIoLifetime);
  EXPECT_EQ(kv.stats().free, 1u);
}

TEST_P(MetadataConformance, GroupsAreConfirmedWholeOrNotAtAllOverNamespaces) {
  Talker kv = open(8), mamba = open(8, {0, "mamba"});
  const auto kv_pages = kv.reserve(session_of(1), {"a", "b"});
  const auto late = mamba.reserve(session_of(1), {"a"}, 10 * kSecond);
  const auto good = mamba.reserve(session_of(1), {"b"});
  harness_->advance(10 * kSecond);  // mamba's "a" expires
  ConfirmRequest request{session_of(1), {}, {}, false};
  request.groups.push_back({{&kv.space(), "a", kv_pages[0].ref}, {&mamba.space(), "a", late[0].ref}});
  request.groups.push_back({{&kv.space(), "b", kv_pages[1].ref}, {&mamba.space(), "b", good[0].ref}});
  request.groups.push_back({});
  for (int i = 0; i < 2; ++i) {  // repeated: the same answers
    const auto answer = service().confirm(request);
    ASSERT_TRUE(answer.is_ok());
    ASSERT_EQ(answer->size(), 3u);
    EXPECT_EQ(answer->at(0).code(), StatusCode::kNotFound);
    EXPECT_TRUE(answer->at(1).is_ok());
    EXPECT_TRUE(answer->at(2).is_ok()) << "a group of nothing";
    EXPECT_EQ(kv.presence({"a", "b"}), "01");
    EXPECT_EQ(mamba.presence({"a", "b"}), "01");
    EXPECT_EQ(kv.stats().free, 7u) << "the other page of the refused group is released";
    EXPECT_EQ(mamba.stats().quarantined, 1u);
  }
}

// It is confirmed while many keys are looked for, and its pages lie far from each other among them.
TEST_P(MetadataConformance, ALongFindSeesAGroupWhole) {
  constexpr std::uint64_t kRounds = 60;
  Talker kv = open(kRounds), mamba = open(kRounds, {0, "mamba"});
  const Keys absent = numbered("absent", kKeysSeenAtOnce / 2 - 1);
  ThreadPoolExecutor writer("writer", 1, 1);
  int halves = 0;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::string key = "key" + std::to_string(round);
    const auto kv_pages = kv.reserve(session_of(1, round), {key}), pages = mamba.reserve(session_of(1, round), {key});
    const ConfirmRequest request{
        session_of(1, round), {{{&kv.space(), key, kv_pages[0].ref}, {&mamba.space(), key, pages[0].ref}}}, {}};
    std::vector<MetadataKeys> wanted{{&kv.space(), {key}}, {&mamba.space(), {absent.begin(), absent.end()}}};
    wanted[0].keys.insert(wanted[0].keys.end(), absent.begin(), absent.end());
    wanted[1].keys.emplace_back(key);
    if (round % 2 == 1) std::swap(wanted[0], wanted[1]);
    std::atomic<int> looks{0};
    std::atomic<bool> is_done{false};
    const Status posted = writer.post([&] {
      while (looks.load() < 2) std::this_thread::yield();
      const auto answer = service().confirm(request);
      EXPECT_TRUE(answer.is_ok() && answer->at(0).is_ok());
      is_done.store(true);
    });
    EXPECT_TRUE(posted.is_ok());
    for (bool is_last = !posted.is_ok(); !is_last;) {
      is_last = is_done.load();
      ++looks;
      const auto found = service().find(wanted, Nanos{0});
      EXPECT_TRUE(found.is_ok());
      const auto count = [&](std::size_t i) {
        return std::count(found->at(i).begin(), found->at(i).end(), std::nullopt);
      };
      halves += found.is_ok() && count(0) != count(1) ? 1 : 0;
    }
    writer.wait_idle();
  }
  EXPECT_EQ(halves, 0);
}

TEST_P(MetadataConformance, OneConfirmationAlsoReleases) {
  Talker kv = open(3);
  const auto pages = kv.reserve(session_of(1), {"a", "b", "c"});
  ConfirmRequest request{session_of(1), {{{&kv.space(), "a", pages[0].ref}}}, {}, true};
  request.release = {{&kv.space(), "b", pages[1].ref}, {&kv.space(), "c", pages[2].ref}};
  for (int i = 0; i < 2; ++i) {
    const auto answer = service().confirm(request);
    ASSERT_TRUE(answer.is_ok());
    EXPECT_TRUE(answer->at(0).is_ok());
    EXPECT_EQ(kv.stats().free, 2u);
  }
  EXPECT_EQ(kv.presence({"a", "b", "c"}), "100");
}

TEST_P(MetadataConformance, AClientWithoutGenerationsIsServed) {
  Talker kv = open(2);
  auto pages = kv.reserve(session_of(1), {"a"});
  const PageRef ref = pages[0].ref;
  pages[0].ref.generation = 0;
  EXPECT_TRUE(kv.confirm(session_of(1), {"a"}, pages).is_ok());
  EXPECT_EQ(kv.find({"a"})[0], ref);
  pages[0].ref.page = 1 - ref.page;
  EXPECT_EQ(kv.confirm(session_of(1), {"a"}, pages).code(), StatusCode::kNotFound) << "not at that page";
  pages[0].ref.page = 1'000'000;
  EXPECT_EQ(kv.confirm(session_of(1), {"a"}, pages).code(), StatusCode::kNotFound) << "no such page";
}

TEST_P(MetadataConformance, GenerationsNeverRepeat) {
  (void)open(4);
  std::set<std::uint64_t> seen;
  std::uint64_t last = 0;
  for (std::uint64_t round = 0; round < 200; ++round) {
    Talker kv(service(), {0, "kv"});  // anew: the service may be another one
    const Keys keys{"a" + std::to_string(round), "b" + std::to_string(round)};
    const auto pages = kv.reserve(session_of(1, round), keys);
    for (const Reserved& page : pages) {
      ASSERT_EQ(page.outcome, ReserveOutcome::kReserved);
      EXPECT_GT(page.ref.generation, 0u);
      EXPECT_TRUE(seen.insert(page.ref.generation).second) << page.ref.generation;
    }
    EXPECT_GT(pages[0].ref.generation, last);
    last = pages[1].ref.generation;
    if (round % 3 == 0) {
      kv.release(session_of(1, round), keys, pages);
    } else {
      ASSERT_TRUE(kv.confirm(session_of(1, round), keys, pages).is_ok());
    }
    if (round % 50 == 49 && harness_->restart()) harness_->advance(std::max(kMaxLease, kMaxIoLifetime));
  }
}

}  // namespace larder::conformance
