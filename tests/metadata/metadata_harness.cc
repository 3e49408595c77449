// SPDX-License-Identifier: Apache-2.0
#include "tests/metadata/metadata_harness.h"

#include <cstdlib>

namespace larder::conformance {

std::uint64_t metadata_test_seed() {
  const char* const text = std::getenv("LARDER_TEST_SEED");
  return text == nullptr ? 20240731 : std::strtoull(text, nullptr, 10);
}

std::string outcomes(const std::vector<Reserved>& answers) {
  std::string text;
  for (const Reserved& answer : answers) text += "RSBF"[static_cast<std::size_t>(answer.outcome)];
  return text;
}

std::vector<Reserved> Talker::reserve(const MetadataSession& session, const std::vector<std::string>& keys, Nanos ttl,
                                      const std::string& head) {
  std::vector<ReserveItems> wanted{{&space_, {}}};
  for (std::size_t i = 0; i < keys.size(); ++i) wanted[0].items.push_back({keys[i], i == 0 ? head : keys[i - 1]});
  auto answer = service_.reserve(session, wanted, ttl);
  EXPECT_TRUE(answer.is_ok()) << answer.status().to_string();
  if (!answer) return std::vector<Reserved>(keys.size());
  EXPECT_EQ(answer->size(), 1u);
  EXPECT_EQ(answer->at(0).size(), keys.size()) << "one answer per item";
  return answer->at(0);
}

std::vector<std::optional<PageRef>> Talker::find(const std::vector<std::string>& keys, Nanos lease) {
  const std::vector<MetadataKeys> wanted{{&space_, {keys.begin(), keys.end()}}};
  auto answer = service_.find(wanted, lease);
  EXPECT_TRUE(answer.is_ok()) << answer.status().to_string();
  if (!answer) return std::vector<std::optional<PageRef>>(keys.size());
  EXPECT_EQ(answer->size(), 1u);
  EXPECT_EQ(answer->at(0).size(), keys.size()) << "one answer per key";
  return answer->at(0);
}

std::string Talker::presence(const std::vector<std::string>& keys) {
  std::string text;
  for (const auto& page : find(keys)) text += page ? '1' : '0';
  return text;
}

std::vector<ConfirmItem> Talker::items(const std::vector<std::string>& keys, const std::vector<Reserved>& pages) const {
  std::vector<ConfirmItem> all;
  for (std::size_t i = 0; i < keys.size(); ++i) all.push_back({&space_, keys[i], pages.at(i).ref});
  return all;
}

Status Talker::confirm(const MetadataSession& session, const std::vector<std::string>& keys,
                       const std::vector<Reserved>& pages, bool durable) {
  ConfirmRequest request{session, {items(keys, pages)}, {}, durable};
  const auto answer = service_.confirm(request);
  if (!answer) return answer.status();
  EXPECT_EQ(answer->size(), 1u);
  return answer->at(0);
}

void Talker::release(const MetadataSession& session, const std::vector<std::string>& keys,
                     const std::vector<Reserved>& pages, bool rest) {
  ConfirmRequest request{session, {}, items(keys, pages), false, rest};
  const auto answer = service_.confirm(request);
  EXPECT_TRUE(answer.is_ok()) << answer.status().to_string();
}

std::vector<Reserved> Talker::store(const MetadataSession& session, const std::vector<std::string>& keys,
                                    const std::string& head) {
  const auto pages = reserve(session, keys, kMaxTtl, head);
  EXPECT_EQ(outcomes(pages), std::string(keys.size(), 'R'));
  const Status status = confirm(session, keys, pages);
  EXPECT_TRUE(status.is_ok()) << status.to_string();
  return pages;
}

std::uint64_t Talker::remove(const std::string& key, PageRef ref) {
  const std::vector<ConfirmItem> wanted{{&space_, key, ref}};
  const auto answer = service_.remove(wanted);
  EXPECT_TRUE(answer.is_ok()) << answer.status().to_string();
  return answer.value_or(~std::uint64_t{0});
}

std::uint64_t Talker::clear(const std::string& prefix) {
  const auto answer = service_.clear(space_, prefix);
  EXPECT_TRUE(answer.is_ok()) << answer.status().to_string();
  return answer.value_or(~std::uint64_t{0});
}

NamespaceStats Talker::stats() {
  const auto all = service_.stats();
  EXPECT_TRUE(all.is_ok()) << all.status().to_string();
  if (!all || !all->contains(space_)) return {};
  const NamespaceStats stats = all->at(space_);
  EXPECT_EQ(stats.free + stats.reserved + stats.stored + stats.quarantined, stats.pages) << "pages are lost";
  return stats;
}

}  // namespace larder::conformance
