// SPDX-License-Identifier: Apache-2.0
#include "base/powers_of_two.h"

#include <gtest/gtest.h>

#include <cmath>

namespace larder {
namespace {

TEST(PowersOfTwo, AreThoseOfTheLibrary) {
  for (int exponent = -1022; exponent <= 1023; ++exponent) {
    ASSERT_EQ(two_to(exponent), std::ldexp(1.0, exponent));
    for (const double part : {1.0, 1.25, 1.9999999999999998}) {
      ASSERT_EQ(exponent_of(part * two_to(exponent)), std::ilogb(part * two_to(exponent))) << part << ", " << exponent;
    }
  }
}

}  // namespace
}  // namespace larder
