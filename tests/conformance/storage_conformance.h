// SPDX-License-Identifier: Apache-2.0
// The suite that every storage backend passes: each check of storage/conformance, as a test of its own. A backend joins
// by one line in a conformance_<name>.cc:
//   INSTANTIATE_TEST_SUITE_P(Memory, StorageConformance, each_check({BackendUnderTest{...}}), test_name);
#pragma once

#include <string>
#include <vector>

#include "storage/conformance/checks.h"
#include "tests/conformance/storage_harness.h"

namespace larder::conformance {

struct CheckOfBackend {
  BackendUnderTest backend;
  const Check* check;
  friend void PrintTo(const CheckOfBackend& one, std::ostream* out) { *out << one.check->about; }
};

class StorageConformance : public testing::TestWithParam<CheckOfBackend> {};

inline auto each_check(const std::vector<BackendUnderTest>& backends) {
  std::vector<CheckOfBackend> out;
  for (const BackendUnderTest& backend : backends) {
    for (const Check& check : all_checks()) out.push_back({backend, &check});
  }
  return testing::ValuesIn(out);
}

inline std::string test_name(const testing::TestParamInfo<CheckOfBackend>& info) {
  return info.param.backend.name + "_" + info.param.check->name;
}

}  // namespace larder::conformance
