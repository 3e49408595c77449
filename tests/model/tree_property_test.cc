// SPDX-License-Identifier: Apache-2.0
// The long run of the tree's property test, over seeds and model shapes.
//
// LARDER_PROPERTY_OPERATIONS: operations per shape of model (default 10,000; tools/nightly.sh: 40,000, which is more
// than a million for the 28 shapes, and 25 minutes of one core).
// LARDER_PROPERTY_SEED: the first seed (default 1000). A failure prints its seed and a shrunk list of operations.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tree/tree_property_check.h"

namespace larder::tree_test {
namespace {

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class TreePropertyLong : public testing::TestWithParam<PropertyConfig> {};

TEST_P(TreePropertyLong, AgreesWithTheNaiveModel) {
  const std::uint64_t seed = setting("LARDER_PROPERTY_SEED", 1000);
  const std::uint64_t operations = setting("LARDER_PROPERTY_OPERATIONS", 10'000);
  check_property(GetParam(), seed, operations / 2);
  if (HasFatalFailure()) return;
  check_property(GetParam(), seed, operations / 4, 5'000);  // long lives of one tree
  if (HasFatalFailure()) return;
  PropertyConfig deeper = GetParam();  // fewer forks, longer edges
  deeper.pages_max = 30;
  deeper.vocabulary = 2;
  check_property(deeper, seed, operations / 4, 1'000);
}

INSTANTIATE_TEST_SUITE_P(Shapes, TreePropertyLong, testing::ValuesIn(property_configs()),
                         [](const auto& named) { return named.param.name; });

}  // namespace
}  // namespace larder::tree_test
