// The suite that every storage backend passes. A backend joins by one line in a conformance_<name>.cc:
//   INSTANTIATE_TEST_SUITE_P(Memory, StorageConformance, testing::Values(BackendUnderTest{...}), test_name);
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/storage_harness.h"

namespace larder::conformance {

class StorageConformance : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Opens (or reopens: the old one ends first).
  void open(const BackendOptions& extra = {});

  struct Spec {
    PoolName pool;
    std::uint64_t key;
    std::size_t bytes;
    std::uint64_t salt = 0;
  };
  // Writes groups of pages; their buffers live until the call returns.
  WriteResult write_groups(const std::vector<std::vector<Spec>>& groups, std::uint64_t scope = 1, bool durable = false);
  // Reads each page into 1 to 4 pieces and compares the content of those that came.
  std::vector<Status> read_pages(const std::vector<Spec>& pages, std::uint64_t scope = 1);
  Status read_page(const Spec& page, std::uint64_t scope = 1) { return read_pages({page}, scope).at(0); }
  // "1011": presence of each key in the pool.
  std::string presence(PoolName pool, const std::vector<std::uint64_t>& keys, std::uint64_t scope = 1);

  const std::uint64_t seed_ = test_seed();
  Rng rng_{seed_};
  std::unique_ptr<StorageHarness> harness_;
  std::unique_ptr<StorageBackend> backend_;
};

inline std::string test_name(const testing::TestParamInfo<BackendUnderTest>& info) { return info.param.name; }

}  // namespace larder::conformance
