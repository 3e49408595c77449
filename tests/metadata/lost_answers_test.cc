// SPDX-License-Identifier: Apache-2.0
// Clients whose service ends between a call and its answer, call by call: what kills of real servers meet by chance
// (tests/metadata_http/server_kills.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "metadata/memory_journal.h"
#include "tests/metadata/crash_client.h"
#include "tests/metadata/metadata_harness.h"

namespace larder::conformance {
namespace {

constexpr Nanos kLease = std::chrono::milliseconds(1);  // the service grants no longer one

// Carries out `calls` calls, and one more that it does not answer; then it is gone.
class EndingService final : public MetadataService {
 public:
  EndingService(MetadataService& service, ManualClock& clock, Rng& rng)
      : service_(service), clock_(clock), rng_(rng), calls_(rng.below(100)) {}

  Result<std::uint64_t> initialize(const MetadataNamespace& name_space, std::uint64_t pages) override {
    return answer([&] { return service_.initialize(name_space, pages); });
  }
  Result<std::vector<std::vector<std::optional<PageRef>>>> find(std::span<const MetadataKeys> wanted,
                                                                Nanos lease) override {
    return answer([&] { return service_.find(wanted, lease); });
  }
  Result<std::vector<std::vector<Reserved>>> reserve(const MetadataSession& session,
                                                     std::span<const ReserveItems> wanted, Nanos ttl) override {
    const bool is_again = session == last_session_;
    last_session_ = session;
    if (calls_ == 0) lost_ = wanted.back().items.size();
    return answer([&] {
      // Of two calls of a session the second finds pages where the first found none.
      if (is_again) clock_.advance(2 * kLease);
      if (!is_again && rng_.chance(1, 2)) lease_all();
      return service_.reserve(session, wanted, ttl);
    });
  }
  Result<std::vector<Status>> confirm(const ConfirmRequest& request) override {
    return answer([&] { return service_.confirm(request); });
  }
  Result<std::uint64_t> remove(std::span<const ConfirmItem> items) override {
    return answer([&] { return service_.remove(items); });
  }
  Result<std::uint64_t> clear(const MetadataNamespace& name_space, std::string_view prefix) override {
    return answer([&] { return service_.clear(name_space, prefix); });
  }
  Result<std::map<MetadataNamespace, NamespaceStats>> stats() override {
    return answer([&] { return service_.stats(); });
  }

  // How many pages of a namespace the call without an answer may have taken.
  [[nodiscard]] std::uint64_t lost() const { return lost_; }

 private:
  template <class Call>
  auto answer(const Call& call) -> decltype(call()) {
    if (is_gone_) return unavailable("the service is gone");
    auto said = call();
    if (calls_-- > 0) return said;
    is_gone_ = true;
    return unavailable("the service ended before its answer came");
  }

  // As a reader of all pages.
  void lease_all() {
    std::vector<std::string> keys;
    for (std::uint64_t client = 0; client < kCrashClients; ++client) {
      for (std::uint64_t number = 0; number < kCrashKeys; ++number) keys.push_back(crash_key(client, number));
    }
    const MetadataKeys wanted{&crash_space('s'), {keys.begin(), keys.end()}};
    EXPECT_TRUE(service_.find({&wanted, 1}, kLease).is_ok());
  }

  MetadataService& service_;
  ManualClock& clock_;
  Rng& rng_;
  std::uint64_t calls_;
  MetadataSession last_session_;
  bool is_gone_ = false;
  std::uint64_t lost_ = 0;
};

std::unique_ptr<EmbeddedMetadata> open_crash_service_on(const std::shared_ptr<metadata::MemoryDisk>& disk,
                                                        ManualClock& clock) {
  EmbeddedMetadataOptions options;
  options.max_lease = options.max_io_lifetime = kLease;
  auto service = EmbeddedMetadata::create(options, clock, metadata::open_memory_journal(disk));
  EXPECT_TRUE(service.is_ok()) << service.status().to_string();
  for (const CrashSpace& space : crash_spaces()) {
    EXPECT_TRUE((*service)->initialize(space.name, space.pages).is_ok()) << space.letter;
  }
  return std::move(*service);
}

// Whatever call is the last, and whether it is the first of its operation or one that is made again.
TEST(LostAnswers, ExplainEveryPageThatIsGone) {
  const std::uint64_t seed = metadata_test_seed();
  SCOPED_TRACE("replay: LARDER_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  const auto disk = std::make_shared<metadata::MemoryDisk>();
  ManualClock clock;
  CrashPromises promises;
  std::vector<std::unique_ptr<CrashClient>> clients;
  for (std::uint64_t i = 0; i < kCrashClients; ++i) {
    clients.push_back(std::make_unique<CrashClient>(i, seed, [&promises](const std::vector<CrashEvent>& events) {
      for (const CrashEvent& event : events) promises.note(event);
    }));
  }
  std::uint64_t lost = 0;
  for (int round = 0; round < 1000 && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const auto service = open_crash_service_on(disk, clock);
    std::uint64_t unanswered = 0;
    for (const auto& client : clients) unanswered += client->unanswered();
    promises.verify(*service, std::min(lost, unanswered), [&] { clock.advance(std::chrono::hours(1)); });
    EndingService ending(*service, clock, rng);
    for (const auto& client : clients) client->connect(ending);
    std::vector<CrashClient*> running;
    for (const auto& client : clients) running.push_back(client.get());
    while (!running.empty()) {
      const auto client = running.begin() + static_cast<std::ptrdiff_t>(rng.below(running.size()));
      if (!(*client)->step()) running.erase(client);
    }
    lost = ending.lost();
  }
  EXPECT_GT(promises.confirmed(), 2000u) << "too little load to show anything";
}

}  // namespace
}  // namespace larder::conformance
