// SPDX-License-Identifier: Apache-2.0
// A mooncake backend and ways to talk to it, page by page.
//
// Threads: the test's.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/storage_harness.h"

namespace larder::mooncake_test {

inline constexpr PoolName kKv = PoolName::kKv, kSwa = PoolName::kSwa, kMamba = PoolName::kMamba;

struct Page {
  PoolName pool;
  std::uint64_t key;
  std::size_t bytes = 1000;
};

class BackendRig final : public conformance::HarnessBase {
 public:
  explicit BackendRig(BackendOptions options) : HarnessBase(3, 1), options_(std::move(options)) {}
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra = {}) override {
    return create("mooncake", options_, extra, &real_file_system());
  }
  // Opens, or opens again; false with a failed expectation.
  bool start(const BackendOptions& extra = {}) {
    backend_.reset();
    Result<std::unique_ptr<StorageBackend>> made = open(extra);
    EXPECT_TRUE(made.is_ok()) << made.status().to_string();
    if (made.is_ok()) backend_ = std::move(*made);
    return made.is_ok();
  }
  [[nodiscard]] StorageBackend& backend() { return *backend_; }

  std::vector<Status> put(const std::vector<std::vector<Page>>& groups, std::uint64_t salt = 0) {
    WriteRequest request{conformance::test_scope(1), {}};
    std::vector<conformance::PageBuffer> buffers;
    for (const std::vector<Page>& pages : groups) {
      PageGroup& group = request.groups.emplace_back();
      for (const Page& page : pages) {
        buffers.emplace_back(page.bytes, 2, rng_).fill(conformance::test_key(page.key), page.pool, salt);
        group.items.push_back({page.pool, conformance::test_key(page.key), buffers.back().segments()});
      }
    }
    return conformance::write(*this, *backend_, std::move(request)).groups;
  }
  // Of what came, the bytes are compared.
  std::vector<Status> get(const std::vector<Page>& pages, std::uint64_t salt = 0) {
    ReadRequest request{conformance::test_scope(1), {}};
    std::vector<conformance::PageBuffer> buffers;
    for (const Page& page : pages) {
      buffers.emplace_back(page.bytes, 3, rng_);
      request.items.push_back({page.pool, conformance::test_key(page.key), buffers.back().segments()});
    }
    const ReadResult result = conformance::read(*this, *backend_, std::move(request));
    for (std::size_t i = 0; i < pages.size(); ++i) {
      if (!result.items[i].is_ok()) continue;
      EXPECT_TRUE(buffers[i].holds(conformance::test_key(pages[i].key), pages[i].pool, salt)) << "WRONG BYTES";
    }
    return result.items;
  }
  // "101"; "error: ..." if it is not known.
  std::string there(const std::vector<Page>& pages) {
    std::string out;
    for (const Page& page : pages) {
      const ExistsResult result = conformance::exists(
          *this, *backend_, {conformance::test_scope(1), {conformance::test_key(page.key)}, {page.pool}});
      if (!result.status.is_ok()) return "error: " + result.status.to_string();
      out += result.presence[0].present[0] ? '1' : '0';
    }
    return out;
  }

 private:
  const BackendOptions options_;
  Rng rng_{7};
  std::unique_ptr<StorageBackend> backend_;
};

}  // namespace larder::mooncake_test
