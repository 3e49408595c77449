// SPDX-License-Identifier: Apache-2.0
#include "storage/file/write_admission.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace larder::file_store {
namespace {

constexpr TimePoint kAdmissionStart{std::chrono::hours(1)};

Digest256 random_digest(Rng& rng) {
  Digest256 digest;
  for (auto& byte : digest.bytes) byte = static_cast<std::uint8_t>(rng.below(256));
  return digest;
}

// Of a page that nothing else has.
std::vector<std::uint64_t> random_name(Rng& rng) {
  return {offer_name({random_digest(rng), random_digest(rng), PoolName::kKv}, random_digest(rng))};
}

TEST(WriteAdmission, TakesEverythingByDefault) {
  WriteAdmission admission({}, kAdmissionStart);
  Rng rng(1);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(admission.admit(random_name(rng), 1 << 30, kAdmissionStart).is_ok());
}

TEST(WriteAdmission, SecondOfferIsAdmittedAndFirstOnesAreNot) {
  WriteAdmission admission({true, 10'000, 0}, kAdmissionStart);
  Rng rng(2);
  std::vector<std::vector<std::uint64_t>> names;
  int admitted_early = 0;
  for (int i = 0; i < 5'000; ++i) {
    names.push_back(random_name(rng));
    const Status first = admission.admit(names.back(), 1, kAdmissionStart);
    admitted_early += first.is_ok();
    if (!first.is_ok()) {
      EXPECT_EQ(first.code(), StatusCode::kUnsupported);
    }
  }
  EXPECT_LE(admitted_early, 100);  // 2 %
  for (const auto& name : names) EXPECT_TRUE(admission.admit(name, 1, kAdmissionStart).is_ok());
}

// Ranks and pools store under the same keys.
TEST(WriteAdmission, AnOfferOfOnePoolOrRankIsNoneOfAnother) {
  WriteAdmission admission({true, 10'000, 0}, kAdmissionStart);
  Rng rng(7);
  const Digest256 model = random_digest(rng), key = random_digest(rng), rank_0 = random_digest(rng);
  const std::uint64_t kv = offer_name({model, rank_0, PoolName::kKv}, key);
  const std::uint64_t state = offer_name({model, rank_0, PoolName::kMamba}, key);
  const std::uint64_t others[] = {offer_name({model, random_digest(rng), PoolName::kKv}, key),
                                  offer_name({random_digest(rng), rank_0, PoolName::kKv}, key), state};
  const auto admits = [&](std::vector<std::uint64_t> names) {
    return admission.admit(names, 1, kAdmissionStart).is_ok();
  };
  EXPECT_FALSE(admits({kv}));
  for (const std::uint64_t other : others) EXPECT_FALSE(admits({other}));
  EXPECT_TRUE(admits({kv}));
  const std::uint64_t later = offer_name({model, rank_0, PoolName::kKv}, random_digest(rng));
  EXPECT_FALSE(admits({later}));
  EXPECT_TRUE(admits({later, state ^ 1})) << "with a state now, which it had not before";
}

TEST(WriteAdmission, ForgetsWhatWasOfferedTwoWindowsAgo) {
  WriteAdmission admission({true, 1'000, 0}, kAdmissionStart);
  Rng rng(3);
  const std::vector<std::uint64_t> old = random_name(rng);
  EXPECT_FALSE(admission.admit(old, 1, kAdmissionStart).is_ok());
  for (int i = 0; i < 2'500; ++i) (void)admission.admit(random_name(rng), 1, kAdmissionStart);
  EXPECT_FALSE(admission.admit(old, 1, kAdmissionStart).is_ok());
}

TEST(WriteAdmission, BudgetIsSpreadOverTheDay) {
  const std::uint64_t day = 24'000;
  WriteAdmission admission({false, 0, day}, kAdmissionStart);
  Rng rng(4);
  std::uint64_t written = 0;
  for (int minute = 0; minute < 24 * 60; ++minute) {
    const TimePoint now = kAdmissionStart + std::chrono::minutes(minute);
    for (int i = 0; i < 10; ++i) written += admission.admit(random_name(rng), 100, now).is_ok() ? 100 : 0;
  }
  EXPECT_GE(written, day * 9 / 10);
  EXPECT_LE(written, day + day / 24 + 100);  // the bucket was full at first
}

TEST(WriteAdmission, CleaningCountsAndIsPaidOff) {
  WriteAdmission admission({false, 0, 24'000}, kAdmissionStart);
  Rng rng(5);
  admission.spend(3'000, kAdmissionStart);  // the bucket held 1,000
  EXPECT_FALSE(admission.admit(random_name(rng), 100, kAdmissionStart).is_ok());
  EXPECT_FALSE(admission.admit(random_name(rng), 100, kAdmissionStart + std::chrono::minutes(119)).is_ok());
  EXPECT_TRUE(admission.admit(random_name(rng), 100, kAdmissionStart + std::chrono::minutes(130)).is_ok());
  // Larger than the bucket: when that is full.
  EXPECT_TRUE(admission.admit(random_name(rng), 5'000, kAdmissionStart + std::chrono::hours(10)).is_ok());
  EXPECT_FALSE(admission.admit(random_name(rng), 1, kAdmissionStart + std::chrono::hours(11)).is_ok());
}

}  // namespace
}  // namespace larder::file_store
