// SPDX-License-Identifier: Apache-2.0
// A short run of the property test; tests/model has the long one.
#include <gtest/gtest.h>

#include "tree/tree_property_check.h"

namespace larder::tree_test {
namespace {

TEST(TreeProperty, AgreesWithTheNaiveModel) {
  for (const PropertyConfig& config : property_configs()) {
    SCOPED_TRACE(config.name);
    check_property(config, 1, 800);
    if (HasFatalFailure()) return;
  }
}

// Its queues are not in the naive model; what may be evicted is, and check_invariants() says whether data waits in a
// queue above its worth.
TEST(TreeProperty, AgreesWithTheNaiveModelUnderValue) {
  std::uint64_t seed = 1;
  for (PropertyConfig config : property_configs()) {
    config.tree.policy = EvictionPolicy::kValue;
    SCOPED_TRACE(config.name + " under value");
    check_property(config, seed++, 800);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace larder::tree_test
