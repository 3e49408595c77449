// SPDX-License-Identifier: Apache-2.0
#include "sim/sparse_bytes.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace larder::sim {
namespace {

std::vector<std::byte> all_of(const SparseBytes& bytes) {
  std::vector<std::byte> all(static_cast<std::size_t>(bytes.size()), std::byte{0xEE});
  bytes.read(0, all);
  return all;
}

// Beside vectors that are copied, resized and written alike.
TEST(SparseBytes, AreAVectorThatIsCopied) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Rng rng(seed);
    std::vector<SparseBytes> sparse(3);
    std::vector<std::vector<std::byte>> plain(3);
    for (int step = 0; step < 60; ++step) {
      const auto one = static_cast<std::size_t>(rng.below(3));
      const auto other = static_cast<std::size_t>(rng.below(3));
      const auto at = static_cast<std::size_t>(rng.below(60'000));
      switch (rng.below(3)) {
        case 0:
          sparse[one] = sparse[other];
          plain[one] = plain[other];
          break;
        case 1:
          sparse[one].resize(at);
          plain[one].resize(at);
          break;
        default:
          const std::vector<std::byte> written(1 + static_cast<std::size_t>(rng.below(40'000)), std::byte(step + 1));
          if (plain[one].size() < at + written.size()) plain[one].resize(at + written.size());
          std::copy(written.begin(), written.end(), plain[one].begin() + static_cast<std::ptrdiff_t>(at));
          sparse[one].write(at, written);
      }
      for (std::size_t i = 0; i < 3; ++i) ASSERT_EQ(all_of(sparse[i]), plain[i]) << "seed " << seed << " step " << step;
    }
  }
}

}  // namespace
}  // namespace larder::sim
