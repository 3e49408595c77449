// SPDX-License-Identifier: Apache-2.0
// What the metadata conformance suite needs from a service under test, and short words to talk to it.
//
// Threads: the test's thread, where not said otherwise.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder::conformance {

// The limits that every service under test is opened with.
inline constexpr Nanos kMaxLease = std::chrono::seconds(40);
inline constexpr Nanos kMaxTtl = std::chrono::seconds(60);
inline constexpr Nanos kMaxIoLifetime = std::chrono::seconds(30);
inline constexpr Nanos kSecond = std::chrono::seconds(1);

class MetadataHarness {
 public:
  virtual ~MetadataHarness() = default;
  [[nodiscard]] virtual MetadataService& service() = 0;
  // Moves the service's clock.
  virtual void advance(Nanos by) = 0;
  // Ends the service and opens it again, as after kill -9. False: what it knows does not outlive it.
  [[nodiscard]] virtual bool restart() { return false; }
  // The invariants of its tables, where they can be seen.
  [[nodiscard]] virtual Status check() { return Status::ok(); }
};

struct MetadataUnderTest {
  std::string name;  // of the test instance
  std::function<std::unique_ptr<MetadataHarness>()> make;
  friend void PrintTo(const MetadataUnderTest& service, std::ostream* out) { *out << service.name; }
};
inline std::string test_name(const testing::TestParamInfo<MetadataUnderTest>& info) { return info.param.name; }

[[nodiscard]] inline MetadataSession session_of(std::uint64_t process, std::uint64_t operation = 1) {
  return {{process, process * 7919}, operation};
}

// The seed of this run: LARDER_TEST_SEED, or a fixed one. Printed by tests that fail.
[[nodiscard]] std::uint64_t metadata_test_seed();

// One namespace of a service, in few words. Failing calls fail the test.
class Talker {
 public:
  Talker(MetadataService& service, MetadataNamespace name_space) : service_(service), space_(std::move(name_space)) {}

  // Keys in chain order: each is the parent of the next; `head` that of the first.
  [[nodiscard]] std::vector<Reserved> reserve(const MetadataSession& session, const std::vector<std::string>& keys,
                                              Nanos ttl = kMaxTtl, const std::string& head = "");
  [[nodiscard]] std::vector<std::optional<PageRef>> find(const std::vector<std::string>& keys, Nanos lease = Nanos{0});
  // "1011": presence.
  [[nodiscard]] std::string presence(const std::vector<std::string>& keys);
  // One group of the keys that were reserved.
  [[nodiscard]] Status confirm(const MetadataSession& session, const std::vector<std::string>& keys,
                               const std::vector<Reserved>& pages, bool durable = false);
  void release(const MetadataSession& session, const std::vector<std::string>& keys, const std::vector<Reserved>& pages,
               bool rest = false);
  // reserve + confirm of a chain; every key must get a page.
  std::vector<Reserved> store(const MetadataSession& session, const std::vector<std::string>& keys,
                              const std::string& head = "");
  std::uint64_t remove(const std::string& key, PageRef ref = {});
  std::uint64_t clear(const std::string& prefix = "");
  [[nodiscard]] NamespaceStats stats();
  [[nodiscard]] const MetadataNamespace& space() const { return space_; }

 private:
  // Views into `keys`.
  [[nodiscard]] std::vector<ConfirmItem> items(const std::vector<std::string>& keys,
                                               const std::vector<Reserved>& pages) const;
  MetadataService& service_;
  const MetadataNamespace space_;
};

// "RSBF": reserved, stored, busy, full.
[[nodiscard]] std::string outcomes(const std::vector<Reserved>& answers);

}  // namespace larder::conformance
